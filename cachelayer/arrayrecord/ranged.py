"""Read records of shards in an object store by byte ranges: first the rows of the indices, then the records.

::

    records 7, 8, 9 and 900 of shard 0, record 3 of shard 2
    request 1    the indices of shards 0 and 2, whole; or rows 7 to 9, 900 and 3 if all indices are large
    request 2    one range for records 7 to 9, which lie together, one for 900, one for 3
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord import index
from cachelayer.arrayrecord.compression import decompress_some
from cachelayer.arrayrecord.index import (
    BLOCK,
    PAYLOAD,
    SIGNATURE,
    ShardStats,
    buffers_of_ranges,
    check_inside,
    to_logical,
    to_position,
)
from cachelayer.arrayrecord.records_without_files import FindFiles, records_without_files
from cachelayer.errors import CorruptionError
from cachelayer.records.spans import NameOfRow, Records, Spans
from cachelayer.support.locks import ProcessLock
from cachelayer.support.logs import logger_of
from cachelayer.support.memory import Ints, distinct, groups_of, splits_of

_log = logger_of("stores")
Range = tuple[str, int, int]
"""A range of an object: the name of the object, the begin, the end."""
ReadRanges = Callable[[Sequence[Range]], Sequence[bytes | memoryview]]
"""Reads ranges of objects, all at once, and returns the bytes of each range."""
KEPT_NBYTES = 1 << 28
"""If the indices of a version have at most so many bytes together, they are fetched whole and kept in memory."""
# Ranges with so few bytes between them are fetched as one: the headers between two records have fewer.
_BETWEEN = 1 << 8


@dataclass(frozen=True)
class ShardObject:
    """A shard in an object store."""

    folder: str
    """The URL of the folder of the dataset, for errors."""
    name: str
    """The object of the shard, relative to the folder."""
    index_name: str
    """The object of its index, relative to the folder."""
    stats: ShardStats
    """The facts about both in the manifest."""


@dataclass(frozen=True, eq=False)
class _RecordPlaces:
    """Where some records of shards lie."""

    shards: list[int]
    """The different shards."""
    shard_at: Ints
    """For each record, which of ``shards`` it is in."""
    logical: Ints
    """The logical offset of each record in its shard."""
    lengths: Ints
    """The stored bytes of each record."""
    checksums: Any
    """The CRC32C of each record: uint32."""
    name: NameOfRow
    """Returns what errors call a record, by its row."""


def fetch_ranges(
    read_ranges: ReadRanges,
    names: Sequence[str],
    file_of: Ints,
    logical: Ints,
    lengths: Ints,
    name: NameOfRow,
) -> Spans:
    """Fetch ranges of ArrayRecord files, all at once. Ranges that lie together are one request.

    Offsets and lengths are logical, without block headers. ``file_of`` says for each range which of ``names`` it is in.
    """
    if len(logical) == 0:
        return Spans.of_bytes([])
    # Records of a view may have another order than in the files.
    order = np.lexsort((logical, file_of))
    file_of = file_of[order]
    logical = logical[order]
    sizes = lengths[order]
    begins = to_position(logical)
    ends = np.where(sizes > 0, to_position(logical + np.maximum(sizes, 1) - 1) + 1, begins)
    distance = begins[1:] - ends[:-1]
    follows = (file_of[1:] == file_of[:-1]) & (distance >= 0) & (distance <= _BETWEEN)
    firsts = np.flatnonzero(np.append(True, ~follows))
    lasts = np.append(firsts[1:], len(logical)) - 1
    spans = zip(file_of[firsts].tolist(), begins[firsts].tolist(), ends[lasts].tolist(), strict=True)
    ranges = [(names[file], begin, end) for file, begin, end in spans]
    buffers = buffers_of_ranges(read_ranges(ranges), begins[firsts])
    counts = lasts - firsts + 1
    starts = np.empty(len(order), np.int64)
    starts[order] = logical - np.repeat(begins[firsts] // BLOCK * PAYLOAD, counts)
    buffer_of = np.empty(len(order), np.int64)
    buffer_of[order] = np.repeat(np.arange(len(firsts)), counts)
    is_uniform = bool((lengths == lengths[0]).all())
    return Spans(buffers, starts, int(lengths[0]) if is_uniform else lengths, buffer_of, name)


class RangedShards:
    """Reads records by ranges, a whole batch at once. Every record is compared with its checksum. Thread-safe.

    ``bundle`` is the object that holds all indices one after another. If they have more than ``kept_nbytes``, rows are
    fetched for each read.
    """

    def __init__(
        self,
        read_ranges: ReadRanges,
        shards: Callable[[int], ShardObject],
        counts: Ints,
        bundle: str | None = None,
        kept_nbytes: int = KEPT_NBYTES,
    ) -> None:
        self._read_ranges = read_ranges
        self._shards = shards
        self._places = splits_of(index.nbytes_of(counts))
        self._bundle = bundle
        self._keeps_indices = int(self._places[-1]) <= kept_nbytes
        self._identified: set[int] = set()
        """The shards whose indices are known to belong to them, of those whose rows are fetched one by one."""
        self._indices: dict[int, NDArray[np.void]] = {}
        self._lock = ProcessLock()

    def records(self, shard_of: Ints, within: Ints) -> Records:
        """Return the records that lie at these places ``within`` their shards."""
        records, broken = self.fetch(shard_of, within)
        if broken:
            raise CorruptionError(f"{records.name(min(broken))} does not match its checksum")
        return records

    def fetch(self, shard_of: Ints, within: Ints) -> tuple[Spans, frozenset[int]]:
        """Return records, and the rows of damaged ones. If some are damaged, all are fetched once more."""
        try:
            records, broken = self._fetch(shard_of, within)
        except CorruptionError as error:
            _log.warning("asked for once more, because it came damaged: %(error)s", {"error": error})
        else:
            if not broken:
                return records, broken
            name = records.name(min(broken))
            _log.warning(
                "asked for once more, because %(records)d records came damaged, such as %(record)s",
                {"records": len(broken), "record": name},
            )
        return self._fetch(shard_of, within)

    def _fetch(self, shard_of: Ints, within: Ints) -> tuple[Spans, frozenset[int]]:
        if len(within) == 0:
            return Spans.of_bytes([]), frozenset()
        places = self._locate(shard_of, within)
        names = [self._shards(shard).name for shard in places.shards]
        stored = fetch_ranges(self._read_ranges, names, places.shard_at, places.logical, places.lengths, places.name)
        broken: set[int] = set()
        are_compressed = [self._shards(shard).stats.compression != "none" for shard in places.shards]
        is_compressed = np.array(are_compressed, np.bool_)[places.shard_at]
        records = decompress_some(stored, is_compressed, broken).packed()
        broken.update(index.mismatches(records, places.checksums).tolist())
        return records, frozenset(broken)

    def fetch_without_files(
        self, shard_of: Ints, within: Ints, files_of: FindFiles, least: int
    ) -> tuple[Records, frozenset[int]]:
        """Return records whose large files are fetched when they are used, and the rows of damaged ones.

        ``files_of`` finds the files in a record from its ``least`` first bytes.
        """
        if any(self._shards(shard).stats.compression != "none" for shard in distinct(shard_of).tolist()):
            return self.fetch(shard_of, within)
        records, broken = self._fetch_without_files(shard_of, within, files_of, least)
        return self._fetch_without_files(shard_of, within, files_of, least) if broken else (records, broken)

    def _fetch_without_files(
        self, shard_of: Ints, within: Ints, files_of: FindFiles, least: int
    ) -> tuple[Records, frozenset[int]]:
        places = self._locate(shard_of, within)
        names = [self._shards(shard).name for shard in places.shards]

        def fetch(rows: Ints, starts: Ints, nbytes: Ints) -> Spans:
            logical = places.logical[rows] + starts
            return fetch_ranges(self._read_ranges, names, places.shard_at[rows], logical, nbytes, places.name)

        return records_without_files(places.lengths, places.name, fetch, files_of, least, places.checksums)

    def stored_nbytes(self, shard_of: Ints, within: Ints) -> Ints:
        """Return the stored bytes of records, from the indices."""
        return self._locate(shard_of, within).lengths

    def _locate(self, shard_of: Ints, within: Ints) -> _RecordPlaces:
        """Return where records lie, from the indices."""

        def name(row: int) -> str:
            shard = self._shards(int(shard_of[row]))
            return f"{shard.folder}/{shard.name}: record {within[row]} of the shard"

        numbers = distinct(shard_of)
        shard_at = numbers.searchsorted(shard_of)
        shards = numbers.tolist()
        if self._keeps_indices:
            rows = self._kept_rows(shards, shard_at, within)
        else:
            rows = self._fetched_rows(shard_of, within)
        logical = to_logical(rows["position"].astype(np.int64))
        lengths = rows["length"].astype(np.int64)
        stats = [self._shards(shard).stats for shard in shards]
        room = to_logical(np.array([facts.nbytes for facts in stats], np.int64))[shard_at]
        check_inside(logical, lengths, room, name, SIGNATURE)
        places = _RecordPlaces(shards, shard_at, logical, lengths, rows["crc32c"], name)
        _check_arithmetic(places, stats, within)
        return places

    def _kept_rows(self, shards: Sequence[int], shard_at: Ints, within: Ints) -> Any:
        """Return the index rows of records from whole indices, which are fetched once."""
        self._load([shard for shard in shards if shard not in self._indices])
        rows = np.empty(len(within), index.ROW)
        for number, in_shard in groups_of(shard_at, len(shards)):
            rows[in_shard] = self._indices[shards[number]][within[in_shard]]
        return rows

    def _load(self, shards: Sequence[int]) -> None:
        """Fetch whole indices: the bundle of all indices as soon as more than one is wanted."""
        if not shards:
            return
        with self._lock.of_process():
            if self._bundle is not None and len(self._indices) + len(shards) > 1:
                bundle = self._bundle
                self._bundle = None
                try:
                    (raw,) = self._read([(bundle, 0, int(self._places[-1]))])
                    for shard, (begin, end) in enumerate(pairwise(self._places.tolist())):
                        self._keep(shard, raw[begin:end])
                except CorruptionError as error:
                    _log.warning(
                        "the indices are fetched one by one, because their bundle is damaged: %(error)s",
                        {"error": error},
                    )
            missing = [shard for shard in shards if shard not in self._indices]
            objects = [self._shards(shard) for shard in missing]
            indices = self._read([(shard.index_name, 0, shard.stats.index_nbytes) for shard in objects])
            for shard, raw in zip(missing, indices, strict=True):
                self._keep(shard, raw)

    def _keep(self, shard: int, raw: bytes) -> None:
        """Check an index, and keep it."""
        facts = self._shards(shard)
        index.check(raw, facts.stats.index_crc32c, f"{facts.folder}/{facts.index_name}")
        self._indices[shard] = index.rows_of(raw)

    def _fetched_rows(self, shard_of: Ints, within: Ints) -> Any:
        """Return the index rows of records, fetched at once, and consecutive rows together.

        With them comes the beginning of each index that is read for the first time, which says whose index it is.
        """
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
            facts = self._shards(shard)
            index.check_identity(raw, facts.stats.sha256, f"{facts.folder}/{facts.index_name}")
            self._identified.add(shard)
        return np.frombuffer(b"".join(bodies[len(new) :]), index.ROW)

    def _read(self, ranges: Sequence[Range]) -> list[bytes]:
        return [bytes(raw) for raw in self._read_ranges(ranges)] if ranges else []


def _check_arithmetic(places: _RecordPlaces, stats: Sequence[ShardStats], within: Ints) -> None:
    """Raise unless records of one size lie where arithmetic says, because single rows of an index have no checksum."""
    first_position = np.array([facts.first_position or 0 for facts in stats], np.int64)
    # -1 stands for shards whose records differ in size.
    size = np.array([-1 if facts.record_nbytes is None else facts.record_nbytes for facts in stats], np.int64)
    stride = np.array([index.chunk_nbytes(max(0, nbytes)) for nbytes in size.tolist()], np.int64)
    shard_at = places.shard_at
    expected = to_logical(first_position)[shard_at] + within * stride[shard_at]
    size = size[shard_at]
    wrong = (size >= 0) & ((places.logical != expected) | (places.lengths != size))
    if wrong.any():
        raise CorruptionError(f"{places.name(int(wrong.argmax()))} does not lie where its index says")
