"""Rows in the types that a user declares: each value stays what it is, or is refused with its record."""

from __future__ import annotations

from typing import Any

from cachelayer.adapters._arrow_columns import is_bytes, is_text
from cachelayer.errors import ElementError, MissingDependencyError

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as kinds
except ImportError as error:
    raise MissingDependencyError("this needs pyarrow: pip install 'cachelayer[arrow]'") from error


def cast_rows(rows: Any, schema: pa.Schema) -> Any:
    """Return rows of a table or a batch in the types of a schema; floats are rounded to narrower ones.

    Raises:
        ElementError: with the record, counted from the first of the rows, for a value that its type cannot hold.
    """
    columns = []
    for field in schema:
        column = rows.column(field.name)
        whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        columns.append(_cast(f"[{field.name!r}]", whole, field.type))
    return type(rows).from_arrays(columns, schema=schema)


def _cast(path: str, array: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return _held(array, kind)
    except pa.ArrowException as error:
        place, reason = _first_that_fails(array, kind, error)
        got = repr(array[place].as_py())
        hint = "Declare a type in schema= that holds every value."
        raise ElementError(f"a value that {kind} holds", got[:80], path=path, record=place, hint=hint) from reason


def _held(array: pa.Array, kind: pa.DataType) -> pa.Array:
    # Text that is no UTF-8 is refused later, by the check of all text.
    made = pc.cast(array, options=pc.CastOptions(kind, allow_invalid_utf8=is_bytes(array.type) and is_text(kind)))
    if kinds.is_floating(kind) and kinds.is_floating(array.type):
        infinite = pc.and_(pc.is_inf(_wide(made)), pc.invert(pc.is_inf(_wide(array))))
        if pc.any(infinite).as_py():
            raise pa.ArrowInvalid(f"{kind} has no number of this size")
    shortened = kinds.is_boolean(kind) or kinds.is_date(kind) or kinds.is_time(kind)
    if shortened and not is_text(array.type) and not pc.all(pc.equal(pc.cast(made, array.type), array)).as_py():
        raise pa.ArrowInvalid(f"{kind} has another value")
    return made


def _wide(array: pa.Array) -> pa.Array:
    return array.cast(pa.float64())


def _first_that_fails(array: pa.Array, kind: pa.DataType, error: Exception) -> tuple[int, Exception]:
    """Return the place of the first value that does not fit by itself, and how it fails."""
    for place in range(len(array)):
        try:
            _held(array.slice(place, 1), kind)
        except pa.ArrowException as own:
            return place, own
    return 0, error
