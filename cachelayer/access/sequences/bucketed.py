"""Streams of batches whose records have similar lengths: which records each bucket has, and how they are padded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.sequences.padded import Padded, padded_of
from cachelayer.access.view import View
from cachelayer.access.view_records import ViewRecords
from cachelayer.arrayrecord.length_column import LengthColumn
from cachelayer.errors import InvalidArgumentError
from cachelayer.locks import cached_property
from cachelayer.protocols import Failed, Stacking, records_of
from cachelayer.records.bit_sets import Marks, no_bits
from cachelayer.records.tree import Tree
from cachelayer.streams.buckets import Buckets
from cachelayer.streams.step_reader import StepReader
from cachelayer.streams.stream import Stream, stream_of
from cachelayer.streams.stream_options import make_options

# Lengths that are read at a time; whole bytes of bits. Far shards are read whole, so it is more than most of them have.
_AT_ONCE = 1 << 22

Columns = Callable[[str], LengthColumn]


class Table:
    """The records in each bucket: 1.25 bits of memory a record and bucket.

    Args:
        view: the records.
        buckets: the leaves and the bounds.
        marks: the records of each bucket.
    """

    def __init__(self, view: View[Any], buckets: Buckets, marks: Sequence[Marks]) -> None:
        self.buckets = buckets
        self.sizes = tuple(map(len, marks))
        self._view = view
        self._marks = marks

    def __reduce__(self) -> tuple[Any, ...]:
        # It is made again from the lengths: it may be large.
        return _table_of, (self._view, self.buckets)

    def __repr__(self) -> str:
        return f"{self.buckets!r} of {self.sizes} records"

    def take(self, bucket: int, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._marks[bucket].take(ranks)


def _table_of(view: Any, buckets: Buckets) -> Table:
    """Return the table of a view, made on the first call.

    Raises:
        InvalidArgumentError: if records are longer than the last bound, and are refused.
    """
    tables = view.__dict__.setdefault("_bucket_tables", {})
    key = buckets.names, buckets.lengths, buckets.long
    if key not in tables:
        tables[key] = Table(view, buckets, _marks(len(view), buckets, view._length_column))
    found: Table = tables[key]
    return found


def _marks(records: int, buckets: Buckets, column_of: Columns) -> list[Marks]:
    """Return the records of each bucket."""
    bits = [no_bits(records) for _ in buckets.lengths]
    too_long = _TooLong(buckets)
    columns = [column_of(name) for name in buckets.names]
    for first in range(0, records, _AT_ONCE):
        pieces = [column.slice(first, min(first + _AT_ONCE, records)).values() for column in columns]
        # The length of a record is that of its longest leaf.
        lengths: NDArray[np.uint32] = reduce(np.maximum, pieces)
        left = np.ones(len(lengths), bool)
        for bound, marked in zip(buckets.lengths, bits, strict=True):
            is_last = buckets.long == "truncate" and marked is bits[-1]
            packed = np.packbits(left if is_last else left & (lengths <= bound), bitorder="little")
            marked[first // 8 : first // 8 + len(packed)] = packed
            left = lengths > bound
        if buckets.long == "refuse":
            too_long.add(first, lengths)
    too_long.check(records)
    return [Marks(marked) for marked in bits]


class _TooLong:
    """The records that no bucket takes."""

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets
        self._count = 0
        self._longest = (0, 0)

    def add(self, first: int, lengths: NDArray[np.uint32]) -> None:
        """Count those of some lengths that are too long."""
        count = int(np.count_nonzero(lengths > self._buckets.lengths[-1]))
        self._count += count
        row = int(lengths.argmax()) if count else 0
        if count and int(lengths[row]) > self._longest[0]:
            self._longest = int(lengths[row]), first + row

    def check(self, records: int) -> None:
        """Raise if there are any."""
        if self._count == 0:
            return
        length, record = self._longest
        name, last = "/".join(self._buckets.names), self._buckets.lengths[-1]
        are = "is" if self._count == 1 else "are"
        raise InvalidArgumentError(
            f"{self._count} of {records} records {are} longer in {name!r} than the last bound, {last}: the longest is "
            f"record {record}, with {length} values. Pass a last bound of at least {length}, or "
            "cachelayer.Buckets(..., long='truncate') to keep the beginning"
        )


@dataclass(frozen=True)
class PaddedBuckets:
    """Records as batches of each bucket have them: :class:`cachelayer.protocols.BucketedRecords`.

    Args:
        views: for each bucket, all records padded to its bound.
    """

    views: Sequence[Padded]

    def reads(self, buckets: Sequence[int]) -> PaddedReads:
        return PaddedReads([self.views[bucket] for bucket in buckets])

    def stacking(self) -> Stacking:
        # Elements of all buckets have the same leaves of fixed shape, only other shapes.
        return records_of(self.views[0]).stacking()


@dataclass(frozen=True)
class PaddedReads:
    """Reads a batch of each of some buckets: :class:`cachelayer.protocols.RecordReads`.

    Args:
        views: for each batch, the records padded to the bound of its bucket.
    """

    views: Sequence[Padded]

    def __getitems__(self, indices: NDArray[np.int64]) -> list[Any]:
        return self.views[0].__getitems__(indices)

    def elements(self, indices: NDArray[np.int64], failed: Failed) -> list[Any]:
        return self.views[0]._elements(indices, failed)

    def read(self, indices: NDArray[np.int64]) -> Any:
        return self.views[0].read(indices)

    def read_batches(self, batches: Sequence[NDArray[np.int64]]) -> Iterable[Any]:
        found = self.views[0]._base.unpadded(batches)
        return [
            view._base.padded(numbers, batch) for view, numbers, batch in zip(self.views, batches, found, strict=True)
        ]


@dataclass(frozen=True, repr=False)
class _Records(ViewRecords):
    """The records of a view, with the spec and the bytes that they have in batches from buckets."""

    longest: Padded | None = None

    @cached_property
    def element_spec(self) -> Tree:
        return self.view.element_spec if self.longest is None else self.longest._base.spec_of_any_length

    @property
    def declared_spec(self) -> Tree:
        return self.element_spec

    @property
    def record_nbytes(self) -> int:
        return (self.view if self.longest is None else self.longest)._base.record_nbytes

    @property
    def read_nbytes(self) -> int:
        return self.record_nbytes


def bucketed_stream(
    view: View[Any], buckets: Buckets, global_batch_size: int | None, options: Mapping[str, Any]
) -> Stream[Any]:
    """Return a stream of batches that come each from one bucket.

    Raises:
        InvalidArgumentError, InvalidTypeError: if an argument is invalid.
    """
    if global_batch_size is None:
        raise InvalidArgumentError("buckets are those of batches: pass a global_batch_size to stream()")
    # A record that its bucket would cut is longer than its stored length says: only the last bucket may truncate.
    longest = buckets.lengths[-1]
    views = [
        padded_of(
            view, dict.fromkeys(buckets.names, bound), buckets.value, buckets.long if bound == longest else "refuse"
        )
        for bound in buckets.lengths
    ]
    nbytes = views[-1]._base.record_nbytes
    checked = make_options(len(view), global_batch_size, nbytes, _table_of(view, buckets), **options)
    return stream_of(StepReader(_Records(view, None, views[-1]), checked, buckets=PaddedBuckets(views)))
