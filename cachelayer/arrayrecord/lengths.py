"""The lengths of leaves, as running sums: a ``.npy`` file beside each shard, and columns of such sums over many shards.

The file of a shard is an int64 array of shape ``[leaves, records + 1]``: for each leaf of varying length, how many
values all records before each have, from 0 on. So a length is a difference, and a value is found by bisection. The
manifest has the last sum and the CRC32C of each row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import CorruptionError, InvalidArgumentError
from cachelayer.records.memory import Bytes, Ints, splits_of
from cachelayer.records.selection import Selection

MOST = 2**32 - 1
"""The largest length: no record has more bytes, so no leaf has more values."""
LENGTH = np.dtype("<u4")
_SUM = np.dtype("<i8")
_AT_ONCE = 1 << 20
_FEW_RECORDS = 1 << 20
_FEW_PARTS = 256


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the header of a ``.npy`` array; its size depends on the dtype and the number of dimensions alone."""
    text = f"{{'descr': {dtype.descr if dtype.names else dtype.str!r}, 'fortran_order': False, 'shape': {shape}, }}"
    # Numpy leaves room for longer numbers too, and has arrays begin at multiples of 64.
    nbytes = -(-(len(text) - len(str(shape)) + 24 * len(shape) + 11) // 64) * 64
    return b"\x93NUMPY\x01\x00" + (nbytes - 10).to_bytes(2, "little") + text.ljust(nbytes - 11).encode() + b"\n"


@dataclass(frozen=True)
class LengthsFile:
    """What a manifest says of the file of lengths of a shard.

    Args:
        records: the number of records.
        checksums: the CRC32C of the sums of each leaf.
        totals: the sum of the lengths of each leaf.
    """

    records: int
    checksums: Sequence[int]
    totals: Sequence[int]

    @property
    def header(self) -> bytes:
        """The header of the array, as numpy writes it."""
        return npy_header(_SUM, (len(self.totals), self.records + 1))

    def place(self, leaf: int) -> tuple[int, int]:
        """Return the begin and the end of a leaf's sums in the file."""
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
    """Return the file of these lengths, of shape ``[records, leaves]``, and what a manifest says of it."""
    rows = [splits_of(leaf).astype(_SUM, copy=False) for leaf in lengths.T]
    raw = [row.tobytes() for row in rows]
    file = LengthsFile(len(lengths), tuple(map(google_crc32c.value, raw)), tuple(int(row[-1]) for row in rows))
    return b"".join([file.header, *raw]), file


class SumsReader(Protocol):
    """Reads the running sums of the lengths of one leaf. Thread-safe."""

    def sums(self, shards: Sequence[int]) -> list[Ints]:
        """Return the sums of each of these shards, which are different: int64 ``[records + 1]``, read-only."""


@dataclass(frozen=True)
class MemorySums:
    """Sums in memory, as of one shard; see :class:`SumsReader`."""

    held: Ints

    def sums(self, shards: Sequence[int]) -> list[Ints]:
        return [self.held for _ in shards]


_PART = np.dtype([("reader", "i8"), ("shard", "i8"), ("first", "i8"), ("records", "i8"), ("total", "i8")])


class LengthColumn:
    """The lengths of one leaf of some records, in their order, without the records. Thread-safe.

    Records are numbered from 0 here. The *concatenation* is all values of the leaf, those of record 0 first. So record
    ``i`` has the offsets ``prefix(i)`` to ``prefix(i + 1)``, and records of length 0 have none. Arguments are int64
    arrays of shape ``[k]``, in any order, and may repeat; so are results. All shards of one call are read at once.

    Args:
        readers: what reads sums.
        parts: consecutive records of shards, one after another: the number of the reader, of the shard, and of the
            first record in the shard, the number of records, and the sum of their lengths.
    """

    def __init__(self, readers: Sequence[SumsReader], parts: NDArray[np.void]) -> None:
        self._readers = tuple(readers)
        self._parts = parts[parts["records"] > 0]
        self._records = splits_of(self._parts["records"])
        self._totals = splits_of(self._parts["total"])

    @classmethod
    def of_shards(cls, reader: SumsReader, records: Ints, totals: Ints) -> LengthColumn:
        """Return the column of whole shards, given the number of records and the sum of the lengths of each."""
        parts = np.zeros(len(records), _PART)
        parts["shard"], parts["records"], parts["total"] = np.arange(len(records)), records, totals
        return cls([reader], parts)

    @classmethod
    def of_lengths(cls, lengths: NDArray[np.integer]) -> LengthColumn:
        """Return the column of lengths in memory."""
        sums = splits_of(lengths)
        return cls.of_shards(MemorySums(sums), np.array([len(lengths)]), sums[-1:])

    @classmethod
    def joined(cls, columns: Sequence[LengthColumn]) -> LengthColumn:
        """Return columns one after another."""
        readers: list[SumsReader] = []
        parts = [np.empty(0, _PART)]
        for column in columns:
            parts.append(column._parts.copy())
            parts[-1]["reader"] += len(readers)
            readers += column._readers
        return cls(readers, np.concatenate(parts))

    def __len__(self) -> int:
        """Return the number of records."""
        return int(self._records[-1])

    @property
    def total(self) -> int:
        """The sum of all lengths: the length of the concatenation."""
        return int(self._totals[-1])

    def take(self, numbers: Ints) -> Ints:
        """Return the lengths of these records, each in [0, len)."""
        _check("record", numbers, len(self))
        out = np.empty(len(numbers), np.int64)
        for part, rows, sums in self._by_part(self._records.searchsorted(numbers, side="right") - 1):
            within = numbers[rows] - self._records[part]
            out[rows] = sums[within + 1] - sums[within]
        return out

    def prefixes(self, numbers: Ints) -> Ints:
        """Return the offset at which each record begins: the sum of all lengths before it; numbers in [0, len]."""
        _check("record", numbers, len(self) + 1)
        # The number of all records has a part of its own here, after the last, and is its first.
        part_of = self._records.searchsorted(numbers, side="right") - 1
        out: Ints = self._totals[part_of]
        inside = np.flatnonzero(numbers > self._records[part_of])
        for part, rows, sums in self._by_part(part_of[inside]):
            rows = inside[rows]
            out[rows] += sums[numbers[rows] - self._records[part]] - sums[0]
        return out

    def prefix(self, number: int) -> int:
        """Return the offset at which a record begins; ``total`` for ``len``."""
        return int(self.prefixes(np.array([number], np.int64))[0])

    def locate(self, offsets: Ints, extra: int = 0) -> tuple[Ints, Ints]:
        """Return the record in which each offset of the concatenation lies, and its place in that record.

        Args:
            offsets: each in [0, total + len * extra).
            extra: how many more values each record is taken to have, for example a separator.
        """
        _check("offset", offsets, self.total + len(self) * extra)
        numbers, places = np.empty(len(offsets), np.int64), np.empty(len(offsets), np.int64)
        begins = self._totals + self._records * extra
        for part, rows, sums in self._by_part(begins.searchsorted(offsets, side="right") - 1):
            within = offsets[rows] - begins[part] + sums[0]
            found = _bisect(sums, within, extra)
            numbers[rows] = found + self._records[part]
            places[rows] = within - sums[found] - found * extra
        return numbers, places

    def values(self) -> NDArray[np.uint32]:
        out = np.concatenate([np.empty(0, LENGTH), *(piece.astype(LENGTH) for piece in self.pieces())])
        out.setflags(write=False)
        return out

    def pieces(self, records: int = _AT_ONCE) -> Iterator[Ints]:
        """Yield all lengths in order, those of some records at a time."""
        for start in range(0, len(self), records):
            stop = min(start + records, len(self))
            first, last = self._records.searchsorted([start, stop - 1], side="right") - 1
            shards = self._by_part(np.arange(first, last + 1))
            found = [
                np.diff(sums[max(0, start - self._records[part]) : stop - self._records[part] + 1])
                for part, _, sums in shards
            ]
            yield found[0] if len(found) == 1 else np.concatenate(found)

    def slice(self, start: int, stop: int) -> LengthColumn:
        """Return the column of records ``start`` to ``stop``, where 0 <= start <= stop <= len."""
        chosen = np.flatnonzero((self._records[:-1] < stop) & (self._records[1:] > start) & (start < stop))
        begins, ends = np.maximum(self._records[chosen], start), np.minimum(self._records[chosen + 1], stop)
        parts = self._parts[chosen]
        parts["first"] += begins - self._records[chosen]
        parts["records"], parts["total"] = ends - begins, self.prefixes(ends) - self.prefixes(begins)
        return LengthColumn(self._readers, parts)

    def selected(self, selection: Selection) -> LengthColumn:
        """Return the lengths of selected records: those of any but consecutive ones are read once, into memory."""
        numbers = selection.numbers
        if isinstance(numbers, range) and (numbers.step == 1 or len(numbers) < 2):
            return self.slice(numbers.start, numbers.start + len(numbers)) if len(numbers) else self.slice(0, 0)
        lengths = [self.take(piece) for piece in selection.pieces()]
        return LengthColumn.of_lengths(np.concatenate([np.empty(0, np.int64), *lengths]))

    def near(self) -> LengthColumn:
        """Return the same lengths; if they are few, in memory as those of one shard: values are found in less time."""
        are_few = len(self) <= _FEW_RECORDS and len(self._parts) <= _FEW_PARTS
        return LengthColumn.of_lengths(self.values()) if are_few else self

    def _by_part(self, part_of: Ints) -> Iterator[tuple[int, Ints, Ints]]:
        """Yield each different part, the rows that lie in it, and its sums, which begin anywhere."""
        numbers, rows_of = _grouped(part_of)
        readers = self._parts["reader"][numbers].tolist()
        sums: dict[int, Ints] = {}
        for reader in sorted(set(readers)):
            mine = [number for number, of in zip(numbers, readers, strict=True) if of == reader]
            shards = self._parts["shard"][mine].tolist()
            different = list(dict.fromkeys(shards))
            of_shard = dict(zip(different, self._readers[reader].sums(different), strict=True))
            sums.update((number, of_shard[shard]) for number, shard in zip(mine, shards, strict=True))
        for number, rows in zip(numbers, rows_of, strict=True):
            _, _, first, records, _ = self._parts[number]
            yield number, rows, sums[number][first : first + records + 1]


def _grouped(part_of: Ints) -> tuple[list[int], list[Ints]]:
    """Return the different parts, and the rows of each."""
    if len(part_of) == 0:
        return [], []
    if (part_of == part_of[0]).all():
        return [int(part_of[0])], [np.arange(len(part_of))]
    order = np.argsort(part_of, kind="stable")
    # np.unique would do the same, but imports much more of numpy.
    firsts = np.flatnonzero(np.diff(part_of[order], prepend=-1))
    return part_of[order[firsts]].tolist(), np.split(order, firsts[1:])


def _bisect(sums: Ints, offsets: Ints, extra: int) -> Ints:
    """Return the last place of each offset at which the sum, and ``extra`` for each place before, is not above it."""
    high: Ints = sums.searchsorted(offsets, side="right") - 1
    low = np.zeros(len(offsets), np.int64) if extra else high
    while (low < high).any():
        # As no place is above ``high``, none is below the one where the sum and ``extra`` for ``high`` places fit; and
        # as none is below ``low``, none is above the one with ``extra`` for ``low`` places. If records are much longer
        # than ``extra``, that ends the search at once; if not, it ends because the range is halved too.
        low = np.maximum(low, np.minimum(high, sums.searchsorted(offsets - high * extra, side="right") - 1))
        high = np.minimum(high, sums.searchsorted(offsets - low * extra, side="right") - 1)
        middle = (low + high + 1) // 2
        fits = sums[middle] + middle * extra <= offsets
        low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
    return low


def _check(what: str, numbers: Ints, count: int) -> None:
    # As unsigned integers, negative numbers are larger than all others: one comparison checks both ends.
    if len(numbers) and int(numbers.view(np.uint64).max()) >= count:
        wrong = numbers[(numbers < 0) | (numbers >= count)][0]
        raise InvalidArgumentError(f"{what} {wrong}: the column has {count} of them")
