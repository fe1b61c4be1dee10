"""Read records of shards in an object store by byte ranges: first their rows of the indices, then the records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord import index
from cachelayer.arrayrecord.compression import decompress_some
from cachelayer.arrayrecord.records_without_files import FindFiles, records_without_files
from cachelayer.arrayrecord.riegeli import SIGNATURE, check_inside, to_logical, to_position, without_headers
from cachelayer.arrayrecord.writer import ShardStats
from cachelayer.errors import CorruptionError
from cachelayer.locks import ProcessLock
from cachelayer.logs import logger_of
from cachelayer.records.memory import Ints, distinct, groups_of, splits_of
from cachelayer.records.record_buffers import PackedRecords, Records

_log = logger_of("stores")
Range = tuple[str, int, int]
ReadRanges = Callable[[Sequence[Range]], Sequence[bytes | memoryview]]
"""Reads ranges of objects at once, each given as the object's name, begin and end; returns exactly these bytes."""
KEPT_NBYTES = 1 << 28
"""If the indices of a version have so many bytes at most, they are fetched whole and kept in memory."""
# Ranges with so few bytes between them are fetched as one: the headers between two records have fewer.
_BETWEEN = 1 << 8


@dataclass(frozen=True)
class ShardObject:
    """A shard in an object store.

    Args:
        folder: the URL of the folder of the dataset, for messages.
        name, index_name: the objects of the shard and of its index, relative to it.
        stats: the facts about them in the manifest.
    """

    folder: str
    name: str
    index_name: str
    stats: ShardStats


def fetch_ranges(
    read_ranges: ReadRanges,
    names: Sequence[str],
    file_of: Ints,
    logical: Ints,
    lengths: Ints,
    name: Callable[[int], str],
) -> PackedRecords:
    """Fetch ranges of ArrayRecord files, all at once; those that lie together are one request.

    Args:
        read_ranges: reads ranges of objects.
        names: the objects.
        file_of: for each range, which of ``names`` it is in.
        logical, lengths: the logical offset of each, and its bytes without block headers; all lie in their files.
        name: returns what errors call a range, by its number.
    """
    if len(logical) == 0:
        return PackedRecords.of_bytes([])
    # A view may have its records in another order than they lie in.
    order = np.lexsort((logical, file_of))
    file_of, logical, sizes = file_of[order], logical[order], lengths[order]
    begins = to_position(logical)
    ends = np.where(sizes > 0, to_position(logical + np.maximum(sizes, 1) - 1) + 1, begins)
    distance = begins[1:] - ends[:-1]
    follows = (file_of[1:] == file_of[:-1]) & (distance >= 0) & (distance <= _BETWEEN)
    firsts = np.flatnonzero(np.append(True, ~follows))
    lasts = np.append(firsts[1:], len(logical)) - 1
    spans = zip(file_of[firsts].tolist(), begins[firsts].tolist(), ends[lasts].tolist(), strict=True)
    ranges = [(names[file], begin, end) for file, begin, end in spans]
    buffer, run_starts = without_headers(read_ranges(ranges), begins[firsts])
    starts = np.empty(len(order), np.int64)
    starts[order] = logical + np.repeat(run_starts - logical[firsts], lasts - firsts + 1)
    uniform = int(lengths[0]) if (lengths == lengths[0]).all() else None
    return PackedRecords(buffer, starts, lengths, uniform, name=name)


