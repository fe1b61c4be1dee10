"""Batches of any kind that a user's source gives, taken apart: each row is an element."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

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
from cachelayer.builds.iterable_source import FAILURES, IterableSource, guarded, refuse_if_raised_within
from cachelayer.errors import CacheLayerError, ElementError, SourceError
from cachelayer.progress import current
from cachelayer.records import tree
from cachelayer.records.infer import lacks_keys
from cachelayer.records.ragged_rows import wrong_row
from cachelayer.records.tree import Tree
from cachelayer.records.values import Ragged

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
            reason = f"{type(error).__name__}: {error}"
            raise SourceError(f"the source failed in the batch that begins at record {first}: {reason}") from error
        yield first, batch, rows if limit is None else min(rows, limit - first)
        first += rows


def _row_count(path: str, leaf: Any) -> int:
    if isinstance(leaf, Ragged) and len(leaf) and (row := wrong_row(leaf)) is not None:
        got = f"{leaf!r} with row splits {leaf.row_splits[row : row + 2]}"
        hint = "Row splits are integers that ascend from row to row, up to the number of values."
        raise ElementError("rows that lie within the values", got, path=path, record=row, hint=hint)
    if not isinstance(leaf, (str, bytes, bytearray)) and hasattr(leaf, "__len__"):
        with suppress(TypeError):
            return len(leaf)
    raise _no_rows(path, leaf)


def row_count(columns: Tree) -> int:
    """Return the number of rows of each leaf of a batch."""
    counts = tree.map_structure(columns, _row_count)
    lengths = dict(tree.leaf_values(counts))
    if not lengths:
        hint = "Give elements unbatched: nothing in this batch tells how many there are."
        raise ElementError("a leaf with a row for each record", tree.describe(counts), hint=hint)
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{path or 'the batch'}: {length}" for path, length in lengths.items())
        raise ElementError("as many rows in every leaf of a batch", found)
    return int(next(iter(lengths.values())))


def with_string_columns(value: Tree, path: str = "") -> Tree:
    """Return a batch with an array in place of each list or tuple of nothing but str, or bytes."""
    if isinstance(value, Mapping):
        return {key: with_string_columns(child, f"{path}[{key!r}]") for key, child in value.items()}
    if not isinstance(value, (list, tuple)):
        return value
    if value and {type(item) for item in value} in ({str}, {bytes}):
        return np.fromiter(value, dtype=object, count=len(value))
    if isinstance(value, list) and value and all(map(_is_text_list, value)):
        raise ElementError(
            "columns of a row for each record",
            f"a list of {len(value)} lists of text, which may be rows or columns",
            path=path,
            hint="Make each of them a tuple if they are columns; give elements unbatched if they are rows.",
        )
    children = [with_string_columns(child, path + step) for step, child in tree.children(value)]
    if tree.is_namedtuple(value):
        return type(value)(*children)
    return children if isinstance(value, list) else tuple(children)


def _is_text_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, (str, bytes)) for item in value)


def _no_rows(path: str, leaf: Any) -> ElementError:
    return ElementError(
        "an array with a row for each record",
        tree.describe(leaf),
        path=path,
        hint="Batches are arrays, tensors, or lists of str or bytes: collate to these, or give elements unbatched.",
    )


def are_arrays(columns: Tree) -> bool:
    """Return whether the rows of each column can be taken together: whether it is an array or Ragged.

    They are not if it is of a subclass, such as a masked array, whose rows may be others than those of its memory.
    """
    return all(type(column) in (np.ndarray, np.memmap, Ragged) for _, column in tree.leaf_values(columns))


def rows_of(columns: Tree, start: int, stop: int) -> Tree:
    """Return some consecutive rows of such columns, without a copy."""

    def taken(_path: str, column: Any) -> Any:
        return column.rows(start, stop) if isinstance(column, Ragged) else column[start:stop]

    return tree.map_structure(columns, taken)
