"""pandas in and out: frames are sources, columns are taken over whole, and records come out as a frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.view import View
from cachelayer.elements import tree
from cachelayer.elements.spec import LeafSpec
from cachelayer.elements.tree import Tree
from cachelayer.errors import ElementError, InvalidArgumentError, InvalidTypeError, MissingDependencyError

if TYPE_CHECKING:
    import pyarrow as pa

    from cachelayer.adapters._arrow_source import ArrowSource

try:
    import pandas as pd
except ImportError as error:
    raise MissingDependencyError("this needs pandas: pip install 'cachelayer[pandas]'") from error

_FIXES = {
    pd.DatetimeTZDtype: ".dt.tz_convert('UTC').dt.tz_localize(None) makes it a moment in UTC",
    pd.PeriodDtype: ".dt.to_timestamp() makes it the time when it begins",
    pd.IntervalDtype: "make two columns of .array.left and .array.right",
    pd.SparseDtype: ".sparse.to_dense() makes it an ordinary column",
}
_MASKED: dict[str, Any] = {
    kind.numpy_dtype.name: kind
    for kind in (
        pd.BooleanDtype(),
        pd.Int8Dtype(),
        pd.Int16Dtype(),
        pd.Int32Dtype(),
        pd.Int64Dtype(),
        pd.UInt8Dtype(),
        pd.UInt16Dtype(),
        pd.UInt32Dtype(),
        pd.UInt64Dtype(),
        pd.Float32Dtype(),
        pd.Float64Dtype(),
    )
}
"""pandas' dtypes that have a null, by numpy's that have none."""


def as_source(obj: Any, *, unbatch: bool = False, element_spec: Tree | None = None) -> ArrowSource | None:
    """The source that a ``DataFrame`` is; None for anything else. An index without a name that counts is left out.

    Raises:
        InvalidTypeError: for a column that cannot be stored, with its name and what to do.
        ElementError: for a column of objects of several types, with the record.
        InvalidArgumentError: where the index holds something.
    """
    if not isinstance(obj, pd.DataFrame):
        return None
    if unbatch:
        raise InvalidArgumentError("unbatch=True: rows of a pandas frame are elements already; leave it out")
    # Only here, since pandas is at home without pyarrow too.
    from cachelayer.adapters._arrow_source import Part, SkippableArrowSource

    part = Part.of_table(_table(obj))
    return SkippableArrowSource("pandas", lambda: [part], element_spec)


def to_pandas(ref: View[Any], indices: Sequence[int] | NDArray[Any] | None = None) -> pd.DataFrame:
    """Records as a frame, in memory: a column for each key of the elements.

    Args:
        ref: records whose elements are dicts.
        indices: integers, negative ones counting from the end; or a mask; None for all records.

    Returns:
        Numbers in numpy's dtypes, or in pandas' own with ``pd.NA`` where a leaf is null in some elements of the
        version; str in pandas' ``str``; arrays and dicts as objects; images and sounds as the bytes of their files.

    Raises:
        InvalidTypeError: for leaves that Arrow has no type for, and elements that are no dicts.
        RecordIndexError: where there is no such record.
    """
    from cachelayer.adapters._arrow_table import read_table

    table = read_table(ref, indices)
    return pd.DataFrame({name: _series(ref.element_spec[name], table[name]) for name in table.column_names})


def _series(spec: Tree, column: pa.ChunkedArray) -> pd.Series[Any]:
    if isinstance(spec, LeafSpec) and spec.nullable and spec.shape == () and isinstance(spec.dtype, np.dtype):
        masked = _MASKED.get(spec.dtype.name)
        if masked is not None:
            return pd.Series(masked.__from_arrow__(column))
    return column.to_pandas(date_as_object=False)


def _table(frame: pd.DataFrame) -> pa.Table:
    import pyarrow as pa

    _check_names(frame)
    arrays = [_array(name, frame.iloc[:, place]) for place, name in enumerate(frame.columns)]
    return pa.Table.from_arrays(arrays, names=list(frame.columns))


def _check_names(frame: pd.DataFrame) -> None:
    index = frame.index
    if not len(frame.columns):
        raise InvalidArgumentError("the frame has no columns: an element is a dict with one key at least")
    if index.nlevels > 1 or index.name is not None or index.dtype.kind != "i":
        raise InvalidArgumentError(
            f"the frame has an index {list(index.names)} of {index.dtype}, which is no column: reset_index() makes it "
            "one, reset_index(drop=True) drops it"
        )
    for name in frame.columns:
        if not isinstance(name, str):
            raise InvalidTypeError(
                f"a column is called {name!r}, of type {type(name).__name__}: names are str, as "
                "frame.columns = [...] makes them"
            )


def _array(name: str, series: pd.Series[Any]) -> Any:
    import pyarrow as pa

    for kind, fix in _FIXES.items():
        if isinstance(series.dtype, kind):
            raise InvalidTypeError(f"column {name!r} is {series.dtype}, which is not stored: {fix}; or drop() it")
    try:
        if series.dtype == object:
            array = pa.array(_of_one_type(name, series), from_pandas=True)
        else:
            # With from_pandas NaN would become null: in numpy's dtypes it is a number like others.
            array = pa.array(series.to_numpy() if isinstance(series.dtype, np.dtype) else series.array)
    except ElementError:
        raise
    except (pa.ArrowException, OverflowError, TypeError, ValueError, NotImplementedError) as error:
        raise InvalidTypeError(
            f"column {name!r} is {series.dtype}, which is not stored: {error}. Convert it with astype(), or drop() it"
        ) from error
    _check(array.type, f"column {name!r}")
    return array


def _check(kind: pa.DataType, where: str) -> None:
    """Raise for a type that would not come back as it is."""
    import pyarrow.types as kinds

    fix = None
    if kinds.is_timestamp(kind) and kind.tz is not None:
        fix = _FIXES[pd.DatetimeTZDtype]
    elif kinds.is_decimal(kind):
        fix = "astype(float) rounds it, astype(str) keeps its digits"
    if fix is not None:
        raise InvalidTypeError(f"{where} holds {kind}, which is not stored: {fix}; or drop() it")
    for place in range(kind.num_fields):
        field = kind.field(place)
        _check(field.type, f"{where}, in {field.name!r},")


def _of_one_type(name: str, series: pd.Series[Any]) -> NDArray[Any]:
    """The objects, where all but those that are missing are of one type."""
    values: NDArray[Any] = series.to_numpy()
    present = series.notna().to_numpy()
    kinds: list[Any] = list(map(type, values[present]))
    if set(kinds) == {np.ndarray}:
        kinds = [array.dtype for array in values[present]]
    if len(set(kinds)) > 1:
        place = next(place for place, kind in enumerate(kinds) if kind is not kinds[0])
        record = int(np.flatnonzero(present)[place])
        hint = "A column is of one type: convert it with astype(), or split it."
        got = tree.describe(values[record])
        raise ElementError(
            f"{getattr(kinds[0], '__name__', kinds[0])}, as above", got, record=record, path=f"[{name!r}]", hint=hint
        )
    return values
