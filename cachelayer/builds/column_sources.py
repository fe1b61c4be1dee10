"""The source of columns that a function makes of the records of a version."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from cachelayer.builds.batches import Batch, RowBatch, batch_records
from cachelayer.builds.item_source import source_of_items
from cachelayer.builds.source import Source, errors_named, failure_at
from cachelayer.errors import InvalidTypeError, SourceError
from cachelayer.protocols import HasRecords, records_of
from cachelayer.records import tree
from cachelayer.records.memory import Ints


def columns_of_function(ref: HasRecords[Any], function: Callable[[Any], Any], *, batched: bool) -> Source:
    """Return the source of the columns that a function makes of the records of a version.

    Args:
        ref: the version.
        function: takes an element and returns a dict with its values of the columns. With ``batched`` it takes a batch,
            whose leaves are stacked on a leading axis, and returns a dict of columns with this axis.
        batched: whether the function takes a batch.
    """
    plan = {"of": records_of(ref).digests.elements, "batched": batched}
    if not batched:
        source = source_of_items(ref, elements=partial(_columns_from, ref, function))
        return replace(source, kind="columns", plan=plan)
    read = partial(_read, ref, function)
    length = len(records_of(ref))
    return Source("columns", read, length=length, starts=range(length), items=ref, plan=plan)


def _ranges(ref: HasRecords[Any], start: int, stop: int) -> Iterator[Ints]:
    """Yield the record numbers ``start`` to ``stop``, as many at a time as are read at once."""
    size = batch_records(records_of(ref).info.read_nbytes)
    for first in range(start, stop, size):
        yield np.arange(first, min(first + size, stop))


def _columns_from(ref: Any, function: Callable[[Any], Any], start: int) -> Iterator[Any]:
    for numbers in _ranges(ref, start, len(records_of(ref))):
        elements = ref.__getitems__(numbers)
        for number, element in zip(numbers.tolist(), elements, strict=True):
            yield _checked(number, function(element))


def _read(ref: HasRecords[Any], function: Callable[[Any], Any], start: int, stop: int | None) -> Iterator[Batch]:
    records = records_of(ref)
    for numbers in _ranges(ref, start, len(records) if stop is None else min(len(records), stop)):
        first = int(numbers[0])
        with errors_named(failure_at(first)):
            columns = _checked(first, function(records.batch(numbers)))
        batch = _with_string_arrays(columns, "")
        for path, leaf in tree.leaf_values(batch):
            _check_rows(path, leaf, len(numbers))
        yield RowBatch(batch, len(numbers))


def _checked(number: int, columns: Any) -> Any:
    """Return what the function returned for a record, or for a batch that begins there, if it is a dict."""
    if not isinstance(columns, dict) or not columns:
        raise InvalidTypeError(
            f"columns: the function returned {tree.describe(columns)} for record {number}: return a dict, such as "
            "{'score': 0.5}"
        )
    return columns


def _with_string_arrays(value: Any, path: str) -> Any:
    """Return the columns of a batch, with arrays in the places of lists of nothing but str, or nothing but bytes."""
    if isinstance(value, Mapping):
        return {key: _with_string_arrays(child, f"{path}[{key!r}]") for key, child in value.items()}
    if not isinstance(value, list):
        return value
    if value and {type(item) for item in value} in ({str}, {bytes}):
        return np.fromiter(value, object, len(value))
    raise InvalidTypeError(
        f"columns: the function returned a list for {path}: return an array with a row for each record, such as "
        "np.asarray(...), or, if rows differ in length, a cachelayer.Ragged(values, row_splits)"
    )


def _check_rows(path: str, leaf: Any, rows: int) -> None:
    """Raise unless a leaf of the columns of a batch has a row for each record."""
    if isinstance(leaf, (str, bytes)) or not hasattr(leaf, "__len__") or getattr(leaf, "shape", None) == ():
        raise InvalidTypeError(
            f"columns: the function returned {tree.describe(leaf)} for {path}: with batched=True it takes a batch, and "
            f"returns columns with a row for each of its {rows} records"
        )
    if len(leaf) != rows:
        raise SourceError(f"the function returned {len(leaf)} rows of {path} for {rows} records")
