"""Batches of any kind that a user's source gives, taken apart: each row is an element."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from cachelayer.builds.batches import (
    BATCH_NBYTES,
    MAX_BATCH_RECORDS,
    Batch,
    ElementBatch,
    RowBatch,
    row_of,
    wrong_length,
)
from cachelayer.builds.element_copies import approximate_nbytes, snapshot
from cachelayer.builds.iterable_source import FAILURES, IterableSource, failed, guarded, refuse_if_raised_within
from cachelayer.builds.unbatch import are_arrays, row_count, rows_of, with_string_columns
from cachelayer.errors import CacheLayerError, ElementError
from cachelayer.progress import current
from cachelayer.records.infer import lacks_keys
from cachelayer.records.tree import Tree

# It takes as long to encode a batch of arrays as so many elements one by one.
_FEW = 16
_MAX_ROWS = 8192


class UnbatchedSource(IterableSource):
    """The rows of the batches that a source gives.

    Args:
        source: the source; each of its elements is a batch.
        rows: the number of rows in all; None if nobody promises it.
    """

    def __init__(self, source: IterableSource, rows: int | None = None) -> None:
        super().__init__(iter(()), source.kind, rows)
        self._source = source

    def peek(self, spec: Tree) -> list[Any]:
        """Return a list of the first row of the first batch; empty if it has no row, or no key that spec lacks."""
        batches = [with_string_columns(batch) for batch in self._source.peek(spec) if lacks_keys(spec, batch)]
        return [snapshot(row_of(batch, 0)) for batch in batches if row_count(batch)]

    def batches(self, limit: int | None) -> Iterator[Batch]:
        self._source.refuse_endless(limit)
        return unbatched(self._source.elements(), self._source.length, limit, self._source.taken)


def unbatched(
    batches: Iterator[Any], length: int | None, limit: int | None, peeked: Sequence[Any] = ()
) -> Iterator[Batch]:
    """Yield the rows of batches whose leaves are anything with rows.

    Args:
        batches: structures of leaves with as many rows each.
        length: how many batches there are; None if nobody promises it.
        limit: how many rows to yield; None for all.
        peeked: batches that were taken from the iterator before; they come first.

    Raises:
        ElementError: if a leaf has no rows, or not as many as the others, with the record.
        SourceError: if there are more or fewer batches, or the source fails, with the record.
    """
    gathered = _Gathered()
    for first, batch, rows in _columns(batches, length, limit, peeked):
        if rows < _FEW or not are_arrays(batch):
            for element in guarded((row_of(batch, row) for row in range(rows)), first):
                yield from gathered.add(element)
            continue
        yield from gathered.rest()
        current().drawn += rows
        together = int(min(_MAX_ROWS, max(1, BATCH_NBYTES * rows // max(1, approximate_nbytes(batch)))))
        for start in range(0, rows, together):
            stop = min(start + together, rows)
            yield RowBatch(rows_of(batch, start, stop), stop - start)
    yield from gathered.rest()


class _Gathered:
    """Elements that wait until they are enough for a batch."""

    def __init__(self) -> None:
        self._items: list[Any] = []
        self._nbytes = 0

    def add(self, element: Any) -> Iterator[Batch]:
        """Add an element; yield all of them if they are enough."""
        self._items.append(element)
        self._nbytes += approximate_nbytes(element)
        if self._nbytes >= BATCH_NBYTES or len(self._items) == MAX_BATCH_RECORDS:
            yield from self.rest()

    def rest(self) -> Iterator[Batch]:
        """Yield what is there, if anything is."""
        if self._items:
            yield ElementBatch(self._items)
            self._items, self._nbytes = [], 0


def _columns(
    batches: Iterator[Any], length: int | None, limit: int | None, peeked: Sequence[Any]
) -> Iterator[tuple[int, Tree, int]]:
    """Yield each batch with the number of its first record, and of the rows to take from it."""
    waiting = deque(peeked)
    number = first = 0
    while limit is None or first < limit:
        try:
            batch = waiting.popleft() if waiting else next(batches)
            number += 1
            if length is not None and number > length:
                raise wrong_length(length, f"goes on after {length}")
            batch = with_string_columns(batch)
            rows = row_count(batch)
        except StopIteration as end:
            refuse_if_raised_within(batches, end, first)
            if length is not None and number < length:
                raise wrong_length(length, f"ended after {number}") from None
            return
        except ElementError as error:
            raise error.at(record=first + (error.record or 0)) from error.__cause__
        except CacheLayerError:
            raise
        except FAILURES as error:
            raise failed(first, error) from error
        yield first, batch, rows if limit is None else min(rows, limit - first)
        first += rows
