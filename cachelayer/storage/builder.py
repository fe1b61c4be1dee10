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

    def submit(
        self,
        source: Any,
        dataset_id: str,
        version: str,
        recipe: Recipe,
        options: BuildOptions,
        extension: Extension = NEW_RECORDS,
    ) -> DataRef[Any]:
        """Build a version and publish it, even if others build it too: an extension of another, if there is one."""
        request = self._request(source, dataset_id, version, recipe, options, extension)
        with _resuming(request) as resumed:
            return self.catalog.open(submit(resumed))

    def cache(
        self,
        source: Any,
        dataset_id: str,
        version: str,
        recipe: Callable[[], Recipe],
        options: BuildOptions,
        on_change: OnChange,
        hosts: tuple[int, int] | None,
    ) -> DataRef[Any]:
        """Return a version, built if it does not exist; see :meth:`Storage.cache`.

        Args:
            recipe: returns what it is built from; with ``on_change="ignore"`` this is not looked at.
        """
        log = Log(self.catalog.dataset(dataset_id))
        known = self.catalog.find(log, version) if on_change == "ignore" else None
        if known is not None:
            return known
        return self._compared(source, dataset_id, version, recipe(), options, on_change, hosts)

    def call(
        self,
        source: Any,
        dataset_id: str,
        version: str,
        recipe: Recipe,
        options: BuildOptions,
        on_change: OnChange,
        hosts: tuple[int, int] | None,
    ) -> DataRef[Any]:
        """Return the version of a call of a function, built if it does not exist; see :meth:`Storage.cacheable`."""
        if version == recipe.automatic_name:
            self._warn_of_varying_values(dataset_id, version, recipe)
        return self._compared(source, dataset_id, version, recipe, options, on_change, hosts)

    def _compared(
        self,
        source: Any,
        dataset_id: str,
        version: str,
        recipe: Recipe,
        options: BuildOptions,
        on_change: OnChange,
        hosts: tuple[int, int] | None,
    ) -> DataRef[Any]:
        """Return a version, built if it does not exist, else compared with the recipe."""
        ref, is_new = self.find_or_build(source, dataset_id, version, recipe, options, hosts)
        if not is_new:
            check_recipe(ref, recipe, on_change)
        warn_of_incomparable(ref, recipe, on_change)
        return ref

    def _warn_of_varying_values(self, dataset_id: str, version: str, recipe: Recipe) -> None:
        """Warn if a new version differs from the last one that was named by its recipe in a value alone."""
        head = Log(self.catalog.dataset(dataset_id)).head()
        automatic = [name for name in head.versions if name.startswith(f"{AUTO}-")]
        if version not in head.versions and automatic:
            last = StoredVersion(self.catalog.dataset(dataset_id), head.versions[automatic[-1]])
            warn_of_varying_values(f"{dataset_id}@{version}", recipe, last.name, last.manifest.provenance)

    def find_or_build(
        self,
        source: Any,
        dataset_id: str,
        version: str,
        recipe: Recipe,
        options: BuildOptions,
        hosts: tuple[int, int] | None,
        extension: Extension = NEW_RECORDS,
    ) -> tuple[DataRef[Any], bool]:
        """Return a version, and whether this call has built it. Of all who call this at once, one builds."""
        request = self._request(source, dataset_id, version, recipe, options, extension)
        checked = None if hosts is None else Hosts.checked(hosts)
        while (ref := self.catalog.find(request.log, version)) is None:
            try:
                with _resuming(request) as resumed:
                    built = build_once(resumed, checked)
            except AlreadyExistsError:
                if self.catalog.find(request.log, version) is None:
                    # The error is not about this version: the source itself raised it.
                    raise
            else:
                if built is not None:
                    return self.catalog.open(built), True
        return ref, False

    def _request(
        self,
        source: Any,
        dataset_id: str,
        version: str,
        recipe: Recipe,
        options: BuildOptions,
        extension: Extension,
    ) -> BuildRequest:
        log = Log(self.catalog.dataset(dataset_id))
        return BuildRequest(log, version, self.catalog.copies, source, recipe, options, extension)


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
