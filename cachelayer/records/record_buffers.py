"""Records in memory: encoded to be written, or stored records to be decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from cachelayer.errors import CorruptionError
from cachelayer.locks import cached_property
from cachelayer.records.blocks import HEADER, PAYLOAD, outside, pieces
from cachelayer.records.memory import (
    Bytes,
    Ints,
    gather_ranges,
    gather_rows,
    groups_of,
    move_ranges,
    scatter_rows,
    splits_of,
)

PREFIX = 8
"""The bytes of the length before each record in :class:`Frames`."""
_MAX_ITEM_NBYTES = 2**31
_LONG = 1 << 14


def _memory(buffer: Any) -> memoryview:
    # numpy's stubs do not say that an array is a buffer.
    return memoryview(buffer)


@dataclass(frozen=True, eq=False)
class Frames:
    """Encoded records, each preceded by its length as a little-endian uint64: the form in which they are hashed.

    Args:
        buffer: uint8, all frames one after another.
        starts: where each record begins, after its length.
        lengths: bytes of each record.
    """

    buffer: Bytes
    starts: Ints
    lengths: Ints

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def allocate(cls, lengths: Ints, *, zeros: bool = True) -> Frames:
        """Return frames for records of these lengths: the lengths are written, the records hold zeros, or anything.

        Args:
            lengths: the bytes of each record.
            zeros: whether the records hold zeros.
        """
        ends = splits_of(lengths + PREFIX)
        buffer = (np.zeros if zeros else np.empty)(int(ends[-1]), np.uint8)
        frames = cls(buffer, ends[:-1] + PREFIX, lengths)
        uniform = frames.uniform_nbytes
        prefixes = lengths.astype("<u8").view(np.uint8).reshape(-1, PREFIX)
        if uniform is not None:
            buffer.reshape(-1, PREFIX + uniform)[:, :PREFIX] = prefixes
        else:
            scatter_rows(buffer, ends[:-1], prefixes)
        return frames

    @classmethod
    def of(cls, records: Records) -> Frames:
        """Return frames of stored records, with copies of their bytes."""
        lengths = records.lengths
        frames = cls.allocate(lengths, zeros=False)
        uniform = frames.uniform_nbytes
        if uniform is not None:
            frames.buffer.reshape(-1, PREFIX + uniform)[:, PREFIX:] = records.slab(0, uniform)
        else:
            values = records.ranges(np.zeros(len(lengths), np.int64), lengths)
            move_ranges(frames.buffer, frames.starts, values, splits_of(lengths)[:-1], lengths)
        return frames

    @classmethod
    def joined(cls, parts: Sequence[Frames]) -> Frames:
        """Return the records of all parts, with copies of their bytes."""
        lengths = np.concatenate([np.empty(0, np.int64), *(part.lengths for part in parts)])
        buffer = np.concatenate([np.empty(0, np.uint8), *(part.buffer for part in parts)])
        return cls(buffer, splits_of(lengths + PREFIX)[:-1] + PREFIX, lengths)

    @property
    def uniform_nbytes(self) -> int | None:
        """The length of every record if all are equal, else None."""
        if len(self.lengths) and (self.lengths == self.lengths[0]).all():
            return int(self.lengths[0])
        return None

    def __getitem__(self, rows: slice) -> Frames:
        start, stop, step = rows.indices(len(self))
        if step != 1 or start >= stop:
            return Frames(self.buffer[:0], self.starts[:0], self.lengths[:0])
        first = int(self.starts[start]) - PREFIX
        last = int(self.starts[stop - 1] + self.lengths[stop - 1])
        return Frames(self.buffer[first:last], self.starts[start:stop] - first, self.lengths[start:stop])

    def memory(self) -> memoryview:
        return _memory(self.buffer)

    def to_list(self) -> list[bytes]:
        """Return the records, without their lengths."""
        return [record for records in self.lists(max(1, len(self))) for record in records]

    def lists(self, together: int) -> Iterator[list[bytes]]:
        """Yield the records, without their lengths, in lists of ``together`` records each; the last may be shorter."""
        uniform = self.uniform_nbytes
        if uniform and uniform < _MAX_ITEM_NBYTES:
            rows = self.buffer.reshape(-1, PREFIX + uniform)[:, PREFIX:].view(f"V{uniform}")[:, 0]
            for start in range(0, len(rows), together):
                yield rows[start : start + together].tolist()
            return
        memory = self.memory()
        bounds = zip(self.starts.tolist(), (self.starts + self.lengths).tolist(), strict=True)
        while records := [bytes(memory[start:end]) for start, end in islice(bounds, together)]:
            yield records


@dataclass(frozen=True, eq=False)
class Records:
    """Stored records that lie in memory: codecs read those of their bytes that they need.

    Args:
        buffer: uint8, where they lie; with ``mapped``, files as they are on disk, each at a multiple of 64 KiB.
        starts: where each record begins in the buffer; with ``mapped``, without the block headers before it.
        lengths: bytes of each record.
        uniform_nbytes: the bytes of every record if all are known to be equal.
        mapped: whether the buffer has block headers. All records must lie in files: reading elsewhere ends the process.
        name: returns what errors call a record, by its row.
        groups: rows and their records, if they lie in several buffers; none lies in ``buffer`` then.
    """

    buffer: Bytes
    starts: Ints
    lengths: Ints
    uniform_nbytes: int | None = None
    mapped: bool = False
    name: Callable[[int], str] = "record {}".format
    groups: Sequence[tuple[Ints, Records]] = ()

    @classmethod
    def of(cls, records: Sequence[bytes]) -> Records:
        lengths = np.fromiter(map(len, records), np.int64, len(records))
        return cls.packed(np.frombuffer(b"".join(records), np.uint8), lengths)

    @classmethod
    def packed(cls, buffer: Bytes, lengths: Ints) -> Records:
        """Return records of these lengths that follow one another in a buffer."""
        return cls(buffer, splits_of(lengths)[:-1], lengths)

    @classmethod
    def joined(cls, count: int, groups: Sequence[tuple[Ints, Records]]) -> Records:
        """Return records that were read in groups.

        Args:
            count: the number of records.
            groups: for each group, the rows that it has, and its records.
        """
        if len(groups) < 2:
            return groups[0][1] if groups else cls.of([])
        lengths = np.empty(count, np.int64)
        for rows, records in groups:
            lengths[rows] = records.lengths
        sizes = {records.uniform_nbytes for _, records in groups}

        def name(row: int) -> str:
            return next(records.name(rows.tolist().index(row)) for rows, records in groups if row in rows)

        nowhere = np.empty(0, np.uint8)
        return cls(nowhere, lengths, lengths, sizes.pop() if len(sizes) == 1 else None, False, name, groups)

    @classmethod
    def gathered(cls, parts: Sequence[Records], owner: Ints, rows: Ints) -> Records:
        """Return records out of many buffers without block headers: copies, unless all are long and of one length.

        Args:
            parts: where they are.
            owner: for each record, which of ``parts`` it is in.
            rows: the row of each in there.
        """
        if len(rows) and int(rows.min()) < 0:
            raise IndexError(f"there is no row {rows.min()}")
        sizes = {part.uniform_nbytes for part in parts}
        uniform = sizes.pop() if len(sizes) == 1 else None
        if uniform is not None and uniform >= _LONG:
            return cls.joined(
                len(rows), [(mine, parts[part][rows[mine]]) for part, mine in groups_of(owner, len(parts))]
            )
        # A batch has records of hundreds of buffers: Python finds each in less time than numpy looks at each buffer.
        memories, places = [part.memory() for part in parts], list(zip(owner.tolist(), rows.tolist(), strict=True))
        start_of = [part.starts.item for part in parts]
        starts = [start_of[part](row) for part, row in places]
        if uniform is not None:
            lengths = [uniform] * len(rows)
        else:
            length_of = [part.lengths.item for part in parts]
            lengths = [length_of[part](row) for part, row in places]
        found = zip(owner.tolist(), starts, lengths, strict=True)
        joined = bytearray().join([memories[part][start : start + length] for part, start, length in found])
        splits = splits_of(np.array(lengths, np.int64))
        return cls(np.frombuffer(joined, np.uint8), splits[:-1], splits[1:] - splits[:-1], uniform)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, rows: Ints | slice) -> Records:
        """Return some of the records, which lie in one buffer."""

        def name(row: int) -> str:
            return self.name(int(np.arange(len(self))[rows][row]))

        return Records(self.buffer, self.starts[rows], self.lengths[rows], self.uniform_nbytes, self.mapped, name)

    def memory(self) -> memoryview:
        return _memory(self.buffer)

    @cached_property
    def packed_nbytes(self) -> int | None:
        """The bytes of every record if all are equal and follow one another in the buffer, else None."""
        starts, lengths = self.starts, self.lengths
        if len(starts) == 0 or self.mapped or self.groups:
            return None
        nbytes = lengths.item(0)
        if self.uniform_nbytes is None and not (lengths == nbytes).all():
            return None
        return nbytes if (starts[1:] - starts[:-1] == nbytes).all() else None

    def slab(self, offset: int, nbytes: int) -> Bytes:
        """Return the same range of each record: a new uint8 array of shape ``[rows, nbytes]``."""
        self._check_parts(offset, nbytes)
        if self.groups:
            out = np.empty((len(self), nbytes), np.uint8)
            for rows, records in self.groups:
                out[rows] = records.slab(offset, nbytes)
            return out
        starts = self.starts + offset
        if self.mapped:
            return self._mapped_slab(starts, nbytes)
        stride = self.packed_nbytes
        if stride is None or not nbytes:
            return gather_rows(self.buffer, starts, nbytes)
        return np.ndarray((len(starts), nbytes), np.uint8, self.buffer, starts.item(0), (stride, 1)).copy()

    def slabs(self, offset: int, nbytes: int, rows: int) -> list[Bytes]:
        """Return the result of :meth:`slab` as arrays of ``rows`` rows each."""
        starts = range(0, len(self), rows)
        if not self.groups:
            return [self[start : start + rows].slab(offset, nbytes) for start in starts]
        slab = self.slab(offset, nbytes)
        return [slab[start : start + rows].copy() for start in starts]

    def ranges(self, starts: Ints, lengths: Ints) -> Bytes:
        """Return a range of each record, all in one new uint8 array; ``starts`` counts from the record's first byte."""
        wrong = outside(starts, lengths, self.lengths)
        if wrong.any():
            raise CorruptionError(f"{self.name(int(wrong.argmax()))} is shorter than its parts")
        if self.groups:
            splits = splits_of(lengths)
            out = np.empty(int(splits[-1]), np.uint8)
            for rows, records in self.groups:
                group, counts = records.ranges(starts[rows], lengths[rows]), lengths[rows]
                move_ranges(out, splits[rows], group, splits_of(counts)[:-1], counts)
            return out
        begins = self.starts + starts
        if self.mapped:
            _, _, begins, lengths = pieces(begins, lengths)
        return gather_ranges(self.buffer, begins, lengths)

    def copied(self) -> Records:
        """Return the same records one after another in memory of their own."""
        uniform = self.uniform_nbytes
        if uniform is not None:
            values = self.slab(0, uniform).reshape(-1)
        else:
            values = self.ranges(np.zeros(len(self), np.int64), self.lengths)
        return Records(values, splits_of(self.lengths)[:-1], self.lengths, uniform, name=self.name)

    def unmapped(self) -> Records:
        """Return the same records in one buffer without block headers; copied if they do not lie in one already."""
        return self.copied() if self.mapped or self.groups else self

    def to_list(self) -> list[bytes]:
        records = self.unmapped()
        memory, ends = records.memory(), records.starts + records.lengths
        return [bytes(memory[start:end]) for start, end in zip(records.starts.tolist(), ends.tolist(), strict=True)]

    def _check_parts(self, offset: int, nbytes: int) -> None:
        if self.uniform_nbytes is not None and 0 <= offset <= offset + nbytes <= self.uniform_nbytes:
            return
        wrong = self.lengths < offset + nbytes
        if offset < 0 or nbytes < 0 or wrong.any():
            raise CorruptionError(f"{self.name(int(wrong.argmax()))} is shorter than its parts")

    def _mapped_slab(self, logical: Ints, nbytes: int) -> Bytes:
        if nbytes >= _LONG:
            # To copy long rows piece by piece takes no longer than to gather them, and lets other threads run.
            out = np.empty((len(self), nbytes), np.uint8)
            owner, inside, begins, counts = pieces(logical, np.full(len(self), nbytes))
            bounds = (bound.tolist() for bound in (owner, inside, inside + counts, begins, begins + counts))
            for row, to, to_end, start, end in zip(*bounds, strict=True):
                out[row, to:to_end] = self.buffer[start:end]
            return out
        # Gather the rows as if no block header cut them. Then repair the few that a header does cut.
        blocks = logical // PAYLOAD
        places, starts = logical - blocks * PAYLOAD, logical + HEADER * (blocks + 1)
        out = gather_rows(self.buffer, starts, nbytes)
        (cut,) = (places > PAYLOAD - nbytes).nonzero()
        after = PAYLOAD - places[cut]
        ends = starts[cut] + after + HEADER
        for row, done, start in zip(cut.tolist(), after.tolist(), ends.tolist(), strict=True):
            out[row, done:] = self.buffer[start : start + nbytes - done]
        return out


