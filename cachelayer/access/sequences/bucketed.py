"""Streams of batches whose records have similar lengths: which records each bucket has, and how they are padded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.dataset_view import DatasetView
from cachelayer.access.sequences.padded import LongRecords, PaddedElements, padded_elements
from cachelayer.errors import InvalidArgumentError
from cachelayer.locks import cached_property
from cachelayer.protocols import Digests, Held
from cachelayer.records.leaf_names import leaf_numbers
from cachelayer.records.memory import Ints
from cachelayer.records.tree import Tree
from cachelayer.streams.order.buckets import Buckets
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.streams.stream import Stream, stream_of
from cachelayer.streams.stream_options import make_options


@dataclass(frozen=True, eq=False)
class LengthTable:
    """The records in each bucket: nine bytes of memory a record.

    Args:
        view: the records.
        buckets: the leaves and the bounds.
        numbers: the records of all buckets, one bucket after another.
        bucket_of: the bucket of each record.
        sizes: the number of records in each bucket.
    """

    view: DatasetView
    buckets: Buckets
    numbers: Ints
    bucket_of: NDArray[np.uint8]
    sizes: tuple[int, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        # It is made again from the lengths: it may be large.
        return _table_of, (self.view, self.buckets)

    def __repr__(self) -> str:
        return f"{self.buckets!r} of {self.sizes} records"

    def take(self, bucket: int, ranks: Ints) -> Ints:
        numbers: Ints = self.numbers[ranks + sum(self.sizes[:bucket])]
        return numbers


def _table_of(view: DatasetView, buckets: Buckets) -> LengthTable:
    """Return the table of a view, made on the first call."""
    tables: dict[Any, LengthTable] = view.__dict__.setdefault("_bucket_tables", {})
    key = buckets.leaves, buckets.bounds, buckets.long
    if key not in tables:
        # The length of a record is that of its longest leaf.
        pieces = zip(*(view.lengths(name).pieces() for name in buckets.leaves), strict=True)
        numbers = [np.searchsorted(buckets.bounds, reduce(np.maximum, each)).astype(np.uint8) for each in pieces]
        bucket_of = np.concatenate([np.empty(0, np.uint8), *numbers])
        last = len(buckets.bounds) - 1
        too_long = np.flatnonzero(bucket_of > last)
        if len(too_long) and buckets.long == "refuse":
            longest = max(int(view.lengths(name).take(too_long).max()) for name in buckets.leaves)
            raise InvalidArgumentError(
                f"{len(too_long)} of {len(view)} records are longer in {'/'.join(buckets.leaves)!r} than the last "
                f"bound, {buckets.bounds[-1]}, such as record {too_long[0]}. Pass a last bound of at least {longest}, "
                "or cachelayer.Buckets(..., long='truncate') to keep the beginning"
            )
        bucket_of[too_long] = last
        sizes = np.bincount(bucket_of, minlength=last + 1).tolist()
        tables[key] = LengthTable(view, buckets, bucket_of.argsort(kind="stable"), bucket_of, tuple(sizes))
    return tables[key]


@dataclass(frozen=True, eq=False)
class BucketedElements(PaddedElements):
    """The elements of a view, each padded to the bound of its bucket.

    It has the spec and the bytes that they have in batches from buckets.

    Args:
        padded_to: the elements padded to the bound of each bucket.
        table: the bucket of each.
        lengths_of: the numbers of the leaves whose lengths decide the buckets.
    """

    padded_to: tuple[PaddedElements, ...]
    table: LengthTable
    lengths_of: tuple[int, ...]

    @property
    def title(self) -> str:
        return self.records.title

    @property
    def digests(self) -> Digests:
        # An erased record has the length 0, and may have come to another bucket.
        digests = self.records.digests_of_leaves(self.lengths_of)
        return digests._replace(original=digests.rows)

    def prefix_digest(self, segments: int) -> str | None:  # noqa: ARG002
        # The records of the first buckets come first.
        return None

    @cached_property
    def element_spec(self) -> Tree:
        return self._changed(self.records.element_spec, lambda padding, _: padding.specs(None))

    def padded_as(self, number: int) -> PaddedElements:
        return self.padded_to[self.table.bucket_of[number] if len(self) else 0]

    def elements(self, numbers: Ints, held: Held | None = None) -> list[Any]:
        elements = self.records.elements(numbers, held)
        pairs = zip(numbers.tolist(), elements, strict=True)
        return [self.padded_as(number).padded_element(number, element) for number, element in pairs]

    def batch(self, numbers: Ints, held: Held | None = None) -> Any:
        return self._longest(numbers).batch(numbers, held)

    def batches(self, batches: Sequence[Ints], held: Held | None = None) -> Iterable[Any]:
        every = zip(batches, self.records.batches(batches, held), strict=True)
        return (self._longest(numbers).padded(numbers, batch) for numbers, batch in every)

    def _longest(self, numbers: Ints) -> PaddedElements:
        """Return the elements padded to the bound of the last bucket of some, which all have in a batch of a stream."""
        return self.padded_to[int(self.table.bucket_of[numbers].max(initial=0))]


def bucketed_stream(
    view: DatasetView, buckets: Buckets, global_batch_size: int | None, options: Mapping[str, Any]
) -> Stream[Any]:
    """Return a stream of batches that come each from one bucket."""
    if global_batch_size is None:
        raise InvalidArgumentError("buckets are those of batches: pass a global_batch_size to stream()")
    # A record that its bucket would cut is longer than its stored length says: only the last bucket may truncate.
    rules: list[LongRecords] = ["refuse" for _ in buckets.bounds[1:]]
    rules.append(buckets.long)
    padded = tuple(
        padded_elements(view, dict.fromkeys(buckets.leaves, bound), buckets.value, rule)
        for bound, rule in zip(buckets.bounds, rules, strict=True)
    )
    table = _table_of(view, buckets)
    checked = make_options(len(view), global_batch_size, padded[-1].info.record_nbytes, table, **options)
    numbers = leaf_numbers(view.leaves_for("buckets").codec.spec, buckets.leaves)
    records = BucketedElements(view, padded[-1].paddings, padded, table, numbers)
    return stream_of(StepReader(DatasetView.all(records), checked))
