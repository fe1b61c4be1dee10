"""Read CSV: a column becomes numbers only if they keep all that its text says; otherwise it stays text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from copy import copy
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.types as kinds

from cachelayer.adapters._exact_text import wrong_float
from cachelayer.adapters._files import File
from cachelayer.adapters._text import stream_of
from cachelayer.errors import ElementError, InvalidArgumentError, InvalidTypeError, SourceError

_INTEGER = r"^(0|-?[1-9][0-9]*)$"
_NUMBER = r"^-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_FEW_DIGITS = r"^[-.0-9]{1,15}$"
_NO_NUMBER = pa.array(["nan", "NaN", "inf", "-inf", "Inf", "-Inf", "Infinity", "-Infinity"])
_BOM = b"\xef\xbb\xbf"
_CHUNK = 1 << 20
_BOOLEANS = pa.array(["true", "false", "True", "False", "TRUE", "FALSE"])
_USUAL_NULLS = frozenset(pa_csv.ConvertOptions().null_values)
_NULLS = sorted(text for text in _USUAL_NULLS if not re.search("nan|IND", text, re.IGNORECASE))


class Csv:
    """CSV files; see :func:`cachelayer.adapters.pyarrow.from_csv`.

    Args:
        read, parse, convert: options of ``pyarrow.csv``, or None.
        schema: the columns to read, with their types, or None.
    """

    declared: pa.Schema | None = None

    def __init__(self, read: Any, parse: Any, convert: Any, schema: pa.Schema | None) -> None:
        self._read = read
        # Without this, a line break in quotes ends the row if a block ends there.
        self._parse = pa_csv.ParseOptions(newlines_in_values=True) if parse is None else parse
        self._convert = pa_csv.ConvertOptions() if convert is None else copy(convert)
        # Text that is not UTF-8 is refused when its record is stored, so that only this record is skipped.
        self._convert.check_utf8 = False
        self._declared: Mapping[str, pa.DataType] = dict(self._convert.column_types or {})
        if schema is not None:
            if self._declared or self._convert.include_columns:
                raise InvalidArgumentError("schema= declares columns and types: leave them out of convert_options=")
            self._convert.include_columns = schema.names
            self._declared = dict(zip(schema.names, schema.types, strict=True))
        if frozenset(self._convert.null_values) == _USUAL_NULLS:
            self._convert.null_values = _NULLS
        self._nulls = pa.array(self._convert.null_values, pa.string())

    def blocks(self, file: File) -> tuple[list[str] | None, Iterable[Any]]:
        """Return the column names, and blocks of the columns: declared ones in their types, others as text."""
        options = copy(self._convert)
        options.column_types, options.include_columns = {}, []
        with self._opened(file, options) as reader:
            header = reader.schema.names
        names = self._convert.include_columns or header
        twice = next((name for name in names if header.count(name) > 1), None)
        if twice is not None:
            raise InvalidTypeError(f"two columns are named {[twice]}: rename one, or leave it out")
        options = copy(self._convert)
        options.column_types = {name: self._read_as(name) for name in names}
        return list(names), self._batches(file, self._opened(file, options))

    def _batches(self, file: File, reader: Any) -> Iterator[pa.RecordBatch]:
        with self._fitting(file):
            yield from reader

    @contextmanager
    def _fitting(self, file: File) -> Iterator[None]:
        try:
            yield
        except pa.ArrowInvalid as error:
            if "straddl" not in str(error):
                raise
            nbytes = pa_csv.ReadOptions().block_size if self._read is None else self._read.block_size
            raise SourceError(
                f"{file.name} has a row of more than the {nbytes:,} bytes that are read at once: pass "
                f"read_options=pyarrow.csv.ReadOptions(block_size={16 * nbytes}), or more"
            ) from error

    def _opened(self, file: File, options: Any) -> Any:
        with self._fitting(file):
            return self._reader(file, options)

    def _reader(self, file: File, options: Any) -> Any:
        stream = _Rows(stream_of(file), self._quote, partial(_check_closed, file, self._parse))
        return pa_csv.open_csv(pa.PythonFile(stream, mode="r"), self._read, self._parse, options)

    @property
    def _quote(self) -> bytes:
        """The quotation mark; empty if these options do not let us find one that is not closed."""
        parse, read = self._parse, self._read
        plain = read is None or (read.encoding.lower() in ("utf8", "utf-8") and not read.skip_rows)
        return str(parse.quote_char).encode() if plain and parse.quote_char and parse.double_quote else b""

    def _read_as(self, name: str) -> pa.DataType:
        """Return the type in which pyarrow reads a column: text for numbers, which are checked here."""
        kind = self._declared.get(name, pa.string())
        is_number = kinds.is_integer(kind) or kinds.is_floating(kind)
        is_moment = (kinds.is_timestamp(kind) or kinds.is_date(kind)) and not self._convert.timestamp_parsers
        return pa.string() if is_number or is_moment else kind

    def schema(self, block: pa.RecordBatch) -> pa.Schema:
        """Return the types of the columns, inferred from the values of a block."""
        kinds = [
            self._declared[name] if name in self._declared else _kind_of(self._values(column))
            for name, column in zip(block.schema.names, block.columns, strict=True)
        ]
        return pa.schema(list(zip(block.schema.names, kinds, strict=True)))

    def convert(self, block: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return the rows of a block with these types.

        Raises:
            ElementError: if the type of a column would change a value.
        """
        columns = [self._converted(column, field) for column, field in zip(block.columns, schema, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _values(self, column: pa.Array) -> pa.Array:
        """Return the values without spaces around them, with null for the texts that stand for it."""
        values = pc.ascii_trim(column, " \t")
        return pc.if_else(pc.is_in(values, self._nulls), pa.scalar(None, pa.string()), values)

    def _converted(self, column: pa.Array, field: pa.Field) -> pa.Array:
        if column.type == field.type:
            return column
        values = self._values(column)
        if field.name in self._declared:
            if not kinds.is_temporal(field.type):
                values = pc.replace_substring(values, self._convert.decimal_point, ".")
            numbers, place = _as_declared(values, field.type)
        else:
            place = pc.index(pc.fill_null(_held(values, field.type), fill_value=True), value=False).as_py()
            numbers = values.cast(field.type) if place < 0 else None
        if place < 0:
            return numbers
        if field.name in self._declared:
            hint = "Declare a type that holds it; pyarrow.string() loses nothing."
            raise ElementError(
                str(field.type), _shown(column[place]), path=f"[{field.name!r}]", record=place, hint=hint
            )
        raise ElementError(
            f"{field.type} as in the first rows",
            _shown(column[place]),
            path=f"[{field.name!r}]",
            record=place,
            hint=f"Pass schema= with all columns and their types; {field.name!r} as pyarrow.string() loses nothing.",
        )


def _shown(value: pa.Scalar) -> str:
    return repr(value.as_buffer().to_pybytes().decode("utf-8", "backslashreplace"))


class _Rows:
    """A stream that never ends a read inside a line break: pyarrow would drop the second half, even within quotes.

    Args:
        stream: the stream to read.
        quote: the quotation mark; empty if marks are not counted.
        check_closed: raises if the last value is quoted and not closed; called at the end if the count is odd.
    """

    closed = False

    def __init__(self, stream: Any, quote: bytes, check_closed: Callable[[], None]) -> None:
        self._stream = stream
        self._quote = quote
        self._check_closed = check_closed
        self._quotes = 0
        self._held = b""

    def read(self, size: int) -> bytes:
        """Return up to ``size`` of the next bytes.

        Raises:
            SourceError: if the stream ends within quotes.
        """
        new: bytes = self._stream.read(max(1, size - len(self._held)))
        if self._quote:
            self._quotes += new.count(self._quote)
            if not new and self._quotes % 2:
                self._check_closed()
        data, self._held = self._held + new, b""
        if len(data) > 1 and data.endswith(b"\r"):
            data, self._held = data[:-1], b"\r"
        return data

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()


def _check_closed(file: File, parse: Any) -> None:
    """Raise if a file ends within quotes. Only a mark at the beginning of a value opens quotes.

    Raises:
        SourceError: names the file.
    """
    quote, escape = parse.quote_char.encode(), str(parse.escape_char or "").encode()
    starts = {b"\n", b"\r", parse.delimiter.encode()}
    data, at, inside = b"\n", 1, False
    with closing(stream_of(file)) as stream:
        while chunk := stream.read(_CHUNK):
            data, at = data[at - 1 :] + (chunk.removeprefix(_BOM) if data == b"\n" else chunk), 1
            while -1 < (at := data.find(quote, at)) < len(data) - 1:
                if not inside:
                    inside, step = data[at - 1 : at] in starts, 1
                elif escape and data[at - 1 : at] == escape:
                    step = 1
                else:
                    inside, step = data[at + 1 : at + 2] == quote, 1 + (data[at + 1 : at + 2] == quote)
                at += step
            at = len(data) if at < 0 else at
    if inside if at == len(data) else not inside and data[at - 1 : at] in starts:
        raise SourceError(f"{file.name} ends within quotes: close the quotes of its last value")


def _as_declared(texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, int]:
    """Return the numbers of texts, and the place of the first text that does not fit this type; -1 if all fit."""
    try:
        numbers = texts.cast(kind)
    except pa.ArrowInvalid:
        return texts, next(place for place in range(len(texts)) if not _casts(texts[place], kind))
    return numbers, wrong_float(texts, numbers) if kinds.is_floating(kind) else -1


def _casts(text: pa.Scalar, kind: pa.DataType) -> bool:
    try:
        text.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _kind_of(values: pa.Array) -> pa.DataType:
    """Return the type that holds all values exactly as they are written; text if no other type does."""
    present = values.drop_null()
    if pc.all(pc.is_in(present, _NO_NUMBER)).as_py():
        return pa.string()
    are_integers = pc.all(pc.match_substring_regex(present, _INTEGER)).as_py()
    kinds = (pa.int64(), pa.uint64()) if are_integers else (pa.float64(), pa.bool_())
    return next((kind for kind in kinds if pc.all(_held(present, kind)).as_py()), pa.string())


def _held(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return for each value whether the type holds it; null for null."""
    if kind == pa.bool_():
        return _only(values, pc.is_in(values, _BOOLEANS))
    if kind == pa.float64():
        return _held_as_float(values)
    written = pc.match_substring_regex(values, _INTEGER)
    if not pc.all(written).as_py():
        return written
    low, high = (-(2**63), 2**63) if kind == pa.int64() else (0, 2**64)
    # Fewer digits fit both types, except that uint64 has no sign.
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
    """Return the mask ``held``, replaced by the result of a test for the values that are unsure."""
    if not pc.any(unsure).as_py():
        return held
    unsure = pc.fill_null(unsure, fill_value=False)
    return pc.replace_with_mask(held, unsure, pa.array(map(test, values.filter(unsure).to_pylist()), pa.bool_()))


def _is_all_of_float(text: str) -> bool:
    """Return whether float64 keeps all the digits with which a number is written."""
    number = float(text)
    if repr(number) == text:
        return True
    digits = re.split("[eE]", text)[0].replace(".", "").lstrip("-0")
    if number in (float("inf"), float("-inf")):
        return False
    return not digits or Decimal(f"{number:.{len(digits) - 1}e}") == Decimal(text)
