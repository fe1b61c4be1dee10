"""Cast rows to the types that a user declares: each value stays the same, or an error names its record."""

from __future__ import annotations

import math
from typing import Any

from cachelayer.adapters._arrow_columns import is_bytes, is_text
from cachelayer.errors import ElementError, MissingDependencyError

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as kinds
except ImportError as error:
    raise MissingDependencyError("this needs pyarrow: pip install 'cachelayer[arrow]'") from error

_DOUBTFUL = "[0-9]{%d}|[eEnN]"
"""Texts of numbers that a float may not hold: many digits, an exponent, or a name."""


def cast_rows(rows: Any, schema: pa.Schema) -> Any:
    """Cast the rows of a table or a batch to the types of a schema. Floats may be rounded to narrower ones.

    Raises:
        ElementError: if a type cannot hold a value; names the record, counted from the first of the rows.
    """
    columns = []
    for field in schema:
        column = rows.column(field.name)
        whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        columns.append(_cast(f"[{field.name!r}]", whole, field.type))
    return type(rows).from_arrays(columns, schema=schema)


def _cast(path: str, array: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return _cast_or_raise(array, kind)
    except pa.ArrowException as error:
        place, reason = _first_that_fails(array, kind, error)
        got = repr(array[place].as_py())
        hint = "Declare a type in schema= that holds every value."
        raise ElementError(f"a value that {kind} holds", got[:80], path=path, record=place, hint=hint) from reason


def _cast_or_raise(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if kinds.is_null(kind) and array.null_count == len(array):
        return pa.nulls(len(array))
    # Text that is not UTF-8 passes here: the check of all text refuses it later.
    made = pc.cast(array, options=pc.CastOptions(kind, allow_invalid_utf8=is_bytes(array.type) and is_text(kind)))
    if kinds.is_floating(kind) and kinds.is_floating(array.type):
        infinite = pc.and_(pc.is_inf(_wide(made)), pc.invert(pc.is_inf(_wide(array))))
        if pc.any(infinite).as_py():
            raise pa.ArrowInvalid(f"the number is too large for {kind}")
    if kinds.is_floating(kind) and is_text(array.type):
        doubtful = pc.fill_null(pc.match_substring_regex(array, _DOUBTFUL % (kind.bit_width // 4)), fill_value=False)
        pairs = zip(array.filter(doubtful).to_pylist(), _wide(made.filter(doubtful)).to_pylist(), strict=True)
        if not all(_holds(text, number) for text, number in pairs):
            raise pa.ArrowInvalid(f"{kind} would change the number")
    shortened = kinds.is_boolean(kind) or kinds.is_date(kind) or kinds.is_time(kind)
    if shortened and not is_text(array.type) and not pc.all(pc.equal(pc.cast(made, array.type), array)).as_py():
        raise pa.ArrowInvalid(f"{kind} would change the value")
    return made


def _wide(array: pa.Array) -> pa.Array:
    return array.cast(pa.float64())


def _holds(text: str, number: float) -> bool:
    """Return whether a float stands for a text: for all digits of an integer, and neither for inf nor 0 by rounding."""
    if text.lstrip("+-").isdigit():
        return math.isfinite(number) and int(number) == int(text)
    is_named = text.lower().lstrip("+-") in ("inf", "infinity", "nan")
    return is_named or (math.isfinite(number) and (number != 0 or not text.lower().split("e")[0].strip("+-0.")))


def _first_that_fails(array: pa.Array, kind: pa.DataType, error: Exception) -> tuple[int, Exception]:
    """Return the place of the first value that fails when it is cast alone, and its error."""
    for place in range(len(array)):
        try:
            _cast_or_raise(array.slice(place, 1), kind)
        except pa.ArrowException as own:
            return place, own
    return 0, error
