"""Check every byte of a version: read all records, and compare every checksum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cachelayer.errors import CacheLayerError, CorruptionError, FormatError, StorageError
from cachelayer.logs import logger_of
from cachelayer.progress import Progress
from cachelayer.records.codec import Codec
from cachelayer.records.memory import Ints
from cachelayer.records.record_buffers import Records
from cachelayer.versions.contents import StoredFile, checked_records
from cachelayer.versions.damage import damage_beside_manifest, problems_of, records_of
from cachelayer.versions.snapshot import manifest_name
from cachelayer.versions.stored_version import StoredVersion

_log = logger_of("stores")


@dataclass(frozen=True)
class VerifyReport:
    """The result of a check.

    Examples:
        >>> storage = cachelayer.Storage(folder)
        >>> ref = storage.cache(range(3), "numbers", "v1")
        >>> storage.verify("numbers@v1")
        VerifyReport(reference='numbers@v1', shards=1, records=3, problems=(), damaged=())
    """

    reference: str
    """The version."""
    shards: int
    """Number of shards that were checked."""
    records: int
    """Number of records that have the right checksum."""
    problems: tuple[str, ...]
    """One sentence for each problem, which names the file; empty if all is well."""
    damaged: tuple[str, ...] = ()
    """The objects that are missing or damaged, relative to the storage; :meth:`Storage.repair` puts them again."""

    @property
    def ok(self) -> bool:
        """True if everything is as it was written.

        Examples:
            >>> ref = cachelayer.Storage(folder).cache(range(3), "numbers", "v1")
            >>> ref.verify().ok, bool(ref.verify())
            (True, True)
        """
        return not self.problems

    def __bool__(self) -> bool:
        return self.ok

    def raise_if_bad(self) -> None:
        """Raise if there are problems.

        Examples:
            >>> ref = cachelayer.Storage(folder).cache(range(3), "numbers", "v1")
            >>> ref.verify().raise_if_bad()  # all is well
            >>> next((folder / "numbers" / "shards").glob("*.index")).unlink()
            >>> ref.verify().raise_if_bad()
            Traceback (most recent call last):
            cachelayer.errors.CorruptionError: numbers@v1: ...

        Raises:
            CorruptionError: with all problems in its message.
        """
        if self.problems:
            raise CorruptionError(
                f"{self.reference}: {'; '.join(self.problems)}. storage.repair({self.reference!r}, from_=...) fetches "
                "what is damaged from another storage"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values.

        Examples:
            >>> ref = cachelayer.Storage(folder).cache(range(3), "numbers", "v1")
            >>> ref.verify().to_json()
            {'ok': True, 'reference': 'numbers@v1', 'shards': 1, 'records': 3, 'problems': (), 'damaged': ()}
        """
        return {"ok": self.ok, **asdict(self)}


def check(version: StoredVersion, *, progress: bool | None = None) -> VerifyReport:
    """Read every record of a version, and compare it with every checksum that is stored.

    Raises:
        StorageError: if nothing is damaged, but not everything could be read.
    """
    reference = version.name
    folder = version.folder
    problems: list[str] = []
    damaged: list[str] = []
    records = 0
    unread: StorageError | None = None
    try:
        manifest = version.manifest
        codecs = [stored.codec_of(reference) for stored in manifest.sets]
    except (CorruptionError, FormatError) as error:
        # A manifest of a newer release is as it was published.
        damaged += [f"{folder.name}/{manifest_name(version.info)}"] if isinstance(error, CorruptionError) else []
        return VerifyReport(reference, 0, 0, (str(error),), tuple(damaged))
    for name, problem in damage_beside_manifest(version, manifest).items():
        damaged.append(name)
        problems.append(f"{folder.url}/{name}: {problem}")
    with Progress(f"verify {reference}", manifest.rows.records, progress) as shown:
        for stored, codec in zip(manifest.sets, codecs, strict=True):
            is_rows = stored is manifest.rows
            first = 0
            for file in stored.files:
                try:
                    for batch, nbytes in _checked_batches(version, codec, file, first):
                        records += batch if is_rows else 0
                        shown.update(batch if is_rows else 0, nbytes)
                except (CacheLayerError, OSError) as error:
                    problems.append(str(error))
                    unread = error if isinstance(error, StorageError) else unread
                    damaged += _damaged(version, file)
                first += records_of(file)
    if unread is not None and not damaged:
        raise unread
    for text in problems:
        _log.warning("damage in %s: %s", reference, text)
    names = tuple(f"{folder.name}/{name}" for name in damaged)
    return VerifyReport(reference, len(manifest.shards), records, tuple(problems), names)


def _damaged(version: StoredVersion, file: StoredFile) -> list[str]:
    """Return the damaged objects of a file that did not pass its check; none if the store cannot read them."""
    try:
        return [*problems_of(version.folder, file)] or [file.name]
    except StorageError:
        return []


def _checked_batches(version: StoredVersion, codec: Codec, file: StoredFile, first: int) -> Iterator[tuple[int, int]]:
    """Check a file; yield the number of records and the bytes of each batch of a shard that is right.

    Args:
        codec: the codec of its records.
        first: the number of the first record of the shard.
    """
    erased = np.array(version.manifest.erased, np.int64) - first
    can_be_empty = codec.layout.fixed_nbytes == 0
    with version.local_file(file) as path:
        for numbers, records in checked_records(path, file, codec):
            _check_erased(path, numbers, records, erased, can_be_empty=can_be_empty)
            yield len(numbers), int(records.lengths.sum())


def _check_erased(path: Path, numbers: Ints, records: Records, erased: Ints, *, can_be_empty: bool) -> None:
    """Raise if an erased record is not empty, or another record is empty though records of its spec have bytes."""
    is_erased = np.isin(numbers, erased)
    is_empty = records.lengths == 0
    wrong = np.flatnonzero(is_erased & ~is_empty if can_be_empty else is_erased != is_empty)
    if len(wrong):
        row = int(wrong[0])
        raise CorruptionError(
            f"{path}: record {numbers[row]} of the shard has {records.lengths[row]} bytes, and was "
            f"{'' if is_erased[row] else 'not '}erased"
        )
