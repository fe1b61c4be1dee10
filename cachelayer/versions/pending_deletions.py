"""Deleted versions whose files are not deleted yet, and when gc frees how many bytes of them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from cachelayer.errors import CorruptionError, FormatError, VersionNotFoundError
from cachelayer.objects import paths
from cachelayer.objects.store import Store
from cachelayer.versions.gc import ages_of
from cachelayer.versions.log import Log, has_log
from cachelayer.versions.snapshot import VersionInfo
from cachelayer.versions.stored_version import StoredVersion

_UNREADABLE = (CorruptionError, FormatError, VersionNotFoundError)


@dataclass(frozen=True)
class PendingDeletion:
    """A deleted version whose files stay for a while, for programs that read them."""

    dataset_id: str
    version: str
    nbytes: int
    """Bytes that gc frees."""
    seconds: float
    """The rest of the grace; 0 if it is over."""


def pending_in_dataset(dataset: Store) -> list[PendingDeletion]:
    """Return the deleted versions of a dataset whose files are not deleted yet, the last to be freed first.

    A file of several versions counts for the version that keeps it longest.
    """
    head = Log(dataset).head()
    if not head.deleted:
        return []
    age = ages_of(dataset, dry_run=True)
    remaining = [
        (max(0.0, deletion.grace - age(paths.log_entry(deletion.sequence))), deletion) for deletion in head.deleted
    ]
    counted = {file for info in head.versions.values() for file in _sizes_of(dataset, info)}
    pending = []
    for seconds, deletion in sorted(remaining, key=lambda pair: -pair[0]):
        sizes = _sizes_of(dataset, deletion.info)
        nbytes = sum(size for file, size in sizes.items() if file not in counted)
        counted |= sizes.keys()
        pending.append(PendingDeletion(dataset.name, deletion.info.version, nbytes, seconds))
    return pending


def _sizes_of(dataset: Store, info: VersionInfo) -> dict[str, int]:
    """Return the bytes of the shards and columns of a version, by name; none if its manifest is damaged."""
    with suppress(*_UNREADABLE):
        files = StoredVersion(dataset, info).manifest.files
        return {file.file: sum(facts.nbytes for facts in file.files.values()) for file in files}
    return {}


def pending_in_storage(store: Store) -> list[PendingDeletion]:
    """Return the same of every dataset of a storage that can be read."""
    pending = []
    for name in filter(paths.is_dataset_id, store.names("")):
        dataset = store.folder(name)
        with suppress(*_UNREADABLE):
            if has_log(dataset):
                pending += pending_in_dataset(dataset)
    return pending