@dataclass(eq=False, slots=True, weakref_slot=True)
class FetchedBlock:
    """Records that were fetched together, checked and decompressed.

    Args:
        records: the records; those that streams hold are in one buffer without block headers.
        broken: the rows of those that did not match their checksums, although they were fetched twice.
    """

    records: Records
    broken: frozenset[int] = frozenset()

    @classmethod
    def joined(cls, count: int, groups: Sequence[tuple[Ints, FetchedBlock]]) -> FetchedBlock:
        """Return the blocks of several groups of records as one: for each group, the rows that it has."""
        records = Records.joined(count, [(rows, block.records) for rows, block in groups])
        return cls(records, frozenset(int(rows[row]) for rows, block in groups for row in block.broken))

    def unmapped(self) -> FetchedBlock:
        """Return the block with its records in one buffer, as streams hold them."""
        return FetchedBlock(self.records.unmapped(), self.broken)

    @property
    def nbytes(self) -> int:
        """The bytes of the records in memory."""
        return self.records.buffer.nbytes + self.records.starts.nbytes + self.records.lengths.nbytes


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class HeldBlock:
    """Records that were fetched together, to be read by their numbers.

    Args:
        numbers: their numbers, ascending, each once.
        fetched: the records, in one buffer.
    """

    numbers: Ints
    fetched: FetchedBlock

    @property
    def ends(self) -> tuple[int, int]:
        """The first number and the last."""
        return self.numbers.item(0), self.numbers.item(-1)


