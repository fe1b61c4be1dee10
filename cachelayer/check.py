"""Checking every byte of a version."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cachelayer.access.published import Published
from cachelayer.arrayrecord.reader import ShardReader
from cachelayer.arrayrecord.writer import ShardStats, file_checksum
from cachelayer.codec.frames import Frames
from cachelayer.codec.memory import move_ranges
from cachelayer.errors import CacheLayerError, CorruptionError, FormatError
from cachelayer.objects import paths
from cachelayer.progress import Progress

_BATCH_NBYTES = 16 << 20


@dataclass(frozen=True)
class Report:
    """What a check found.

    Args:
        reference: the version.
        shards: number of shards that were checked.
        records: number of records that were read and had the right checksum.
        problems: a sentence each, with the file; none where all is well.
    """

    reference: str
    shards: int
    records: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether everything is as it was written."""
        return not self.problems

    def __bool__(self) -> bool:
        return self.ok

    def raise_if_bad(self) -> None:
        """Raise the problems.

        Raises:
            CorruptionError: where there are any.
        """
        if self.problems:
            raise CorruptionError(f"{self.reference}: " + "; ".join(self.problems))


def check(published: Published, *, progress: bool | None = None) -> Report:
    """Read every record of a version, and compare with every checksum there is."""
    reference = f"{published.dataset_id}@{published.info.version}"
    problems: list[str] = []
    records = 0
    try:
        shards = published.manifest.shards
    except (CorruptionError, FormatError) as error:
        return Report(reference, 0, 0, (str(error),))
    try:
        published.kept  # noqa: B018 - which numbers the version keeps is checked when they are read
    except CorruptionError as error:
        problems.append(str(error))
    with Progress(f"verify {reference}", len(published), progress) as shown:
        for number in range(len(shards)):
            try:
                for batch, nbytes in _checked_batches(published, number):
                    records += batch
                    shown.update(batch, nbytes)
            except (CacheLayerError, OSError) as error:
                problems.append(str(error))
    return Report(reference, len(shards), records, tuple(problems))


def _checked_batches(published: Published, number: int) -> Iterator[tuple[int, int]]:
    """Records and bytes of batches that were read and found right.

    Raises:
        CorruptionError: where something is not as it was written.
    """
    with published.shard_file(number) as path:
        yield from _checked_file(path, published.manifest.shards[number].stats)


def _checked_file(path: Path, stats: ShardStats) -> Iterator[tuple[int, int]]:
    reader = ShardReader(path, Path(paths.index_of(str(path))), stats, "always")
    if file_checksum(path) != stats.crc32c:
        problem = f"{path}: the file does not match its CRC32C"
        for _ in _read(reader, stats.records, stats.nbytes):
            pass
        raise CorruptionError(problem)
    sha256 = hashlib.sha256()
    for frames in _read(reader, stats.records, stats.nbytes):
        sha256.update(frames.memory())
        yield len(frames), int(frames.lengths.sum())
    if sha256.hexdigest() != stats.sha256:
        raise CorruptionError(f"{path}: the records do not match the SHA-256 of the shard")


def _read(reader: ShardReader, records: int, nbytes: int) -> Iterator[Frames]:
    """All records of a shard, each checked against its CRC32C: an error names the record."""
    batch = max(1, _BATCH_NBYTES * records // max(nbytes, 1))
    for start in range(0, records, batch):
        found = reader.records(np.arange(start, min(start + batch, records)))
        frames = Frames.allocate(found.lengths)
        values = found.ranges(np.zeros(len(frames), np.int64), found.lengths)
        starts = np.cumsum(found.lengths) - found.lengths
        move_ranges(frames.buffer, frames.starts, values, starts, found.lengths)
        yield frames