class RangedShards:
    """Reads records by ranges, a whole batch at once. Every record is compared with its checksum. Thread-safe.

    Args:
        read_ranges: reads ranges of objects.
        shards: returns the shard of a number.
        records: the number of records of each shard.
        bundle: the object that holds all indices one after another; None if there is none.
        kept_nbytes: if all indices together have more bytes, rows are fetched for each read.
    """

    def __init__(
        self,
        read_ranges: ReadRanges,
        shards: Callable[[int], ShardObject],
        records: Ints,
        bundle: str | None = None,
        kept_nbytes: int = KEPT_NBYTES,
    ) -> None:
        self._read_ranges = read_ranges
        self._shards = shards
        self._places = splits_of(index.nbytes_of(records))
        self._bundle = bundle
        self._keeps_indices = int(self._places[-1]) <= kept_nbytes
        self._identified: set[int] = set()
        """The shards whose indices are known to be theirs, though their rows come one by one."""
        self._indices: dict[int, NDArray[np.void]] = {}
        self._lock = ProcessLock()

    def records(self, shard_of: Ints, within: Ints) -> Records:
        """Return records.

        Args:
            shard_of: the shard of each record.
            within: the number of each record in its shard.
        """
        records, broken = self.fetch(shard_of, within)
        if broken:
            raise CorruptionError(f"{records.name(min(broken))} does not match its checksum")
        return records

    def fetch(self, shard_of: Ints, within: Ints) -> tuple[PackedRecords, frozenset[int]]:
        """Return records, and the rows of those that are damaged. What comes damaged is asked for once more."""
        try:
            records, broken = self._fetch(shard_of, within)
        except CorruptionError as error:
            _log.warning("asked for once more, because it came damaged: %s", error)
        else:
            if not broken:
                return records, broken
            name = records.name(min(broken))
            _log.warning("asked for once more, because %d records came damaged, such as %s", len(broken), name)
        return self._fetch(shard_of, within)

    def _fetch(self, shard_of: Ints, within: Ints) -> tuple[PackedRecords, frozenset[int]]:
        if len(within) == 0:
            return PackedRecords.of_bytes([]), frozenset()
        shards, shard_at, logical, lengths, checksums, name = self._locate(shard_of, within)
        names = [self._shards(shard).name for shard in shards]
        records = fetch_ranges(self._read_ranges, names, shard_at, logical, lengths, name)
        broken: set[int] = set()
        compressions = [self._shards(shard).stats.compression for shard in shards]
        is_compressed = np.array([each != "none" for each in compressions], np.bool_)[shard_at]
        records = decompress_some(records, is_compressed, broken).packed()
        broken.update(index.mismatches(records, checksums).tolist())
        return records, frozenset(broken)

    def fetch_without_files(
        self, shard_of: Ints, within: Ints, files_of: FindFiles, least: int
    ) -> tuple[Records, frozenset[int]]:
        """Return records whose large files are fetched when they are used, and the rows of damaged ones.

        Args:
            shard_of, within: as in :meth:`records`.
            files_of: finds the files in records of which the first bytes are there.
            least: how many bytes of a record it needs.
        """
        if any(self._shards(shard).stats.compression != "none" for shard in distinct(shard_of).tolist()):
            return self.fetch(shard_of, within)
        records, broken = self._fetch_without_files(shard_of, within, files_of, least)
        return self._fetch_without_files(shard_of, within, files_of, least) if broken else (records, broken)

    def _fetch_without_files(
        self, shard_of: Ints, within: Ints, files_of: FindFiles, least: int
    ) -> tuple[Records, frozenset[int]]:
        shards, shard_at, logical, lengths, checksums, name = self._locate(shard_of, within)
        names = [self._shards(shard).name for shard in shards]

        def fetch(rows: Ints, starts: Ints, nbytes: Ints) -> PackedRecords:
            return fetch_ranges(self._read_ranges, names, shard_at[rows], logical[rows] + starts, nbytes, name)

        return records_without_files(lengths, name, fetch, files_of, least, checksums)

    def stored_nbytes(self, shard_of: Ints, within: Ints) -> Ints:
        """Return the stored bytes of records, from the indices."""
        return self._locate(shard_of, within)[3]

    def _locate(self, shard_of: Ints, within: Ints) -> tuple[list[int], Ints, Ints, Ints, Any, Callable[[int], str]]:
        """Return where records lie.

        Returns:
            The different shards; for each record which of them it is in, its logical offset there, its stored bytes and
            its checksum; and what returns what errors call a record, by its row.
        """

        def name(row: int) -> str:
            shard = self._shards(int(shard_of[row]))
            return f"{shard.folder}/{shard.name}: record {within[row]} of the shard"

        shards = distinct(shard_of)
        shard_at = shards.searchsorted(shard_of)
        found = shards.tolist()
        rows = self._kept_rows(found, shard_at, within) if self._keeps_indices else self._fetched_rows(shard_of, within)
        logical, lengths = to_logical(rows["position"].astype(np.int64)), rows["length"].astype(np.int64)
        stats = [self._shards(shard).stats for shard in found]
        room = to_logical(np.array([each.nbytes for each in stats], np.int64))[shard_at]
        check_inside(logical, lengths, room, name, SIGNATURE)
        _check_arithmetic(logical, lengths, stats, shard_at, within, name)
        return found, shard_at, logical, lengths, rows["crc32c"], name

    def _kept_rows(self, shards: Sequence[int], shard_at: Ints, within: Ints) -> Any:
        """Return the index rows of records out of whole indices."""
        self._load([shard for shard in shards if shard not in self._indices])
        rows = np.empty(len(within), index.ROW)
        for number, mine in groups_of(shard_at, len(shards)):
            rows[mine] = self._indices[shards[number]][within[mine]]
        return rows

    def _load(self, shards: Sequence[int]) -> None:
        """Fetch whole indices: the bundle of all as soon as more than one is wanted."""
        if not shards:
            return
        with self._lock.of_process():
            if self._bundle is not None and len(self._indices) + len(shards) > 1:
                bundle, self._bundle = self._bundle, None
                try:
                    (raw,) = self._read([(bundle, 0, int(self._places[-1]))])
                    for shard, (begin, end) in enumerate(pairwise(self._places.tolist())):
                        self._keep(shard, raw[begin:end])
                except CorruptionError as error:
                    _log.warning("the indices are fetched one by one, because their bundle is damaged: %s", error)
            missing = [shard for shard in shards if shard not in self._indices]
            objects = [self._shards(shard) for shard in missing]
            raws = self._read([(each.index_name, 0, each.stats.index_nbytes) for each in objects])
            for shard, raw in zip(missing, raws, strict=True):
                self._keep(shard, raw)

    def _keep(self, shard: int, raw: bytes) -> None:
        """Keep an index if its checksum is right."""
        found = self._shards(shard)
        index.check(raw, found.stats.index_crc32c, f"{found.folder}/{found.index_name}")
        self._indices[shard] = index.rows_of(raw)

    def _fetched_rows(self, shard_of: Ints, within: Ints) -> Any:
        """Fetch index rows in one round trip, with the beginning of each index of which nothing has come yet."""
        firsts = np.flatnonzero(np.append(True, (shard_of[1:] != shard_of[:-1]) | (np.diff(within) != 1)))
        lasts = np.append(firsts[1:], len(within)) - 1
        runs = zip(shard_of[firsts].tolist(), within[firsts].tolist(), within[lasts].tolist(), strict=True)
        rows = [
            (self._shards(shard).index_name, index.row_range(first)[0], index.row_range(last)[1])
            for shard, first, last in runs
        ]
        new = [shard for shard in distinct(shard_of).tolist() if shard not in self._identified]
        bodies = self._read([*((self._shards(shard).index_name, 0, index.IDENTITY_NBYTES) for shard in new), *rows])
        for shard, raw in zip(new, bodies, strict=False):
            found = self._shards(shard)
            index.check_identity(raw, found.stats.sha256, f"{found.folder}/{found.index_name}")
            self._identified.add(shard)
        return np.frombuffer(b"".join(bodies[len(new) :]), index.ROW)

    def _read(self, ranges: Sequence[Range]) -> list[bytes]:
        return [bytes(raw) for raw in self._read_ranges(ranges)] if ranges else []


def _check_arithmetic(
    logical: Ints,
    lengths: Ints,
    stats: Sequence[ShardStats],
    shard_at: Ints,
    within: Ints,
    name: Callable[[int], str],
) -> None:
    """Raise unless records of one size lie where arithmetic says: rows that come alone have no checksum."""
    first = to_logical(np.array([each.first_position or 0 for each in stats], np.int64))[shard_at]
    size = np.array([-1 if each.record_nbytes is None else each.record_nbytes for each in stats], np.int64)
    stride = np.array([index.chunk_nbytes(max(0, each)) for each in size.tolist()], np.int64)[shard_at]
    size = size[shard_at]
    wrong = (size >= 0) & ((logical != first + within * stride) | (lengths != size))
    if wrong.any():
        raise CorruptionError(f"{name(int(wrong.argmax()))} does not lie where its index says")
