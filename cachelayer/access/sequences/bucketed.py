"""Streams of batches whose records have similar lengths: which records each bucket has, and how they are padded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.elements import ViewRecords
from cachelayer.access.sequences.padded import Long, PaddedBase, padded_of
from cachelayer.access.view import View
from cachelayer.errors import InvalidArgumentError
from cachelayer.locks import cached_property
from cachelayer.records.selection import Bitmap, Selection
from cachelayer.records.tree import Tree
from cachelayer.streams.order.buckets import Buckets
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.streams.stream import Stream, stream_of
from cachelayer.streams.stream_options import make_options


@dataclass(frozen=True, eq=False)
class LengthTable:
    """The records in each bucket: two bits of memory a record and bucket.

    Args:
        view: the records.
        buckets: the leaves and the bounds.
        records: those of each bucket.
    """

    view: View[Any]
    buckets: Buckets
    records: tuple[Bitmap, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(map(len, self.records))

    def __reduce__(self) -> tuple[Any, ...]:
        # It is made again from the lengths: it may be large.
        return _table_of, (self.view, self.buckets)

    def __repr__(self) -> str:
        return f"{self.buckets!r} of {self.sizes} records"

    def take(self, bucket: int, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.records[bucket].take(ranks)


def _table_of(view: Any, buckets: Buckets) -> LengthTable:
    """Return the table of a view, made on the first call."""
    tables: dict[Any, LengthTable] = view.__dict__.setdefault("_bucket_tables", {})
    key = buckets.leaves, buckets.bounds, buckets.long
    if key not in tables:
        # The length of a record is that of its longest leaf.
        pieces = zip(*(view._length_column(name).pieces() for name in buckets.leaves), strict=True)
        numbers = [np.searchsorted(buckets.bounds, reduce(np.maximum, each)).astype(np.uint8) for each in pieces]
        bucket_of = np.concatenate([np.empty(0, np.uint8), *numbers])
        last = len(buckets.bounds) - 1
        too_long = np.flatnonzero(bucket_of > last)
        if len(too_long) and buckets.long == "refuse":
            longest = max(int(view._length_column(name).take(too_long).max()) for name in buckets.leaves)
            raise InvalidArgumentError(
                f"{len(too_long)} of {len(view)} records are longer in {'/'.join(buckets.leaves)!r} than the last "
                f"bound, {buckets.bounds[-1]}, such as record {too_long[0]}. Pass a last bound of at least {longest}, "
                "or cachelayer.Buckets(..., long='truncate') to keep the beginning"
            )
        bucket_of[too_long] = last
        tables[key] = LengthTable(view, buckets, tuple(Bitmap.of_mask(bucket_of == each) for each in range(last + 1)))
    return tables[key]


@dataclass(frozen=True, repr=False, eq=False)
class RecordsOfBucket(ViewRecords):
    """All records, padded to the bound of a bucket: :class:`cachelayer.protocols.PaddedRecords`."""

    base: PaddedBase

    def padded(self, indices: NDArray[np.int64], batch: Any) -> Any:
        return self.base.padded(indices, batch)


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class BucketedRecords(ViewRecords):
    """The records of a view, with the spec and the bytes that they have in batches from buckets.

    Args:
        longest: the records, padded to the last bound.
    """

    longest: PaddedBase

    @property
    def original_digest(self) -> str:
        # An erased record has the length 0, and may have come to another bucket.
        return self.digest

    @cached_property
    def element_spec(self) -> Tree:
        return self.longest.spec_of_any_length

    @property
    def declared_spec(self) -> Tree:
        return self.element_spec

    @property
    def record_nbytes(self) -> int:
        return self.longest.record_nbytes

    @property
    def read_nbytes(self) -> int:
        return self.record_nbytes


def bucketed_stream(
    view: View[Any], buckets: Buckets, global_batch_size: int | None, options: Mapping[str, Any]
) -> Stream[Any]:
    """Return a stream of batches that come each from one bucket."""
    if global_batch_size is None:
        raise InvalidArgumentError("buckets are those of batches: pass a global_batch_size to stream()")
    # A record that its bucket would cut is longer than its stored length says: only the last bucket may truncate.
    rules: list[Long] = ["refuse" for _ in buckets.bounds[1:]]
    rules.append(buckets.long)
    padded = [
        padded_of(view, dict.fromkeys(buckets.leaves, bound), buckets.value, rule)._elements
        for bound, rule in zip(buckets.bounds, rules, strict=True)
    ]
    checked = make_options(len(view), global_batch_size, padded[-1].record_nbytes, _table_of(view, buckets), **options)
    records = BucketedRecords(view._elements, view._selection, longest=padded[-1])
    return stream_of(
        StepReader(records, checked, buckets=[RecordsOfBucket(each, Selection.all(len(view))) for each in padded])
    )
