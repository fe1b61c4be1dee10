"""Batches that a user's source gives as elements: each row becomes an element of the version.

Batches of arrays are encoded as they are; the rows of other batches, and of small ones, are copied one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain, groupby, zip_longest
from typing import Any

import numpy as np

from cachelayer.builds.batches import Batch, RowBatch, cut, stacked_records
from cachelayer.builds.element_batches import element_batches, errors_named, failure_at, with_record_in_errors
from cachelayer.builds.source import ElementReader, Source, with_length_check
from cachelayer.errors import ElementError, InvalidArgumentError
from cachelayer.records.infer import approximate_nbytes
from cachelayer.records.value_conversion import COLUMNS, has_columns
from cachelayer.specs import tree
from cachelayer.specs.spec import JsonSpec
from cachelayer.specs.tree import Tree
from cachelayer.specs.values import Nullable, Ragged, wrong_row
from cachelayer.support.arguments import refuse_other_index
from cachelayer.support.progress import current

_FEW = 16
"""To encode a batch of arrays takes as long as to encode about so many elements one by one."""


def unbatched(source: Source, rows: int | None = None, *, declared: Tree | None = None) -> Source:
    """Return the source of the rows of batches.

    Where ``declared`` says JSON, a list is a column.
    """
    if not isinstance(source.read, ElementReader):
        raise InvalidArgumentError(f"unbatch=True: a source of {source.kind} gives elements already: leave it out")
    read = partial(_read, source.read, source.length, declared)
    return Source(source.kind, read, length=rows, endless=source.endless, provenance=source.provenance)


def _read(
    reader: ElementReader, count: int | None, declared: Tree | None, start: int, stop: int | None
) -> Iterator[Batch]:
    """Yield the rows of batches, of which there are ``count`` if that is known."""
    record = start
    for is_stacked, neighbours in groupby(_row_batches(reader, count, declared, stop), _is_stacked):
        for batch in _together(neighbours) if is_stacked else _one_by_one(neighbours, record):
            yield batch
            record += len(batch)


def _row_batches(
    reader: ElementReader, count: int | None, declared: Tree | None, stop: int | None
) -> Iterator[RowBatch]:
    """Yield the batches that a source gives, up to the row ``stop``."""
    # The number of the first row of the next batch, which the errors of the source's iterator name.
    first = 0
    batches = with_record_in_errors(reader.elements(0, None), iter(lambda: first, None))
    if stop == 0:
        return
    if count is not None:
        # Each element of the source is one batch.
        batches = with_length_check(batches, count, 0, None, lambda _: 1)
    for batch in batches:
        with errors_named(failure_at(first)):
            try:
                columns = with_columns(batch, declared)
                rows = row_count(columns)
            except ElementError as error:
                raise error.at(record=first + (error.record or 0)) from error.__cause__
        yield RowBatch(columns, rows if stop is None else min(rows, stop - first))
        first += rows
        if stop is not None and first >= stop:
            return


def _is_stacked(batch: RowBatch) -> bool:
    """Return whether the rows of a batch are encoded together: they are many, and all leaves are arrays or Ragged.

    Instances of subclasses are not: the rows of a masked array, for example, are not those of its memory.
    """
    leaves = tree.leaf_values(batch.batch)
    return len(batch) >= _FEW and all(type(leaf) in (np.ndarray, np.memmap, Ragged) for _, leaf in leaves)


def _together(batches: Iterator[RowBatch]) -> Iterator[RowBatch]:
    for batch in batches:
        current().drawn += len(batch)
        size = stacked_records(approximate_nbytes(batch.batch) / len(batch), len(tree.leaf_values(batch.batch)))
        yield from cut(batch, size)


def _one_by_one(batches: Iterator[RowBatch], record: int) -> Iterator[Batch]:
    rows = chain.from_iterable(map(RowBatch.views, batches))
    return element_batches(rows, record)


def _row_count(path: str, leaf: Any) -> int:
    if has_columns(leaf):
        raise ElementError("arrays by the names of columns", f"a {type(leaf).__name__}", path=path, hint=COLUMNS)
    refuse_other_index(f"a column of a batch, {path}", leaf)
    if isinstance(leaf, Ragged) and len(leaf) and (row := wrong_row(leaf)) is not None:
        got = f"{leaf!r} with row splits {leaf.row_splits[row : row + 2]}"
        hint = "Row splits are integers that ascend from row to row, up to the number of values."
        raise ElementError("rows that lie within the values", got, path=path, record=row, hint=hint)
    if not isinstance(leaf, (str, bytes, bytearray)) and hasattr(leaf, "__len__"):
        with suppress(TypeError):
            return len(leaf)
    hint = (
        "Batches are arrays, tensors, or lists of str or bytes, and of values that element_spec= declares as JSON: "
        "collate to these, or give elements unbatched."
    )
    raise ElementError("an array with a row for each record", tree.describe(leaf), path=path, hint=hint)


def row_count(columns: Tree) -> int:
    """Return the number of rows of a batch."""
    counts = tree.map_structure(columns, _row_count)
    lengths = dict(tree.leaf_values(counts))
    if not lengths:
        hint = "Give elements unbatched: nothing in this batch tells how many there are."
        raise ElementError("a leaf with a row for each record", tree.describe(counts), hint=hint)
    if len(set(lengths.values())) > 1:
        got = ", ".join(f"{path or 'the batch'}: {length}" for path, length in lengths.items())
        raise ElementError("as many rows in every leaf of a batch", got)
    return int(next(iter(lengths.values())))


def with_columns(value: Tree, declared: Tree | None, path: str = "") -> Tree:
    """Return a batch with arrays in the places of the lists and tuples that are columns.

    These hold nothing but str, or nothing but bytes, or stand where the declared spec says JSON.
    """
    if isinstance(value, Mapping):
        known = declared if isinstance(declared, Mapping) else {}
        return {key: with_columns(child, known.get(key), f"{path}[{key!r}]") for key, child in value.items()}
    if isinstance(value, Nullable) and isinstance(value.values, Mapping):
        return Nullable(with_columns(value.values, declared, path), value.valid)
    if not isinstance(value, (list, tuple)):
        return value
    if isinstance(declared, JsonSpec):
        return np.fromiter(value, dtype=object, count=len(value))
    if value and any(all(isinstance(item, kind) for item in value) for kind in (str, bytes)):
        return np.fromiter(value, dtype=object, count=len(value))
    if isinstance(value, list) and value and all(map(_is_text_list, value)):
        raise ElementError(
            "columns of a row for each record",
            f"a list of {len(value)} lists of text, which may be rows or columns",
            path=path,
            hint="Make each of them a tuple if they are columns; give elements unbatched if they are rows.",
        )
    specs = [each for _, each in tree.children(declared)] if isinstance(declared, (list, tuple)) else []
    pairs = zip_longest(tree.children(value), specs[: len(value)])
    children = [with_columns(child, spec, path + key) for (key, child), spec in pairs]
    if tree.is_namedtuple(value):
        return type(value)(*children)
    return children if isinstance(value, list) else tuple(children)


def _is_text_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, (str, bytes)) for item in value)
