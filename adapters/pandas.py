"""pandas in and out: frames are sources, columns are taken over whole, and records come out as a frame."""

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
    pd.PeriodDtype: ".dt.to_timestamp() makes it the time when it begins",
    pd.IntervalDtype: "make two columns of .array.left and .array.right",
    pd.SparseDtype: ".sparse.to_dense() makes it an ordinary column",
}


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
        version; str in pandas' ``str``; moments and spans in their unit, days in milliseconds, null as NaT; arrays and
        dicts as objects that are those of the elements, rows of a Ragged as lists; images and sounds as the bytes of
        their files.

    Raises:
        InvalidTypeError: for leaves that Arrow has no type for, values that pandas does not hold, and elements that are
            no dicts.
        RecordIndexError: if there is no such record.
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
        if not is_utf8(name):
            raise InvalidTypeError(f"a column is called {name!a}, which is no UTF-8: rename it")


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
            # With from_pandas NaN would become null: in numpy's dtypes it is a number like others.
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


def _check(kind: pa.DataType, where: str) -> None:
    """Raise for a type that would not come back as it is."""
    import pyarrow.types as kinds

    if kinds.is_dictionary(kind):
        kind = kind.value_type
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
