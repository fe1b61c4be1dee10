"""Read pandas frames as sources, whole columns where they have a dtype, and return records as a frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.builds.batches import snapshot
from cachelayer.builds.source import Source
from cachelayer.errors import ElementError, InvalidArgumentError, InvalidTypeError
from cachelayer.records.codec import codec_for
from cachelayer.records.infer import FIRST_ROWS, infer_spec, may_lack_keys
from cachelayer.records.leaf_columns import Column, Columns
from cachelayer.specs import tree
from cachelayer.specs.tree import Tree
from cachelayer.specs.values import Nullable, Ragged
from cachelayer.support.arguments import explains_options
from cachelayer.support.extras import packages_of
from cachelayer.support.user_warnings import warn
from cachelayer.views.view import View

with packages_of("pandas", "this needs pandas"):
    import pandas as pd
    import pyarrow as pa
    import pyarrow.types as kinds

    from cachelayer.adapters.frameworks.arrow_arrays import array_of, read_columns, table_of
    from cachelayer.adapters.sources.arrow_schema import (
        PANDAS,
        note_of,
        says_more,
        schema_metadata,
        with_categories,
        with_note,
    )
    from cachelayer.adapters.sources.arrow_source import columns_of, source_of_rows, spec_of_schema
    from cachelayer.adapters.sources.arrow_types import are_zoned, changed

__all__ = ["as_source", "to_pandas"]

_FIXES = {
    pd.PeriodDtype: ".dt.to_timestamp() makes it the time at which it begins",
    pd.IntervalDtype: "make two columns from .array.left and .array.right",
    pd.SparseDtype: ".sparse.to_dense() makes it an ordinary column",
}
_INTEGERS = [f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)]
_MASKED: dict[str, Any] = {
    dtype.numpy_dtype.name: dtype
    for dtype in map(pd.api.types.pandas_dtype, ("boolean", "Float32", "Float64", *_INTEGERS))
}
"""pandas' dtypes with a null, by the name of numpy's dtype without one."""
_FIRST_OBJECTS = 256


def as_source(obj: Any, *, unbatch: bool = False, element_spec: Tree | None = None) -> Source | None:
    """Return the source of a ``DataFrame``; None for anything else.

    Raises:
        InvalidTypeError: if a column cannot be stored; names it and says what to do.
        ElementError: if an object of a column of objects cannot be stored.
        InvalidArgumentError: if the index has a name, several levels, or other values than 0 to n - 1.

    Examples:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"name": ["a", "b", None], "score": [0.5, 1.5, 2.5]})
        >>> ref = cachelayer.Storage(folder).cache(frame, "scores@v1")
        >>> ref[2], ref[0]["name"]
        ({'name': None, 'score': np.float64(2.5)}, 'a')
    """
    if not isinstance(obj, pd.DataFrame):
        return None
    if unbatch:
        raise InvalidArgumentError("unbatch=True: rows of a pandas frame are elements already; leave it out")
    _check_names(obj)
    schema = _schema_of(obj)
    spec = _spec_of(obj, schema, element_spec)
    some = obj[:: max(1, len(obj) // _FIRST_OBJECTS)]
    nbytes = _nbytes(some) * len(obj) // max(1, len(some))
    columns = partial(_columns, schema)
    fetch = obj.iloc.__getitem__
    return source_of_rows("pandas", len(obj), nbytes, fetch, columns, spec, schema_metadata(schema, spec), _nbytes)


@explains_options
def to_pandas(
    ref: View[Any],
    indices: Sequence[int] | NDArray[Any] | None = None,
    *,
    types_mapper: Callable[[pa.DataType], Any] | None = None,
) -> pd.DataFrame:
    """Return records as a frame, in memory: one column for each key of the elements.

    Args:
        ref: records whose elements are dicts.
        indices: integers, where negative ones count from the end; or a mask; None for all records.
        types_mapper: given a type of Arrow, returns the dtype of its columns; with ``pandas.ArrowDtype``, each column
            has exactly the values and the type of :func:`cachelayer.adapters.pyarrow.to_arrow`.

    Returns:
        A frame. Columns that came from pandas have their dtypes again, but text of objects is pandas' ``str``. Columns
        that were categories are categories again, those that were times of day or decimals have objects, and lists of
        structs are lists of dicts. Numbers have numpy's dtypes, or pandas' own with ``pd.NA`` if the leaf is null in
        some elements of the version. A str has pandas' ``str``, before pandas 3 objects. Moments and spans keep their
        unit, except that days become milliseconds; null becomes NaT. Arrays and dicts are the same objects as in the
        elements, but the rows of a Ragged are lists. Images and sounds are the bytes of their files.

    Raises:
        InvalidTypeError: if Arrow has no type for a leaf, pandas cannot hold a value, or elements are not dicts.
        RecordIndexError: if a record does not exist.

    Examples:
        >>> import pandas as pd
        >>> from cachelayer.adapters.pandas import to_pandas
        >>> frame = pd.DataFrame({"name": ["a", "b", "c"], "score": pd.array([1, None, 3], "Int64")})
        >>> ref = cachelayer.Storage(folder).cache(frame, "scores@v1")
        >>> to_pandas(ref, [1, 2])
          name  score
        0    b   <NA>
        1    c      3
    """
    if types_mapper is not None:
        return table_of(*read_columns(ref, indices)).to_pandas(types_mapper=types_mapper)
    schema, batch, rows = read_columns(ref, indices)
    return pd.DataFrame({field.name: _series(field, batch[field.name], rows) for field in schema})


def _check_names(frame: pd.DataFrame) -> None:
    if not len(frame.columns):
        raise InvalidArgumentError("the frame has no columns: an element is a dict with at least one key")
    for name in frame.columns:
        if not isinstance(name, str) or "\ud800" <= max(name, default="") <= "\udfff":
            raise InvalidTypeError(f"a column is named {name!a}: names are str in UTF-8: set frame.columns = [...]")
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise InvalidTypeError(f"two columns are named [{twice!r}]: rename one, or leave it out")


def _nbytes(frame: pd.DataFrame) -> int:
    """Return the approximate size of a frame, in which each row has its own value of a category."""
    total = 0
    for name, dtype in frame.dtypes.items():
        if isinstance(dtype, np.dtype) and dtype.kind != "O":
            total += len(frame) * dtype.itemsize
            continue
        column = frame[name]
        if not isinstance(dtype, pd.CategoricalDtype):
            total += column.memory_usage(index=False, deep=dtype.kind == "O")
            continue
        sizes = [len(value) if isinstance(value, (str, bytes)) else 8 for value in column.cat.categories]
        codes = column.cat.codes.to_numpy()
        total += int(np.array(sizes, np.int64)[codes[codes >= 0]].sum()) + len(codes)
    return total


def _spec_of(frame: pd.DataFrame, typed: pa.Schema, declared: Any) -> dict[str, Any]:
    """Return the element spec of a frame: that of the Arrow types, and that which the first objects show."""
    if declared is not None and (not isinstance(declared, dict) or not declared.keys() <= {*frame.columns}):
        names = declared if isinstance(declared, dict) else ()
        missing = tree.listed(name for name in names if name not in frame)
        raise InvalidArgumentError(
            f"the spec is {tree.describe(declared)}, and the frame has the columns {tree.listed(frame)}: it lacks "
            f"{missing}"
        )
    declared = declared or {}
    spec: Any = spec_of_schema(typed, {name: declared[name] for name in typed.names if name in declared}, {})
    own = {name: spec[name] if name in spec else _spec_of_objects(name, frame[name], declared) for name in frame}
    return {name: own[name] for name in (declared if declared.keys() == own.keys() else own)}


def _schema_of(frame: pd.DataFrame) -> pa.Schema:
    """Return the Arrow types of the columns that are not of objects, or of decimals; with notes of pandas' dtypes."""
    fields = []
    for name, dtype in frame.dtypes.items():
        is_object = isinstance(dtype, np.dtype) and dtype.kind == "O"
        none: Any = None if is_object else _array(name, frame[name][:0])
        kind = _decimal_type(frame[name]) if is_object else none.type
        if kind is None:
            continue
        if isinstance(dtype, pd.CategoricalDtype):
            fields.append(with_categories(pa.field(name, kind), none.dictionary))
        elif isinstance(dtype, pd.StringDtype) and dtype.na_value is pd.NA:
            fields.append(with_note(pa.field(name, pa.string()), PANDAS, f"string[{dtype.storage}]"))
        elif dtype in _MASKED.values() or (isinstance(dtype, pd.ArrowDtype) and _comes_back(kind)):
            fields.append(
                with_note(pa.field(name, kind), PANDAS, "arrow" if dtype not in _MASKED.values() else str(dtype))
            )
        else:
            fields.append(pa.field(name, kind))
    return pa.schema(fields)


