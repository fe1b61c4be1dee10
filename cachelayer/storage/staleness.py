"""Compare a version that exists with the recipe that it would be built by now, and say what differs.

::

    the version was built with other arguments of a decorated function    always an error
    other code, values, options, arguments, files or elements             on_change: a warning, an error, or nothing
    a part that cannot be compared, or only by a sample                   a warning, once a process
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from cachelayer.builds.build_plan import BuildRequest
from cachelayer.builds.recipe import Recipe
from cachelayer.errors import (
    AlreadyExistsError,
    ArgumentsMismatchError,
    CacheLayerWarning,
    InvalidArgumentError,
    StaleVersionError,
    StaleVersionWarning,
)
from cachelayer.provenance.account import SOURCE
from cachelayer.support.user_warnings import warn
from cachelayer.versions.reference import AUTO
from cachelayer.versions.stored_version import StoredVersion
from cachelayer.views.dataref import DataRef

OnChange = Literal["warn", "error", "ignore"]
ON_CHANGE: tuple[OnChange, ...] = get_args(OnChange)

_REMEDY = (
    'Choose another version name for the new records, for example by cacheable(..., "auto"), or pass '
    'on_change="ignore" to use this version'
)
_warned: set[tuple[str, str]] = set()
"""The warnings that this process has given: the reference of the version, and the text."""


def checked_on_change(on_change: Any) -> OnChange:
    """Return the argument ``on_change`` if it is valid."""
    if on_change not in ON_CHANGE:
        raise InvalidArgumentError(f"on_change {on_change!r}: it must be one of {', '.join(map(repr, ON_CHANGE))}")
    return on_change  # type: ignore[no-any-return]


def check_recipe(ref: DataRef[Any], recipe: Recipe, on_change: OnChange) -> None:
    """Compare an existing version with the recipe that it would be built by now."""
    built = ref.provenance
    # The version was appended to a base, or made from it. A version whose source was a ref has a base without a name.
    base = (built.get("base") or {}).get("version")
    arguments = recipe.argument_changes(built) if base is None else []
    if arguments and recipe.is_call:
        raise ArgumentsMismatchError(
            f"{_name(ref)} was built with other arguments: {'; '.join(arguments)}. "
            "Choose another version name for other arguments"
        )
    if on_change == "ignore":
        return
    if base is not None:
        what = f"from the version {base}, not from a source"
    else:
        changes = recipe.changes(built).items()
        what = ", ".join(f"{group}: {'; '.join(phrases)}" for group, phrases in changes if phrases)
    if what and on_change == "error":
        raise StaleVersionError(f"{_name(ref)} was built {what}. {_REMEDY}")
    if what:
        _warn_once(ref, f"was built {what}. It is used as it is. {_REMEDY}", StaleVersionWarning)
    if recipe.identity.unread:
        _warn_once(ref, f"is used without comparing all of its source, because that failed: {recipe.identity.unread}")


def warn_of_incomparable(ref: DataRef[Any], recipe: Recipe, on_change: OnChange) -> None:
    """Warn, once a process, of the parts of a recipe that are not compared, or only by a sample."""
    if on_change == "ignore":
        return
    # Of many sources of libraries nothing but the length is known, which docs and provenance say.
    unseen = [each for each in recipe.account.not_compared if not each.startswith(SOURCE)]
    if unseen:
        _warn_once(
            ref,
            f"is compared without this, so changes to it go unnoticed: {', '.join(unseen)}. Make "
            "an object without comparable content inside the function, or pass plain values",
        )
    if recipe.identity.sampled_rows:
        _warn_once(
            ref,
            f"is compared by a sample of its source, {recipe.identity.sampled_rows}: changes to others go unnoticed",
        )


def warn_of_varying_values(request: BuildRequest) -> None:
    """Warn if an ``"auto"`` version is new although it has the code and arguments of the last ``"auto"`` version."""
    if request.version != request.recipe.automatic_name:
        return
    head = request.log.head()
    automatic = [name for name in head.versions if name.startswith(f"{AUTO}-")]
    if request.version in head.versions or not automatic:
        return
    last = StoredVersion(request.log.folder, head.versions[automatic[-1]])
    varying = request.recipe.varying_values(last.manifest.provenance)
    if varying:
        warn(
            f"{request.name} is built although {last.name} has the same code and arguments: {'; '.join(varying)}. What "
            "differs in each run, such as a uuid or a time, makes a new version in each run: make it inside the "
            "function, or name the version"
        )


def refuse_other(ref: DataRef[Any], version: str, digest: str, differ: Sequence[str]) -> None:
    """Raise if what exists under the name of a version is a tag, or was made of another base, or differs otherwise.

    ``digest`` is that of the base.
    """
    if ref.dataset_version != version:
        raise AlreadyExistsError(f"{ref.dataset_id}@{version} is a tag already: choose another version")
    base = ref.provenance.get("base") or {}
    if base and base["digest"] != digest:
        differ = [f"it was made of {base['version']}, sha256:{base['digest'][:12]}", *differ]
    if differ:
        raise AlreadyExistsError(f"{_name(ref)} is published already: {'; '.join(differ)}. Choose another version")


def _warn_once(ref: DataRef[Any], text: str, category: type[CacheLayerWarning] = CacheLayerWarning) -> None:
    # The reference of a version that is being built has no digest yet.
    key = (str(ref._readable.name), text)
    if key not in _warned:
        _warned.add(key)
        warn(f"{_name(ref)} {text}", category)


def _name(ref: DataRef[Any]) -> str:
    return f"{ref.dataset_id}@{ref.dataset_version}"
