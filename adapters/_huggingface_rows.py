"""Convert the Python rows of Hugging Face ``IterableDataset``s to Arrow tables of one schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds
from datasets.arrow_writer import TypedSequence

from cachelayer.adapters._exact_arrow import exactly
from cachelayer.adapters._huggingface_compare import Comparison, is_missing, scalar
from cachelayer.adapters._huggingface_features import encoder
from cachelayer.adapters._huggingface_pictures import as_files, feature_of_pictures
from cachelayer.builds.iterable_source import guarded
from cachelayer.errors import ElementError
from cachelayer.records import tree
from cachelayer.records.codec import Codec
from cachelayer.records.column import Column
from cachelayer.user_warnings import warn

ROWS_AT_ONCE = 256
_ADVICE = (
    f"Without features= the first {ROWS_AT_ONCE} rows decide the types, and no value is changed: pass features= to "
    "the IterableDataset, with a type that holds all values."
)


@dataclass(frozen=True, eq=False)
class PythonRows:
    """Rows as Python dicts, with known columns.

    Args:
        rows: the rows.
        features: the features of the columns.
        declared: whether the features were declared, rather than inferred from the first rows.
        taken: returns the columns of a table.
    """

    rows: list[dict[str, Any]]
    features: datasets.Features
    declared: bool
    taken: Callable[[pa.Table], list[Column]]

    def __len__(self) -> int:
        return len(self.rows)

    def columns(self, codec: Codec) -> list[Column]:  # noqa: ARG002
        """Return the columns of the codec.

        Raises:
            ElementError: if a row has other columns, or a column cannot hold a value unchanged.
        """
        table, nat = table_of(self.rows, self.features, declared=self.declared)
        for path in nat:
            warn(f"leaf {path} holds NaT, which Arrow does not have: it becomes null")
        return self.taken(table)

    def apart(self) -> Iterator[PythonRows]:
        return (replace(self, rows=[row]) for row in self.rows)


def chunks(dataset: datasets.IterableDataset) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of a dataset, up to ``ROWS_AT_ONCE`` at a time.

    Raises:
        SourceError: if the dataset fails.
    """
    rows = guarded(iter(unchanged(dataset)))
    while chunk := list(islice(rows, ROWS_AT_ONCE)):
        yield chunk


def unchanged(dataset: datasets.IterableDataset, form: str | None = None) -> datasets.IterableDataset:
    """Return a dataset of the rows as their source yields them: with features, ``datasets`` would change them."""
    info = dataset.info.copy()
    info.features = None if form is None else dataset.features
    plain = datasets.IterableDataset(
        dataset._ex_iterable,
        info=info,
        formatting=None,
        distributed=dataset._distributed,
        token_per_repo_id=dataset._token_per_repo_id,
    )
    if form is not None:
        plain = plain.with_format(form)
    plain.set_epoch(dataset.epoch)
    return plain


def inferred(rows: list[dict[str, Any]]) -> datasets.Features:
    """Return the features of the rows up to the first one that does not fit the rows before it.

    Raises:
        ElementError: if no column can hold a value of the first row.
    """
    while True:
        try:
            return datasets.Features.from_arrow_schema(table_of(rows, None, declared=False)[0].schema)
        except ElementError as error:
            if not error.record:
                raise
            rows = rows[: error.record]


