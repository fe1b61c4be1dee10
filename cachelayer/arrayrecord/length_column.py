"""The lengths of one leaf of many records, and where each value lies in the concatenation of all, by bisection.

Nothing here grows with the number of records: a column finds the shard by the totals in the manifest, the page of 256
records by the sums in the file of lengths, and the record by the lengths of that page.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.lengths import LENGTH, PAGE, Table
from cachelayer.errors import InvalidArgumentError
from cachelayer.records.memory import Ints, splits_of

# Offsets that are located at a time: each takes the lengths of a page.
_AT_ONCE = 4096


class LengthColumn(ABC):
    """The lengths of one leaf of some records, in their order, without the records. Thread-safe.

    Records are numbered from 0 here. The *concatenation* is all values of the leaf, those of record 0 first. So record
    ``i`` has the offsets ``prefix(i)`` to ``prefix(i + 1)``, and records of length 0 have none. Arguments are int64
    arrays of shape ``[k]``, in any order, and may repeat; so are results. All records of one call are read at once.

    Raises:
        CorruptionError: from any method, if the stored lengths are damaged or contradict the manifest.
        InvalidArgumentError: from any method, for numbers and offsets that there are not.
    """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of records."""

    @property
    @abstractmethod
    def total(self) -> int:
        """The sum of all lengths: the length of the concatenation."""

    def take(self, numbers: Ints) -> Ints:
        """Return the lengths of these records, each in [0, len)."""
        _check("record", numbers, len(self))
        return self._take(numbers)

    def prefixes(self, numbers: Ints) -> Ints:
        """Return the offset at which each record begins: the sum of all lengths before it; numbers in [0, len]."""
        _check("record", numbers, len(self) + 1)
        return self._prefixes(numbers)

    def prefix(self, number: int) -> int:
        """Return the offset at which a record begins; ``total`` for ``len``."""
        return int(self.prefixes(np.array([number], np.int64))[0])

    def locate(self, offsets: Ints) -> tuple[Ints, Ints]:
        """Return the record in which each offset of the concatenation lies, and its place in that record.

        Args:
            offsets: each in [0, total).

        Returns:
            The number of the record, and the offset less the prefix of that record.
        """
        _check("offset", offsets, self.total)
        return self._locate(offsets)

    def values(self) -> NDArray[np.uint32]:
        """Return all lengths: read-only, and mapped instead of read if they lie in one local shard."""
        parts = list(self._values(0, len(self)))
        found = parts[0] if len(parts) == 1 else np.concatenate([*parts, np.empty(0, LENGTH)])
        found.setflags(write=False)
        return found

    def pieces(self, records: int = 1 << 16) -> Iterator[Ints]:
        """Yield all lengths in order, those of some records at a time."""
        for start in range(0, len(self), records):
            yield self._take(np.arange(start, min(start + records, len(self))))

    def slice(self, start: int, stop: int) -> LengthColumn:
        """Return the column of records ``start`` to ``stop``, where 0 <= start <= stop <= len."""
        if (start, stop) == (0, len(self)):
            return self
        return _Slice(self, start, max(0, stop - start))

    def plus(self, extra: int) -> LengthColumn:
        """Return the column of records that are all ``extra`` values longer, for example by a separator."""
        return _Longer(self, extra) if extra else self

    @abstractmethod
    def _values(self, start: int, stop: int) -> Iterator[NDArray[np.uint32]]:
        """Yield the lengths of consecutive records in as few arrays as they lie in, none of them empty."""

    @abstractmethod
    def _take(self, numbers: Ints) -> Ints: ...

    @abstractmethod
    def _prefixes(self, numbers: Ints) -> Ints: ...

    @abstractmethod
    def _locate(self, offsets: Ints, extra: int = 0) -> tuple[Ints, Ints]:
        """Return what :meth:`locate` does if each record were ``extra`` values longer."""


