"""Read records of shards in an object store by byte ranges: first their rows of the indices, then the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord import index
from cachelayer.arrayrecord.blocks import HEADER, to_logical, to_position, without_headers
from cachelayer.arrayrecord.fetched import FetchedRecords, read_fetched
from cachelayer.arrayrecord.writer import ShardStats
from cachelayer.errors import CorruptionError, StorageError
from cachelayer.locks import ProcessLock
from cachelayer.records.memory import Bytes, Ints, distinct, splits_of
from cachelayer.records.record_buffers import RecordBuffer

Range = tuple[str, int, int]
ReadRanges = Callable[[Sequence[Range]], Sequence[bytes | memoryview]]
"""Reads ranges of objects at once, each given as the object's name, begin and end; returns exactly these bytes."""
KEPT_NBYTES = 1 << 28
"""Bytes of indices that are kept in memory."""
# Bytes that one request for a row of an index is likely to transfer, since its neighbours are fetched with it.
_PAGE_NBYTES = 1 << 16


@dataclass(frozen=True)
class ShardObject:
    """A shard in an object store.

    Args:
        name, index_name: the objects of the shard and of its index.
        stats: the facts about them in the manifest.
    """

    name: str
    index_name: str
    stats: ShardStats


class RangedShards:
    """Reads records by ranges, a whole batch at once. Every record is compared with its checksum. Thread-safe.

    At first single rows of an index are fetched, and the whole index once that is cheaper: then later records of the
    shard need one request each.

    Args:
        read_ranges: reads ranges of objects.
        shards: the shards, by their numbers.
        kept_nbytes: the bytes of indices to keep in memory.

    Attributes:
        room: how many more bytes of indices are kept.
    """

    def __init__(
        self,
        read_ranges: ReadRanges,
        shards: Sequence[ShardObject] | Mapping[int, ShardObject],
        kept_nbytes: int = KEPT_NBYTES,
    ) -> None:
        self._read_ranges = read_ranges
        self._shards = shards
        self.room = kept_nbytes
        self._headers: dict[int, index.IndexHeader] = {}
        self._indices: dict[int, Bytes] = {}
        self._copies: dict[int, Callable[[], Bytes]] = {}
        self._pages_read: Counter[int] = Counter()
        self._fetching: dict[int, ProcessLock] = {}
        self._lock = ProcessLock()

    def records(self, shard_of: Ints, within: Ints) -> RecordBuffer:
        """Return records.

        Args:
            shard_of: the shard of each record.
            within: the number of each record in its shard.
        """
        rows = np.arange(len(within))
        with suppress(CorruptionError):
            return read_fetched([self.fetch(shard_of, within)], np.zeros_like(rows), rows)
        # The bytes may have been damaged on the way.
        return read_fetched([self.fetch(shard_of, within)], np.zeros_like(rows), rows)

    def fetch(self, shard_of: Ints, within: Ints, share: float = 0.0) -> FetchedRecords:
        """Fetch records, and keep them as they are stored; a run of consecutive records is one range.

        Args:
            shard_of: the shard of each record.
            within: the number of each record in its shard.
            share: the fraction of the records of every shard that the caller is going to fetch, so many at a time. If
                that takes more requests for rows of an index than the index is worth, all of it is fetched first.
        """

        def name(row: int) -> str:
            return f"{self._shards[shard_of[row]].name}: record {within[row]} of the shard"

        rows = self._rows(shard_of, within, share)
        logical, lengths = to_logical(rows["position"].astype(np.int64)), rows["length"].astype(np.int64)
        begins = to_position(logical)
        ends = np.where(lengths > 0, to_position(logical + lengths - 1) + 1, begins)
        shards, shard_at = np.unique(shard_of, return_inverse=True)
        stored = [self._shards[shard] for shard in shards.tolist()]
        sizes = np.array([each.stats.nbytes for each in stored], np.int64)[shard_at]
        check_inside(rows, begins, ends, sizes, name)
        _check_arithmetic(rows, [each.stats for each in stored], shard_at, within, name)
        # One range for each run of consecutive records. Records of a damaged index may lie in any order.
        follows = (np.diff(shard_of) == 0) & (np.diff(within) == 1) & (begins[1:] >= ends[:-1])
        firsts = np.flatnonzero(np.append(True, ~follows)[: len(within)])
        lasts = np.append(firsts[1:], len(within)) - 1
        spans = zip(shard_at[firsts].tolist(), begins[firsts].tolist(), ends[lasts].tolist(), strict=True)
        ranges = [(stored[shard].name, begin, end) for shard, begin, end in spans]
        bodies = self._read_ranges(ranges)
        runs = [without_headers([body], begin) for body, (_, begin, _) in zip(bodies, ranges, strict=True)]
        offsets = splits_of(np.array([len(run) for run in runs], np.int64))[:-1] - logical[firsts]
        starts = logical + np.repeat(offsets, lasts - firsts + 1)
        buffer = runs[0] if len(runs) == 1 else np.concatenate([*runs, np.empty(0, np.uint8)])
        compressed = np.array([self._headers[shard].compression != "none" for shard in shards.tolist()], np.bool_)
        return FetchedRecords(buffer, starts, lengths, rows["crc32c"].copy(), compressed[shard_at], name)

    def stored_nbytes(self, shard_of: Ints, within: Ints) -> Ints:
        """Return the stored bytes of records, from the manifest or the indices."""
        shards, shard_at = np.unique(shard_of, return_inverse=True)
        sizes = [self._shards[shard].stats.record_nbytes for shard in shards.tolist()]
        if None in sizes:
            lengths: Ints = self._rows(shard_of, within, 0.0)["length"].astype(np.int64)
            return lengths
        return np.array(sizes, np.int64)[shard_at]

    def has_index(self, shard: int) -> bool:
        """Return whether the index of a shard is here, so that no more of it is fetched."""
        return shard in self._indices or shard in self._copies

    def whole_index(self, shard: int) -> Bytes:
        """Return the index of a shard; fetch it if it is not here."""
        raw = self._index(shard)
        return self._fetch_indices([shard])[shard] if raw is None else raw

    def use_copy(self, shard: int, open_copy: Callable[[], Bytes]) -> None:
        """Read an index from a local copy from now on.

        Args:
            shard: the shard.
            open_copy: maps the copy. It is called for each read, so that indices do not stay open.
        """
        header = self._checked(shard, open_copy())
        with self._lock:
            self._headers[shard] = header
            self._copies[shard] = open_copy
            self.room += len(self._indices.pop(shard, b""))

    def _index(self, shard: int) -> Bytes | None:
        raw = self._indices.get(shard)
        open_copy = self._copies.get(shard)
        if raw is not None or open_copy is None:
            return raw
        try:
            return open_copy()
        except (CorruptionError, StorageError):
            # The copy was removed or became unreadable.
            self._copies.pop(shard, None)
            return None

    def _rows(self, shard_of: Ints, within: Ints, share: float) -> Any:
        """Return the index rows of records; those of indices that are not here are fetched."""
        rows = np.empty(len(within), index.ROW)
        missing: dict[int, Ints] = {}
        for shard in distinct(shard_of).tolist():
            mine = np.flatnonzero(shard_of == shard)
            raw = self._index(shard)
            if raw is None:
                missing[shard] = mine
            else:
                rows[mine] = _rows_of(raw)[within[mine]]
        due = [shard for shard, mine in missing.items() if self._is_due(shard, within[mine], share)]
        for shard, raw in self._indices_once(due).items():
            mine = missing.pop(shard)
            rows[mine] = _rows_of(raw)[within[mine]]
        if missing:
            self._fetch_rows(rows, within, missing)
        return rows

    def _is_due(self, shard: int, within: Ints, share: float) -> bool:
        """Return whether to fetch a whole index: if there is room, and single requests for its rows would cost more."""
        stats = self._shards[shard].stats
        if share:
            requests = max(1.0, share * stats.records / len(within))
        else:
            # As many pages as were asked for until now.
            self._pages_read[shard] += len(distinct(within // (_PAGE_NBYTES // index.ROW.itemsize)))
            requests = self._pages_read[shard]
        return stats.index_nbytes <= min(self.room, requests * _PAGE_NBYTES)

    def _indices_once(self, shards: Sequence[int]) -> dict[int, Bytes]:
        """Return whole indices; of the threads that need one, one fetches it, and the others wait for it."""
        if not shards:
            return {}
        with ExitStack() as locks:
            # In order, so that no two threads wait for each other.
            for shard in sorted(shards):
                locks.enter_context(self._fetching.setdefault(shard, ProcessLock()).of_process())
            found = {shard: raw for shard in shards if (raw := self._index(shard)) is not None}
            fetched = self._fetch_indices([shard for shard in shards if shard not in found])
            with self._lock:
                for shard, raw in fetched.items():
                    if not self.has_index(shard) and len(raw) <= self.room:
                        self._indices[shard] = raw
                        self.room -= len(raw)
        return found | fetched

    def _fetch_indices(self, shards: Sequence[int]) -> dict[int, Bytes]:
        stored = [self._shards[shard] for shard in shards]
        fetched = self._read([(each.index_name, 0, each.stats.index_nbytes) for each in stored])
        found = {shard: np.frombuffer(raw, np.uint8) for shard, raw in zip(shards, fetched, strict=True)}
        for shard, raw in found.items():
            self._headers[shard] = self._checked(shard, raw)
        return found

    def _fetch_rows(self, rows: Any, within: Ints, missing: Mapping[int, Ints]) -> None:
        """Fill in rows of indices, in one round trip; with the header of each index that has not come yet."""
        spans = {shard: list(_row_ranges(within[mine])) for shard, mine in missing.items()}
        new = [shard for shard in missing if shard not in self._headers]
        names = {shard: self._shards[shard].index_name for shard in missing}
        heads = [(names[shard], 0, index.HEADER_NBYTES) for shard in new]
        ranges = [(names[shard], begin, end) for shard in missing for begin, end in spans[shard]]
        bodies = iter(self._read([*heads, *ranges]))
        for shard in new:
            stored = self._shards[shard]
            self._headers[shard] = _check_header(next(bodies), stored.stats.index_nbytes, stored)
        for shard, mine in missing.items():
            rows[mine] = np.frombuffer(b"".join(islice(bodies, len(spans[shard]))), index.ROW)

    def _read(self, ranges: Sequence[Range]) -> list[bytes]:
        return [bytes(body) for body in self._read_ranges(ranges)] if ranges else []

    def _checked(self, shard: int, raw: Bytes) -> index.IndexHeader:
        """Verify a whole index by its checksums, and return its header."""
        stored = self._shards[shard]
        head = raw[: index.HEADER_NBYTES].tobytes()
        header = _check_header(head, len(raw), stored)
        if google_crc32c.value(raw[index.HEADER_NBYTES :].tobytes()) != index.rows_checksum(head):
            raise CorruptionError(f"{stored.index_name}: its rows do not match their checksum")
        return header


def _check_header(head: bytes, nbytes: int, stored: ShardObject) -> index.IndexHeader:
    stats = stored.stats
    return index.decode_published(head, nbytes, stats.index_crc32c, stats.records, stored.index_name)


def _rows_of(raw: Bytes) -> NDArray[np.void]:
    rows: NDArray[np.void] = raw[index.HEADER_NBYTES :].view(index.ROW)
    return rows


def _row_ranges(within: Ints) -> Iterator[tuple[int, int]]:
    """Yield the begin and the end of each run of consecutive records' rows in an index."""
    firsts = np.flatnonzero(np.append(True, np.diff(within) != 1))
    lasts = np.append(firsts[1:], len(within)) - 1
    for first, last in zip(within[firsts].tolist(), within[lasts].tolist(), strict=True):
        yield index.row_range(first)[0], index.row_range(last)[1]


def _check_arithmetic(
    rows: Any, stats: Sequence[ShardStats], shard_at: Ints, within: Ints, name: Callable[[int], str]
) -> None:
    """Raise unless records of one size lie where arithmetic says: rows that come alone have no checksum.

    Args:
        rows, within: the index row of each record, and its number in its shard.
        stats, shard_at: the shards, and which of them each record is in.
    """
    first = to_logical(np.array([each.first_position or 0 for each in stats], np.int64))[shard_at]
    size = np.array([-1 if each.record_nbytes is None else each.record_nbytes for each in stats], np.int64)
    stride = np.array([index.chunk_nbytes(max(0, each)) for each in size.tolist()], np.int64)[shard_at]
    size = size[shard_at]
    wrong = (rows["position"] != to_position(first + within * stride)) | (rows["length"] != size)
    wrong &= size >= 0
    if wrong.any():
        raise CorruptionError(f"{name(int(wrong.argmax()))} does not lie where its index says")


def check_inside(rows: Any, begins: Ints, ends: Ints, nbytes: Ints | int, name: Callable[[int], str]) -> None:
    """Raise if a record does not lie in its shard of so many bytes."""
    # A lost row holds zeros, and position 0 is a block header.
    is_before = (rows["position"] < HEADER) | (begins < 0)
    # The end of a record that begins near 2**63 overflows.
    outside = np.flatnonzero(is_before | (ends < begins) | (ends > nbytes))
    if len(outside):
        raise CorruptionError(f"{name(int(outside[0]))} does not lie in the shard: its index is damaged")
