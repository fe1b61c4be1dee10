"""Read files of text: CSV by pyarrow, as text or in declared types, and JSON lines by Python, value by value."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from cachelayer.adapters.sources.arrow_columns import spec_of
from cachelayer.adapters.sources.arrow_source import ArrowPart
from cachelayer.adapters.sources.arrow_types import is_text
from cachelayer.adapters.sources.files import File, source_of_places
from cachelayer.builds.source import Source
from cachelayer.builds.source_files import reading
from cachelayer.errors import ElementError, InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.records.infer import FIRST_ROWS, infer_spec, may_lack_keys
from cachelayer.specs.schema import completed
from cachelayer.specs.tree import Tree
from cachelayer.specs.values import BadValue

_BOM = b"\xef\xbb\xbf"
_OPTIONS = ("include_columns", "column_types", "null_values", "decimal_point")
_PARSED = ("delimiter", "quote_char", "double_quote", "escape_char", "newlines_in_values", "invalid_row_handler")
_END = "cachelayer-end-of-file"
_LONG_NUMBER = re.compile(rb"[0-9][eE][+-]?[0-9]{3}|[0-9]{300}")
"""What a line holds in which float64 may overflow, or become 0."""


def stream_of(file: File) -> Any:
    """Return the bytes of a file as a pyarrow stream, decompressed if its name ends in ``.gz`` or the like."""
    raw = pa.OSFile(file.path) if file.is_local else pa.PythonFile(file.open(), mode="r")
    try:
        codec = pa.Codec.detect(file.path.lower())
    except (TypeError, ValueError):
        _refuse_other_encodings(raw, file.name)
        return raw
    if not raw.read(1):
        raise SourceError(f"{file.name} is cut short: it has no bytes, but a compressed file always has some")
    raw.seek(0)
    return pa.CompressedInputStream(raw, codec.name)


def _refuse_other_encodings(stream: Any, name: str) -> None:
    """Raise if text is in UTF-16 or UTF-32, which has a mark or null bytes at its beginning."""
    begin = bytes(stream.read(4))
    stream.seek(0)
    if begin.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in begin:
        raise SourceError(
            f"{name} is not text in UTF-8, but looks like UTF-16 or UTF-32: convert it, as by iconv -f UTF-16 -t UTF-8"
        )


def json_lines(schema: Any, files: Sequence[File], declared: Tree | None) -> Source:
    """Return the objects of JSON lines, in the declared spec, that of a schema, or the one that the first lines show.

    A line that is no object is refused as a record.
    """
    names = None if schema is None else schema.names
    if declared is not None and (schema is not None or not may_lack_keys(declared)):
        spec: Tree = declared
    elif schema is not None:
        spec = spec_of(pa.struct(list(schema)), {})
    else:
        spec = _spec_of_lines(files, declared)
    return source_of_places("json", "line", files, partial(_elements, names=names, spec=spec), spec)


def _spec_of_lines(files: Sequence[File], declared: Tree | None) -> Tree:
    places: list[tuple[File, int]] = []

    def values() -> Iterator[Any]:
        for file in files:
            for number, value in _rows(file, None):
                places.append((file, number))
                yield value

    try:
        return infer_spec(values(), declared, FIRST_ROWS, as_json=True)
    except ElementError as error:
        file, number = places[error.record or 0]
        raise error.at(place=f"{file.name}, line {number}") from error.__cause__


def _elements(file: File, names: list[str] | None, spec: Tree) -> Iterator[tuple[int, Any]]:
    return ((number, completed(spec, value, fill=True)) for number, value in _rows(file, names))


def _rows(file: File, names: list[str] | None) -> Iterator[tuple[int, Any]]:
    """Yield the number of each line that is not empty, from 1, and its value."""
    for number, line in enumerate(_lines(file), 1):
        if line.strip():
            row = _parsed(line)
            is_whole = names is None or isinstance(row, BadValue)
            yield number, row if is_whole else {name: row.get(name) for name in names or ()}


def _lines(file: File) -> Iterator[bytes]:
    with reading(file.name), stream_of(file) as stream:
        rest = list[bytes]()
        start = _BOM
        for chunk in chain(iter(lambda: stream.read(1 << 20), b""), [b"\n"]):
            whole, mark, end = chunk.rpartition(b"\n")
            if not mark:
                rest.append(chunk)
                continue
            yield from b"".join([*rest, whole]).removeprefix(start).split(b"\n")
            rest = [end]
            start = b""


def _parsed(line: bytes) -> Any:
    read_float = _float if _LONG_NUMBER.search(line) else None
    try:
        value = json.loads(line.decode(), object_pairs_hook=_object, parse_float=read_float)
    except (ValueError, RecursionError) as error:
        return BadValue(f"{type(error).__name__}: {error}")
    return value if isinstance(value, dict) else BadValue("no JSON object")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    items = dict(pairs)
    if len(items) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} comes twice")
    return items


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number) or (not number and text.lower().split("e")[0].strip("-0.")):
        raise ValueError(f"no float64 holds {text[:40]}")
    return number


def check_convert_options(schema: Any, convert: Any) -> None:
    """Raise for options that would be ignored: cells are read as text, and cast when their record is stored."""
    default = pa_csv.ConvertOptions()
    names = [name for name in dir(default) if not name.startswith("_") and not callable(getattr(default, name))]
    for name in names if convert is not None else ():
        if name not in _OPTIONS and getattr(convert, name) != getattr(default, name):
            raise InvalidArgumentError(f"convert_options: {name} has no effect here: leave it out; {_OPTIONS} have one")
    if schema is not None and convert is not None and (convert.column_types or convert.include_columns):
        raise InvalidArgumentError("schema= declares columns and types: leave them out of convert_options=")


def csv_part(schema: Any, read: Any, parse: Any, convert: Any, file: File) -> ArrowPart:
    """Return a CSV file as a part: all columns as text, or those of a schema in its types."""
    parse = pa_csv.ParseOptions(newlines_in_values=True) if parse is None else parse
    convert = pa_csv.ConvertOptions() if convert is None else convert
    with reading(file.name, "does not parse"), _opened(file, read, parse, None, b"") as reader:
        header = reader.schema.names
    if len(header) == 1 and parse.ignore_empty_lines:
        # Without another column, an empty line is how writers put an empty cell.
        parse = pa_csv.ParseOptions(**{name: getattr(parse, name) for name in _PARSED}, ignore_empty_lines=False)
    last_row = (parse.delimiter.join([_END] * len(header)) + "\n").encode()
    names = schema.names if schema is not None else convert.include_columns or header
    twice = next((name for name in names if header.count(name) > 1), None)
    if twice is not None:
        raise InvalidTypeError(f"two columns are named {twice!r}: rename one, or leave it out")
    declared = dict(convert.column_types or {}) if schema is None else dict(zip(names, schema.types, strict=True))
    own = pa.schema([(name, declared.get(name, pa.string())) for name in names])

    def batches(_: int) -> Iterator[pa.RecordBatch]:
        with reading(file.name, "does not parse"), _opened(file, read, parse, names, last_row) as reader:
            for batch in _without_last_row(reader, file.name):
                columns = [
                    column if is_text(kind) else _values(column, convert)
                    for column, kind in zip(batch.columns, own.types, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, names=names)

    return ArrowPart(file.name, own, batches)


def _without_last_row(batches: Any, name: str) -> Iterator[pa.RecordBatch]:
    """Yield batches without the row that was added to the file, which is another one if a quote does not end."""
    last: pa.RecordBatch | None = None
    for batch in batches:
        if last is not None and len(batch):
            yield last
        last = batch if last is None or len(batch) else last
    if last is None or not len(last) or any(column[-1].as_py() != _END for column in last.columns):
        raise SourceError(
            f"{name} ends within quotes: a text that begins with a quotation mark has no other at its end. Close it, "
            "or pass parse_options=pyarrow.csv.ParseOptions(quote_char=False) if it is part of the text"
        )
    yield last[:-1]


def _opened(file: File, read: Any, parse: Any, names: list[str] | None, last_row: bytes) -> Any:
    """Return a reader of columns of text, with one more row; of all columns if no names are given."""
    # Text that is not UTF-8 is refused when its record is stored, so that only this record is skipped.
    convert = pa_csv.ConvertOptions(check_utf8=False)
    if names is not None:
        convert.include_columns = names
        convert.column_types = dict.fromkeys(names, pa.string())
    stream = _Text(stream_of(file), last_row)
    return pa_csv.open_csv(pa.PythonFile(stream, mode="r"), read, parse, convert)


def _values(column: pa.Array, convert: Any) -> pa.Array:
    """Return texts without spaces around them, with null for those that stand for it, and a point in numbers."""
    texts = pc.ascii_trim(column, " \t")
    if convert.decimal_point != ".":
        texts = pc.replace_substring(texts, convert.decimal_point, ".")
    nulls = pa.array([text for text in convert.null_values if "nan" not in text.lower()], pa.string())
    return pc.if_else(pc.is_in(texts, nulls), pa.scalar(None, pa.string()), texts)


class _Text:
    """A stream, and a last row, which ends no read within a line break: pyarrow would drop the second half."""

    closed = False

    def __init__(self, stream: Any, last_row: bytes) -> None:
        self._stream = stream
        self._last_row = last_row
        self._ends_a_line = True
        self._rest = b""

    def read(self, size: int) -> bytes:
        """Return up to ``size`` of the next bytes."""
        new: bytes = self._stream.read(max(1, size - len(self._rest)))
        if new:
            self._ends_a_line = new.endswith((b"\n", b"\r"))
        else:
            new = (b"" if self._ends_a_line or not self._last_row else b"\n") + self._last_row
            self._last_row = b""
        data = self._rest + new
        self._rest = b""
        if len(data) > 1 and data.endswith(b"\r"):
            data = data[:-1]
            self._rest = b"\r"
        return data

    def close(self) -> None:
        self._stream.close()
