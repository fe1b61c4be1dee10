"""Checking every byte of a version."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cachelayer.access.published import Published
from cachelayer.arrayrecord.reader import ShardReader
from cachelayer.arrayrecord.stock import StockReader
from cachelayer.arrayrecord.writer import ShardStats, file_checksum
from cachelayer.codec.frames import Frames
from cachelayer.codec.memory import Bytes, Ints, move_ranges
from cachelayer.errors import CacheLayerError, CorruptionError, FormatError
from cachelayer.objects import paths
from cachelayer.progress import Progress

_BATCH_NBYTES = 16 << 20
_GROWTH = 8
_FEW_RECORDS = 64


@dataclass(frozen=True)
class Report:
    """What a check found.

    Args:
        reference: the version.
        shards: number of shards that were checked.
        records: number of records that were read, by array_record itself too, and had the right checksum.
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
        # array_record is not shown what is not as it was written: it may end the process.
        for start in range(0, stats.records, _FEW_RECORDS):
            _read(reader, start, min(start + _FEW_RECORDS, stats.records))
        raise CorruptionError(f"{path}: the file does not match its CRC32C")
    sha256 = hashlib.sha256()
    with closing(StockReader(path)) as stock, ThreadPoolExecutor(2) as beside:
        if len(stock) != stats.records:
            raise CorruptionError(f"{path}: array_record finds {len(stock)} records, expected {stats.records}")
        start, count, hashed = 0, 1, beside.submit(sha256.update, b"")
        while start < stats.records:
            stop = min(start + count, stats.records)
            theirs = beside.submit(stock.read, start, stop)
            frames, values = _read(reader, start, stop)
            hashed.result()
            hashed = beside.submit(sha256.update, frames.memory())
            _compare(path, start, frames.lengths, values, theirs.result())
            yield len(frames), len(values)
            start, count = stop, _next_count(len(frames), len(values))
        hashed.result()
    if sha256.hexdigest() != stats.sha256:
        raise CorruptionError(f"{path}: the records do not match the SHA-256 of the shard")


def _next_count(records: int, nbytes: int) -> int:
    """How many records to read after these, for what compressed ones take is known only when they are read."""
    return max(1, min(_GROWTH * records, _BATCH_NBYTES * records // max(1, nbytes)))


def _read(reader: ShardReader, start: int, stop: int) -> tuple[Frames, Bytes]:
    """Records, each checked against its CRC32C, and their bytes alone; an error names the record."""
    found = reader.records(np.arange(start, stop))
    frames = Frames.allocate(found.lengths)
    values = found.ranges(np.zeros(len(frames), np.int64), found.lengths)
    starts = np.cumsum(found.lengths) - found.lengths
    move_ranges(frames.buffer, frames.starts, values, starts, found.lengths)
    return frames, values


def _compare(path: Path, start: int, lengths: Ints, values: Bytes, theirs: list[bytes]) -> None:
    """Whether array_record read the same records.

    Raises:
        CorruptionError: where it did not; it names the first.
    """
    if lengths.tolist() == list(map(len, theirs)) and values.tobytes() == b"".join(theirs):
        return
    ends = np.cumsum(lengths).tolist()
    ours = [values[end - length : end].tobytes() for end, length in zip(ends, lengths.tolist(), strict=True)]
    differs = (number for number, (mine, other) in enumerate(zip(ours, theirs, strict=False)) if mine != other)
    number = start + next(differs, min(len(ours), len(theirs)))
    raise CorruptionError(f"{path}: record {number} of the shard is not what array_record reads")
