"""Read JSON lines: all values of a column must have one type."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.types as kinds

from cachelayer.adapters._files import File
from cachelayer.adapters._text import stream_of
from cachelayer.builds.batches import BATCH_NBYTES
from cachelayer.errors import ElementError
from cachelayer.records import tree

_SURROGATE = re.compile("[\ud800-\udfff]")
_WHOLE = 2**53
_SCHEMA = "Pass schema= with all columns and their types, or correct the file."
_BOM = b"\xef\xbb\xbf"


class JsonLines:
    """Files with one JSON object per line; see :func:`cachelayer.adapters.pyarrow.from_json`.

    Args:
        block_nbytes: the number of bytes from which the types are inferred.
    """

    declared: pa.Schema | None = None

    def __init__(self, block_nbytes: int = BATCH_NBYTES) -> None:
        self._nbytes = block_nbytes

    def blocks(self, file: File) -> tuple[list[str] | None, Iterable[list[bytes]]]:
        """Return blocks of lines, without empty lines."""
        return None, self._lines(file)

    def _lines(self, file: File) -> Iterator[list[bytes]]:
        with io.BufferedReader(stream_of(file)) as stream:
            if stream.peek(len(_BOM)).startswith(_BOM):
                stream.read(len(_BOM))
            while lines := stream.readlines(self._nbytes):
                yield [line for line in lines if not line.isspace()]

    def schema(self, block: list[bytes]) -> pa.Schema:
        """Return the types of the columns, inferred from the values of a block."""
        return pa.schema(list(_struct(block, None)))

    def convert(self, block: list[bytes], schema: pa.Schema) -> pa.RecordBatch:
        """Return the rows of a block with these types.

        Raises:
            ElementError: if a value has another type; names its record.
        """
        return pa.RecordBatch.from_struct_array(_array(block, pa.struct(list(schema))))


def _array(lines: list[bytes], kind: pa.DataType) -> pa.Array:
    _struct(lines, kind)
    records = parsed(lines)
    try:
        try:
            return pa.array(records, kind)
        except UnicodeEncodeError:
            # Text that is not UTF-8 is refused later by its record, as in Arrow files, so that it can be skipped.
            return pa.array([_as_bytes(record) for record in records], _of_bytes(kind)).view(kind)
    except (pa.ArrowException, UnicodeError) as error:
        if len(lines) == 1:
            for path, text in lone_surrogates(records[0], ""):
                raise ElementError(
                    "text in UTF-8", repr(text), path=path, record=0, hint="Correct the line."
                ) from error
            raise ElementError("text in UTF-8", str(error), record=0, hint="Correct the line.") from error
    # Find the line that fails.
    for record, line in enumerate(lines):
        try:
            _array([line], kind)
        except ElementError as error:
            raise error.at(record=record) from error.__cause__
    raise ElementError(f"{kind}", "lines that pyarrow does not take")


def lone_surrogates(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield text within a value that no UTF-8 stands for, with its path."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from lone_surrogates(part, f"{path}[{name!r}]")
    elif isinstance(value, list):
        for item in value:
            yield from lone_surrogates(item, path)
    elif isinstance(value, str) and _SURROGATE.search(value):
        yield path, value


def _as_bytes(value: Any) -> Any:
    """Return a value with the bytes of each text, as in the line, even if they are not UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, dict):
        return {name: _as_bytes(child) for name, child in value.items()}
    return [_as_bytes(child) for child in value] if isinstance(value, list) else value


def _of_bytes(kind: pa.DataType) -> pa.DataType:
    """Return a type with bytes in place of text."""
    if kinds.is_struct(kind):
        return pa.struct([(field.name, _of_bytes(field.type)) for field in kind])
    if kinds.is_list(kind):
        return pa.list_(_of_bytes(kind.value_type))
    return pa.binary() if kinds.is_string(kind) else kind


def _struct(lines: list[bytes], expected: pa.DataType | None) -> pa.DataType:
    """Return the type of lines; raise if it is not the expected one.

    Raises:
        ElementError: names the first line that has another type.
    """
    records = parsed(lines)
    try:
        return _kind_of(records, "", expected)
    except ElementError as error:
        failure = error
    # Bisect for the first record that fails together with the records before it.
    fitting, first_wrong = 0, len(records)
    while first_wrong - fitting > 1:
        middle = (fitting + first_wrong) // 2
        try:
            _kind_of(records[:middle], "", expected)
            fitting = middle
        except ElementError as error:
            failure, first_wrong = error, middle
    raise failure.at(record=first_wrong - 1)


