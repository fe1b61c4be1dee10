"""Read records of shards in an object store, by the exact byte range of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from cachelayer.arrayrecord import index
from cachelayer.arrayrecord.blocks import moved_over_headers, to_logical, to_position, without_headers
from cachelayer.arrayrecord.expected_rows import Expected, ExpectedRows
from cachelayer.arrayrecord.held_records import HeldRecords
from cachelayer.arrayrecord.kept_indices import KEPT_NBYTES, KeptIndices
from cachelayer.arrayrecord.ranged_rows import (
    IndexRows,
    Range,
    ShardObject,
    check_inside,
    check_same,
    extents,
    joined_ranges,
    row_ranges,
    rows_of,
)
from cachelayer.errors import CorruptionError
from cachelayer.locks import ProcessLock
from cachelayer.records.memory import Bytes, Ints, Piece, distinct, splits_of
from cachelayer.records.record_buffers import RecordBuffer

ReadRanges = Callable[[Sequence[Range]], Sequence[bytes]]
"""Reads ranges of objects at once, each given as the object's name, begin and end; returns exactly these bytes."""
ReadPieces = Callable[[Sequence[Range]], Sequence[Sequence[Piece]]]
"""Reads ranges of objects as a :data:`ReadRanges` does; returns each range in the pieces in which it arrived."""

# Shards whose mean record is looked at, to know that of all.
_LOOKED_AT = 64


