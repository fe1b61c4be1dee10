"""CSV as records: a column is of numbers if nothing of its text is lost by that, and text otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from copy import copy
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from cachelayer.adapters._files import File
from cachelayer.adapters._text import stream_of
from cachelayer.errors import ElementError, InvalidArgumentError

_INTEGER = r"^(0|-?[1-9][0-9]*)$"
_NUMBER = r"^-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_FEW_DIGITS = r"^[-.0-9]{1,15}$"
_NO_NUMBER = pa.array(["nan", "NaN", "inf", "-inf", "Inf", "-Inf", "Infinity", "-Infinity"])
_BOOLEANS = pa.array(["true", "false", "True", "False", "TRUE", "FALSE"])
_USUAL_NULLS = frozenset(pa_csv.ConvertOptions().null_values)
_NULLS = sorted(text for text in _USUAL_NULLS if not re.search("nan|IND", text, re.IGNORECASE))


class Csv:
    """CSV files; see :func:`cachelayer.adapters.pyarrow.from_csv`.

    Args:
        read, parse, convert: options of ``pyarrow.csv``, or None.
        schema: the columns to read with their types, or None.
    """

    def __init__(self, read: Any, parse: Any, convert: Any, schema: pa.Schema | None) -> None:
        self._read = read
        # Without this a line break in quotes ends the row if a block ends there.
        self._parse = pa_csv.ParseOptions(newlines_in_values=True) if parse is None else parse
        self._convert = pa_csv.ConvertOptions() if convert is None else copy(convert)
        self._declared: Mapping[str, pa.DataType] = dict(self._convert.column_types or {})
        if schema is not None:
            if self._declared or self._convert.include_columns:
                raise InvalidArgumentError("schema= tells columns and types: leave them out of convert_options=")
            self._convert.include_columns = schema.names
            self._declared = dict(zip(schema.names, schema.types, strict=True))
        if frozenset(self._convert.null_values) == _USUAL_NULLS:
            self._convert.null_values = _NULLS
        self._nulls = pa.array(self._convert.null_values, pa.string())

    def blocks(self, file: File) -> tuple[list[str] | None, Iterable[Any]]:
        """The columns, and blocks of them: as they are declared, and the others as text."""
        with self._opened(file, {}) as reader:
            names = reader.schema.names
        reader = self._opened(file, {name: self._declared.get(name, pa.string()) for name in names})
        return names, reader

    def _opened(self, file: File, types: Mapping[str, pa.DataType]) -> Any:
        options = copy(self._convert)
        options.column_types = types
        options.check_utf8 = bool(types) and options.check_utf8
        stream = pa.PythonFile(_WholeLineBreaks(stream_of(file)), mode="r")
        return pa_csv.open_csv(stream, self._read, self._parse, options)

    def schema(self, block: pa.RecordBatch) -> pa.Schema:
        """The types of the columns, as far as the values of a block tell."""
        kinds = [
            column.type if name in self._declared else _kind_of(self._values(column))
            for name, column in zip(block.schema.names, block.columns, strict=True)
        ]
        return pa.schema(list(zip(block.schema.names, kinds, strict=True)))

    def convert(self, block: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """The rows with these types.

        Raises:
            ElementError: for a value that would be another one in the type of its column.
        """
        columns = [self._converted(column, field) for column, field in zip(block.columns, schema, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _values(self, column: pa.Array) -> pa.Array:
        """The values without spaces around them, those that stand for null as null."""
        values = pc.ascii_trim(column, " \t")
        return pc.if_else(pc.is_in(values, self._nulls), pa.scalar(None, pa.string()), values)

    def _converted(self, column: pa.Array, field: pa.Field) -> pa.Array:
        if field.name in self._declared or field.type == pa.string():
            return column
        values = self._values(column)
        place = pc.index(pc.fill_null(_held(values, field.type), fill_value=True), value=False).as_py()
        if place < 0:
            return values.cast(field.type)
        raise ElementError(
            f"{field.type} as in the first rows",
            repr(column[place].as_py()),
            path=f"[{field.name!r}]",
            record=place,
            hint=f"Pass schema= with all columns and their types; {field.name!r} as pyarrow.string() loses nothing.",
        )


class _WholeLineBreaks:
    """A stream that is never cut within a line break: pyarrow drops the second half, even within quotes.

    Args:
        stream: what to read.
    """

    closed = False

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._held = b""

    def read(self, size: int) -> bytes:
        """The next bytes, as many or fewer."""
        data: bytes = self._held + self._stream.read(max(1, size - len(self._held)))
        self._held = b""
        if len(data) > 1 and data.endswith(b"\r"):
            data, self._held = data[:-1], b"\r"
        return data

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()


def _kind_of(values: pa.Array) -> pa.DataType:
    """The type that holds all values exactly as they are written; text if no other does."""
    present = values.drop_null()
    if pc.all(pc.is_in(present, _NO_NUMBER)).as_py():
        return pa.string()
    are_integers = pc.all(pc.match_substring_regex(present, _INTEGER)).as_py()
    kinds = (pa.int64(), pa.uint64()) if are_integers else (pa.float64(), pa.bool_())
    return next((kind for kind in kinds if pc.all(_held(present, kind)).as_py()), pa.string())


def _held(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Tell for each value if the type holds it; null for null."""
    if kind == pa.bool_():
        return _only(values, pc.is_in(values, _BOOLEANS))
    if kind == pa.float64():
        return _held_as_float(values)
    written = pc.match_substring_regex(values, _INTEGER)
    if not pc.all(written).as_py():
        return written
    low, high = (-(2**63), 2**63) if kind == pa.int64() else (0, 2**64)
    # Fewer digits fit either type, but for the sign.
    short = pc.less(pc.utf8_length(values), 19)
    unsure = pc.or_(pc.invert(short), pc.starts_with(values, "-")) if low == 0 else pc.invert(short)
    return _checked(values, written, unsure, lambda text: low <= int(text) < high)


def _held_as_float(values: pa.Array) -> pa.Array:
    written = pc.match_substring_regex(values, _NUMBER)
    unsure = pc.and_(written, pc.invert(pc.match_substring_regex(values, _FEW_DIGITS)))
    named = _only(values, pc.is_in(values, _NO_NUMBER))
    return pc.or_(named, _checked(values, written, unsure, _is_all_of_float))


def _only(values: pa.Array, mask: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_valid(values), mask, pa.scalar(None, pa.bool_()))


def _checked(values: pa.Array, held: pa.Array, unsure: pa.Array, test: Any) -> pa.Array:
    """The mask, in which a test decides on those that are unsure."""
    if not pc.any(unsure).as_py():
        return held
    unsure = pc.fill_null(unsure, fill_value=False)
    return pc.replace_with_mask(held, unsure, pa.array(map(test, values.filter(unsure).to_pylist()), pa.bool_()))


def _is_all_of_float(text: str) -> bool:
    """Whether float64 prints a number again with all the digits that it is written with."""
    number = float(text)
    if repr(number) == text:
        return True
    digits = re.split("[eE]", text)[0].replace(".", "").lstrip("-0")
    if number in (float("inf"), float("-inf")):
        return False
    return not digits or Decimal(f"{number:.{len(digits) - 1}e}") == Decimal(text)
