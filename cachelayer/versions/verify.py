"""Check every byte of a version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.local_shards import LocalShards, ShardFiles
from cachelayer.arrayrecord.mapping import MappedFile
from cachelayer.arrayrecord.writer import ShardStats, file_checksum
from cachelayer.errors import CacheLayerError, CorruptionError, FormatError
from cachelayer.objects import paths
from cachelayer.progress import Progress
from cachelayer.records.codec import codec_named
from cachelayer.records.memory import Ints
from cachelayer.records.record_buffers import Frames, Records
from cachelayer.records.shard_digest import ShardDigest
from cachelayer.records.varying_leaves import VaryingLeaves
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.stored_version import StoredVersion, plan_problems


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
    problems += plan_problems(version)
    return VerifyReport(reference, len(shards), records, tuple(problems))


def _checked_batches(version: StoredVersion, number: int) -> Iterator[tuple[int, int]]:
    """Yield the records and bytes of each batch that was read and is right."""
    with version.shard_file(number) as path:
        stats = version.manifest.shards[number].stats
        lengths = _Lengths(version.manifest, path, stats)
        yield from _checked_file(path, stats, lengths, _Erased(version.manifest, number, path))
        if lengths.problem is not None:
            raise lengths.problem


class _Lengths:
    """Compares the lengths that are stored beside a shard with those of its records.

    Args:
        manifest: the manifest of the version.
        path: the shard.
        stats: what the manifest says of it.

    Attributes:
        problem: the first that was found; None if there is none.
    """

    def __init__(self, manifest: Manifest, path: Path, stats: ShardStats) -> None:
        self.problem: CacheLayerError | None = None
        self._path = Path(paths.lengths_of(str(path)))
        self._stored: NDArray[np.int64] | None = None
        self._varying = VaryingLeaves(codec_named(manifest.codec, manifest.element_spec))
        if stats.lengths_file is None:
            return
        try:
            file = MappedFile.open(self._path, nbytes=stats.lengths_file.nbytes)
            self._stored = np.stack(stats.lengths_file.check(file.buffer, str(self._path)), axis=1)
        except CacheLayerError as error:
            self.problem = error

    def check(self, start: int, records: Records) -> None:
        """Compare the stored lengths from a record on with those of these records."""
        if self._stored is None:
            return
        found = self._varying.lengths(records)
        sums = self._stored[start : start + len(records) + 1]
        wrong = np.flatnonzero((found != sums[1:] - sums[:-1]).any(axis=1))
        if len(wrong) and self.problem is None:
            record = start + int(wrong[0])
            self.problem = CorruptionError(
                f"{self._path}: the lengths of record {record} of the shard are not those of its leaves"
            )


class _Erased:
    """Compares the empty records of a shard with those that were erased.

    Args:
        manifest: the manifest of the version.
        number: the number of the shard.
        path: the shard.
    """

    def __init__(self, manifest: Manifest, number: int, path: Path) -> None:
        self._path = path
        self._erased = np.array(manifest.erased, np.int64) - int(manifest.shards.records[:number].sum())
        codec = codec_named(manifest.codec, manifest.element_spec)
        self._can_be_empty = codec.layout.fixed_nbytes == 0

    def check(self, numbers: Ints, records: Records) -> None:
        is_erased, is_empty = np.isin(numbers, self._erased), records.lengths == 0
        wrong = np.flatnonzero(is_erased & ~is_empty if self._can_be_empty else is_erased != is_empty)
        if len(wrong):
            row = int(wrong[0])
            raise CorruptionError(
                f"{self._path}: record {numbers[row]} of the shard has {records.lengths[row]} bytes, and was "
                f"{'' if is_erased[row] else 'not '}erased"
            )


def _checked_file(path: Path, stats: ShardStats, lengths: _Lengths, erased: _Erased) -> Iterator[tuple[int, int]]:
    files = nullcontext(ShardFiles(path, Path(paths.index_of(str(path))), stats))
    shard, digest = LocalShards.of_file(files, stats, "always"), ShardDigest()
    for numbers, records in shard.in_order():
        erased.check(numbers, records)
        lengths.check(int(numbers[0]), records)
        digest.add(Frames.of(records))
        yield len(numbers), int(records.lengths.sum())
    # Not before: a damaged record is named by its number.
    if file_checksum(path) != stats.crc32c:
        raise CorruptionError(f"{path}: the file does not match its CRC32C")
    if digest.hexdigest() != stats.sha256:
        raise CorruptionError(f"{path}: the records do not match the SHA-256 of the shard")