def _check(what: str, numbers: Ints, count: int) -> None:
    # As unsigned integers, negative numbers are larger than all others: one comparison checks both ends.
    if len(numbers) and int(numbers.view(np.uint64).max()) >= count:
        wrong = numbers[(numbers < 0) | (numbers >= count)][0]
        raise InvalidArgumentError(f"{what} {wrong}: the column has {count} of them")


class LengthPages(Protocol):
    """Reads the lengths of one leaf in some shards; all that one call needs at once. Thread-safe."""

    def tables(self, shards: Sequence[int]) -> list[Table]:
        """Return the table of each of these shards, which are different."""

    def take(self, shard_of: Ints, within: Ints) -> Ints:
        """Return lengths, given the shard of each record and its number in that shard."""

    def ends(self, shard_of: Ints, page_of: Ints) -> Ints:
        """Return int64 ``[k, PAGE]``: the running sums of the lengths in each page, as if 0 followed the last record.

        Raises:
            CorruptionError: if those of a page do not add up to what the table of its shard says.
        """

    def values(self, shards: Sequence[int]) -> list[NDArray[np.uint32]]:
        """Return all lengths of each of these shards, read-only."""

    def sums(self, shard: int, extra: int, pages: int) -> Ints | None:
        """Return where each record of a shard begins, and where the last ends; None if that is not in memory.

        Args:
            shard: the shard.
            extra: how much longer each record is taken to be.
            pages: the number of pages that the caller reads if the sums are not in memory.
        """