def _comes_back(kind: pa.DataType) -> bool:
    """Return whether arrays are made of a type again: not of one that only stores its values in another way."""
    return not any(word in str(kind) for word in ("view", "run_end_encoded"))


def _decimal_type(column: pd.Series[Any]) -> pa.DataType | None:
    present = column[column.notna()]
    if not len(present) or not isinstance(present.iloc[0], Decimal):
        return None
    try:
        return pa.infer_type(present.to_numpy())
    except pa.ArrowException:
        return None


def _spec_of_objects(name: str, column: pd.Series[Any], declared: dict[str, Any]) -> Tree:
    known = {name: declared[name]} if name in declared else None
    if known is not None and not may_lack_keys(declared[name]):
        return declared[name]
    spec = infer_spec(({name: snapshot(value)} for value in column[column.notna()]), known, FIRST_ROWS)
    if spec is None or spec[name] is None:
        raise InvalidArgumentError(f"leaf [{name!r}] is null in every row: pass element_spec= with its dtype")
    return spec[name]


def _columns(schema: pa.Schema, spec: dict[str, Any], rows: pd.DataFrame) -> Columns:

    series = {name: rows[name] for name in spec}
    # In the order of the spec, which may be that of an earlier part.
    types = dict(zip(schema.names, schema.types, strict=True))
    typed = {name: _array(name, series[name], types[name]) for name in spec if name in types}
    batch = pa.RecordBatch.from_arrays(list(typed.values()), list(typed))
    whole = columns_of({}, None, {name: spec[name] for name in typed}, batch)
    typed_leaves = iter(whole.leaves)
    leaves: list[Column] = []
    nulls = dict(whole.nulls)
    for name, child in spec.items():
        if name in typed:
            leaves += islice(typed_leaves, len(tree.leaves(child)))
            continue
        # A column of objects has no other mark for a value that is missing.
        values = series[name].where(series[name].notna(), None).tolist()
        own = codec_for({name: child}).columns([{name: snapshot(value)} for value in values])
        leaves += own.leaves
        nulls |= own.nulls
    return Columns(leaves, len(rows), nulls)