def parsed(lines: list[bytes], first: int = 0) -> list[dict[str, Any]]:
    """Return the objects of lines; ``first`` is the record of the first line.

    Raises:
        ElementError: if a line is not a JSON object, has two equal keys, or a key that is not UTF-8.
    """
    records = []
    for record, line in enumerate(lines, first):
        try:
            value = json.loads(line.decode("utf-8", "surrogateescape"), object_pairs_hook=_object, parse_float=_float)
        except ElementError as error:
            raise error.at(record=record) from None
        except (ValueError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise ElementError("one JSON object per line", reason, record=record, hint="Correct the line.") from error
        if not isinstance(value, dict):
            hint = "Write each record on its own line."
            raise ElementError("one JSON object per line", tree.describe(value), record=record, hint=hint)
        records.append(value)
    return records


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    items = dict(pairs)
    if len(items) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ElementError("each key once in an object", f"{twice!r} twice", hint="Correct the line.")
    for name in items:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ElementError("text in UTF-8", f"the key {name!r}", hint="Correct the line.") from None
    return items


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number) or (not number and text.lower().split("e")[0].strip("-0.")):
        raise ElementError("a number that float64 holds", text, hint="Write it as a string.")
    return number


def _kind_of(values: list[Any], path: str, expected: pa.DataType | None) -> pa.DataType:
    """Return the only type of values; raise if it is not the expected one.

    Raises:
        ElementError: if values have several types, another type than expected, or a type that Arrow does not have.
    """
    types = set(map(type, values)) - {type(None)}
    if not types:
        return pa.null() if expected is None else expected
    if types == {dict} and (expected is None or kinds.is_struct(expected)):
        return _kind_of_objects([value for value in values if value is not None], path, expected)
    if types == {list} and (expected is None or kinds.is_list(expected)):
        inner = list(chain.from_iterable(value for value in values if value is not None))
        return pa.list_(_kind_of(inner, path, None if expected is None else expected.value_type))
    kind = _scalar(types, values, path, expected)
    if expected is not None and kind != expected:
        _refuse(path, str(expected), str(kind))
    return kind


def _kind_of_objects(values: list[dict[str, Any]], path: str, expected: pa.DataType | None) -> pa.DataType:
    names = dict.fromkeys(chain.from_iterable(values))
    if expected is not None:
        known = {field.name: field.type for field in expected}
        new = next((name for name in names if name not in known), None)
        if new is not None:
            _refuse(path, f"the keys {list(known)}", f"the key {new!r} too")
        names = dict.fromkeys(known)
    fields = []
    for name in names:
        own = None if expected is None else expected.field(name).type
        fields.append((name, _kind_of([value.get(name) for value in values], f"{path}[{name!r}]", own)))
    return pa.struct(fields)


def _scalar(types: set[type], values: list[Any], path: str, expected: pa.DataType | None) -> pa.DataType:
    if types == {str}:
        return pa.string()
    if types == {bool}:
        return pa.bool_()
    if types == {int}:
        numbers = [value for value in values if value is not None]
        low, high = min(numbers), max(numbers)
        if expected == pa.float64() and max(-low, high) <= _WHOLE:
            return expected
        if low >= -(2**63) and high < 2**63:
            return pa.uint64() if expected == pa.uint64() and low >= 0 else pa.int64()
        if low >= 0 and high < 2**64:
            return pa.uint64()
        wrong = high if high >= 2**64 or (low < 0 and high >= 2**63) else low
        raise ElementError("integers within int64 or uint64", str(wrong), path=path, hint="Write them as strings.")
    if types <= {int, float}:
        wide = next((value for value in values if type(value) is int and abs(value) > _WHOLE), None)
        if wide is not None:
            hint = f"float64 does not hold every integer of this size. {_SCHEMA}"
            raise ElementError("integers alone, or numbers up to 2**53", f"{wide} and floats", path=path, hint=hint)
        return pa.float64()
    return _refuse(path, "one type" if expected is None else str(expected), _names(types))


def _names(types: set[type]) -> str:
    return " and ".join(sorted(kind.__name__ for kind in types))


def _refuse(path: str, expected: str, got: str) -> NoReturn:
    raise ElementError(f"{expected} as in the first records", got, path=path, hint=_SCHEMA)