class RangedShards:
    """Reads records by ranges, a whole batch at once: first their places from the index, then the records.

    At first single rows of an index are fetched, and the whole index once that is cheaper: then later records of the
    shard need one request each. The places of records of one size follow by arithmetic, so those are fetched together
    with their rows. Every record is compared with its checksum. Safe to use from threads.

    Args:
        read_pieces: reads ranges of objects.
        shards: the shards, by their numbers.
        kept_nbytes: the bytes of indices to keep in memory.
    """

    def __init__(
        self,
        read_pieces: ReadPieces,
        shards: Sequence[ShardObject] | Mapping[int, ShardObject],
        kept_nbytes: int = KEPT_NBYTES,
    ) -> None:
        self.read_pieces = read_pieces
        self.shards = shards
        self.indices = KeptIndices(shards, kept_nbytes)
        self._expected = Expected()
        self._fetching: dict[int, ProcessLock] = {}

    def _read_ranges(self, ranges: Sequence[Range]) -> list[bytes]:
        return _joined(self.read_pieces(ranges))

    def whole_index(self, shard: int) -> Bytes:
        """Return the index of a shard; fetch it if it is not here.

        Raises:
            CorruptionError: if it is not what was published.
        """
        raw = self.indices.find(shard)
        if raw is None:
            stored = self.shards[shard]
            (fetched,) = self._read_ranges([(stored.index_name, 0, stored.stats.index_nbytes)])
            raw = np.frombuffer(fetched, np.uint8)
            self.indices.checked(shard, raw)
        return raw

    def expect(self, blocks: Callable[[], tuple[Ints, Ints, int] | None]) -> object:
        """Take note of blocks that are going to be held, once each, as long as the result is kept.

        Rows of an index for several of them may come in one request.

        Args:
            blocks: finds them, if that helps: the shard of each, the number of its first record there, and their size.
        """

        def rows() -> ExpectedRows | None:
            if (found := blocks()) is None or len(found[0]) == 0:
                return None
            shard_of, within, count = found
            some = shard_of[:: 1 + len(shard_of) // _LOOKED_AT].tolist()
            return ExpectedRows(shard_of, within, count, float(np.mean([self.mean_nbytes(shard) for shard in some])))

        return self._expected.added(rows)

    def records(self, shard_of: Ints, within: Ints) -> RecordBuffer:
        """Return records.

        Args:
            shard_of: the shard of each record.
            within: the number of each record in its shard.

        Raises:
            CorruptionError: if a record is not what was written, also when it is fetched once more.
            StorageError: if the store cannot be read.
        """
        with suppress(CorruptionError):
            return self.hold(shard_of, within).all()
        # The bytes may have been damaged on the way.
        return self.hold(shard_of, within).all()

    def hold(self, shard_of: Ints, within: Ints, share: float = 0.0) -> HeldRecords:
        """Fetch records and keep them as they are stored; a run of consecutive records is one range.

        Args:
            shard_of: the shard of each record.
            within: the number of each record in its shard.
            share: the fraction of the records of every shard that the caller is going to fetch, so many at a time. If
                that takes more requests for rows of an index than the index is worth, all of it is fetched first.

        Raises:
            CorruptionError: if a record does not lie where its index says.
            StorageError: if the store cannot be read.
        """

        def name(row: int) -> str:
            return f"{self.shards[shard_of[row]].name}: record {within[row]} of the shard"

        if share:
            due = self.indices.due(shard_of, share)
            held = self._hold_beside_index(due, shard_of, within, name)
            if held is not None:
                return held
            for shard in due:
                self._fetch_index(shard)
        if len(within) and (shard_of == shard_of[0]).all():
            held = self.hold_run(int(shard_of[0]), within)
            if held is not None:
                return held
        found = self._expected.find(shard_of, within)
        if found is not None:
            return self._hold_expected(*found, shard_of, within, name)
        return self._hold_apart(shard_of, within, name)[0]

    def _hold_expected(
        self, expected: ExpectedRows, block: int, shard_of: Ints, within: Ints, name: Callable[[int], str]
    ) -> HeldRecords:
        """Fetch a block that was expected: its index rows come with those of others, if they are not here yet."""
        with expected.lock(block):
            rows = expected.take(block)
            if rows is None:
                together = expected.together(block)
                has_room = expected.nbytes_of(together) <= self.indices.room - self._expected.nbytes
                begins = expected.begins(together if has_room else np.array([block]))
                span = np.arange(begins[0], begins[-1] + len(within))
                held, rows = self._hold_apart(shard_of, within, name, span)
                if has_room:
                    expected.keep(together, rows, int(begins[0]))
                return held
        run_of, ranges = joined_ranges(self.shards, shard_of, within, rows, name)
        return self._held(shard_of, rows, run_of, ranges, self.read_pieces(ranges), name)

    def _hold_apart(
        self, shard_of: Ints, within: Ints, name: Callable[[int], str], span: Ints | None = None
    ) -> tuple[HeldRecords, Any]:
        """Fetch records whose index is not here.

        Args:
            shard_of, within: the shard of each record, and its number there.
            name: returns what errors call a record.
            span: the numbers of consecutive records of their shard, of all whose rows are fetched, and not the whole
                index; None for the rows of the records.

        Returns:
            The records, and the rows that were fetched.
        """
        if span is None:
            wanted = self._rows(shard_of, within)
            rows = wanted.rows
        else:
            wanted = self._rows(np.full(len(span), shard_of[0]), span, may_take_whole=False)
            rows = wanted.rows[within[0] - span[0] :][: len(within)]
        first = wanted.ranges
        places = self._by_arithmetic(shard_of, within) if first else None
        if places is None:
            self._fill_in(wanted, within, self._read_ranges(first) if first else [])
            first, places = [], rows
        run_of, ranges = joined_ranges(self.shards, shard_of, within, places, name)
        bodies = self.read_pieces([*first, *ranges])
        if first:
            self._fill_in(wanted, within, _joined(bodies[: len(first)]))
            check_same(rows, places, name)
        return self._held(shard_of, rows, run_of, ranges, bodies[len(first) :], name), wanted.rows

    def _held(
        self,
        shard_of: Ints,
        rows: Any,
        run_of: Ints,
        ranges: Sequence[Range],
        bodies: Sequence[Sequence[Piece]],
        name: Callable[[int], str],
    ) -> HeldRecords:
        """Return records that were fetched by ranges.

        Args:
            shard_of, rows: the shard and the index row of each record.
            run_of: the number of its range.
            ranges, bodies: the ranges, and what came for each.
            name: returns what errors call a record.
        """
        runs = [without_headers(pieces, begin) for pieces, (_, begin, _) in zip(bodies, ranges, strict=True)]
        firsts = to_logical(np.array([begin for _, begin, _ in ranges], np.int64))
        logical, lengths, _, _ = extents(rows)
        starts = logical + (splits_of(np.array([len(run) for run in runs], np.int64))[:-1] - firsts)[run_of]
        fetched = runs[0] if len(runs) == 1 else np.concatenate([*runs, np.empty(0, np.uint8)])
        shards, shard_at = np.unique(shard_of, return_inverse=True)
        compressed = np.array([self.indices.is_compressed(shard) for shard in shards.tolist()], np.bool_)
        return HeldRecords.checked(fetched, starts, lengths, rows["crc32c"].copy(), compressed[shard_at], name)

    def _hold_beside_index(
        self, due: Sequence[int], shard_of: Ints, within: Ints, name: Callable[[int], str]
    ) -> HeldRecords | None:
        """Fetch records of a shard whose index is due while the index is on its way, as many threads do at the start.

        Returns:
            None if they lie in several shards, or their places do not follow by arithmetic.
        """
        if len(due) != 1 or (shard_of != due[0]).any():
            return None
        places = self._by_arithmetic(shard_of, within)
        if places is None:
            return None
        run_of, ranges = joined_ranges(self.shards, shard_of, within, places, name)
        bodies = self._read_beside_index(due[0], ranges)
        rows = rows_of(self.whole_index(due[0]))[within]
        check_same(rows, places, name)
        return self._held(shard_of, rows, run_of, ranges, bodies, name)

    def _read_beside_index(self, shard: int, ranges: Sequence[Range]) -> Sequence[Sequence[Piece]]:
        """Read ranges, and the index of a shard at the same time; return when the index is here too."""
        lock, stored = self._fetching.setdefault(shard, ProcessLock()).of_process(), self.shards[shard]
        if lock.acquire(blocking=False):
            try:
                if not self.indices.has(shard):
                    whole = (stored.index_name, 0, stored.stats.index_nbytes)
                    pieces, *bodies = self.read_pieces([whole, *ranges])
                    self.indices.keep(shard, np.frombuffer(b"".join(pieces), np.uint8))
                    return bodies
            finally:
                lock.release()
        bodies = list(self.read_pieces(ranges))
        self._fetch_index(shard)
        return bodies

    def hold_run(self, shard: int, within: Ints) -> HeldRecords | None:
        """Fetch consecutive records of a shard by one range; None for others, or if their index is not here.

        A block is such a run almost always, so it has a short way of its own.

        Raises:
            CorruptionError, StorageError: as :meth:`hold` does.
        """
        first, count = int(within[0]), len(within)
        if (within[1:] - within[:-1] != 1).any() or (raw := self.indices.find(shard)) is None:
            return None
        rows, stored = rows_of(raw)[first : first + count], self.shards[shard]
        logical, lengths, begins, ends = extents(rows)
        # Records of a damaged index may lie in any order.
        if not (begins[1:] >= ends[:-1]).all():
            return None

        def name(row: int) -> str:
            return f"{stored.name}: record {first + row} of the shard"

        check_inside(rows, begins, ends, stored.stats.nbytes, name)
        begin, end = begins.item(0), ends.item(-1)
        (pieces,) = self.read_pieces([(stored.name, begin, end)])
        # Records of no bytes come in no piece.
        fetched = np.frombuffer(pieces[0] if len(pieces) == 1 else b"", np.uint8)
        if fetched.flags.writeable:
            starts = moved_over_headers(fetched, begin, begins, ends)
        else:
            fetched, starts = without_headers(pieces, begin), logical - logical[0]
        compressed = np.full(count, self.indices.is_compressed(shard))
        return HeldRecords.checked(fetched, starts, lengths, rows["crc32c"].copy(), compressed, name)

    def _fetch_index(self, shard: int) -> None:
        """Fetch an index once: one thread fetches it, and the others wait for it."""
        with self._fetching.setdefault(shard, ProcessLock()):
            if not self.indices.has(shard):
                self.indices.keep(shard, self.whole_index(shard))

    def places(self, shard_of: Ints, within: Ints) -> Any:
        """Return the index rows of records, perhaps without checksums; the arguments are those of :meth:`records`."""
        rows = self._by_arithmetic(shard_of, within)
        if rows is None:
            wanted = self._rows(shard_of, within)
            self._fill_in(wanted, within, self._read_ranges(wanted.ranges) if wanted.ranges else [])
            rows = wanted.rows
        return rows

    def mean_nbytes(self, shard: int) -> float:
        """Return the mean stored bytes of the records of a shard."""
        stats = self.shards[shard].stats
        return stats.nbytes / max(1, stats.records)

    def _by_arithmetic(self, shard_of: Ints, within: Ints) -> Any:
        """Return rows without checksums if places follow by arithmetic in the shards of all records, else None."""
        shards, place = np.unique(shard_of, return_inverse=True)
        stats = [self.shards[shard].stats for shard in shards.tolist()]
        firsts = [each.first_position for each in stats if each.first_position is not None]
        sizes = [each.record_nbytes for each in stats if each.record_nbytes is not None]
        if not len(firsts) == len(sizes) == len(stats):
            return None
        strides = {size: index.chunk_nbytes(size) for size in set(sizes)}
        first, stride = to_logical(np.array(firsts, np.int64)), np.array([strides[size] for size in sizes], np.int64)
        rows = np.zeros(len(within), index.ROW)
        rows["position"] = to_position(first[place] + within * stride[place])
        rows["length"] = np.array(sizes, np.int64)[place]
        return rows

    def _rows(self, shard_of: Ints, within: Ints, *, may_take_whole: bool = True) -> IndexRows:
        """Return the index rows of these records that are here, and plan how to fetch the others."""
        out = np.empty(len(within), index.ROW)
        missing: dict[int, Ints] = {}
        for shard in distinct(shard_of).tolist():
            mine = np.flatnonzero(shard_of == shard)
            raw = self.indices.find(shard)
            if raw is None:
                missing[shard] = mine
            else:
                out[mine] = rows_of(raw)[within[mine]]
        whole = [
            shard for shard, mine in missing.items() if may_take_whole and self.indices.is_due(shard, within[mine])
        ]
        heads = [shard for shard in missing if shard not in whole and self.indices.header(shard) is None]
        apart = {shard: mine for shard, mine in missing.items() if shard not in whole}
        single = np.concatenate([*apart.values(), np.empty(0, np.int64)])
        wanted = [
            *((shard, 0, self.shards[shard].stats.index_nbytes) for shard in whole),
            *((shard, 0, index.HEADER_NBYTES) for shard in heads),
            *((shard, *rows) for shard, mine in apart.items() for rows in row_ranges(within[mine])),
        ]
        ranges = [(self.shards[shard].index_name, begin, end) for shard, begin, end in wanted]
        return IndexRows(out, missing, whole, heads, single, ranges)

    def _fill_in(self, wanted: IndexRows, within: Ints, bodies: Sequence[bytes]) -> None:
        """Fill in the rows that were missing, from the fetched ranges."""
        fetched = iter(bodies)
        for shard in wanted.whole:
            raw = np.frombuffer(next(fetched), np.uint8)
            self.indices.keep(shard, raw)
            wanted.rows[wanted.missing[shard]] = rows_of(raw)[within[wanted.missing[shard]]]
        for shard in wanted.heads:
            self.indices.keep_header(shard, next(fetched))
        wanted.rows[wanted.single] = np.frombuffer(b"".join(fetched), index.ROW)


def _joined(bodies: Sequence[Sequence[Piece]]) -> list[bytes]:
    return [b"".join(pieces) for pieces in bodies]