def _array(name: str, series: pd.Series[Any], decimals: pa.DataType | None = None) -> pa.Array:
    """Return a column as Arrow has it; objects are ``decimals``."""
    categories = getattr(series.dtype, "categories", series)
    for kind, fix in _FIXES.items():
        if isinstance(series.dtype, kind) or isinstance(categories.dtype, kind):
            raise InvalidTypeError(f"column {name!r} is {series.dtype}, which is not stored: {fix}; or drop() it")
    try:
        if decimals is not None and series.dtype == object:
            return pa.array(series.to_numpy(), decimals, from_pandas=True)
        if isinstance(series.dtype, np.dtype):
            # from_pandas= would turn NaN into null, but in numpy's dtypes it is a number like any other.
            return pa.array(series.to_numpy().astype(series.dtype.newbyteorder("="), copy=False))
        # Of the two that follow, pyarrow takes values without their time zone, of which pandas warns.
        if isinstance(series.dtype, pd.DatetimeTZDtype):
            times = pa.array(series.dt.tz_convert(None).to_numpy())
            return times.view(pa.timestamp(times.type.unit, pa.lib.tzinfo_to_string(series.dtype.tz)))
        if isinstance(categories.dtype, pd.DatetimeTZDtype):
            codes = series.cat.codes.to_numpy()
            times = _array(name, categories.to_series())
            return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), times, ordered=series.cat.ordered)
        return pa.array(series.array)
    except UnicodeEncodeError as error:
        raise ElementError("text in UTF-8", ascii(error.object)[:80], path=f"[{name!r}]") from error
    except (pa.ArrowException, TypeError, ValueError, NotImplementedError) as error:
        raise InvalidTypeError(
            f"column {name!r} is {series.dtype}, for which Arrow has no type. Convert it with astype(), or drop() it"
        ) from error


