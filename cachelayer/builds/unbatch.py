"""Sources of batches, taken apart: each row of a batch is an element."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from cachelayer.builds.batches import Batch, ElementBatch, RowBatch, row_of
from cachelayer.builds.element_copies import snapshot
from cachelayer.errors import CacheLayerError, ElementError, SourceError
from cachelayer.records import tree
from cachelayer.records.ragged_rows import wrong_row
from cachelayer.records.tree import Tree
from cachelayer.records.values import Nullable, Ragged


class BatchesSource:
    """The rows of batches, which stay stacked on the way to the codec.

    Args:
        batches: structures of arrays ``[rows, ...]``; lists and tuples of nothing but str, or bytes, are columns too.
        kind: what gives them, for the provenance.
        length: number of rows in all, if it is known.
        begin: the record that the batches begin with.
        leave_out: how many records to leave out from there on.
    """

    element_spec: Tree | None = None

    def __init__(
        self, batches: Iterator[Tree], kind: str, length: int | None = None, begin: int = 0, leave_out: int = 0
    ) -> None:
        self._batches = batches
        self.kind = kind
        self.length = length
        self._begin = begin
        self._start = begin + leave_out

    def batches(self, limit: int | None) -> Iterator[Batch]:
        """Yield the elements, in the batches of the source.

        Raises:
            SourceError: if the source fails, with the number of the record at which the batch begins.
            ElementError: if a batch holds something that has no rows, with record and leaf.
        """
        first = self._begin
        stop = None if limit is None else self._start + limit
        while stop is None or first < stop:
            try:
                batch = next(self._batches)
            except StopIteration:
                return
            except ElementError as error:
                raise error.at(record=first) from error.__cause__
            except CacheLayerError:
                raise
            except (Exception, GeneratorExit) as error:
                reason = f"{type(error).__name__}: {error}"
                raise SourceError(f"the source failed in the batch that begins at record {first}: {reason}") from error
            try:
                columns, rows = stacked_columns(batch)
            except ElementError as error:
                raise error.at(record=first + (error.record or 0)) from error.__cause__
            left_out = min(rows, self._start - first) if first < self._start else 0
            end = rows if stop is None else min(rows, stop - first)
            # The spec is that of the first elements.
            stacks = first + left_out != self._start and are_arrays(columns)
            if end > left_out and stacks:
                yield RowBatch(rows_of(columns, left_out, end), end - left_out)
            elif end > left_out:
                taken = [row_of(columns, row) for row in range(left_out, end)]
                # They may be kept while later batches come, which a source may write into the same arrays.
                yield ElementBatch(list(map(snapshot, taken)))
            first += end


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
    """Return the number of rows of each leaf of a batch.

    Raises:
        ElementError: if a leaf has no rows, not as many as the others, or rows that do not lie within its values.
    """
    counts = tree.map_structure(columns, _row_count)
    lengths = dict(tree.leaf_values(counts))
    if not lengths:
        hint = "Give elements unbatched: nothing in this batch tells how many there are."
        raise ElementError("a leaf with a row for each record", tree.describe(counts), hint=hint)
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{path or 'the batch'}: {length}" for path, length in lengths.items())
        raise ElementError("as many rows in every leaf of a batch", found)
    return int(next(iter(lengths.values())))


def stacked_columns(batch: Tree) -> tuple[Tree, int]:
    """Return a batch with arrays as leaves, and its number of rows.

    Raises:
        ElementError: if a leaf has no rows, or not as many as the others.
    """
    columns = tree.map_structure(with_string_columns(batch), _checked)
    return columns, row_count(columns)


def with_string_columns(value: Tree, path: str = "") -> Tree:
    """Return a batch with an array in place of each list or tuple of nothing but str, or bytes.

    Raises:
        ElementError: for lists of text that may be rows or columns.
    """
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


def _checked(path: str, leaf: Any) -> Any:
    if isinstance(leaf, (Nullable, Ragged)) or (isinstance(leaf, np.ndarray) and leaf.ndim):
        return leaf
    raise _no_rows(path, leaf)


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
