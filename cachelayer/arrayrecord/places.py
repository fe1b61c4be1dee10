"""Read records of many mapped files at once, straight from memory, after a check that each lies in its file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.address_space import AddressSpace
from cachelayer.arrayrecord.blocks import HEADER, PAYLOAD, SIGNATURE, in_blocks, outside, pieces, to_position
from cachelayer.arrayrecord.decompress import LONG, CutRecords, StoredRows, decompressed
from cachelayer.arrayrecord.gather import GAINS, gathered, jobs_of
from cachelayer.errors import CorruptionError
from cachelayer.records.memory import (
    RELEASING_ITEMS,
    Bytes,
    Ints,
    empty,
    gather_ranges,
    move_ranges,
    splits_of,
    window_of,
)
from cachelayer.records.record_buffers import RecordBuffer, Records
from cachelayer.records.threads import quickest

# From this size on, rows are copied one by one, which takes no longer, and threads can share it.
_LONG = 1 << 14
# Copying fewer bytes takes less time than to wait for the GIL again.
_SHARED_NBYTES = 1 << 18
# Fewer rows are elements, each in memory of its own: to give the GIL away for each takes longer than to copy it, unless
# it is large.
_TOGETHER = 8
_LARGE_NBYTES = 1 << 20


def check_inside(logical: Ints, lengths: Ints, room: Ints | int, name: Callable[[int], str]) -> None:
    """Raise if a range does not lie in its file.

    Args:
        logical, lengths, room: see :func:`outside`.
        name: returns the name of a range in error messages, given its number.

    Raises:
        CorruptionError: with the first such range.
    """
    wrong = outside(logical, lengths, room)
    if wrong.any():
        raise CorruptionError(f"{name(int(wrong.argmax()))} reaches past the end of the file")


@dataclass(frozen=True, eq=False)
class Places:
    """Ranges of any lengths in mapped files.

    Args:
        space: where the files are mapped.
        holder: an object that keeps them mapped.
        base: where the file of each range begins in the space; one number if all are in one file.
        room: bytes of the file of each range, without block headers.
        logical: the logical offset of each range in its file.
        lengths: bytes of each, without block headers.
        name: returns the name of a range in error messages, given its number.

    Raises:
        CorruptionError: if a range reaches past the end of its file.
    """

    space: AddressSpace
    holder: object
    base: Ints | int
    room: Ints | int
    logical: Ints
    lengths: Ints
    name: Callable[[int], str]

    def __post_init__(self) -> None:
        check_inside(self.logical, self.lengths, self.room, self.name)

    def ranges(self) -> Bytes:
        """Return a copy of the ranges, one after another."""
        return self.parts(np.zeros(len(self.lengths), np.int64), self.lengths)

    def parts(self, starts: Ints, lengths: Ints) -> Bytes:
        """Return a copy of a part of each range, one after another; it must lie in its range."""
        return self._copied(self.logical + starts, lengths, self.base)

    def records(self, compression: str) -> RecordBuffer:
        """Return the records that are stored in these ranges.

        Raises:
            CorruptionError: if a record does not decompress.
        """
        if compression == "none":
            return RecordBuffer.packed(self.ranges(), self.lengths)
        # Decompress them from the mapped memory; copy only short ones that a block header cuts.
        is_cut = in_blocks(self.logical)[1] > PAYLOAD - self.lengths
        is_long = self.lengths >= LONG
        whole, cut, long = (rows.nonzero()[0] for rows in (~is_cut, is_cut & ~is_long, is_cut & is_long))
        base = np.broadcast_to(self.base, is_cut.shape)
        stored: list[StoredRows] = []
        if len(whole):
            starts = (to_position(self.logical) + base)[whole]
            stored.append((whole, RecordBuffer(self.space.memory, starts, self.lengths[whole])))
        if len(cut):
            copied = self._copied(self.logical[cut], self.lengths[cut], base[cut])
            stored.append((cut, RecordBuffer.packed(copied, self.lengths[cut])))
        if len(long):
            stored.append((long, CutRecords(self.space.memory, base[long], self.logical[long], self.lengths[long])))
        return decompressed(stored, self.name, self.holder)

    def _copied(self, logical: Ints, lengths: Ints, base: Ints | int) -> Bytes:
        # The pieces follow one another, as the ranges do.
        owner, _, position, length = pieces(logical, lengths)
        return gather_ranges(self.space.memory, position + (base if isinstance(base, int) else base[owner]), length)


@dataclass(frozen=True, eq=False)
class VaryingRecords:
    """Uncompressed records of any sizes in mapped files. Only those of their bytes are read that are asked for.

    Args:
        places: the records.
    """

    places: Places

    @classmethod
    def joined(cls, rows: int, groups: Sequence[tuple[Ints, Records]]) -> VaryingRecords | None:
        """Return records that were found in groups as one; None if any is not of this class, or mapped apart.

        Args:
            rows: the number of records.
            groups: for each group, the rows that it has, and their records.
        """
        found = [(mine, records.places) for mine, records in groups if isinstance(records, cls)]
        if not found or len(found) < len(groups) or any(each.space is not found[0][1].space for _, each in found):
            return None
        base, room, logical, lengths = (np.empty(rows, np.int64) for _ in range(4))
        for mine, each in found:
            base[mine], room[mine], logical[mine], lengths[mine] = each.base, each.room, each.logical, each.lengths

        def name(row: int) -> str:
            ((own, each),) = ((mine.tolist(), each) for mine, each in found if row in mine)
            return each.name(own.index(row))

        holders = [each.holder for _, each in found]
        return cls(Places(found[0][1].space, holders, base, room, logical, lengths, name))

    def __len__(self) -> int:
        return len(self.places.lengths)

    @property
    def lengths(self) -> Ints:
        return self.places.lengths

    @property
    def uniform_nbytes(self) -> None:
        return None

    def slab(self, offset: int, nbytes: int) -> Bytes:
        return self._begins(offset + nbytes).slab(offset, nbytes)

    def slabs(self, offset: int, nbytes: int, rows: int) -> list[Bytes]:
        return self._begins(offset + nbytes).slabs(offset, nbytes, rows)

    def _begins(self, nbytes: int) -> UniformRecords:
        """Return the first bytes of each record."""
        places = self.places
        self._refuse(self.lengths < nbytes)
        self._refuse(places.logical < SIGNATURE, "begins in the signature of its file")
        return UniformRecords.inside(places.space, places.holder, places.base, places.logical, nbytes)

    def _refuse(self, wrong: NDArray[np.bool_], why: str = "is shorter than its parts") -> None:
        if wrong.any():
            raise CorruptionError(f"{self.places.name(int(wrong.argmax()))} {why}")

    def ranges(self, starts: Ints, lengths: Ints) -> Bytes:
        self._refuse(outside(starts, lengths, self.lengths))
        return self.places.parts(starts, lengths)


@dataclass(frozen=True, eq=False)
class UniformRecords:
    """Records of one size in mapped files. Only the bytes that are asked for are read.

    Args:
        space: where the files are mapped.
        holder: an object that keeps them mapped.
        starts: where each record begins in the space.
        places: where each begins in its block, not counting the block header.
        nbytes: bytes of each record.
        crossing: the rows of the records that do not end in the block where they begin.
        room: for each row in ``crossing``, the bytes from the begin of the record to the end of its block.
    """

    space: AddressSpace
    holder: object
    starts: Ints
    places: Ints
    nbytes: int
    crossing: Ints
    room: Ints

    @classmethod
    def at(
        cls,
        space: AddressSpace,
        holder: object,
        base: int,
        room: int,
        logical: Ints,
        nbytes: int,
        name: Callable[[int], str],
    ) -> UniformRecords:
        """Return the records at logical offsets of one file.

        Args:
            base: where the file begins in the space.
            room: bytes of the file without block headers.
            name: returns the name of a record in error messages, given its row.

        Raises:
            CorruptionError: if a record does not lie in the file.
        """
        if room < nbytes or (len(logical) and int(logical.view(np.uint64).max()) > room - nbytes):
            check_inside(logical, np.full(len(logical), nbytes), room, name)
        return cls.inside(space, holder, base, logical, nbytes)

    @classmethod
    def inside(
        cls, space: AddressSpace, holder: object, base: Ints | int, logical: Ints, nbytes: int
    ) -> UniformRecords:
        """Return the records at logical offsets of files that begin at ``base``.

        All must lie in their files, behind the signatures.
        """
        blocks, places = in_blocks(logical)
        blocks *= HEADER
        blocks += logical
        blocks += base + HEADER
        crossing = (places > PAYLOAD - nbytes).nonzero()[0]
        return cls(space, holder, blocks, places, nbytes, crossing, PAYLOAD - places[crossing])

    @classmethod
    def joined(cls, rows: int, groups: Sequence[tuple[Ints, Records]]) -> UniformRecords | None:
        """Return records that were found in groups as one; None if they are not all of one size, or mapped apart.

        Args:
            rows: the number of records.
            groups: for each group, the rows that it has, and their records.
        """
        first = groups[0][1] if groups else None
        if not isinstance(first, cls):
            return None
        starts, places = np.empty(rows, np.int64), np.empty(rows, np.int64)
        holders, crossing, room = [], [], []
        for mine, records in groups:
            if not isinstance(records, cls) or records.nbytes != first.nbytes or records.space is not first.space:
                return None
            starts[mine], places[mine] = records.starts, records.places
            crossing.append(mine[records.crossing])
            room.append(records.room)
            holders.append(records.holder)
        return cls(first.space, holders, starts, places, first.nbytes, np.concatenate(crossing), np.concatenate(room))

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> Ints:
        return np.full(len(self.starts), self.nbytes)

    @property
    def uniform_nbytes(self) -> int:
        return self.nbytes

    def slab(self, offset: int, nbytes: int) -> Bytes:
        slabs = self.slabs(offset, nbytes, max(1, len(self.starts)))
        return slabs[0] if slabs else np.empty((0, nbytes), np.uint8)

    def slabs(self, offset: int, nbytes: int, rows: int) -> list[Bytes]:
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise CorruptionError(f"bytes {offset} to {offset + nbytes} of records of {self.nbytes} bytes")
        begin = self.starts + offset
        starts = [begin] if rows == len(begin) else [begin[row : row + rows] for row in range(0, len(begin), rows)]
        if nbytes == 0:
            return [np.empty((len(part), 0), np.uint8) for part in starts]
        is_long = nbytes >= _LONG or self.nbytes > PAYLOAD
        are_few = rows < RELEASING_ITEMS and rows * nbytes >= _SHARED_NBYTES
        if rows >= _TOGETHER and (is_long or are_few):
            window = window_of(nbytes, -(-RELEASING_ITEMS // rows) if rows * nbytes >= _SHARED_NBYTES else 1)
            if window:
                windows = self._windowed(offset, nbytes, window).slabs(0, window, rows * (nbytes // window))
                return [part.reshape(-1, nbytes) for part in windows]
        if is_long:
            parts = [empty((len(part), nbytes), np.uint8) for part in starts]
            if rows < _TOGETHER and nbytes < _LARGE_NBYTES:
                views = [memoryview(row) for part in parts for row in part]
                self._copy_each(views, self.space.view, begin, self.places + offset)
            else:
                self._copy_rows([row for part in parts for row in part], begin, self.places + offset)
            return parts
        # Gather all rows as if no block header cut them. Then repair the few that a header does cut, row by row.
        found = [gathered(self.space, nbytes, part, self.holder) for part in starts]
        crossing = self.crossing
        if len(crossing):
            room = self.room - offset
            cut = (room < nbytes).nonzero()[0]
            if len(cut):
                self._mend(found, rows, crossing[cut], begin[crossing[cut]], np.maximum(room[cut], 0))
        return [np.ndarray((len(part), nbytes), np.uint8, part) for part in found]

    def _windowed(self, offset: int, nbytes: int, window: int) -> UniformRecords:
        """Return a part of each record as windows, each of which crosses at most one block header."""
        within = np.arange(offset, offset + nbytes, window)
        blocks, places = in_blocks((self.places[:, None] + within).reshape(-1))
        blocks *= HEADER
        starts = (self.starts[:, None] + within).reshape(-1)
        starts += blocks
        crossing = (places > PAYLOAD - window).nonzero()[0]
        return UniformRecords(self.space, self.holder, starts, places, window, crossing, PAYLOAD - places[crossing])

    def _mend(self, found: list[NDArray[Any]], together: int, rows: Ints, starts: Ints, room: Ints) -> None:
        """Copy again the bytes that follow the block header in each of these rows, now without the header.

        Args:
            room: for each row, the bytes before the header.
        """
        nbytes, memory = found[0].dtype.itemsize, self.space.view
        number = rows // together
        begin = (rows - number * together) * nbytes
        bounds = (number, begin + room, begin + nbytes, starts + (room + HEADER), starts + (nbytes + HEADER))
        last, target = -1, memory
        for part, to, to_end, start, end in zip(*(bound.tolist() for bound in bounds), strict=True):
            if part != last:
                last, target = part, memoryview(found[part].view(np.uint8))
            target[to:to_end] = memory[start:end]

    def _copy_rows(self, rows: Sequence[Bytes], starts: Ints, places: Ints) -> None:
        """Fill rows with ranges that may cross block headers, piece by piece; threads share the work if they gain.

        Args:
            rows: all of one length.
            starts: where each range would begin in memory if no block header came between it and its record's begin.
            places: the offset of each from the begin of the first block of its record, not counting block headers.
        """
        # Assigning slices of arrays releases the GIL; assigning those of memoryviews does not.
        memory = self.space.memory

        def copy(first: int, last: int, _: object = self.holder) -> None:
            here = slice(first, last)
            self._copy_each(rows[here], memory, starts[here], places[here])

        count, nbytes = len(rows), len(rows[0]) if rows else 0
        quickest(partial(copy, 0, count), partial(jobs_of, copy, count), count * nbytes, GAINS[nbytes.bit_length()])

    @staticmethod
    def _copy_each(rows: Sequence[Any], memory: Any, starts: Ints, places: Ints) -> None:
        for row, start, place in zip(rows, starts.tolist(), places.tolist(), strict=True):
            block, within = divmod(place, PAYLOAD)
            position, done, nbytes = start + block * HEADER, 0, len(row)
            stop = min(PAYLOAD - within, nbytes)
            while done < nbytes:
                after = position + stop - done
                row[done:stop] = memory[position:after]
                done, stop, position = stop, min(stop + PAYLOAD, nbytes), after + HEADER

    def ranges(self, starts: Ints, lengths: Ints) -> Bytes:
        wrong = (starts < 0) | (lengths < 0) | (lengths > self.nbytes) | (starts > self.nbytes - lengths)
        if wrong.any():
            raise CorruptionError(f"a part of a record reaches past the end of its {self.nbytes} bytes")
        splits = splits_of(lengths)
        out = np.empty(int(splits[-1]), np.uint8)
        within = self.places + starts
        owner, inside, position, length = pieces(within, lengths)
        begins = (self.starts - self.places - HEADER)[owner] + position
        move_ranges(out, splits[owner] + inside, self.space.memory, begins, length)
        return out

    def stored(self) -> RecordBuffer:
        """Return a copy of the whole records."""
        lengths = self.lengths
        return replace(RecordBuffer.packed(self.slab(0, self.nbytes).reshape(-1), lengths), uniform_nbytes=self.nbytes)
