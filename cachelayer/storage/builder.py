"""Make new versions in a catalog: build them, once among all who ask, or copy records of others into new shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from cachelayer.access.dataref import DataRef
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.build_version import VersionBuild
from cachelayer.builds.extensions import Extension
from cachelayer.builds.sharded_source import Sharded
from cachelayer.builds.shared_build import Hosts
from cachelayer.builds.source import sources_by_split
from cachelayer.builds.source_files import at_path
from cachelayer.errors import AlreadyExistsError
from cachelayer.objects import paths
from cachelayer.provenance.origin import Origin
from cachelayer.storage.catalog import Catalog
from cachelayer.storage.staleness import OnChange, check_source, warn_of_incomparable
from cachelayer.versions.log import Log


@dataclass(frozen=True)
class Builder:
    """Makes new versions in a catalog."""

    catalog: Catalog

    def submit(
        self,
        source: Any,
        dataset_id: str,
        version: str,
        record: Iterable[str],
        options: BuildOptions,
        extension: Extension | None = None,
        origin: Origin | None = None,
    ) -> DataRef[Any]:
        """Build a version and publish it, even if others build it too: an extension of another, if there is one."""
        log, origin = Log(self.catalog.store, dataset_id), origin_of(source, record) if origin is None else origin
        build = VersionBuild(log, self.catalog.copies, version, source, origin, options, extension)
        return self.catalog.ref(build.submit())

    def cache(
        self,
        source: Any,
        dataset_id: str,
        version: str,
        origin: Origin,
        options: BuildOptions,
        on_change: OnChange,
        hosts: tuple[int, int] | None,
    ) -> DataRef[Any]:
        """Return a version, built if it does not exist; see :meth:`Storage.cache`."""
        ref, is_new = self.find_or_build(source, dataset_id, version, origin, options, hosts)
        if not is_new:
            check_source(ref, origin, options, on_change)
        warn_of_incomparable(ref, origin, on_change)
        return ref

    def find_or_build(
        self,
        source: Any,
        dataset_id: str,
        version: str,
        origin: Origin,
        options: BuildOptions,
        hosts: tuple[int, int] | None,
        extension: Extension | None = None,
    ) -> tuple[DataRef[Any], bool]:
        """Return a version, and whether this call has built it. Of all who call this at once, one builds."""
        log, checked = Log(self.catalog.store, dataset_id), None if hosts is None else Hosts.checked(hosts)
        while (ref := self.catalog.find(log, version)) is None:
            build = VersionBuild(log, self.catalog.copies, version, source, origin, options, extension)
            try:
                built = build.build(checked)
            except AlreadyExistsError:
                if self.catalog.find(log, version) is None:
                    # The error is not about this version: the source itself raised it.
                    raise
            else:
                if built is not None:
                    return self.catalog.ref(built), True
        return ref, False


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


def origin_of(source: Any, record: Iterable[str]) -> Origin:
    """Return the origin of a source: the code, arguments and files that it comes from, as far as they are known."""
    return Origin.of(source.function if isinstance(source, Sharded) else source, record)