class StoredColumn(LengthColumn):
    """The lengths of one leaf in shards that follow one another.

    Args:
        records: the number of records of each shard.
        totals: the sum of the lengths of each shard.
        pages: reads the lengths.
    """

    def __init__(self, records: Ints, totals: Ints, pages: LengthPages) -> None:
        self._records = splits_of(records)
        self._totals = splits_of(totals)
        self._pages = pages

    def __len__(self) -> int:
        return int(self._records[-1])

    @property
    def total(self) -> int:
        return int(self._totals[-1])

    def _values(self, start: int, stop: int) -> Iterator[NDArray[np.uint32]]:
        shards = _overlapping(self._records, start, stop)
        for shard, lengths in zip(shards, self._pages.values(shards), strict=True):
            first = int(self._records[shard])
            yield lengths[max(0, start - first) : stop - first]

    def _take(self, numbers: Ints) -> Ints:
        shard_of = self._records.searchsorted(numbers, side="right") - 1
        return self._pages.take(shard_of, numbers - self._records[shard_of])

    def _prefixes(self, numbers: Ints) -> Ints:
        # The number of all records has a shard of its own here, after the last, and is its first.
        shard_of = self._records.searchsorted(numbers, side="right") - 1
        within = numbers - self._records[shard_of]
        prefixes: Ints = self._totals[shard_of]
        inside = np.flatnonzero(within)
        if len(inside) == 0:
            return prefixes
        shard_of, (page_of, place) = shard_of[inside], np.divmod(within[inside], PAGE)
        found = np.zeros(len(inside), np.int64)
        cut = np.flatnonzero(place)
        # Pages first: with them, the tables are read that are not here yet.
        for piece in _pieces_of(cut):
            ends = self._pages.ends(shard_of[piece], page_of[piece])
            found[piece] = ends[np.arange(len(piece)), place[piece] - 1]
        for table, rows in self._by_shard(shard_of):
            found[rows] += table.sums[page_of[rows]]
        prefixes[inside] += found
        return prefixes

    def _locate(self, offsets: Ints, extra: int = 0) -> tuple[Ints, Ints]:
        numbers, places = np.empty(len(offsets), np.int64), np.empty(len(offsets), np.int64)
        begins = self._totals + self._records * extra if extra else self._totals
        shard_of = begins.searchsorted(offsets, side="right") - 1
        rest = offsets - begins[shard_of]
        left = [np.empty(0, np.int64)]
        for shard, rows in zip(*grouped(shard_of), strict=True):
            sums = self._pages.sums(shard, extra, len(rows))
            if sums is None:
                left.append(rows)
                continue
            mine = rest[rows]
            found = sums.searchsorted(mine, side="right") - 1
            numbers[rows], places[rows] = found + self._records[shard], mine - sums[found]
        for piece in _pieces_of(np.concatenate(left)):
            numbers[piece], places[piece] = self._located(shard_of[piece], rest[piece], extra)
        return numbers, places

    def _located(self, shard_of: Ints, offsets: Ints, extra: int) -> tuple[Ints, Ints]:
        """Return what :meth:`locate` does by pages, given the shard of each offset, which counts from its begin."""
        page_of, rest = np.empty(len(offsets), np.int64), offsets.copy()
        for table, rows in self._by_shard(shard_of):
            sums = table.sums
            if extra:
                sums = sums + np.minimum(np.arange(len(sums)) * PAGE, self._count(shard_of[rows[0]])) * extra
            page_of[rows] = sums.searchsorted(rest[rows], side="right") - 1
            rest[rows] -= sums[page_of[rows]]
        row, places = self._searched(shard_of, page_of, rest, extra)
        return self._records[shard_of] + page_of * PAGE + row, places

    def _searched(self, shard_of: Ints, page_of: Ints, offsets: Ints, extra: int) -> tuple[Ints, Ints]:
        """Return the record of its page in which each offset of the page lies, and its place in that record."""
        # Read each page once, and search in all of them at once, as if they followed one another.
        keys = shard_of * (int(page_of.max(initial=0)) + 1) + page_of
        _, first, page = np.unique(keys, return_index=True, return_inverse=True)
        ends = self._pages.ends(shard_of[first], page_of[first])
        if extra:
            ends += extra * np.arange(1, PAGE + 1)
        starts = splits_of(ends[:, -1])
        ends += starts[:-1, None]
        found = ends.reshape(-1).searchsorted(offsets + starts[page], side="right")
        # The sum of a page is what its table says, so one of its ends lies past each offset in it.
        row = found - page * PAGE
        before = np.where(row > 0, ends.reshape(-1)[np.maximum(found - 1, 0)], starts[page])
        return row, offsets + starts[page] - before

    def _count(self, shard: int) -> int:
        return int(self._records[shard + 1] - self._records[shard])

    def _by_shard(self, shard_of: Ints) -> Iterator[tuple[Table, Ints]]:
        """Yield the table of each shard with the rows that lie in it."""
        shards, rows_of = grouped(shard_of)
        yield from zip(self._pages.tables(shards), rows_of, strict=True)


def _overlapping(splits: Ints, start: int, stop: int) -> list[int]:
    """Return the parts, which begin and end at these splits, that hold some of the records ``start`` to ``stop``."""
    parts = (splits[:-1] < stop) & (splits[1:] > start) & (splits[:-1] < splits[1:])
    found: list[int] = np.flatnonzero(parts).tolist() if start < stop else []
    return found


def grouped(shard_of: Ints) -> tuple[list[int], list[Ints]]:
    """Return the different shards, and the rows of each."""
    if len(shard_of) == 0:
        return [], []
    if (shard_of == shard_of[0]).all():
        return [int(shard_of[0])], [np.arange(len(shard_of))]
    order = np.argsort(shard_of, kind="stable")
    shards, firsts = np.unique(shard_of[order], return_index=True)
    return shards.tolist(), np.split(order, firsts[1:])


def _pieces_of(rows: Ints) -> Iterator[Ints]:
    return (rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE))