def _series(field: pa.Field, values: Any, rows: int) -> pd.Series[Any]:
    """Return the column of a frame that holds the values of a leaf, or of a dict of leaves, unchanged."""
    kind = field.type
    name = field.name
    dtype_name = note_of(field, PANDAS)
    if dtype_name == "arrow":
        return pd.Series(pd.arrays.ArrowExtensionArray(array_of(field, values, rows)))
    if kinds.is_dictionary(kind):
        array = array_of(field, values, rows)
        series = array.to_pandas()
        if getattr(kind.value_type, "tz", None) is not None:
            # pyarrow drops the time zone of categories.
            series = series.cat.rename_categories(pd.Index(array.dictionary.to_pandas()))
        return series
    zone = getattr(kind, "tz", None)
    if (says_more(kind) or (zone is None and any(are_zoned(kind)))) and not isinstance(kind, pa.BaseExtensionType):
        return _objects(array_of(field, values, rows), name)
    if kinds.is_string(kind) or kinds.is_binary(kind):
        texts = array_of(field, values, rows).to_pandas()
        return texts if dtype_name is None else texts.astype(dtype_name)
    if kinds.is_temporal(kind):
        times = pd.Series(_native(_times(values, name)))
        return times if zone is None else times.dt.tz_localize("UTC").dt.tz_convert(pa.lib.string_to_tzinfo(zone))
    is_number = kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind)
    if is_number and dtype_name is None and not isinstance(values, Nullable):
        return pd.Series(_native(values))
    if is_number:
        numbers = values if isinstance(values, Nullable) else Nullable(values, np.ones(rows, np.bool_))
        if numbers.values.dtype.name in _MASKED:
            dtype = _MASKED[numbers.values.dtype.name]
            return pd.Series(dtype.construct_array_type()(_native(numbers.values), ~numbers.valid))
        if np.isnan(numbers.values[numbers.valid]).any():
            warn(f"leaf [{name!r}] holds null and NaN, which pandas cannot tell apart in a column of {kind}")
    return pd.Series(np.fromiter((_cell(values, row) for row in range(rows)), object, rows))


def _objects(array: pa.Array, name: str) -> pd.Series[Any]:
    try:
        values = array.cast(changed(array.type, _without_nanoseconds)).to_pylist()
    except pa.ArrowInvalid as error:
        raise InvalidTypeError(
            f"leaf [{name!r}] has times with nanoseconds, which datetime.time does not hold: pass "
            "types_mapper=pandas.ArrowDtype"
        ) from error
    return pd.Series(np.fromiter(values, object, len(values)))


def _without_nanoseconds(kind: pa.DataType) -> pa.DataType:
    return pa.time64("us") if kinds.is_time64(kind) else kind


def _cell(values: Any, row: int) -> Any:
    if values is None or (isinstance(values, Nullable) and values.valid.ndim == 1 and not values.valid[row]):
        return None
    if tree.is_namedtuple(values):
        values = values._asdict()
    if isinstance(values, dict):
        return {key: _cell(child, row) for key, child in values.items()}
    if isinstance(values, Nullable) and values.valid.ndim == 1:
        return _cell(values.values, row)
    cell = values[row]
    if isinstance(cell, Nullable) or (isinstance(cell, Ragged) and isinstance(cell.flat_values, Nullable)):
        return cell.to_list()
    return [_cell(cell, number) for number in range(len(cell))] if isinstance(cell, Ragged) else cell


def _times(values: Any, name: str) -> NDArray[Any]:
    """Return moments or spans in a unit that pandas has, with NaT for null."""
    if isinstance(values, Nullable):
        if np.isnat(values.values[values.valid]).any():
            warn(f"leaf [{name!r}] holds null and NaT, which pandas cannot tell apart: both become NaT")
        values = np.where(values.valid, values.values, np.array("NaT", values.values.dtype))
    if values.dtype != np.dtype("M8[D]"):
        return np.asarray(values)
    milliseconds: NDArray[Any] = values.astype("M8[ms]")
    if not ((milliseconds.astype(values.dtype) == values) | np.isnat(values)).all():
        raise InvalidTypeError(f"leaf [{name!r}] holds days that do not fit into milliseconds: read it with ref.read()")
    return milliseconds


def _native(values: NDArray[Any]) -> NDArray[Any]:
    """Return the same memory in numpy's native dtype: one with an explicit byte order would print differently."""
    return values.view(values.dtype.newbyteorder("="))


def content(obj: Any) -> Any:
    """Return what a frame, a series or an index holds besides the values of its columns; None for anything else."""
    if isinstance(obj, pd.Index):
        levels = [np.asarray(obj.get_level_values(number), object) for number in range(obj.nlevels)]
        return "index", [*obj.names], levels, [*map(str, getattr(obj, "dtypes", [obj.dtype]))]
    if isinstance(obj, pd.CategoricalDtype):
        return "categories", content(obj.categories), obj.ordered
    if isinstance(obj, pd.Categorical):
        return content(obj.dtype)
    if not isinstance(obj, (pd.DataFrame, pd.Series)):
        return None
    dtypes = [obj.dtype] if isinstance(obj, pd.Series) else [*obj.dtypes]
    labels = [obj.name] if isinstance(obj, pd.Series) else content(obj.columns)
    kinds = [content(dtype) or str(dtype) for dtype in dtypes]
    frame = obj.to_frame() if isinstance(obj, pd.Series) else obj
    objects = [frame.iloc[:, number].to_numpy() for number, dtype in enumerate(dtypes) if dtype.kind == "O"]
    return labels, content(obj.index), kinds, obj.attrs, objects
