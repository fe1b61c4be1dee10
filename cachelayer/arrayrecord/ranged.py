"""Records of shards that lie elsewhere, each read by exactly the bytes that it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord import index
from cachelayer.arrayrecord.blocks import pieces, to_logical, to_position
from cachelayer.arrayrecord.decompress import decompressed
from cachelayer.arrayrecord.writer import ShardStats
from cachelayer.codec.frames import RecordBuffer
from cachelayer.codec.memory import Bytes, Ints, move_ranges, splits_of
from cachelayer.errors import CorruptionError
from cachelayer.locks import ProcessLock

Range = tuple[str, int, int]
ReadRanges = Callable[[Sequence[Range]], Sequence[bytes]]
"""Reads ranges of objects, each its name, begin and end, at once; every length is that asked for."""

# An index of so many bytes is fetched whole where a record of its shard is read: later ones need one request each.
_SMALL_INDEX_NBYTES = 1 << 19
_KEPT_NBYTES = 1 << 28


@dataclass(frozen=True)
class ShardObject:
    """A shard in an object store.

    Args:
        name, index_name: the objects of the shard and of its index.
        stats: what the manifest says of them.
    """

    name: str
    index_name: str
    stats: ShardStats


class RangedShards:
    """Reads records by ranges: where each lies from the index, then the records, all of a batch at once.

    Every record is compared with its checksum. Safe to use from threads.

    Args:
        read_ranges: reads them.
        shards: the shards.
    """

    def __init__(self, read_ranges: ReadRanges, shards: Sequence[ShardObject]) -> None:
        self._read_ranges = read_ranges
        self._shards = shards
        self._headers: dict[int, index.IndexHeader] = {}
        self._indices: dict[int, NDArray[np.void]] = {}
        # Bytes of those indices that take memory, in the order in which they came.
        self._kept: dict[int, int] = {}
        self._lock = ProcessLock()

    def has_index(self, shard: int) -> bool:
        """Whether the index of a shard is here."""
        return shard in self._indices

    def take_index(self, shard: int, raw: bytes | Bytes) -> NDArray[np.void]:
        """Take the index of a shard, so that none of it is fetched any more; its rows.

        Args:
            raw: its bytes; an array is taken to be mapped from a file, and not to need memory.

        Raises:
            CorruptionError: where it is not what was published.
        """
        memory = np.frombuffer(raw, np.uint8)
        head = memory[: index.HEADER_NBYTES].tobytes()
        header = self._header(shard, head, len(memory))
        if google_crc32c.value(memory[index.HEADER_NBYTES :].tobytes()) != index.rows_checksum(head):
            raise CorruptionError(f"{self._shards[shard].index_name}: its rows do not match their checksum")
        rows: NDArray[np.void] = memory[index.HEADER_NBYTES :].view(index.ROW)
        with self._lock:
            self._headers[shard] = header
            self._indices[shard] = rows
            if isinstance(raw, bytes):
                self._kept[shard] = len(raw)
            while len(self._kept) > 1 and sum(self._kept.values()) > _KEPT_NBYTES:
                oldest = next(iter(self._kept))
                del self._kept[oldest], self._indices[oldest]
        return rows

    def records(self, shard_of: Ints, within: Ints) -> RecordBuffer:
        """The records of these shards, by their numbers within them.

        Raises:
            CorruptionError: where a record is not what was written.
            StorageError: where the store cannot be read.
        """
        rows = self._rows(shard_of, within)
        found = self._stored(shard_of, rows)

        def name(row: int) -> str:
            return f"{self._shards[shard_of[row]].name}: record {within[row]} of the shard"

        compressed = np.array([self._headers[shard].compression != "none" for shard in shard_of.tolist()], np.bool_)
        if compressed.all():
            found = decompressed(found, name)
        elif compressed.any():
            # Shards of one version that were built in different ways.
            records = found.to_list()
            for row in np.flatnonzero(compressed).tolist():
                one = decompressed(RecordBuffer.of([records[row]]), lambda _, row=row: name(row))  # type: ignore[misc]
                records[row] = one.to_list()[0]
            found = RecordBuffer.of(records)
        _check(found, rows["crc32c"], name)
        return found

    def _rows(self, shard_of: Ints, within: Ints) -> Any:
        """The rows of the index of these records."""
        shards = np.unique(shard_of).tolist()
        indices = {shard: self._indices[shard] for shard in shards if shard in self._indices}
        missing = [shard for shard in shards if shard not in indices]
        small = [shard for shard in missing if self._shards[shard].stats.index_nbytes <= _SMALL_INDEX_NBYTES]
        heads = [shard for shard in missing if shard not in small and shard not in self._headers]
        single = np.flatnonzero(np.isin(shard_of, [shard for shard in missing if shard not in small]))
        begins = index.HEADER_NBYTES + index.ROW.itemsize * within[single]
        fetched = iter(
            self._fetch_index(
                [
                    *((shard, 0, self._shards[shard].stats.index_nbytes) for shard in small),
                    *((shard, 0, index.HEADER_NBYTES) for shard in heads),
                    *zip(
                        shard_of[single].tolist(), begins.tolist(), (begins + index.ROW.itemsize).tolist(), strict=True
                    ),
                ]
            )
        )
        for shard in small:
            indices[shard] = self.take_index(shard, next(fetched))
        for shard in heads:
            self._headers[shard] = self._header(shard, next(fetched), self._shards[shard].stats.index_nbytes)
        out = np.empty(len(within), index.ROW)
        out[single] = np.frombuffer(b"".join(fetched), index.ROW)
        for shard, rows in indices.items():
            mine = np.flatnonzero(shard_of == shard)
            out[mine] = rows[within[mine]]
        return out

    def _fetch_index(self, ranges: Sequence[tuple[int, int, int]]) -> Sequence[bytes]:
        if not ranges:
            return []
        return self._read_ranges([(self._shards[shard].index_name, begin, end) for shard, begin, end in ranges])

    def _header(self, shard: int, raw: bytes, index_nbytes: int) -> index.IndexHeader:
        where = self._shards[shard]
        header = index.decode_header(raw, index_nbytes, where.index_name)
        if index.header_checksum(raw) != where.stats.index_crc32c or header.records != where.stats.records:
            raise CorruptionError(f"{where.index_name}: not the index that was published: it was replaced")
        return header

    def _stored(self, shard_of: Ints, rows: Any) -> RecordBuffer:
        """The stored bytes of records, without the headers of blocks."""
        logical, lengths = to_logical(rows["position"].astype(np.int64)), rows["length"].astype(np.int64)
        begins = to_position(logical)
        ends = to_position(logical + np.maximum(lengths, 1) - 1) + 1
        sizes = np.array([self._shards[shard].stats.nbytes for shard in shard_of.tolist()], np.int64)
        if ((begins < 0) | (ends > sizes)).any():
            row = int(np.flatnonzero((begins < 0) | (ends > sizes))[0])
            raise CorruptionError(
                f"{self._shards[shard_of[row]].index_name}: a record reaches past the end of its shard"
            )
        wanted = [
            (self._shards[shard].name, begin, end)
            for shard, begin, end in zip(shard_of.tolist(), begins.tolist(), ends.tolist(), strict=True)
        ]
        fetched = np.frombuffer(b"".join(self._read_ranges(wanted)), np.uint8)
        splits = splits_of(lengths)
        out = np.empty(int(splits[-1]), np.uint8)
        owner, inside, position, length = pieces(logical, lengths)
        starts = splits_of(ends - begins)[:-1] - begins
        move_ranges(out, splits[owner] + inside, fetched, starts[owner] + position, length)
        return RecordBuffer.packed(out, lengths)


def _check(records: RecordBuffer, checksums: Any, name: Callable[[int], str]) -> None:
    for row, (record, checksum) in enumerate(zip(records.to_list(), checksums.tolist(), strict=True)):
        if google_crc32c.value(record) != checksum:
            raise CorruptionError(f"{name(row)} does not match its checksum")
