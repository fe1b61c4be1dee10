"""Make new versions in a catalog: build them, once among all who ask, or copy records of others into new shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args

from cachelayer.access.dataref import DataRef
from cachelayer.builds.as_source import sources_by_split
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.build_plan import BuildRequest
from cachelayer.builds.build_version import build_once, submit
from cachelayer.builds.extensions import NEW_RECORDS, Extension
from cachelayer.builds.part_builds import Hosts
from cachelayer.builds.recipe import Recipe
from cachelayer.builds.source_files import at_path
from cachelayer.errors import (
    AlreadyExistsError,
    ArgumentsMismatchError,
    CacheLayerWarning,
    InvalidArgumentError,
    StaleVersionError,
    StaleVersionWarning,
)
from cachelayer.objects import paths
from cachelayer.storage.catalog import Catalog
from cachelayer.user_warnings import warn
from cachelayer.versions.log import Log
from cachelayer.versions.reference import AUTO
from cachelayer.versions.stored_version import StoredVersion


@dataclass(frozen=True)
class Builder:
    """Makes new versions in a catalog."""

    catalog: Catalog

    def request(
        self,
        source: Any,
        dataset_id: str,
        version: str,
        recipe: Recipe,
        options: BuildOptions,
        extension: Extension = NEW_RECORDS,
    ) -> BuildRequest:
        """Return the request of a version in this catalog; see :class:`BuildRequest`."""
        log = Log(self.catalog.dataset(dataset_id))
        return BuildRequest(log, version, self.catalog.copies, source, recipe, options, extension)

    def submit(self, request: BuildRequest) -> DataRef[Any]:
        """Build a version and publish it, even if others build it too."""
        with _resuming(request) as resumed:
            return self.catalog.open(submit(resumed))

    def find_or_build(self, request: BuildRequest, hosts: tuple[int, int] | None) -> tuple[DataRef[Any], bool]:
        """Return a version, and whether this call has built it. Of all who call this at once, one builds."""
        checked = None if hosts is None else Hosts.checked(hosts)
        while (ref := self.catalog.find(request.log, request.version)) is None:
            try:
                with _resuming(request) as resumed:
                    built = build_once(resumed, checked)
            except AlreadyExistsError:
                if self.catalog.find(request.log, request.version) is None:
                    # The error is not about this version: the source itself raised it.
                    raise
            else:
                if built is not None:
                    return self.catalog.open(built), True
        return ref, False

    def compare_or_build(
        self, request: BuildRequest, on_change: OnChange, hosts: tuple[int, int] | None
    ) -> DataRef[Any]:
        """Return a version, built if it does not exist, else compared with the recipe of the request."""
        ref, is_new = self.find_or_build(request, hosts)
        if not is_new:
            check_recipe(ref, request.recipe, on_change)
        warn_of_incomparable(ref, request.recipe, on_change)
        return ref

    def warn_of_varying_values(self, request: BuildRequest) -> None:
        """Warn if a new version that its recipe names differs from the last one of this kind in a value alone."""
        if request.version != request.recipe.automatic_name:
            return
        head = request.log.head()
        automatic = [name for name in head.versions if name.startswith(f"{AUTO}-")]
        if request.version not in head.versions and automatic:
            last = StoredVersion(request.log.folder, head.versions[automatic[-1]])
            warn_of_varying_values(request.name, request.recipe, last.name, last.manifest.provenance)


@contextmanager
def _resuming(request: BuildRequest) -> Iterator[BuildRequest]:
    """Yield the request of a build that may go on after one that failed in this process."""
    try:
        yield replace(request, recipe=request.recipe.going_on(request.url))
    except BaseException:
        request.recipe.remember_failure(request.url)
        raise


def build_splits(source: Any, dataset_id: str, build: Callable[[Any, str], DataRef[Any]]) -> DataRef[Any]:
    """Build the versions of a source, which may be a path: one, or one for each of its splits.

    Args:
        source: the source.
        dataset_id: the dataset; that of a split is ``<dataset id>.<split>``.
        build: builds one, given its source and its dataset.

    Returns:
        The version, or a dict of versions by the names of splits. That is typed as one DataRef: no type tells which
        mappings are splits.
    """
    source = at_path(source)
    splits: Mapping[str, Any] | None = sources_by_split(source)
    if splits is None:
        return build(source, dataset_id)
    ids = {split: paths.check_name("dataset id", f"{dataset_id}.{split}") for split in splits}
    return cast(DataRef[Any], {split: build(splits[split], ids[split]) for split in splits})


OnChange = Literal["warn", "error", "ignore"]
ON_CHANGE: tuple[OnChange, ...] = get_args(OnChange)

_REMEDY = (
    'Choose another version name for the new records, for example by cacheable(..., "auto"), or pass '
    'on_change="ignore" to use this version'
)
_warned: set[tuple[str, str]] = set()
"""The warnings of this process: the reference of the version, and the text."""


def checked_on_change(on_change: Any) -> OnChange:
    """Return the argument if it is valid."""
    if on_change not in ON_CHANGE:
        raise InvalidArgumentError(f"on_change {on_change!r}: it must be one of {', '.join(map(repr, ON_CHANGE))}")
    return on_change  # type: ignore[no-any-return]


def check_recipe(ref: DataRef[Any], recipe: Recipe, on_change: OnChange) -> None:
    """Compare an existing version with the recipe that it would be built by now.

    Raises:
        ArgumentsMismatchError: if a function was called with other arguments.
        StaleVersionError: if anything else differs, with ``on_change="error"``.
    """
    built = ref.provenance
    # A version whose source were records of another has a base too, without its name.
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
        what = ", ".join(f"{how}: {'; '.join(phrases)}" for how, phrases in changes if phrases)
    if what and on_change == "error":
        raise StaleVersionError(f"{_name(ref)} was built {what}. {_REMEDY}")
    if what:
        _warn_once(ref, f"was built {what}. It is used as it is. {_REMEDY}", StaleVersionWarning)
    if recipe.identity.unread:
        _warn_once(ref, f"is used without comparing all of its source, because that failed: {recipe.identity.unread}")


def warn_of_incomparable(ref: DataRef[Any], recipe: Recipe, on_change: OnChange) -> None:
    """Warn, once in a process, of what makes a version and is not compared when it is asked for again."""
    if on_change == "ignore":
        return
    if recipe.not_compared:
        _warn_once(
            ref,
            f"is compared without this, so changes to it go unnoticed: {', '.join(recipe.not_compared)}. Make "
            "an object without comparable content inside the function, or pass plain values",
        )
    if recipe.identity.sampled_rows:
        _warn_once(
            ref,
            f"is compared by a sample of its source, {recipe.identity.sampled_rows}: changes to others go unnoticed",
        )


def warn_of_varying_values(name: str, recipe: Recipe, last: str, built: Mapping[str, Any]) -> None:
    """Warn if a version that is named by its recipe is new although code, arguments and options are those of the last.

    Args:
        name: the version that is going to be built.
        recipe: its recipe.
        last: the version that was built last.
        built: its provenance.
    """
    varying = recipe.varying_values(built)
    if varying:
        warn(
            f"{name} is built although {last} has the same code and arguments: {'; '.join(varying)}. What differs in "
            "each run, such as a uuid or a time, makes a new version in each run: make it inside the function, or name "
            "the version"
        )


def _warn_once(ref: DataRef[Any], text: str, category: type[CacheLayerWarning] = CacheLayerWarning) -> None:
    if (ref.reference, text) not in _warned:
        _warned.add((ref.reference, text))
        warn(f"{_name(ref)} {text}", category)


def _name(ref: DataRef[Any]) -> str:
    return f"{ref.dataset_id}@{ref.dataset_version}"
