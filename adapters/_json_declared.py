"""Read JSON lines with declared types: pyarrow converts them, and this module checks what pyarrow does not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from decimal import Decimal
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json
import pyarrow.types as kinds

from cachelayer.adapters._exact_text import fits_float
from cachelayer.adapters._files import File
from cachelayer.adapters._json_lines import JsonLines, lone_surrogates, parsed
from cachelayer.builds.batches import BATCH_NBYTES
from cachelayer.errors import ElementError, InvalidTypeError

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_SUSPECTS = {
    16: r"[^0-9.][0-9]{4}|\.0{5}|[0-9][eE]",
    32: r"[^0-9.][0-9]{8}|\.0{30}|[0-9]\.?[eE][+-]?[0-9]{2}",
    64: r"[^0-9.][0-9]{16}|\.0{100}|[0-9]\.?[eE][+-]?[0-9]{3}",
}
"""Patterns of numbers that may not fit a float of this width: many digits, many zeros, or a long exponent."""


class DeclaredJsonLines:
    """Files with one JSON object per line, with declared types; see :func:`cachelayer.adapters.pyarrow.from_json`.

    Args:
        options: the options of pyarrow's parser, with all columns.
        block_nbytes: the number of bytes that are parsed at once.
    """

    def __init__(self, options: Any, block_nbytes: int = BATCH_NBYTES) -> None:
        self._options = options
        self._lines = JsonLines(block_nbytes)
        self._nbytes = block_nbytes
        self.declared: pa.Schema = options.explicit_schema
        widths = [kind.bit_width for kind in _inner(pa.struct(list(self.declared))) if kinds.is_floating(kind)]
        self._suspect = _SUSPECTS[min(widths)] if widths else None

    def blocks(self, file: File) -> tuple[list[str] | None, Iterable[list[bytes]]]:
        """Return blocks of lines, or of objects that may span several lines."""
        _, lines = self._lines.blocks(file)
        return None, self._objects(lines) if self._options.newlines_in_values else lines

    def schema(self, block: list[bytes]) -> pa.Schema:  # noqa: ARG002
        """Return the declared types."""
        return self.declared

    def convert(self, block: list[bytes], schema: pa.Schema) -> pa.RecordBatch:
        """Return the rows of a block with these types.

        Raises:
            ElementError: if a line is not an object, or a type cannot hold a value; names the record.
        """
        if not block:
            return pa.RecordBatch.from_pylist([], schema)
        for record, line in enumerate(block):
            # pyarrow crashes the process if a line is null.
            if not line.lstrip().startswith(b"{"):
                parsed([line], record)
        if self._suspect is not None:
            suspects = pc.match_substring_regex(pa.array(block, pa.large_binary()), self._suspect)
            for place in np.flatnonzero(suspects.to_numpy(zero_copy_only=False)):
                self._check_numbers(block[int(place)], int(place))
        try:
            table = self._read(block)
        except pa.ArrowNotImplementedError as error:
            raise self._not_read(error) from error
        except pa.ArrowException as error:
            raise self._refused(block, error) from error
        if len(table) != len(block):
            parsed(block)
            raise ElementError("one JSON object per line", f"{len(table)} in {len(block)} lines", record=0)
        return table.combine_chunks().to_batches()[0]

    def _read(self, block: list[bytes]) -> pa.Table:
        data = b"\n".join(block)
        options = pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        return pa_json.read_json(pa.BufferReader(data), options, self._options)

    def _not_read(self, error: pa.ArrowException) -> InvalidTypeError:
        """Return the error for a declared type that pyarrow never reads from JSON."""
        named = [
            (len(str(kind)), field) for field in self.declared for kind in _inner(field.type) if str(kind) in str(error)
        ]
        field = max(named, key=lambda pair: pair[0])[1] if named else None
        leaf = "a column" if field is None else f"leaf [{field.name!r}], of {field.type},"
        return InvalidTypeError(
            f"{leaf} has a type in schema= that pyarrow does not read from JSON ({error}): declare another, such as "
            "float32 instead of float16, or a list without a length, or leave schema= out"
        )

    def _refused(self, block: list[bytes], error: pa.ArrowException) -> ElementError:
        """Return the error of the first record that fails, found by bisection."""
        fitting, first_wrong = 0, len(block)
        while first_wrong - fitting > 1:
            middle = (fitting + first_wrong) // 2
            try:
                self._read(block[:middle])
                fitting = middle
            except pa.ArrowException as earlier:
                error, first_wrong = earlier, middle
        record = first_wrong - 1
        with suppress(ValueError, RecursionError):
            for path, text in lone_surrogates(json.loads(block[record]), ""):
                return ElementError("text in UTF-8", repr(text), path=path, record=record, hint="Correct the line.")
        reason = re.sub(r"\.?( in row \d+)?$", "", str(error))
        return ElementError("an object with the declared columns", reason, record=record, hint="Correct the line.")

    def _check_numbers(self, line: bytes, record: int) -> None:
        parsed([line], record)
        try:
            _check(json.loads(line, parse_float=Decimal), pa.struct(list(self.declared)), "")
        except ElementError as error:
            raise error.at(record=record) from None

    def _objects(self, blocks: Iterable[list[bytes]]) -> Iterator[list[bytes]]:
        """Yield blocks of whole objects; an object may span several lines."""
        done: list[bytes] = []
        held: list[bytes] = []
        depth = 0
        for line in chain.from_iterable(blocks):
            held.append(line)
            bare = _STRING.sub(b"", line)
            depth += bare.count(b"{") + bare.count(b"[") - bare.count(b"}") - bare.count(b"]")
            if depth <= 0:
                done.append(b"".join(held))
                held, depth = [], 0
                if sum(map(len, done[-1:])) >= self._nbytes or len(done) >= _OBJECTS_AT_ONCE:
                    yield done
                    done = []
        if held or done:
            yield [*done, *([b"".join(held)] if held else [])]


_OBJECTS_AT_ONCE = 4096


def _inner(kind: pa.DataType) -> Iterator[pa.DataType]:
    yield kind
    for number in range(kind.num_fields):
        yield from _inner(kind.field(number).type)


def _check(value: Any, kind: pa.DataType, path: str) -> None:
    """Raise if the declared float cannot hold a number within a value.

    Raises:
        ElementError: names the path.
    """
    if isinstance(value, dict) and kinds.is_struct(kind):
        for field in kind:
            _check(value.get(field.name), field.type, f"{path}[{field.name!r}]")
    elif isinstance(value, list) and kind.num_fields == 1:
        for item in value:
            _check(item, kind.field(0).type, path)
    elif kinds.is_floating(kind) and type(value) in (int, Decimal) and not fits_float(value, kind):
        hint = "Declare a type that holds it, or write it as a string."
        raise ElementError(f"a number that {kind} holds", str(value), path=path, hint=hint)
