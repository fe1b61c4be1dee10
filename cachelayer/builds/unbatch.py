"""Sources of batches, taken apart: each row of a batch is an element."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from cachelayer.builds.batches import Batch, Elements, Stacked, wrong_length
from cachelayer.builds.element_copies import snapshot
from cachelayer.errors import CacheLayerError, ElementError, SourceError
from cachelayer.records import tree
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
                raise error.at(record=first) from error.__cause__
            left_out = min(rows, self._start - first) if first < self._start else 0
            end = rows if stop is None else min(rows, stop - first)
            # The spec is that of the first elements.
            stacks = first + left_out != self._start and _are_arrays(columns)
            if end > left_out and stacks:
                rows_taken = partial(_at, slice(left_out, end))
                yield Stacked(tree.map_structure(columns, rows_taken), end - left_out)
            elif end > left_out:
                taken = [tree.map_structure(columns, partial(_row, row)) for row in range(left_out, end)]
                # They may be kept while later batches come, which a source may write into the same arrays.
                yield Elements(list(map(snapshot, taken)))
            first += end


def unbatched(batches: Iterator[Any], length: int | None) -> Iterator[Any]:
    """Yield the rows of batches whose leaves are anything with rows.

    Args:
        batches: structures of leaves with as many rows each.
        length: how many batches there are; None if nobody promises it.

    Raises:
        ElementError: if a leaf has no rows, or not as many as the others.
        SourceError: if there are more or fewer batches.
    """
    number = done = 0
    for number, batch in enumerate(batches, 1):
        if length is not None and number > length:
            raise wrong_length(length, f"goes on after {length}")
        try:
            columns = _with_string_columns(batch)
            rows = _rows_of(tree.map_structure(columns, _row_count))
        except ElementError as error:
            raise error.at(record=done) from error.__cause__
        done += rows
        for row in range(rows):
            yield tree.map_structure(columns, partial(_row, row))
    if length is not None and number < length:
        raise wrong_length(length, f"ended after {number}")


def _row_count(path: str, leaf: Any) -> int:
    if not isinstance(leaf, (str, bytes, bytearray)) and hasattr(leaf, "__len__"):
        with suppress(TypeError):
            return len(leaf)
    raise _no_rows(path, leaf)


def _rows_of(counts: Tree) -> int:
    lengths = dict(tree.leaf_values(counts))
    if not lengths:
        hint = "Give elements unbatched: nothing in this batch tells how many there are."
        raise ElementError("a leaf with a row for each record", tree.describe(counts), hint=hint)
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{path or 'the batch'}: {length}" for path, length in lengths.items())
        raise ElementError("as many rows in every leaf of a batch", found)
    return int(next(iter(lengths.values())))


def _row(row: int, _path: str, leaf: Any) -> Any:
    if isinstance(leaf, Nullable):
        return leaf.values[row] if leaf.valid[row] else None
    return leaf[row]


def stacked_columns(batch: Tree) -> tuple[Tree, int]:
    """Return a batch with arrays as leaves, and its number of rows.

    Raises:
        ElementError: if a leaf has no rows, or not as many as the others.
    """
    columns = tree.map_structure(_with_string_columns(batch), _checked)
    return columns, _rows_of(tree.map_structure(columns, _row_count))


def _with_string_columns(value: Tree, path: str = "") -> Tree:
    if isinstance(value, Mapping):
        return {key: _with_string_columns(child, f"{path}[{key!r}]") for key, child in value.items()}
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
    children = [_with_string_columns(child, path + step) for step, child in tree.children(value)]
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


def _are_arrays(columns: Tree) -> bool:
    return all(isinstance(column, np.ndarray) for _, column in tree.leaf_values(columns))


def _at(rows: slice, _path: str, column: Any) -> Any:
    return column[rows]
