"""Streams of batches whose records have similar lengths: which records each bucket has, and how they are padded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.elements import ViewRecords
from cachelayer.access.sequences.padded import Padded, padded_of
from cachelayer.access.view import View
from cachelayer.arrayrecord.lengths import LengthColumn
from cachelayer.errors import InvalidArgumentError
from cachelayer.locks import cached_property
from cachelayer.protocols import Failed, Stacker, records_of
from cachelayer.records.selection import Bitmap, no_bits
from cachelayer.records.tree import Tree
from cachelayer.streams.buckets import Buckets
from cachelayer.streams.step_reader import StepReader
from cachelayer.streams.stream import Stream, stream_of
from cachelayer.streams.stream_options import make_options

# Lengths that are read at a time; whole bytes of bits.
_AT_ONCE = 1 << 20

Columns = Callable[[str], LengthColumn]


class LengthTable:
    """The records in each bucket: two bits of memory a record and bucket.

    Args:
        view: the records.
        buckets: the leaves and the bounds.
        marks: the records of each bucket.
    """

    def __init__(self, view: View[Any], buckets: Buckets, marks: Sequence[Bitmap]) -> None:
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


def _table_of(view: Any, buckets: Buckets) -> LengthTable:
    """Return the table of a view, made on the first call.

    Raises:
        InvalidArgumentError: if records are longer than the last bound, and are refused.
    """
    tables = view.__dict__.setdefault("_bucket_tables", {})
    key = buckets.names, buckets.lengths, buckets.long
    if key not in tables:
        tables[key] = LengthTable(view, buckets, _marks(len(view), buckets, view._length_column))
    found: LengthTable = tables[key]
    return found


def _marks(records: int, buckets: Buckets, column_of: Columns) -> list[Bitmap]:
    """Return the records of each bucket."""
    last = len(buckets.lengths)
    bits = [no_bits(records) for _ in buckets.lengths]
    first = too_long = longest = longest_record = 0
    for pieces in zip(*(column_of(name).pieces(_AT_ONCE) for name in buckets.names), strict=True):
        # The length of a record is that of its longest leaf.
        lengths = reduce(np.maximum, pieces)
        bucket_of = np.searchsorted(buckets.lengths, lengths)
        if buckets.long == "truncate":
            bucket_of = np.minimum(bucket_of, last - 1)
        for bucket, marked in enumerate(bits):
            packed = np.packbits(bucket_of == bucket, bitorder="little")
            marked[first // 8 : first // 8 + len(packed)] = packed
        too_long += int(np.count_nonzero(bucket_of == last))
        row = int(lengths.argmax())
        if lengths[row] > longest:
            longest, longest_record = int(lengths[row]), first + row
        first += len(lengths)
    if too_long:
        are, names = "is" if too_long == 1 else "are", "/".join(buckets.names)
        raise InvalidArgumentError(
            f"{too_long} of {records} records {are} longer in {names!r} than the last bound, {buckets.lengths[-1]}: "
            f"the longest is record {longest_record}, with {longest} values. Pass a last bound of at least {longest}, "
            "or cachelayer.Buckets(..., long='truncate') to keep the beginning"
        )
    return [Bitmap(marked) for marked in bits]


@dataclass(frozen=True)
class PaddedBuckets:
    """Records as batches of each bucket have them: :class:`cachelayer.protocols.BucketedRecords`.

    Args:
        views: for each bucket, all records padded to its bound.
    """

    views: Sequence[Padded]

    def reads(self, buckets: Sequence[int]) -> PaddedReads:
        return PaddedReads([self.views[bucket] for bucket in buckets])

    def stacking(self) -> Stacker:
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
        return self.views[0]._records.elements(indices, failed)

    def read(self, indices: NDArray[np.int64]) -> Any:
        return self.views[0].read(indices)

    def read_batches(self, batches: Sequence[NDArray[np.int64]]) -> Iterable[Any]:
        found = self.views[0]._elements.unpadded(batches)
        return [
            view._elements.padded(numbers, batch)
            for view, numbers, batch in zip(self.views, batches, found, strict=True)
        ]


@dataclass(frozen=True, repr=False)
class _Records(ViewRecords):
    """The records of a view, with the spec and the bytes that they have in batches from buckets."""

    longest: Padded | None = None

    @cached_property
    def element_spec(self) -> Tree:
        return self.base.element_spec if self.longest is None else self.longest._elements.spec_of_any_length

    @property
    def declared_spec(self) -> Tree:
        return self.element_spec

    @property
    def record_nbytes(self) -> int:
        return (self.base if self.longest is None else self.longest._elements).record_nbytes

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
    nbytes = views[-1]._elements.record_nbytes
    checked = make_options(len(view), global_batch_size, nbytes, _table_of(view, buckets), **options)
    records = _Records(view._elements, view._selection, longest=views[-1])
    return stream_of(StepReader(records, checked, buckets=PaddedBuckets(views)))