def table_of(
    rows: list[dict[str, Any]], features: datasets.Features | None, *, declared: bool
) -> tuple[pa.Table, list[str]]:
    """Return rows as a table, and the paths of leaves in which NaT became null.

    Args:
        rows: the rows.
        features: the features of the table; if None, they are inferred from the rows.
        declared: whether the features were declared, rather than inferred from earlier rows.

    Raises:
        ElementError: if a row has other columns, or a column cannot hold a value unchanged; names the first such row.
    """
    names = list(rows[0] if features is None else features)
    for number, row in enumerate(rows):
        # A declared column may be missing: it becomes null.
        if row.keys() - set(names) or (row.keys() != set(names) and not declared):
            raise ElementError(f"the columns {names}", f"{list(row)}", record=number)
    arrays, types, nat = [], {}, set[str]()
    for name in names:
        scalars = [scalar(row.get(name)) for row in rows]
        feature = feature_of_pictures(scalars) if features is None else features[name]
        comparison = Comparison(declared)
        values = [None if is_missing(value) else value for value in scalars]
        if any(map(is_missing, scalars)):
            comparison.nat.add(f"[{name!r}]")
        try:
            array, types[name] = _column(values, feature, f"[{name!r}]", comparison)
        except Exception as error:
            number = _failing(values, feature, declared=declared)
            expected = "values of one type" if features is None else f"a value of {feature}"
            hint = str(error) if declared else f"{error}. {_ADVICE}"
            raise ElementError(
                expected, tree.describe(values[number]), record=number, path=f"[{name!r}]", hint=hint
            ) from error
        arrays.append(array)
        nat |= comparison.nat
    return pa.Table.from_arrays(arrays, schema=datasets.Features(types).arrow_schema), sorted(nat)


def _column(values: list[Any], feature: Any, path: str, comparison: Comparison) -> tuple[pa.Array, Any]:
    """Return values as an Arrow array that holds them unchanged, and its feature."""
    if not comparison.declared:
        values = [as_files(value) for value in values]
    if feature is None:
        typed = TypedSequence(values)
        array = pa.array(typed)
        comparison.check(values, array, path)
        return array, typed.get_inferred_type()
    kind = datasets.Features({"x": feature}).arrow_schema.field("x").type
    if not comparison.declared:
        array = exactly(pa.array(TypedSequence(values)), kind)
        comparison.check(values, array, path)
        return array, feature
    encode = encoder(feature)
    if encode is not None:
        values = [encode(value) for value in values]
    if "extension<" not in str(kind):
        # datasets drops nanoseconds, and cannot hold integers past 2**63 or lists of length 0.
        with suppress(Exception):
            array = pa.array(values, kind)
            comparison.check(values, array, path)
            return array, feature
    array = pa.array(TypedSequence(values, type=feature))
    comparison.check(values, array, path)
    return array, feature


def _failing(values: list[Any], feature: Any, *, declared: bool) -> int:
    """Return the place of the first value that does not fit into one column with the values before it."""
    for count in range(1, len(values)):
        try:
            _column(values[:count], feature, "", Comparison(declared))
        except Exception:  # noqa: BLE001
            return count - 1
    return len(values) - 1


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table, with arrays as lists, and times in nanoseconds as NumPy's, which keep them."""
    columns = [_python(column.combine_chunks()) for column in table.columns]
    return [dict(zip(table.column_names, values, strict=True)) for values in zip(*columns, strict=True)]


def _python(array: pa.Array) -> list[Any]:
    if isinstance(array.type, pa.JsonType):
        return [None if text is None else json.loads(text) for text in array.storage.to_pylist()]
    if isinstance(array, pa.ExtensionArray):
        # The conversion of datasets fails if there are nulls among arrays of unknown shape.
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
    if kinds.is_temporal(kind):
        return _times(array)
    scalars: list[Any] = array.to_pylist()
    return scalars


def _times(array: pa.Array) -> list[Any]:
    """Return Python's times, or NumPy's if Python cannot hold them."""
    if kinds.is_time64(array.type) and array.type.unit == "ns":
        array = array.view(pa.duration("ns"))
    if getattr(array.type, "unit", None) != "ns":
        with suppress(OverflowError, ValueError):
            times: list[Any] = array.to_pylist()
            return times
    if len(array) > 1 and getattr(array.type, "unit", None) != "ns":
        # Use NumPy's only for the times that are out of Python's range.
        return [value for row in range(len(array)) for value in _times(array.slice(row, 1))]
    return _with_nulls(array, list(array.to_numpy(zero_copy_only=False)))


def _with_nulls(array: pa.Array, values: list[Any]) -> list[Any]:
    if not array.null_count:
        return values
    return [value if valid else None for value, valid in zip(values, pc.is_valid(array).to_pylist(), strict=True)]
