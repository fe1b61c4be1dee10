"""Read Polars frames as sources, and return records as a frame: both through Arrow.

``storage.cache(frame, ...)`` takes a ``DataFrame``, or a ``LazyFrame``, which is then computed in batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from zoneinfo import available_timezones

from numpy.typing import NDArray

from cachelayer.builds.source import Source
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.specs.tree import Tree
from cachelayer.support.arguments import explains_options
from cachelayer.support.extras import packages_of
from cachelayer.views.view import View

if TYPE_CHECKING:
    import pyarrow as pa

with packages_of("polars", "this needs Polars"):
    import polars as pl

__all__ = ["as_source", "to_polars"]

_FIXES: dict[Any, str] = {
    pl.Object: "make it numbers, strings, lists or structs",
    pl.Int128: "cast(pl.Int64) if its values fit, or cast(pl.String)",
    pl.UInt128: "cast(pl.UInt64) if its values fit, or cast(pl.String)",
}


def as_source(obj: Any, *, unbatch: bool = False, element_spec: Tree | None = None) -> Source | None:
    """Return the source of a ``DataFrame`` or a ``LazyFrame``; None for anything else.

    Raises:
        InvalidTypeError: if a column cannot be stored; names it and says what to do.

    Examples:
        >>> import polars as pl
        >>> frame = pl.DataFrame({"name": ["a", "b"], "tags": [["x", "y"], []]})
        >>> ref = cachelayer.Storage(folder).cache(frame, "rows@v1")
        >>> ref[0]
        {'name': 'a', 'tags': array(['x', 'y'], dtype=object)}
    """
    if not isinstance(obj, (pl.DataFrame, pl.LazyFrame)):
        return None
    if unbatch:
        raise InvalidArgumentError("unbatch=True: rows of a Polars frame are elements already; leave it out")
    # Imported here because Polars can be installed without pyarrow.
    from cachelayer.adapters.sources.arrow_source import ArrowPart, source_of_parts, source_of_table

    try:
        schema = obj.collect_schema()
    except pl.exceptions.PolarsError as error:
        raise SourceError(f"the LazyFrame has no schema: {type(error).__name__}: {error}") from error
    if not schema:
        raise InvalidArgumentError("the frame has no columns: an element is a dict with at least one key")
    for name, dtype in schema.items():
        _check(dtype, f"column {name!r}")
    if isinstance(obj, pl.LazyFrame):
        part = ArrowPart("", _to_arrow(pl.DataFrame(schema=schema)).schema, partial(_computed, obj))
        return source_of_parts("polars", [part], element_spec)
    return source_of_table("polars", _to_arrow(obj), element_spec)


@explains_options
def to_polars(ref: View[Any], indices: Sequence[int] | NDArray[Any] | None = None) -> pl.DataFrame:
    """Return records as a frame, in memory: one column for each key of the elements.

    Args:
        ref: records whose elements are dicts.
        indices: integers, where negative ones count from the end; or a mask; None for all records.

    Returns:
        A frame. Columns that came from Polars, Arrow or Parquet have the types that they came with, such as ``Enum``,
        ``Categorical``, ``Time`` or lists of structs. Else arrays have the type ``Array`` or, with unknown dimensions,
        ``List``; dicts have the type ``Struct``. Images and sounds are the bytes of their files. Seconds become
        milliseconds. NaT becomes null, with a warning.

    Raises:
        InvalidTypeError: if Arrow has no type for a leaf, Polars cannot hold a value (such as text that is not UTF-8),
            or elements are not dicts.
        RecordIndexError: if a record does not exist.

    Examples:
        >>> import polars as pl
        >>> from cachelayer.adapters.polars import to_polars
        >>> frame = pl.DataFrame({"name": ["a", "b", "c"], "score": [1, None, 3]})
        >>> ref = cachelayer.Storage(folder).cache(frame, "scores@v1")
        >>> to_polars(ref).equals(frame), to_polars(ref, [2]).rows()
        (True, [('c', 3)])
    """
    import pyarrow as pa

    from cachelayer.adapters.frameworks.arrow_arrays import read_columns, table_of
    from cachelayer.adapters.sources.arrow_types import changed

    schema, batch, rows = read_columns(ref, indices)
    readable = pa.schema(
        [field.with_type(changed(field.type, partial(_readable, f"[{field.name!r}]"))) for field in schema]
    )
    return pl.DataFrame(table_of(readable, batch, rows)).cast(dict(pl.Schema(schema)))


def _readable(path: str, kind: pa.DataType) -> pa.DataType:
    """Return the nearest type that Polars reads correctly: lists of length 0 make it panic, and seconds overflow."""
    import pyarrow as pa
    import pyarrow.types as kinds

    if kinds.is_fixed_size_list(kind) and not kind.list_size:
        return pa.list_(kind.value_field)
    if kinds.is_timestamp(kind) and kind.tz is not None and kind.tz not in available_timezones():
        raise InvalidTypeError(f"leaf {path}: Polars has no time zone {kind.tz!r}: use to_arrow()")
    if (kinds.is_timestamp(kind) or kinds.is_duration(kind)) and kind.unit == "s":
        return pa.timestamp("ms", kind.tz) if kinds.is_timestamp(kind) else pa.duration("ms")
    return kind


def _computed(frame: pl.LazyFrame, _: int) -> Iterator[pa.RecordBatch]:
    for chunk in frame.collect_batches(maintain_order=True):
        yield from _to_arrow(chunk).to_batches()


def _to_arrow(frame: pl.DataFrame) -> pa.Table:
    return frame.to_arrow(compat_level=pl.CompatLevel.oldest())


def _check(dtype: Any, title: str) -> None:
    """Raise if values of a type would not come back unchanged."""
    fix = _FIXES.get(type(dtype))
    if fix is not None:
        raise InvalidTypeError(f"{title} is {dtype}, which is not stored: {fix}; or leave it out with drop()")
    if isinstance(dtype, (pl.List, pl.Array)):
        _check(dtype.inner, f"{title}, in lists,")
    for field in dtype.fields if isinstance(dtype, pl.Struct) else ():
        _check(field.dtype, f"{title}, field {field.name!r},")


def content(obj: Any) -> Any:
    """Return what a frame or a series holds besides the values of its columns; None for anything else."""
    if not isinstance(obj, (pl.DataFrame, pl.Series)):
        return None
    series = [obj] if isinstance(obj, pl.Series) else obj.get_columns()
    return [(each.name, str(each.dtype), getattr(each.dtype, "categories", pl.Series()).to_list()) for each in series]
