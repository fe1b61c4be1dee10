"""Read pandas frames as sources, converting whole columns, and return records as a frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.view import View
from cachelayer.errors import CacheLayerError, InvalidArgumentError, InvalidTypeError, MissingDependencyError
from cachelayer.records.tree import Tree

if TYPE_CHECKING:
    import pyarrow as pa

    from cachelayer.adapters._arrow_source import ArrowSource

try:
    import pandas as pd
except ImportError as error:
    raise MissingDependencyError("this needs pandas: pip install 'cachelayer[pandas]'") from error

_FIXES = {
    pd.DatetimeTZDtype: ".dt.tz_convert('UTC').dt.tz_localize(None) makes it a moment in UTC",
    pd.PeriodDtype: ".dt.to_timestamp() makes it the time at which it begins",
    pd.IntervalDtype: "make two columns from .array.left and .array.right",
    pd.SparseDtype: ".sparse.to_dense() makes it an ordinary column",
}


def as_source(obj: Any, *, unbatch: bool = False, element_spec: Tree | None = None) -> ArrowSource | None:
    """Return the source of a ``DataFrame``; None for anything else. An unnamed index of integers is left out.

    Raises:
        InvalidTypeError: if a column cannot be stored; names it and says what to do.
        ElementError: if a column holds objects of several types; names the record.
        InvalidArgumentError: if the index has a name, several levels, or values other than integers.
    """
    if not isinstance(obj, pd.DataFrame):
        return None
    if unbatch:
        raise InvalidArgumentError("unbatch=True: rows of a pandas frame are elements already; leave it out")
    # Imported here because pandas can be installed without pyarrow.
    from cachelayer.adapters._arrow_source import ArrowPart, TableSource

    part = ArrowPart.of_table(_table(obj))
    return TableSource("pandas", lambda: [part], element_spec)


def to_pandas(ref: View[Any], indices: Sequence[int] | NDArray[Any] | None = None) -> pd.DataFrame:
    """Return records as a frame, in memory: one column for each key of the elements.

    Args:
        ref: records whose elements are dicts.
        indices: integers, where negative ones count from the end; or a mask; None for all records.

    Returns:
        A frame. Numbers have numpy's dtypes, or pandas' own with ``pd.NA`` if the leaf is null in some elements of the
        version. A str has pandas' ``str``. Moments and spans keep their unit, except that days become milliseconds;
        null becomes NaT. Arrays and dicts are the same objects as in the elements, but the rows of a Ragged are lists.
        Images and sounds are the bytes of their files.

    Raises:
        InvalidTypeError: if Arrow has no type for a leaf, pandas cannot hold a value, or elements are not dicts.
        RecordIndexError: if a record does not exist.
    """
    from cachelayer.adapters._arrow_table import read_columns
    from cachelayer.adapters._pandas_series import series_of

    columns, rows = read_columns(ref, indices)
    return pd.DataFrame({name: series_of(*column, rows, f"[{name!r}]") for name, column in columns.items()})


def _table(frame: pd.DataFrame) -> pa.Table:
    import pyarrow as pa

    _check_names(frame)
    arrays = [_array(name, frame.iloc[:, place]) for place, name in enumerate(frame.columns)]
    return pa.Table.from_arrays(arrays, names=list(frame.columns))


def _check_names(frame: pd.DataFrame) -> None:
    from cachelayer.adapters._arrow_columns import is_utf8

    index = frame.index
    if not len(frame.columns):
        raise InvalidArgumentError("the frame has no columns: an element is a dict with at least one key")
    if index.nlevels > 1 or index.name is not None or index.dtype.kind != "i":
        raise InvalidArgumentError(
            f"the frame has an index {list(index.names)} of {index.dtype}, which is not a column: reset_index() makes "
            "it one, reset_index(drop=True) drops it"
        )
    for name in frame.columns:
        if not isinstance(name, str):
            raise InvalidTypeError(
                f"a column is named {name!r}, of type {type(name).__name__}: names must be str: "
                "set frame.columns = [...]"
            )
        if not is_utf8(name):
            raise InvalidTypeError(f"a column is named {name!a}, which is not UTF-8: rename it")


def _array(name: str, series: pd.Series[Any]) -> Any:
    import pyarrow as pa

    from cachelayer.adapters._pandas_objects import UntypedError, arrow_of_objects

    categories = getattr(series.dtype, "categories", series)
    for kind, fix in _FIXES.items():
        if isinstance(series.dtype, kind) or isinstance(categories.dtype, kind):
            raise InvalidTypeError(f"column {name!r} is {series.dtype}, which is not stored: {fix}; or drop() it")
    try:
        if series.dtype == object:
            array = arrow_of_objects(name, series)
        elif isinstance(series.dtype, np.dtype):
            # from_pandas= would turn NaN into null, but in numpy's dtypes it is a number like any other.
            array = pa.array(series.to_numpy().astype(series.dtype.newbyteorder("="), copy=False))
        else:
            array = pa.array(series.array)
    except CacheLayerError:
        raise
    except UnicodeEncodeError:
        array = arrow_of_objects(name, series.astype(object))
    except (UntypedError, pa.ArrowException, OverflowError, TypeError, ValueError, NotImplementedError) as error:
        reason = str(error) if isinstance(error, UntypedError) else "Arrow has no type for it"
        raise InvalidTypeError(
            f"column {name!r} is {series.dtype}, which is not stored: {reason}. Convert it with astype(), or drop() it"
        ) from error
    _check(array.type, f"column {name!r}")
    return array


def _check(kind: pa.DataType, title: str) -> None:
    """Raise if values of a type would not come back unchanged."""
    import pyarrow.types as kinds

    if kinds.is_dictionary(kind):
        kind = kind.value_type
    fix = None
    if kinds.is_timestamp(kind) and kind.tz is not None:
        fix = _FIXES[pd.DatetimeTZDtype]
    elif kinds.is_decimal(kind):
        fix = "astype(float) rounds it, astype(str) keeps its digits"
    if fix is not None:
        raise InvalidTypeError(f"{title} holds {kind}, which is not stored: {fix}; or drop() it")
    for place in range(kind.num_fields):
        field = kind.field(place)
        _check(field.type, f"{title}, in {field.name!r},")
