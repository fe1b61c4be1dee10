"""Find and open the versions of the datasets in a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cachelayer.arrayrecord.local_shards import Verify
from cachelayer.datasets.dataset_view import DatasetView
from cachelayer.datasets.table import Table
from cachelayer.datasets.version_records import VersionRecords
from cachelayer.errors import (
    CacheLayerError,
    CorruptionError,
    DatasetNotFoundError,
    DigestMismatchError,
    FormatError,
    InvalidArgumentError,
    InvalidNameError,
    StorageError,
    VersionNotFoundError,
)
from cachelayer.objects import paths
from cachelayer.objects.open_store import open_store
from cachelayer.objects.store import Store
from cachelayer.support.arguments import did_you_mean
from cachelayer.versions.log import Log
from cachelayer.versions.reference import Reference, Want
from cachelayer.versions.snapshot import Snapshot
from cachelayer.versions.stored_version import StoredVersion
from cachelayer.versions.view_calls import ViewName
from cachelayer.views.dataref import DataRef
from cachelayer.views.view import View

if TYPE_CHECKING:
    from cachelayer.objects.local_cache import CacheFolder

_THREADS = 16


@dataclass
class Catalog:
    """The versions of the datasets in a store."""

    store: Store
    copies: CacheFolder | None
    """Keeps local copies of the shards, if the store is remote; None for no copies."""
    verify: Verify
    """What is checked when records are read."""

    def parse(self, named: Any, version: Any = None, want: Want = "view", argument: str = "version") -> Reference:
        """Return what a user names in this storage, by a text or a DataRef; see :meth:`Reference.parse`."""
        if isinstance(named, View):
            named = named.reference
            # Any version of a dataset stands for it.
            want = "any" if want == "dataset" else want
        reference = Reference.parse(named, version, want, argument)
        if reference.url and open_store(reference.url).url != self.store.url:
            name = reference.dataset_id + (f"@{reference.name}" if reference.name else "")
            raise InvalidArgumentError(
                f"{name!r} lies in another storage than {self.store.url}: cachelayer.open() opens it"
            )
        return reference

    def parse_before(
        self, named: Any, version: Any, *following: Any, want: Want = "version", argument: str = "version"
    ) -> tuple[Reference, list[Any]]:
        """Return what a user names as a pair, or by a text or a DataRef, and the arguments that follow it."""
        version, arguments = self.moved_up(named, version, *following)
        return self.parse(named, version, want, argument), arguments

    @staticmethod
    def moved_up(named: Any, version: Any, *following: Any) -> tuple[Any, list[Any]]:
        """Return the version and the arguments that follow it, which take its place if the first argument stands alone.

        ``tag("d@v1", "best")`` is ``tag("d", "v1", "best")``.
        """
        arguments = list(following)
        missing = [place for place, each in enumerate(arguments) if each is None]
        is_alone = isinstance(named, View)
        if isinstance(named, str):
            reference = Reference.parse(named, want="any")
            is_alone = bool(reference.name or reference.url)
        if version is None or not missing or not is_alone:
            return version, arguments
        arguments.insert(0, version)
        del arguments[missing[0] + 1]
        return None, arguments

    def sibling(self, dataset_id: Any, text: Any, want: Want, argument: str) -> Reference:
        """Return the reference of a text: a version of this dataset, or of the dataset that the text names."""
        if isinstance(text, str) and "@" in text:
            return self.parse(text, None, want, argument)
        if dataset_id is None:
            raise InvalidNameError(f"{argument} {text!r} names no dataset: write '<dataset id>@{text}'")
        return self.parse(dataset_id, text, want, argument)

    def dataset(self, dataset_id: str) -> Store:
        """Return the folder of a dataset, whether or not it exists."""
        return self.store.folder(paths.check_name("dataset id", dataset_id))

    def head(self, log: Log) -> Snapshot:
        """Return the newest snapshot in a log."""
        snapshot = log.head()
        if snapshot.sequence == 0:
            # Folders that may be no datasets are named too: to look into each would take requests.
            dataset_id = log.folder.name
            known = [name for name in self._names() if name != dataset_id]
            hint = did_you_mean(dataset_id, known)
            existing = f"there are {', '.join(known[:10])}" if known else "it has no datasets"
            if known and not hint:
                existing += f"; a version of one is written {f'{known[0]}@{dataset_id}'!r}"
            folder = self.store.local_path("")
            if folder is not None and not folder.exists():
                existing = "there is no such folder: was it moved, or is its disk not mounted?"
            raise DatasetNotFoundError(f"no dataset {dataset_id!r} in {self.store.url}: {hint}{existing}")
        return snapshot

    def snapshot(self, dataset_id: str) -> Snapshot:
        """Return the newest snapshot of a dataset; see :meth:`head`."""
        return self.head(Log(self.dataset(dataset_id)))

    def commit(self, dataset_id: str, prepare: Callable[[Snapshot], Snapshot], *, frees: bool = False) -> None:
        """Change a dataset that exists; see :meth:`Log.commit`."""
        log = Log(self.dataset(dataset_id))
        self.head(log)
        log.commit(prepare, frees=frees)

    def find(self, log: Log, version: str) -> DataRef[Any] | None:
        """Return a version by its name or tag; None if there is none."""
        head = log.head()
        info = head.versions.get(head.tags.get(version, version))
        try:
            return None if info is None else self.open(StoredVersion(log.folder, info))
        except VersionNotFoundError:
            return None

    def resolve(self, reference: Reference, log: Log | None = None) -> StoredVersion:
        """Return the version that a reference names, without opening it: it may be damaged.

        A log of the dataset that is used later is read once.
        """
        log = log or Log(self.store.folder(reference.dataset_id))
        return StoredVersion(log.folder, reference.resolve(self.head(log)))

    def same_as(self, version: StoredVersion) -> StoredVersion:
        """Return the version here, of the same dataset, that has the same records as one in another storage."""
        log = Log(self.dataset(version.dataset_id))
        versions = self.head(log).versions
        same = [info for info in versions.values() if info.digest == version.info.digest]
        if not same:
            known = ", ".join(f"{info.version} (sha256:{info.digest[:12]})" for info in versions.values())
            raise DigestMismatchError(
                f"{log.folder.url} has no version with digest sha256:{version.info.digest[:12]}, which {version.name} "
                f"has: there are {known or 'none'}. Nothing is repaired"
            )
        # Several versions may have the same records. One with the same name may have the same manifest too.
        same_name = [info for info in same if info.version == version.info.version]
        return StoredVersion(log.folder, same_name[0] if same_name else same[-1])

    def open(self, version: StoredVersion) -> DataRef[Any]:
        """Return the DataRef of a version."""
        with version.reporting_deletion():
            # This reads the manifest, so that a damaged version raises here and not in the first batch.
            records = VersionRecords(version, self.verify, self.copies)
            if version.manifest.erased:
                records.local_copies  # noqa: B018 - to look at them removes the copies of erased records
            columns = [replace(records, group=number) for number in range(len(version.manifest.columns))]
            name = ViewName(version.reference, version.manifest.records)
            return DataRef(DatasetView(Table.of(records, columns), version.selection, name=name))

    def datasets(self) -> dict[str, Snapshot | CacheLayerError]:
        """Return the newest snapshot of each dataset that has a version, by id, or the error that reading it raises.

        All are read at once, each once; see :meth:`Storage.datasets`.
        """
        from cachelayer.support.system_threads import Pool
        from cachelayer.support.user_warnings import warn

        names = self._names()
        with Pool(_THREADS, "cachelayer-datasets") as threads:
            heads = dict(zip(names, threads.map(self._head_or_error, names), strict=True))
        failed = {name: error for name, error in heads.items() if isinstance(error, StorageError)}
        # A folder that this user may not read need not be a dataset.
        refused = {name for name, error in failed.items() if isinstance(error.__cause__, PermissionError)}
        listed = {
            name: head
            for name, head in heads.items()
            if name not in refused and not (isinstance(head, Snapshot) and not head.versions)
        }
        if failed.keys() - refused and listed.keys() <= failed.keys():
            raise next(error for name, error in failed.items() if name not in refused)
        for name, error in failed.items():
            warn(f"{name} cannot be read: {error}", logger="log")
        return listed

    def _head_or_error(self, dataset_id: str) -> Snapshot | CacheLayerError:
        try:
            return Log(self.store.folder(dataset_id)).head()
        except (CorruptionError, FormatError, StorageError) as error:
            return error

    def _names(self) -> list[str]:
        """Return the folders that have the name of a dataset, sorted."""
        return [name for name in self.store.names("") if paths.is_dataset_id(name)]
