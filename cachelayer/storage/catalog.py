"""Find, open, tag, compare, verify and delete the versions of the datasets in a store."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, overload

from cachelayer.access.dataref import DataRef
from cachelayer.access.record_elements import RecordElements
from cachelayer.access.version_records import VersionRecords
from cachelayer.arguments import boolean, required
from cachelayer.arrayrecord.local_shards import Verify
from cachelayer.errors import (
    CorruptionError,
    DatasetNotFoundError,
    FormatError,
    InvalidArgumentError,
    InvalidNameError,
    StorageError,
    VersionNotFoundError,
)
from cachelayer.objects import paths
from cachelayer.objects.local_cache import CacheFolder
from cachelayer.objects.open_store import open_store
from cachelayer.objects.store import ObjectStore
from cachelayer.provenance.environment import event
from cachelayer.system_threads import Pool
from cachelayer.user_warnings import warn
from cachelayer.versions import gc
from cachelayer.versions.diff import Diff
from cachelayer.versions.log import Log, LogEvent, has_log, history
from cachelayer.versions.reference import Reference, dataset_and_plain_version, split_url
from cachelayer.versions.snapshot import Snapshot, VersionInfo
from cachelayer.versions.stored_version import StoredVersion
from cachelayer.versions.unfinished import UnpublishedBuild, unpublished
from cachelayer.versions.verify import VerifyReport, check

_THREADS = 16


class Catalog:
    """The versions of the datasets in a store.

    Args:
        store: the store that holds them.
        copies: the local cache for shards of remote stores; None to make no local copies.
        verify: what to check when records are read.
    """

    def __init__(self, store: ObjectStore, copies: CacheFolder | None, verify: Verify) -> None:
        self._store = store
        self._copies = copies
        self._verify: Verify = verify

    @property
    def url(self) -> str:
        """The URL of the store."""
        return self._store.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def fetch(self, dataset_id: str, version: str | None = None) -> DataRef[Any]:
        """Open a published version.

        Args:
            dataset_id: the dataset, or the dataset and its version in one text, such as ``"cifar10@v2"``. Every call
                that takes both accepts such a text; pass the arguments that follow the version by keyword then. A
                whole reference, as ``ref.reference`` gives it, is accepted if it is one of this storage.
            version: a version, a tag, ``"latest"`` (the newest published version, the default) or
                ``"sha256:<digest prefix>"``.

        Raises:
            DatasetNotFoundError, VersionNotFoundError: if there is none; the message names what exists.
            CorruptionError: if the version has another digest than the one in the reference.
        """
        return self._fetch(Reference.parse(self._without_url(dataset_id), version))

    def _without_url(self, text: str) -> str:
        """Return a reference that begins with the URL of this storage without that URL; any other text as it is.

        Raises:
            InvalidArgumentError: if it begins with the URL of another storage.
        """
        url, dataset_id, version = split_url(text) if isinstance(text, str) else ("", "", "")
        if not url or not version:
            return text
        if open_store(url).url != self.url:
            raise InvalidArgumentError(f"{text!r} lies in another storage than {self.url}: cachelayer.open() opens it")
        return f"{dataset_id}@{version}"

    def _fetch(self, reference: Reference) -> DataRef[Any]:
        snapshot = self._snapshot(reference.dataset_id)
        return self._open(reference.dataset_id, reference.resolve(snapshot))

    def _find(self, log: Log, version: str) -> DataRef[Any] | None:
        head = log.head()
        info = head.versions.get(head.tags.get(version, version))
        try:
            return None if info is None else self._open(log.dataset_id, info)
        except VersionNotFoundError:
            return None

    def _open(self, dataset_id: str, info: VersionInfo) -> DataRef[Any]:
        return self._ref(StoredVersion(self._store, dataset_id, info))

    def _ref(self, version: StoredVersion) -> DataRef[Any]:
        """Return the DataRef of a version."""
        with version.reporting_deletion():
            # Read the manifest now, so that a damaged version raises here and not in the first batch.
            records = VersionRecords(version, self._verify, self._copies)
            return DataRef(RecordElements(records), version.kept)

    def _snapshot(self, dataset_id: str) -> Snapshot:
        """Return the newest snapshot of a dataset; raise if there is no such dataset."""
        return self._snapshot_of(Log(self._store, dataset_id))

    def _snapshot_of(self, log: Log) -> Snapshot:
        """Return the newest snapshot in a log; raise if its dataset does not exist."""
        dataset_id, snapshot = log.dataset_id, log.head()
        if snapshot.sequence == 0:
            known = self._probable_datasets()
            near = get_close_matches(dataset_id, known, 3)
            hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
            shown = f"there are {', '.join(known[:10])}" if known else "it has no datasets"
            raise DatasetNotFoundError(f"no dataset {dataset_id!r} in {self.url}: {hint}{shown}")
        return snapshot

    def datasets(self) -> list[str]:
        """Return the ids of the datasets that have a version, sorted.

        A dataset that cannot be read is listed too, with a warning that names it: opening it says what is wrong.

        Raises:
            StorageError: if the store fails, or none of its datasets can be read.
        """
        found = self._folders()
        failed = {name: error for name, error in found.items() if isinstance(error, StorageError)}
        if failed and True not in found.values():
            raise next(iter(failed.values()))
        for name, error in failed.items():
            warn(f"{name} cannot be read: {error}")
        return [name for name, is_one in found.items() if is_one]

    def _probable_datasets(self) -> list[str]:
        """Return what :meth:`datasets` does, to suggest one: the failure of another dataset is no concern here."""
        return [name for name, is_one in self._folders().items() if is_one]

    def _folders(self) -> dict[str, bool | StorageError]:
        """Return the folders that may be datasets, sorted; see :meth:`_has_versions`."""
        names = [name for name in self._store.names("") if paths.is_dataset_id(name)]
        with Pool(_THREADS, "cachelayer-datasets") as threads:
            return dict(zip(names, threads.map(self._has_versions, names), strict=True))

    def _has_versions(self, dataset_id: str) -> bool | StorageError:
        """Return whether a folder is a dataset with versions, or why that cannot be told."""
        try:
            return has_log(self._store, dataset_id) and bool(Log(self._store, dataset_id).head().versions)
        except (CorruptionError, FormatError):
            # List a damaged dataset: opening it says what is wrong.
            return True
        except StorageError as error:
            return error

    def versions(self, dataset_id: str) -> dict[str, VersionInfo]:
        """Return the versions of a dataset by name, in the order of their publication.

        Raises:
            DatasetNotFoundError: if there is no such dataset.
        """
        paths.check_name("dataset id", dataset_id)
        return dict(self._snapshot(dataset_id).versions)

    def history(self, dataset_id: str) -> list[LogEvent]:
        """Return who published, tagged, deleted or copied what, and when: an event for each change, the oldest first.

        Raises:
            DatasetNotFoundError: if there is no such dataset.
            CorruptionError: if an entry of its log is missing or damaged.
        """
        paths.check_name("dataset id", dataset_id)
        return history(self._store, dataset_id, self._snapshot(dataset_id).sequence)

    def builds(self, dataset_id: str) -> list[UnpublishedBuild]:
        """Return the builds of a dataset that are running or were interrupted, the oldest first.

        This waits for nothing and writes nothing. So it may not know whether a build in an object store still runs.

        Raises:
            DatasetNotFoundError: if there is no such dataset, and no build of it.
        """
        paths.check_name("dataset id", dataset_id)
        found = unpublished(self._store, dataset_id)
        if not found:
            self._snapshot(dataset_id)
        return found

    def tags(self, dataset_id: str) -> dict[str, str]:
        """Return the version that each tag of a dataset names.

        Raises:
            DatasetNotFoundError: if there is no such dataset.
        """
        paths.check_name("dataset id", dataset_id)
        return dict(self._snapshot(dataset_id).tags)

    @overload
    def tag(self, dataset_id: str, version: str, tag: str) -> None: ...
    @overload
    def tag(self, dataset_id: str, version: None = None, *, tag: str) -> None: ...
    def tag(self, dataset_id: str, version: str | None = None, tag: str | None = None) -> None:
        """Tag a version. A tag that named another version is moved.

        Args:
            dataset_id, version: the version, such as ``"cifar10@v2"``; another tag is not accepted.
            tag: the tag.

        Raises:
            VersionNotFoundError: if there is no such version.
            AlreadyExistsError: if a version has the name of the tag.
        """
        dataset_id, name = dataset_and_plain_version(dataset_id, version)
        chosen = paths.check_name("tag", required("tag", tag, InvalidNameError))
        log = self._log_of(dataset_id)
        for head in log.heads():
            if name not in head.versions:
                raise _no_version(dataset_id, name, head)
            if log.append(head.with_tag(name, chosen, event("tag", tag=chosen))):
                break

    def untag(self, dataset_id: str, tag: str | None = None) -> None:
        """Remove a tag. The version that it names stays.

        Args:
            dataset_id, tag: the tag, such as ``"cifar10@best"``.

        Raises:
            VersionNotFoundError: if there is no such tag.
        """
        dataset_id, name = dataset_and_plain_version(dataset_id, tag, "tag")
        log = self._log_of(dataset_id)
        for head in log.heads():
            if log.append(head.without_tag(name, event("untag", tag=name))):
                break

    def delete(
        self, dataset_id: str, version: str | None = None, *, force: bool = False, grace: float = gc.GRACE_SECONDS
    ) -> None:
        """Delete a version: it cannot be opened any more, but programs that have it open can read on for the grace.

        :meth:`gc` frees the disk space after the grace. With ``grace=0`` this call frees it at once, also for a version
        that was deleted before. Files that another version needs stay.

        Args:
            dataset_id, version: the version, such as ``"cifar10@v2"``; a tag is not accepted.
            force: delete the tags of the version too.
            grace: for how many seconds the files stay, for programs that read them; a day by default.

        Raises:
            VersionNotFoundError: if there is no such version, and no deleted one of this name that has a longer grace.
            InvalidArgumentError: if a tag names it and ``force`` is False, or if the grace is not a number of seconds.
        """
        dataset_id, name = dataset_and_plain_version(dataset_id, version)
        grace = gc.checked_grace(grace)
        log = self._log_of(dataset_id)
        for head in log.heads():
            deleted = (each for each in head.deleted if each.info.version == name)
            if name not in head.versions and not any(each.grace > grace for each in deleted):
                raise _no_version(dataset_id, name, head)
            change = event("delete", version=name)
            if log.append(head.without_version(name, change, force=force, grace=grace)):
                break
        if grace == 0:
            gc.collect_deleted(self._store, dataset_id)

    def _log_of(self, dataset_id: str) -> Log:
        """Return the log of a dataset; raise if there is no such dataset."""
        log = Log(self._store, dataset_id)
        self._snapshot_of(log)
        return log

    def verify(self, dataset_id: str, version: str | None = None, *, progress: bool | None = None) -> VerifyReport:
        """Read every record of a version and check it against every checksum.

        Args:
            dataset_id, version: as in :meth:`fetch`.
            progress: as in :meth:`submit`.

        Returns:
            A report that is true if there is no problem, and names each problem with its file.

        Raises:
            NotFoundError: if there is no such version.
        """
        reference = Reference.parse(dataset_id, version)
        info = reference.resolve(self._snapshot(reference.dataset_id))
        return check(StoredVersion(self._store, reference.dataset_id, info), progress=progress)

    @overload
    def diff(self, dataset_id: str, version: str | None, other: str) -> Diff: ...
    @overload
    def diff(self, dataset_id: str, version: str | None = None, *, other: str) -> Diff: ...
    def diff(self, dataset_id: str, version: str | None = None, other: str | None = None) -> Diff:
        """Return how two versions differ. :meth:`DataRef.diff` compares versions of two storages.

        Args:
            dataset_id, version: as in :meth:`fetch`.
            other: a version of the same dataset, or of another dataset as ``"<dataset id>@<version>"``.

        Raises:
            NotFoundError: if there is no such version.
        """
        one = Reference.parse(dataset_id, version)
        return self._fetch(one).diff(self._fetch(one.beside(required("other", other))))

    def gc(self, grace: float = gc.GRACE_SECONDS, *, dry_run: bool = False, progress: bool | None = None) -> list[str]:
        """Delete what failed or killed builds left behind, and the files that only deleted versions need.

        The files of a deleted version stay for the grace that was passed to :meth:`delete`, whatever the grace here:
        programs may be reading them. To free them sooner, delete the version again with ``grace=0``.

        Args:
            grace: delete a build attempt only if it has not changed for this many seconds. The attempt of a running
                build is never deleted.
            dry_run: delete and write nothing; only return what would be deleted. Ages are then those by the clock of
                this host.
            progress: as in :meth:`submit`.

        Returns:
            The deleted attempts, as ``<dataset id>/<attempt>``.
        """
        checked = gc.checked_grace(grace)
        return gc.collect_all(self._store, grace=checked, dry_run=boolean("dry_run", dry_run), progress=progress)


def _no_version(dataset_id: str, version: str, head: Snapshot) -> VersionNotFoundError:
    """Return the error for a tag that was passed instead of a version.

    Raises:
        VersionNotFoundError: if there is no such tag either; the message names what exists.
    """
    Reference(dataset_id, version).resolve(head)
    return VersionNotFoundError(f"{dataset_id}: {version!r} is a tag: name the version itself")
