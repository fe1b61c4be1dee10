"""The rows of Hugging Face ``IterableDataset``s that come from Python one by one, in Arrow tables of one schema."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from datasets.arrow_writer import TypedSequence

from cachelayer.adapters._exact_arrow import NotExactError, exactly, infinities
from cachelayer.builds.iterable_source import guarded
from cachelayer.errors import ElementError
from cachelayer.records import tree

ROWS_AT_ONCE = 256
_ADVICE = (
    f"Without features= the first {ROWS_AT_ONCE} rows tell the types, and no value is changed: pass features= to the "
    "IterableDataset, with a type for all values."
)


def tabled(dataset: datasets.IterableDataset) -> Iterator[pa.Table]:
    """Yield the rows of a dataset in tables.

    Args:
        dataset: if it declares no features, its first rows tell them.

    Raises:
        ElementError: for a row that has other columns or a value that its column cannot hold as it is.
        SourceError: if the dataset fails.
    """
    declared = dataset.features
    if declared is not None:
        dataset = dataset.decode(False)
    rows = guarded(iter(dataset.with_format(None)))
    known, first = declared, 0
    while chunk := list(islice(rows, ROWS_AT_ONCE)):
        table, known = _table_of(chunk, known, first, told=declared is not None)
        yield table
        first += len(chunk)


def _table_of(
    rows: list[dict[str, Any]], known: datasets.Features | None, first: int, *, told: bool
) -> tuple[pa.Table, datasets.Features]:
    """Return rows as a table, and its features.

    Args:
        rows: the rows.
        known: the features, if they were declared or rows came before.
        first: the number of the first row.
        told: they were declared.
    """
    names = list(rows[0] if known is None else known)
    for number, row in enumerate(rows, start=first):
        if row.keys() != set(names):
            raise ElementError(f"the columns {names}", f"{list(row)}", record=number)
    arrays, found = [], {}
    for name in names:
        values = [row[name] for row in rows]
        try:
            array, found[name] = _column(values, known and known[name], told=told)
        except Exception as error:
            number = _failing(values, known and known[name], told=told)
            expected = "values of one type" if known is None else f"a value of {known[name]}"
            hint = str(error) if told else f"{error}. {_ADVICE}"
            raise ElementError(
                expected, tree.describe(values[number]), record=first + number, path=f"[{name!r}]", hint=hint
            ) from error
        arrays.append(array)
    features = datasets.Features(found)
    return pa.Table.from_arrays(arrays, schema=features.arrow_schema), features


def _column(values: list[Any], feature: Any, *, told: bool) -> tuple[pa.Array, Any]:
    """Return values as an Arrow array, and its feature."""
    if told:
        array = pa.array(TypedSequence(values, type=feature))
        found = infinities(array)
        if found and found > sum(map(_infinite, values)):
            raise NotExactError("a finite number would be infinite")
        return array, feature
    _check_kinds(values)
    typed = TypedSequence(values)
    array = pa.array(typed)
    if feature is None:
        return array, typed.get_inferred_type()
    return exactly(array, datasets.Features({"x": feature}).arrow_schema.field("x").type), feature


def _check_kinds(values: list[Any]) -> None:
    """Raise for values that Arrow makes others of: text beside bytes, times with and without a zone, nanoseconds."""
    found = {type(value) for value in values}
    if any(issubclass(kind, str) for kind in found) and any(issubclass(kind, bytes) for kind in found):
        raise NotExactError("there are both str and bytes")
    # NaT is a datetime, and not equal to itself.
    if len({value.tzinfo is None for value in values if isinstance(value, datetime) and value == value}) > 1:
        raise NotExactError("there are times with and without a zone")
    # Those of pandas; datasets makes Python's of them.
    if any(getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0) for value in values):
        raise NotExactError("datasets drops the nanoseconds of pandas: give numpy.datetime64 or numpy.timedelta64")


def _infinite(value: Any) -> int:
    """Return how many numbers in a value are infinite."""
    if isinstance(value, dict):
        return sum(map(_infinite, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_infinite, value))
    if isinstance(value, (float, np.floating)) or (isinstance(value, np.ndarray) and value.dtype.kind == "f"):
        return int(np.isinf(value).sum())
    return 0


def _failing(values: list[Any], feature: Any, *, told: bool) -> int:
    """Return the place of the first value that with those before it makes no column."""
    for count in range(1, len(values)):
        try:
            _column(values[:count], feature, told=told)
        except Exception:  # noqa: BLE001
            return count - 1
    return len(values) - 1


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table; arrays as lists, and times in nanoseconds as those of NumPy, which keep them."""
    columns = [_python(column.combine_chunks()) for column in table.columns]
    return [dict(zip(table.column_names, values, strict=True)) for values in zip(*columns, strict=True)]


def _python(array: pa.Array) -> list[Any]:
    if isinstance(array, pa.ExtensionArray):
        # The one of datasets fails at nulls among arrays of unknown shape.
        return _python(array.storage)
    kind = array.type
    if kinds.is_struct(kind):
        parts = [_python(part) for part in array.flatten()]
        names = [field.name for field in kind]
        rows = (
            [dict(zip(names, values, strict=True)) for values in zip(*parts, strict=True)]
            if parts
            else [{} for _ in array]
        )
        return _with_nulls(array, rows)
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_pylist()
        values = iter(_python(array.flatten()))
        return _with_nulls(array, [list(islice(values, length)) for length in lengths])
    if (kinds.is_timestamp(kind) or kinds.is_duration(kind)) and kind.unit == "ns":
        return _with_nulls(array, list(array.to_numpy(zero_copy_only=False)))
    found: list[Any] = array.to_pylist()
    return found


def _with_nulls(array: pa.Array, values: list[Any]) -> list[Any]:
    if not array.null_count:
        return values
    return [value if valid else None for value, valid in zip(values, pc.is_valid(array).to_pylist(), strict=True)]