def held_records(blocks: Sequence[HeldBlock], numbers: Ints) -> Records | None:
    """Return copies of records out of blocks; None if one of them is in no block.

    Args:
        blocks: the blocks; those that lie in each other, such as blocks of packs, take longer to look through.
        numbers: the numbers of the records.

    Raises:
        CorruptionError: if one of them is damaged.
    """
    blocks = [block for block in blocks if len(block.numbers)]
    if not blocks:
        return None
    firsts, lasts = np.array([block.ends for block in blocks], np.int64).T
    order = firsts.argsort(kind="stable")
    if (lasts[order[:-1]] < firsts[order[1:]]).all():
        owner = order[np.maximum(firsts[order].searchsorted(numbers, side="right") - 1, 0)]
        rows, found = numbers - firsts[owner], (numbers >= firsts[owner]) & (numbers <= lasts[owner])
        sizes = np.array([len(block.numbers) for block in blocks])
        if (sizes <= lasts - firsts).any():
            for place, mine in groups_of(owner, len(blocks)):
                own = blocks[place].numbers
                rows[mine] = np.minimum(own.searchsorted(numbers[mine]), len(own) - 1)
                found[mine] &= own[rows[mine]] == numbers[mine]
    else:
        every = np.concatenate([block.numbers for block in blocks])
        order = every.argsort(kind="stable")
        places = order[np.minimum(every[order].searchsorted(numbers), len(every) - 1)]
        splits = splits_of(np.array([len(block.numbers) for block in blocks]))
        owner = splits.searchsorted(places, side="right") - 1
        rows = places - splits[owner]
        found = every[places] == numbers
    if not found.all():
        return None
    for place, block in enumerate(blocks):
        if block.fetched.broken:
            damaged = [row for row in rows[owner == place].tolist() if row in block.fetched.broken]
            if damaged:
                raise CorruptionError(f"{block.fetched.records.name(damaged[0])} does not match its checksum")
    return Records.gathered([block.fetched.records for block in blocks], owner, rows)