class _Slice(LengthColumn):
    """Consecutive records of another column.

    Args:
        column: the other column.
        start, records: the first record there, and their number.
    """

    def __init__(self, column: LengthColumn, start: int, records: int) -> None:
        self._column = column
        self._start, self._records = start, records
        ends: list[int] = column.prefixes(np.array([start, start + records])).tolist()
        self._begin, self._total = ends[0], ends[1] - ends[0]

    def __len__(self) -> int:
        return self._records

    @property
    def total(self) -> int:
        return self._total

    def slice(self, start: int, stop: int) -> LengthColumn:
        return self._column.slice(self._start + start, self._start + stop)

    def _values(self, start: int, stop: int) -> Iterator[NDArray[np.uint32]]:
        return self._column._values(self._start + start, self._start + stop)

    def _take(self, numbers: Ints) -> Ints:
        return self._column._take(numbers + self._start)

    def _prefixes(self, numbers: Ints) -> Ints:
        prefixes: Ints = self._column._prefixes(numbers + self._start) - self._begin
        return prefixes

    def _locate(self, offsets: Ints, extra: int = 0) -> tuple[Ints, Ints]:
        numbers, places = self._column._locate(offsets + (self._begin + self._start * extra), extra)
        return numbers - self._start, places


@dataclass(frozen=True, eq=False)
class _Longer(LengthColumn):
    """Another column, of records that are all ``extra`` values longer."""

    column: LengthColumn
    extra: int

    def __len__(self) -> int:
        return len(self.column)

    @property
    def total(self) -> int:
        return self.column.total + len(self.column) * self.extra

    def _values(self, start: int, stop: int) -> Iterator[NDArray[np.uint32]]:
        return (lengths + LENGTH.type(self.extra) for lengths in self.column._values(start, stop))

    def _take(self, numbers: Ints) -> Ints:
        return self.column._take(numbers) + self.extra

    def _prefixes(self, numbers: Ints) -> Ints:
        return self.column._prefixes(numbers) + numbers * self.extra

    def _locate(self, offsets: Ints, extra: int = 0) -> tuple[Ints, Ints]:
        return self.column._locate(offsets, self.extra + extra)


class JoinedColumn(LengthColumn):
    """Columns one after another.

    Args:
        columns: the columns.
    """

    def __init__(self, columns: Sequence[LengthColumn]) -> None:
        self._columns = list(columns)
        self._records = splits_of(np.array([len(column) for column in columns], np.int64))
        self._totals = splits_of(np.array([column.total for column in columns], np.int64))

    def __len__(self) -> int:
        return int(self._records[-1])

    @property
    def total(self) -> int:
        return int(self._totals[-1])

    def _values(self, start: int, stop: int) -> Iterator[NDArray[np.uint32]]:
        for column in _overlapping(self._records, start, stop):
            first, end = self._records[column : column + 2].tolist()
            yield from self._columns[column]._values(max(start, first) - first, min(stop, end) - first)

    def _take(self, numbers: Ints) -> Ints:
        out = np.empty(len(numbers), np.int64)
        column_of = self._records.searchsorted(numbers, side="right") - 1
        for column, rows in zip(*grouped(column_of), strict=True):
            out[rows] = self._columns[column]._take(numbers[rows] - self._records[column])
        return out

    def _prefixes(self, numbers: Ints) -> Ints:
        column_of = self._records.searchsorted(numbers, side="right") - 1
        out: Ints = self._totals[column_of]
        inside = np.flatnonzero(numbers != self._records[column_of])
        for column, rows in zip(*grouped(column_of[inside]), strict=True):
            mine = inside[rows]
            out[mine] += self._columns[column]._prefixes(numbers[mine] - self._records[column])
        return out

    def _locate(self, offsets: Ints, extra: int = 0) -> tuple[Ints, Ints]:
        numbers, places = np.empty(len(offsets), np.int64), np.empty(len(offsets), np.int64)
        begins = self._totals + self._records * extra
        column_of = begins.searchsorted(offsets, side="right") - 1
        for column, rows in zip(*grouped(column_of), strict=True):
            found, places[rows] = self._columns[column]._locate(offsets[rows] - begins[column], extra)
            numbers[rows] = found + self._records[column]
        return numbers, places
