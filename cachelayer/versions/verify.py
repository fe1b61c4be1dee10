"""Check every byte of a version."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.lengths import LengthsFile
from cachelayer.arrayrecord.local_shards import LocalShards, ShardFiles
from cachelayer.arrayrecord.mapping import MappedFile
from cachelayer.arrayrecord.writer import file_checksum
from cachelayer.errors import CacheLayerError, CorruptionError, FormatError
from cachelayer.objects import paths
from cachelayer.progress import Progress
from cachelayer.records.codec import codec_named
from cachelayer.records.memory import Ints
from cachelayer.records.record_buffers import Frames, Records
from cachelayer.versions.columns import ShardSet
from cachelayer.versions.stored_version import StoredVersion


@dataclass(frozen=True)
class VerifyReport:
    """The result of a check.

    Args:
        reference: the version.
        shards: number of shards checked.
        records: number of records that were read, and had the right checksum.
        problems: one sentence for each problem, which names the file; empty if all is well.
    """

    reference: str
    shards: int
    records: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True if everything is as it was written."""
        return not self.problems

    def __bool__(self) -> bool:
        return self.ok

    def raise_if_bad(self) -> None:
        """Raise if there are problems.

        Raises:
            CorruptionError: with all of them.
        """
        if self.problems:
            raise CorruptionError(f"{self.reference}: " + "; ".join(self.problems))


def check(version: StoredVersion, *, progress: bool | None = None) -> VerifyReport:
    """Read every record of a version, and compare it with every checksum that is stored."""
    reference = version.name
    problems: list[str] = []
    records = 0
    try:
        shards = version.manifest.shards
    except (CorruptionError, FormatError) as error:
        return VerifyReport(reference, 0, 0, (str(error),))
    try:
        version.kept  # noqa: B018 - reading the numbers of the kept records checks them
    except CorruptionError as error:
        problems.append(str(error))
    with Progress(f"verify {reference}", version.manifest.shard_records, progress) as shown:
        for number in range(len(shards)):
            try:
                for batch, nbytes in _checked_batches(version, number):
                    records += batch
                    shown.update(batch, nbytes)
            except (CacheLayerError, OSError) as error:
                problems.append(str(error))
        for number in range(len(version.manifest.columns)):
            problems += _problems_of_columns(version.column_group(number), version.manifest.columns[number])
    return VerifyReport(reference, len(shards), records, tuple(problems))


def _problems_of_columns(version: StoredVersion, group: ShardSet) -> Iterator[str]:
    """Check every byte of a group of added columns, and yield what is wrong."""
    for number in range(len(group.shards)):
        try:
            for _ in _checked_batches(version, number):
                pass
        except (CacheLayerError, OSError) as error:
            yield str(error)
    if group.array is not None:
        name = group.array.name
        try:
            raw = version.folder.read(name) or b""
            if hashlib.sha256(raw).hexdigest() != group.array.sha256:
                yield f"{version.folder.url}/{name}: missing, or not the column file that was published"
        except (CacheLayerError, OSError) as error:
            yield str(error)


def _checked_batches(version: StoredVersion, number: int) -> Iterator[tuple[int, int]]:
    """Yield the records and bytes of each batch of a shard that was read and is right."""
    manifest, stats = version.manifest, version.manifest.shards[number].stats
    codec = codec_named(manifest.codec, manifest.element_spec)
    erased = np.array(manifest.erased, np.int64) - int(manifest.shards.records[:number].sum())
    can_be_empty = codec.layout.fixed_nbytes == 0
    lengths, digest = list[NDArray[Any]](), hashlib.sha256()
    with version.shard_file(number) as path:
        files = nullcontext(ShardFiles(path, Path(paths.index_of(str(path))), stats))
        for numbers, records in LocalShards.of_file(files, stats, "always").in_order():
            _check_erased(path, numbers, records, erased, can_be_empty=can_be_empty)
            digest.update(Frames.of(records).memory())
            if stats.lengths_file is not None:
                lengths.append(codec.lengths(records))
            yield len(numbers), int(records.lengths.sum())
        # Not before: a damaged record is named by its number.
        if file_checksum(path) != stats.crc32c:
            raise CorruptionError(f"{path}: the file does not match its CRC32C")
        if digest.hexdigest() != stats.sha256:
            raise CorruptionError(f"{path}: the records do not match the SHA-256 of the shard")
        if stats.lengths_file is not None:
            _check_lengths(Path(paths.lengths_of(str(path))), stats.lengths_file, lengths)


def _check_erased(path: Path, numbers: Ints, records: Records, erased: Ints, *, can_be_empty: bool) -> None:
    """Raise if a record that was erased is not empty, or another is that cannot be."""
    is_erased, is_empty = np.isin(numbers, erased), records.lengths == 0
    wrong = np.flatnonzero(is_erased & ~is_empty if can_be_empty else is_erased != is_empty)
    if len(wrong):
        row = int(wrong[0])
        raise CorruptionError(
            f"{path}: record {numbers[row]} of the shard has {records.lengths[row]} bytes, and was "
            f"{'' if is_erased[row] else 'not '}erased"
        )


def _check_lengths(path: Path, file: LengthsFile, lengths: list[NDArray[Any]]) -> None:
    """Raise if the lengths that are stored beside a shard are not those of its records."""
    sums = np.stack(file.check(MappedFile.open(path, nbytes=file.nbytes).buffer, str(path)), axis=1)
    is_wrong = (np.concatenate(lengths) != np.diff(sums, axis=0)).any(axis=1)
    if is_wrong.any():
        record = is_wrong.argmax()
        raise CorruptionError(f"{path}: the lengths of record {record} of the shard are not those of its leaves")
