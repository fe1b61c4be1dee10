"""Versions that are there already, though they were built from something else than what is passed now."""

from __future__ import annotations

import socket
from typing import Any, Literal, get_args

from cachelayer.access.dataref import DataRef
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.source_facts import SourceFacts, option_changes
from cachelayer.builds.source_identity import local_identity
from cachelayer.errors import (
    ArgumentsMismatchError,
    CacheLayerError,
    CacheLayerWarning,
    InvalidArgumentError,
    StaleVersionError,
    StaleVersionWarning,
)
from cachelayer.locks import ProcessLock
from cachelayer.provenance.origin import Origin
from cachelayer.provenance.secrecy import hidden_values
from cachelayer.user_warnings import warn
from cachelayer.versions.build_plan import differences

OnChange = Literal["warn", "error", "ignore"]
ON_CHANGE: tuple[OnChange, ...] = get_args(OnChange)

_lock = ProcessLock()
_said: set[tuple[str, str]] = set()
"""What was said in this process, of which version."""


def checked_on_change(on_change: Any) -> OnChange:
    """Return what a user wants to happen when a version is there that was built from something else.

    Raises:
        InvalidArgumentError: if it is nothing that can happen.
    """
    if on_change not in ON_CHANGE:
        raise InvalidArgumentError(f"on_change {on_change!r}: it is one of {', '.join(map(repr, ON_CHANGE))}")
    return on_change  # type: ignore[no-any-return]


def check_source(ref: DataRef[Any], origin: Origin, options: BuildOptions, on_change: OnChange) -> None:
    """Compare a version with the source that it would be built from now, as far as both are known at little cost.

    No function is called, and nothing is iterated. What an earlier release did not record is not compared, nor is a
    version that was made of another one.

    Raises:
        ArgumentsMismatchError: if a function was called with other arguments than those that built it.
        StaleVersionError: if something else is different, and it is to be an error.

    Warns:
        StaleVersionWarning: once in a process, if something else is different.
    """
    built = ref.provenance
    if "base" in built:
        return
    name = f"{ref.dataset_id}@{ref.dataset_version}"
    arguments = origin.argument_changes(built)
    if arguments:
        raise ArgumentsMismatchError(
            f"{name} was built with other arguments: {'; '.join(arguments)}. Give other arguments another version"
        )
    if on_change == "ignore":
        return
    found = [
        ("by other code", origin.code_changes(built)),
        ("with other options", option_changes(built, options)),
        ("from another source", [*origin.value_changes(built), *_source_changes(ref, origin, options)]),
    ]
    if not any(changes for _, changes in found):
        return
    what = ", ".join(f"{how}: {'; '.join(changes)}" for how, changes in found if changes)
    if on_change == "error":
        raise StaleVersionError(f"{name} was built {what}. {_REMEDY}")
    _once(ref, f"{name} was built {what}. It is used as it is. {_REMEDY}", StaleVersionWarning)


_REMEDY = (
    'Give what is made now another version, such as one that cacheable(..., "auto") names, or pass on_change="ignore" '
    "if it is meant"
)


def _source_changes(ref: DataRef[Any], origin: Origin, options: BuildOptions) -> list[str]:
    built = ref.provenance
    try:
        facts = SourceFacts.of(origin.source, options)
        return [
            *_identity_changes(built, origin),
            *facts.changes(built, ref._base.version.manifest.element_spec, options),
        ]
    except CacheLayerError as error:
        _once(
            ref,
            f"{ref.dataset_id}@{ref.dataset_version} is used without comparing all of its source, which fails: {error}",
            CacheLayerWarning,
        )
        return []


def _identity_changes(built: dict[str, Any], origin: Origin) -> list[str]:
    before, now = built.get("identity"), local_identity(origin.source)
    if not isinstance(before, dict) or not now:
        return []
    if built.get("host") != socket.gethostname():
        # A copy of the files there has other times.
        now.pop("files_modified", None)
    known = {name: value for name, value in now.items() if name in before}
    return differences({name: before[name] for name in known}, hidden_values(known, built.get("salt")))


def _once(ref: DataRef[Any], text: str, category: type[CacheLayerWarning]) -> None:
    with _lock:
        is_new = (ref.reference, text) not in _said
        _said.add((ref.reference, text))
    if is_new:
        warn(text, category)
