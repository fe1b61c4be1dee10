"""Streams of batches whose records have similar lengths: the records of each bucket, padded to its bound."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.datasets.dataset import BaseDataset
from cachelayer.datasets.dataset_view import DatasetView
from cachelayer.datasets.origins import of_other_rows
from cachelayer.errors import InvalidArgumentError
from cachelayer.protocols import Attempted, Held, Info, Origins
from cachelayer.records.selection import Selection
from cachelayer.sequences.padded import LongRecords, PaddedElements, padded_elements
from cachelayer.specs.leaf_names import leaf_numbers
from cachelayer.specs.tree import Tree
from cachelayer.streams.order.buckets import Buckets
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.streams.stream import Stream, stream_of
from cachelayer.streams.stream_options import make_options
from cachelayer.support.locks import cached_property
from cachelayer.support.memory import Ints


@dataclass(frozen=True, eq=False)
class LengthTable:
    """The records in each bucket. It takes nine bytes of memory a record."""

    view: DatasetView
    buckets: Buckets
    """The leaves whose lengths decide, and the bounds."""
    numbers: Ints
    """The numbers of the records, one bucket after another."""
    bucket_of: NDArray[np.uint8]
    """The bucket of each record."""
    sizes: tuple[int, ...]
    """The number of records in each bucket."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The table may be large: another process makes it again from the lengths.
        return _table_of, (self.view, self.buckets)

    def __repr__(self) -> str:
        return f"{self.buckets!r} of {self.sizes} records"

    def take(self, bucket: int, ranks: Ints) -> Ints:
        """Return the numbers of the records that stand at these places in a bucket."""
        numbers: Ints = self.numbers[ranks + sum(self.sizes[:bucket])]
        return numbers


def _table_of(view: DatasetView, buckets: Buckets) -> LengthTable:
    """Return the table of a view. It is made by the first call, and kept."""
    tables: dict[Any, LengthTable] = view.__dict__.setdefault("_bucket_tables", {})
    key = buckets.leaves, buckets.bounds, buckets.long
    if key not in tables:
        bucket_of = np.empty(0, np.uint8)
        parts = [bucket_of]
        for lengths in zip(*(view.lengths(name).pieces() for name in buckets.leaves), strict=True):
            # The longest leaf of a record decides.
            longest_leaf = reduce(np.maximum, lengths)
            parts.append(np.searchsorted(buckets.bounds, longest_leaf).astype(np.uint8))
        bucket_of = np.concatenate(parts)
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


@dataclass(frozen=True, repr=False, eq=False)
class BucketedView(DatasetView):
    """All elements of a view, each padded to the bound of its bucket. Their spec says None for the padded length.

    The base has all elements padded to the last bound.
    """

    padded_to: tuple[PaddedElements, ...] = field(kw_only=True)
    """All elements padded to one bound, for the bound of each bucket."""
    table: LengthTable = field(kw_only=True)
    """The bucket of each element."""

    @cached_property
    def info(self) -> Info:
        return replace(self.base.info, title=self.table.view.title)

    @cached_property
    def origins(self) -> Origins:
        view = self.table.view
        leaves = leaf_numbers(view.leaves_for("buckets").codec.spec, self.table.buckets.leaves)
        # Records come by their buckets, so no segment of records comes first. An erased record has the length 0, so it
        # may have had another bucket, and other records other numbers.
        digests = view.origins_of_leaves(leaves).digests
        return of_other_rows(view.origins, digests._replace(original=digests.rows))

    @cached_property
    def element_spec(self) -> Tree:
        return self.padded_to[-1].spec_of_any_length

    def padded_as(self, number: int) -> DatasetView:
        return self.with_base(self.padded_to[self.table.bucket_of[number] if len(self) else 0])

    def elements(self, numbers: Ints, held: Held | None = None) -> list[Any]:
        pairs = zip(numbers.tolist(), self.table.view.elements(numbers, held), strict=True)
        buckets = self.table.bucket_of
        return [self.padded_to[buckets[number]].padded_element(number, element) for number, element in pairs]

    def try_elements(self, numbers: Ints, held: Held | None = None, *, stops: bool) -> Attempted:
        return BaseDataset.try_elements(self, numbers, held, stops=stops)

    def batch(self, numbers: Ints, held: Held | None = None) -> Any:
        return self._of_longest(numbers).batch(numbers, held)

    def batches(self, numbers: Ints, splits: Sequence[int], held: Held | None = None) -> Iterable[Any]:
        batches = self.table.view.batches(numbers, splits, held)
        for (begin, end), batch in zip(pairwise(splits), batches, strict=True):
            yield self._of_longest(numbers[begin:end]).padded(numbers[begin:end], batch)

    def _of_longest(self, numbers: Ints) -> PaddedElements:
        """Return all elements padded to the bound that the longest of these has. A stream's batch has one bucket."""
        return self.padded_to[int(self.table.bucket_of[numbers].max(initial=0))]


def bucketed_stream(
    view: DatasetView, buckets: Buckets, global_batch_size: int | None, options: Mapping[str, Any]
) -> Stream[Any]:
    """Return a stream whose batches have records of one bucket each."""
    if global_batch_size is None:
        raise InvalidArgumentError("buckets are those of batches: pass a global_batch_size to stream()")
    # Only the last bucket may truncate. Another one cuts no record, unless a stored length is wrong.
    rules: list[LongRecords] = ["refuse" for _ in buckets.bounds[1:]]
    rules.append(buckets.long)
    padded = tuple(
        padded_elements(view, dict.fromkeys(buckets.leaves, bound), buckets.value, rule)
        for bound, rule in zip(buckets.bounds, rules, strict=True)
    )
    table = _table_of(view, buckets)
    checked = make_options(len(view), global_batch_size, padded[-1].info.record_nbytes, table, **options)
    records = BucketedView(padded[-1], Selection.all(len(view)), padded_to=padded, table=table)
    return stream_of(StepReader.of(records, checked))
