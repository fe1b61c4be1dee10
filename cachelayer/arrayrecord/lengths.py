"""The lengths of leaves, as running sums: a ``.npy`` file beside each shard, and columns of such sums over many shards.

The file of a shard is an int64 array of shape ``[leaves, records + 1]``. For each leaf of varying length it has the
number of values before each record, and the number of all. So a length is a difference, and the record of a value is
found by bisection::

    lengths    3 0 2
    sums       0 3 3 5    value 4 lies in record 2, at place 4 - 3

The manifest has the last sum and the CRC32C of each row.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import CorruptionError, InvalidArgumentError
from cachelayer.records.selection import Selection
from cachelayer.support.locks import cached_property
from cachelayer.support.memory import Bytes, Ints, splits_of

LENGTH = np.dtype("<u4")
_SUM = np.dtype("<i8")
_RECORDS_AT_ONCE = 1 << 20
LoadSums: TypeAlias = Callable[[Sequence[int]], list[Ints]]
_FEW_RECORDS = 1 << 20
_FEW_PARTS = 256


@dataclass(frozen=True)
class LengthsFile:
    """The facts about the file of lengths of a shard that a manifest records."""

    records: int
    """The number of records."""
    checksums: Sequence[int]
    """The CRC32C of the sums of each leaf."""
    totals: Sequence[int]
    """The sum of the lengths of each leaf."""

    @cached_property
    def header(self) -> bytes:
        """The header of the array, as numpy writes it."""
        out = io.BytesIO()
        shape = (len(self.totals), self.records + 1)
        np.lib.format.write_array_header_1_0(out, {"descr": "<i8", "fortran_order": False, "shape": shape})
        return out.getvalue()

    def place(self, leaf: int) -> tuple[int, int]:
        """Return where the sums of a leaf begin and end in the file."""
        nbytes = (self.records + 1) * _SUM.itemsize
        return len(self.header) + leaf * nbytes, len(self.header) + (leaf + 1) * nbytes

    @property
    def nbytes(self) -> int:
        return self.place(len(self.totals))[0]

    def check_leaf(self, leaf: int, raw: Bytes, name: str) -> Ints:
        """Return the sums of a leaf, read-only, from their bytes."""
        if google_crc32c.value(raw) != self.checksums[leaf]:
            raise CorruptionError(f"{name}: the lengths do not match their checksum")
        sums: Ints = raw.view(_SUM)
        if sums[0] != 0 or sums[-1] != self.totals[leaf] or (sums[1:] < sums[:-1]).any():
            raise CorruptionError(f"{name}: its sums are not those of lengths that add up to {self.totals[leaf]}")
        sums.setflags(write=False)
        return sums

    def check(self, raw: Bytes, name: str) -> list[Ints]:
        """Return the sums of each leaf in a whole file."""
        if len(raw) != self.nbytes:
            raise CorruptionError(f"{name}: expected {self.nbytes} bytes, found {len(raw)}")
        if raw[: len(self.header)].tobytes() != self.header:
            raise CorruptionError(f"{name}: its header is not that of the lengths of {self.records} records")
        return [self.check_leaf(leaf, raw[slice(*self.place(leaf))], name) for leaf in range(len(self.totals))]


def encode_lengths(lengths: NDArray[np.integer]) -> tuple[bytes, LengthsFile]:
    """Return the file of lengths of shape ``[records, leaves]``, and the facts about it for a manifest."""
    rows = [splits_of(leaf).astype(_SUM, copy=False) for leaf in lengths.T]
    raw = [row.tobytes() for row in rows]
    file = LengthsFile(len(lengths), tuple(map(google_crc32c.value, raw)), tuple(int(row[-1]) for row in rows))
    return b"".join([file.header, *raw]), file


class LengthColumn:
    """The lengths of one leaf of some records, without the records. Thread-safe.

    Records are numbered from 0 here. The *concatenation* has all values of the leaf, record by record. So record ``i``
    has the offsets ``prefix(i)`` to ``prefix(i + 1)`` of the concatenation, and a record of length 0 has none.
    Arguments and results are int64 arrays of shape ``[k]``, in any order, with repeats. A column has parts, such as the
    shards of a version, whose sums are loaded when they are needed: all parts of one call at once.

    ``load`` returns the running sums of some parts, int64 of shape ``[records + 1]``, which may begin with any number.
    """

    def __init__(self, records: Ints, totals: Ints, load: LoadSums) -> None:
        self._records = splits_of(records)
        self._totals = splits_of(totals)
        self._load = load
        self.sums: Ints | None = None
        """The running sums of all lengths, from 0; None unless they are in memory."""

    @classmethod
    def of_lengths(cls, lengths: NDArray[np.integer]) -> LengthColumn:
        """Return the column of lengths in memory."""
        sums = splits_of(lengths)
        column = cls(np.array([len(lengths)]), sums[-1:], lambda parts: [sums] * len(parts))
        column.sums = sums
        return column

    @classmethod
    def joined(cls, columns: Sequence[LengthColumn]) -> LengthColumn:
        """Return the column of the records of several columns, one after another."""
        firsts = splits_of(np.array([len(column._totals) - 1 for column in columns], np.int64))
        none = np.empty(0, np.int64)

        def load(parts: Sequence[int]) -> list[Ints]:
            sums: dict[int, Ints] = {}
            for column, first, stop in zip(columns, firsts.tolist(), firsts[1:].tolist(), strict=False):
                of_column = [part for part in parts if first <= part < stop]
                if of_column:
                    sums.update(zip(of_column, column._load([part - first for part in of_column]), strict=True))
            return [sums[part] for part in parts]

        records = np.concatenate([none, *(np.diff(column._records) for column in columns)])
        return cls(records, np.concatenate([none, *(np.diff(column._totals) for column in columns)]), load)

    def __len__(self) -> int:
        """Return the number of records."""
        return int(self._records[-1])

    @property
    def total(self) -> int:
        """The sum of all lengths, which is the length of the concatenation."""
        return int(self._totals[-1])

    def take(self, numbers: Ints) -> Ints:
        """Return the lengths of these records, all in [0, len)."""
        begins, ends = self.bounds(numbers)
        return ends - begins

    def bounds(self, numbers: Ints) -> tuple[Ints, Ints]:
        """Return the offsets of the concatenation at which these records, all in [0, len), begin and end."""
        _check("record", numbers, len(self))
        begins = np.empty(len(numbers), np.int64)
        ends = np.empty(len(numbers), np.int64)
        for part, rows, sums in self._by_part(self._records, numbers):
            within = numbers[rows] - self._records[part]
            before = self._totals[part] - sums[0]
            begins[rows] = sums[within] + before
            ends[rows] = sums[within + 1] + before
        return begins, ends

    def prefix(self, number: int) -> int:
        """Return the offset at which a record begins in the concatenation; for ``len``, its end."""
        _check("record", np.array([number]), len(self) + 1)
        part = int(self._records.searchsorted(number, side="right")) - 1
        before = int(self._totals[part])
        within = number - int(self._records[part])
        if not within:
            return before
        (sums,) = self._load([part])
        return before + int(sums[within] - sums[0])

    def locate(self, offsets: Ints, extra: int = 0) -> Ints:
        """Return the record in which each offset of the concatenation lies.

        Each record is taken to have ``extra`` values more, such as a separator.
        """
        _check("offset", offsets, self.total + len(self) * extra)
        numbers = np.empty(len(offsets), np.int64)
        begins = self._totals + self._records * extra
        for part, rows, sums in self._by_part(begins, offsets):
            within = offsets[rows] - (begins[part] - sums[0])
            numbers[rows] = _bisect(sums, within, extra) + self._records[part]
        return numbers

    def values(self) -> NDArray[np.uint32]:
        out = np.concatenate([np.empty(0, LENGTH), *(piece.astype(LENGTH) for piece in self.pieces())])
        out.setflags(write=False)
        return out

    def pieces(self) -> Iterator[Ints]:
        """Yield all lengths in order, some at a time."""
        for start in range(0, len(self), _RECORDS_AT_ONCE):
            yield self.take(np.arange(start, min(start + _RECORDS_AT_ONCE, len(self))))

    def slice(self, start: int, stop: int) -> LengthColumn:
        """Return the column of records ``start`` to ``stop``, where 0 <= start <= stop <= len."""
        splits = self._records
        chosen = np.flatnonzero((splits[:-1] < stop) & (splits[1:] > start) & (start < stop))
        begins = np.maximum(splits[chosen], start)
        ends = np.minimum(splits[chosen + 1], stop)
        totals = self._totals[chosen + 1] - self._totals[chosen]
        # Only the first part and the last may be cut.
        ends_of_slice = {0, len(chosen) - 1} if len(chosen) else set()
        for place in ends_of_slice:
            totals[place] = self.prefix(int(ends[place])) - self.prefix(int(begins[place]))
        bounds = np.stack([begins - splits[chosen], ends - splits[chosen] + 1], axis=1)

        def load(parts: Sequence[int]) -> list[Ints]:
            sums_of_parts = self._load(chosen[list(parts)].tolist())
            return [sums[slice(*bounds[part])] for part, sums in zip(parts, sums_of_parts, strict=True)]

        return LengthColumn(ends - begins, totals, load)

    def selected(self, selection: Selection) -> LengthColumn:
        """Return the column of selected records. Unless they are consecutive, this reads all of their lengths."""
        numbers = selection.numbers
        if isinstance(numbers, range) and (numbers.step == 1 or len(numbers) < 2):
            return self.slice(numbers.start, numbers.start + len(numbers)) if len(numbers) else self.slice(0, 0)
        lengths = [self.take(piece) for piece in selection.pieces()]
        return LengthColumn.of_lengths(np.concatenate([np.empty(0, np.int64), *lengths]))

    def in_memory_if_few(self) -> LengthColumn:
        """Return the same column; if it is small, as one part in memory, where values are found in less time."""
        are_few = len(self) <= _FEW_RECORDS and len(self._totals) <= _FEW_PARTS
        return LengthColumn.of_lengths(self.values()) if are_few else self

    def _by_part(self, splits: Ints, values: Ints) -> Iterator[tuple[int, Any, Ints]]:
        """Yield each part that values lie in, by where parts begin, the rows of these values, and the sums of it."""
        if not len(values):
            return
        if len(splits) == 2:
            # So it is with lengths in memory.
            (sums,) = self._load([0])
            yield 0, slice(None), sums
            return
        part_of = splits.searchsorted(values, side="right") - 1
        order = part_of.argsort(kind="stable")
        firsts = np.flatnonzero(np.diff(part_of[order], prepend=-1))
        parts = part_of[order[firsts]].tolist()
        yield from zip(parts, np.split(order, firsts[1:]), self._load(parts), strict=True)


def _bisect(sums: Ints, offsets: Ints, extra: int) -> Ints:
    """Return the record in which each offset lies: the last ``i`` with ``sums[i] + i * extra <= offset``."""
    high: Ints = sums.searchsorted(offsets, side="right") - 1
    if not extra:
        return high
    low = np.zeros(len(offsets), np.int64)
    while (low < high).any():
        # The record is at most ``high``, so at most ``high * extra`` of the offset are extra values: a search without
        # them gives a lower bound. It is at least ``low``, which gives an upper bound in the same way. If records are
        # much longer than ``extra``, both bounds meet at once. If not, the search ends because it halves the range too.
        low = np.maximum(low, np.minimum(high, sums.searchsorted(offsets - high * extra, side="right") - 1))
        high = np.minimum(high, sums.searchsorted(offsets - low * extra, side="right") - 1)
        middle = (low + high + 1) // 2
        fits = sums[middle] + middle * extra <= offsets
        low = np.where(fits, middle, low)
        high = np.where(fits, high, middle - 1)
    return low


def _check(what: str, numbers: Ints, count: int) -> None:
    # As unsigned integers, negative numbers are larger than all others: one comparison checks both ends.
    if len(numbers) and int(numbers.view(np.uint64).max()) >= count:
        wrong = numbers[(numbers < 0) | (numbers >= count)][0]
        raise InvalidArgumentError(f"{what} {wrong}: the column has {count} of them")
