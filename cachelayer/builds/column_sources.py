"""Sources of columns that are added to a version: what a function makes of its records, or rows found by a key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cachelayer.builds.batches import Batch, Framed, RowBatch, batch_records
from cachelayer.builds.encode import Encoder, marked
from cachelayer.builds.iterable_source import SequenceSource, errors_named, failure_at
from cachelayer.builds.source import Source
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.protocols import HasRecords, records_of
from cachelayer.records import tree
from cachelayer.records.codec import codec_for
from cachelayer.records.leaf_names import leaf_number
from cachelayer.records.memory import Ints
from cachelayer.records.record_buffers import Frames, Records
from cachelayer.records.tree import Tree


class FunctionColumns(SequenceSource):
    """What a function makes of the records of a version.

    Args:
        ref: the version.
        function: takes an element, or with ``batched`` a batch, and returns a dict of columns.
        batched: whether it takes a batch: leaves stacked on a leading axis, which its columns have too.
    """

    def __init__(self, ref: HasRecords[Any], function: Callable[[Any], Any], *, batched: bool) -> None:
        super().__init__(ref, by_number=True)
        self.kind = "columns"
        self._function = function
        self._batched = batched
        self._size = batch_records(records_of(ref).facts.read_nbytes)

    @property
    def plan(self) -> dict[str, Any]:
        """What decides the columns, besides the function."""
        return {"of": records_of(self.items).digest, "batched": self._batched}

    def _numbers(self, stop: int) -> Iterator[Ints]:
        for start in range(self._first, stop, self._size):
            yield np.arange(start, min(start + self._size, stop))

    def elements(self) -> Iterator[Any]:
        if self._batched:
            for batch in self._batches(self._count):
                yield from batch.views()
            return
        for numbers in self._numbers(self._count):
            for number, element in zip(numbers.tolist(), self.items.__getitems__(numbers), strict=True):
                yield self._checked(number, self._function(element))

    def batches(self, limit: int | None) -> Iterator[Batch]:
        if not self._batched:
            return super().batches(limit)
        return self._batches(self._count if limit is None else min(self._count, self._first + limit))

    def _batches(self, stop: int) -> Iterator[RowBatch]:
        for numbers in self._numbers(stop):
            first = int(numbers[0])
            with errors_named(failure_at(first)):
                columns = self._checked(first, self._function(records_of(self.items).read(numbers)))
            for path, leaf in tree.leaf_values(columns):
                if len(leaf) != len(numbers):
                    raise SourceError(f"the function returned {len(leaf)} rows of {path} for {len(numbers)} records")
            yield RowBatch(columns, len(numbers))

    def _checked(self, number: int, columns: Any) -> Any:
        if not isinstance(columns, dict) or not columns:
            raise InvalidTypeError(
                f"columns: the function returned {tree.describe(columns)} for record {number}: return a dict, such as "
                "{'score': 0.5}"
            )
        return columns


@dataclass(frozen=True)
class EncodedColumns:
    """Columns that are encoded already.

    Args:
        element_spec: their spec.
        frames: a record for each row.
    """

    element_spec: Tree
    frames: Frames
    kind = "columns"

    @property
    def length(self) -> int:
        return len(self.frames)

    def batches(self, limit: int | None) -> Iterator[Batch]:
        yield Framed(self.frames[: len(self.frames) if limit is None else limit])


def columns_by_key(source: Source, keys: Any, key: str) -> EncodedColumns:
    """Return the rows of a table in the order of records, found by a key.

    Args:
        source: the table, which has the key as one of its columns.
        keys: the key of each record: integers or strings.
        key: the name of the column.

    Raises:
        InvalidArgumentError: if a record has no row, or more than one; it names the first.
    """
    spec = source.element_spec
    if not isinstance(spec, dict) or key not in spec or len(spec) < 2:
        raise InvalidArgumentError(f"on={key!r}: pass a table with this column and those to add, not {spec}")
    codec = codec_for(spec)
    encoder = Encoder(codec, "raise")
    frames = Frames.joined(list(map(encoder.encode, source.batches(None))))
    records = Records(frames.buffer, frames.starts, frames.lengths)
    spec = marked(spec, encoder.nullable)
    codec, number = codec_for(spec), leaf_number(spec, key)
    ours = codec.chosen([number])
    rows = _rows_of(np.asarray(keys), np.asarray(ours.batch(ours.decode(records))[key]), key)
    others = codec.chosen([leaf for leaf in range(len(tree.leaves(spec))) if leaf != number])
    columns = others.decode(records[rows])
    return EncodedColumns(others.spec, codec_for(others.spec).encode(columns, len(rows)))


def _rows_of(wanted: Any, known: Any, key: str) -> Ints:
    """Return for each key the only row that has it."""
    order = known.argsort(kind="stable")
    ordered = known[order]
    begins, ends = ordered.searchsorted(wanted, "left"), ordered.searchsorted(wanted, "right")
    for which, wrong in (("no row", begins == ends), ("several rows", ends - begins > 1)):
        if wrong.any():
            record = int(wrong.argmax())
            raise InvalidArgumentError(
                f"on={key!r}: the table has {which} for record {record}, whose key is {wanted[record]!r}: each record "
                "must find exactly one"
            )
    rows: Ints = order[begins]
    return rows
