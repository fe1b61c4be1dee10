"""Make new versions in a catalog: build them, once among all who ask, or copy records of others into new shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

from cachelayer.access.dataref import DataRef
from cachelayer.builds.as_source import sources_by_split
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.build_plan import BuildRequest
from cachelayer.builds.build_version import build_once, submit
from cachelayer.builds.extensions import NEW_RECORDS, Extension
from cachelayer.builds.part_builds import Hosts
from cachelayer.builds.recipe import Recipe
from cachelayer.builds.source_files import at_path
from cachelayer.errors import AlreadyExistsError
from cachelayer.objects import paths
from cachelayer.storage.catalog import Catalog
from cachelayer.storage.staleness import OnChange, check_recipe, warn_of_incomparable, warn_of_varying_values
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
        request.recipe.note_failure(request.url)
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
