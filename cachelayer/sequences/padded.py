"""Records whose arrays of varying length are padded: to a fixed length, or in streams to the bound of their bucket."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cachelayer.datasets.dataset import BaseDataset
from cachelayer.datasets.dataset_view import DatasetView
from cachelayer.datasets.origins import derived_digest, of_other_rows
from cachelayer.errors import ElementError, InvalidArgumentError, InvalidTypeError
from cachelayer.protocols import Attempted, Held, Info, Needed, Origins, Sources
from cachelayer.records.selection import Selection
from cachelayer.sequences.documents import (
    checked_fill,
    checked_length,
    fill_hex,
    padding_keys,
)
from cachelayer.sequences.token_fields import FILL
from cachelayer.specs import tree
from cachelayer.specs.leaf_names import UNNAMED, has_length, leaf_named, leaf_number, leaf_numbers
from cachelayer.specs.spec import ArraySpec, AudioSpec, LeafSpec, NullableDict, describe_leaf
from cachelayer.specs.tree import Tree
from cachelayer.streams.order.buckets import Buckets
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.streams.stream import Stream, stream_of
from cachelayer.streams.stream_options import make_options
from cachelayer.support.arguments import is_choice
from cachelayer.support.locks import cached_property
from cachelayer.support.memory import Ints, bytes_of, move_ranges

LongRecords = Literal["truncate", "refuse"]


@dataclass(frozen=True)
class Padding:
    """A leaf that is padded, with the length and the fill."""

    name: str
    """The name of the leaf."""
    length: int
    """The number of values that every record gets."""
    fill: NDArray[Any]
    """The value that fills up shorter records: an array without dimensions, of the dtype of the leaf."""
    long: LongRecords
    """What becomes of longer records."""
    timezone: str | None = None
    shape: tuple[int, ...] = ()
    """The shape of one value, such as ``(4,)`` of boxes."""

    @property
    def value_nbytes(self) -> int:
        return self.fill.dtype.itemsize * math.prod(self.shape)

    def specs(self, length: int | None) -> tuple[ArraySpec, ArraySpec, ArraySpec]:
        """Return the specs of the padded leaf, of the length and of the mask."""
        mask = ArraySpec(np.dtype(np.bool_), (length,))
        values = ArraySpec(self.fill.dtype, (length, *self.shape), timezone=self.timezone)
        return values, ArraySpec(np.dtype(np.int32)), mask

    def batch(self, batch: Any) -> tuple[Any, Any, Any]:
        """Return the padded rows of a Ragged, or of a Nullable with one, their lengths and their mask."""
        valid = getattr(batch, "valid", None)
        ragged = batch if valid is None else batch.values
        splits = np.asarray(ragged.row_splits, np.int64)
        lengths = np.diff(splits) if valid is None else np.where(valid, np.diff(splits), 0)
        return self._rows(ragged.values, splits, lengths)

    def element(self, value: Any) -> tuple[Any, Any, Any]:
        """Return the padded array, its length and its mask, of one array or None."""
        values = np.empty((0, *self.shape), self.fill.dtype) if value is None else value
        rows, lengths, mask = self._rows(values, np.zeros(1, np.int64), np.array([len(values)]))
        return rows[0], lengths[0], mask[0]

    def _rows(self, values: NDArray[Any], splits: Ints, lengths: Ints) -> tuple[Any, Any, Any]:
        """Return padded rows, their lengths and their mask."""
        too_long = np.flatnonzero(lengths > self.length)
        if self.long == "refuse" and len(too_long):
            row = int(too_long[0])
            hint = "Pass a greater length, or long='truncate' to keep the beginning."
            expected = f"at most {self.length} values in {self.name!r}"
            raise ElementError(expected, str(int(lengths[row])), record=row, hint=hint)
        counts = np.minimum(lengths, self.length)
        out = np.full((len(counts), self.length, *self.shape), self.fill)
        size = self.value_nbytes
        places = np.arange(len(counts)) * (self.length * size)
        move_ranges(bytes_of(out), places, bytes_of(values), splits[: len(counts)] * size, counts * size)
        return out, counts.astype(np.int32), np.arange(self.length) < counts[:, None]


@dataclass(frozen=True, eq=False)
class PaddedElements(BaseDataset):
    """The elements of a view with leaves padded."""

    records: DatasetView
    """The elements before they are padded."""
    paddings: Mapping[tuple[str, ...], Padding]
    """How leaves are padded, by the keys of the dicts that lead to them, in the order of the leaves."""

    def __len__(self) -> int:
        return len(self.records)

    @cached_property
    def origins(self) -> Origins:
        origins = self.records.origins
        parameters = [[each.name, each.length, fill_hex(each.fill), each.long] for each in self.paddings.values()]

        def derived(digest: str) -> str:
            return derived_digest(digest, "padded", {"leaves": parameters})

        def earlier(segments: int) -> str | None:
            digest = origins.earlier_digest(segments)
            return None if digest is None else derived(digest)

        return replace(origins, digests=origins.digests.derived(derived), home=None, earlier=earlier)

    def needed(self, numbers: Ints) -> Needed:
        return self.records.needed(numbers)

    def sources(self, numbers: Ints) -> Sources:
        return self.records.sources(numbers)

    @cached_property
    def element_spec(self) -> Tree:
        return self._changed(self.records.element_spec, lambda padding, _: padding.specs(padding.length))

    @property
    def spec_of_any_length(self) -> Tree:
        """The spec of elements that are padded to any length."""
        return self._changed(self.records.element_spec, lambda padding, _: padding.specs(None))

    @cached_property
    def info(self) -> Info:
        info = self.records.info
        lengths = {each.name: each.length for each in self.paddings.values()}
        nbytes = info.record_nbytes + sum(each.length * (each.value_nbytes + 1) for each in self.paddings.values())
        title = f"Padded({self.records!r}, {lengths})"
        return replace(info, title=title, record_nbytes=nbytes, read_nbytes=nbytes)

    def padding(self, numbers: Ints, name: str) -> int:
        """Return how many values of a field are padding, over some elements."""
        for each in self.paddings.values():
            padded = each.name or UNNAMED
            if name in (padded, padding_keys(padded)[1]):
                return int(np.maximum(each.length - self.records.lengths(padded).take(numbers), 0).sum())
        return 0

    def elements(self, numbers: Ints, held: Held | None = None) -> list[Any]:
        pairs = zip(numbers.tolist(), self.records.elements(numbers, held), strict=True)
        return [self.padded_element(number, element) for number, element in pairs]

    def padded_element(self, number: int, element: Any) -> Any:
        """Return an element with its leaves padded; an error names the record by its number."""
        with _naming([number]):
            return self._changed(element, Padding.element)

    def batch(self, numbers: Ints, held: Held | None = None) -> Any:
        return self.padded(numbers, self.records.batch(numbers, held))

    def batch_of_keys(self, numbers: Ints, keys: Sequence[str]) -> dict[str, Any]:
        spec = self.records.element_spec
        if not isinstance(spec, dict):
            return super().batch_of_keys(numbers, keys)
        # The length and the mask of a field are made of the field.
        made_of = [key for key in spec if any(added in keys for added in (key, *padding_keys(key)))]
        batch = self.padded(numbers, self.records.batch_of_keys(numbers, made_of))
        return {key: batch[key] for key in self.element_spec if key in keys}

    def padded(self, numbers: Ints, batch: Any) -> Any:
        """Return a batch with its leaves padded; an error names the record by its number."""
        with _naming(numbers):
            return self._changed(batch, Padding.batch)

    def _changed(self, value: Any, make: Callable[[Padding, Any], Sequence[Any]], place: tuple[str, ...] = ()) -> Any:
        """Return an element, batch or spec in which the values that ``make`` returns replace each padded leaf."""
        if place in self.paddings:
            key = place[-1] if place else UNNAMED
            return dict(zip((key, *padding_keys(key)), make(self.paddings[place], value), strict=True))
        if not isinstance(value, dict):
            return value
        out: dict[str, Any] = {}
        for key, child in value.items():
            changed = self._changed(child, make, (*place, key))
            out |= changed if (*place, key) in self.paddings else {key: changed}
        return out

    @property
    def kept(self) -> float:
        """The share of the values of the padded leaves that is kept, from stored lengths; 1 if there are no values."""
        kept = 0
        total = 0
        for each in self.paddings.values():
            column = self.records.lengths(each.name)
            kept += sum(int(np.minimum(lengths, each.length).sum()) for lengths in column.pieces())
            total += column.total
        return kept / total if total else 1.0


@contextmanager
def _naming(numbers: Sequence[int] | Ints) -> Iterator[None]:
    """Let an ElementError name its record by the number, in place of the row."""
    try:
        yield
    except ElementError as error:
        raise error.at(record=int(numbers[error.record or 0])) from None


def padded_elements(records: DatasetView, lengths: Any, value: Any, long: Any) -> PaddedElements:
    """Return the padded elements of a view, with the arguments of :meth:`cachelayer.View.padded`."""
    if not isinstance(lengths, Mapping) or not all(isinstance(name, str) for name in lengths):
        raise InvalidTypeError(f'lengths {lengths!r}: pass a dict of names and lengths, such as {{"tokens": 2048}}')
    if long is not None and not is_choice(long, ("truncate", "refuse")):
        raise InvalidArgumentError(f"long {long!r}: pass 'truncate' or 'refuse'")
    sizes = {name: checked_length("length", length) for name, length in lengths.items()}
    if not lengths:
        raise InvalidArgumentError('no field is named: pass a name and a length, such as {"tokens": 2048}')
    records.leaves_for("padded()")
    spec = records.element_spec
    numbers = {leaf_number(spec, name) for name in lengths}
    paddings = {}
    for place, leaf, siblings in _leaves_of_dicts(spec):
        name = "/".join(place)
        if name not in lengths:
            continue
        is_array = type(leaf) is ArraySpec and leaf.shape[:1] == (None,) and leaf.dtype not in (bytes, str)
        shape = tuple(size for size in leaf.shape[1:] if size is not None)
        if not is_array or len(shape) < len(leaf.shape[1:]) or leaf.nullable_values:
            cure = FILL if leaf.nullable_values else ""
            if isinstance(leaf_named(records.leaves_for("padded()").codec.spec, name), AudioSpec):
                cure = ": declare AudioSpec(channels=1), and read sounds decoded"
            raise InvalidArgumentError(
                f"{name!r} is {describe_leaf(leaf)}: only arrays of shape [None], or [None, 4] and the like, are padded"
                f"{cure}"
            )
        if long is None and not has_length(leaf):
            raise InvalidArgumentError(
                f"{name!r} is {describe_leaf(leaf)}, whose lengths are not stored, so nothing can warn of records that "
                "are longer: pass long='truncate' or long='refuse'"
            )
        if _is_in_nullable_dict(spec, place):
            raise InvalidArgumentError(
                f"{name!r} is in a dict that may be None, in which padded() has no place for its fields: choose "
                "others, or store a dict in its place"
            )
        clashes = [added for added in padding_keys(place[-1] if place else UNNAMED) if added in siblings]
        if clashes:
            raise InvalidArgumentError(f"elements have a field {clashes[0]!r}, which padded() would add: rename it")
        if isinstance(value, Mapping) and name not in value:
            raise InvalidArgumentError(f"value {dict(value)!r}: it has none for {name!r}")
        fill = checked_fill("value", value[name] if isinstance(value, Mapping) else value, np.dtype(leaf.dtype))
        paddings[place] = Padding(name, sizes[name], fill, long or "truncate", leaf.timezone, shape)
    if len(paddings) < len(numbers):
        raise InvalidArgumentError(
            f"{', '.join(map(repr, lengths))} of {tree.describe(spec)}: padded() adds fields beside the one that it "
            "pads, so it pads values of dicts"
        )
    return PaddedElements(records, paddings)


def _is_in_nullable_dict(spec: Tree, place: tuple[str, ...]) -> bool:
    for key in place:
        spec = spec[key]
        if isinstance(spec, NullableDict):
            return True
    return False


def _leaves_of_dicts(
    spec: Tree, place: tuple[str, ...] = (), siblings: Collection[str] = ()
) -> Iterator[tuple[tuple[str, ...], LeafSpec, Collection[str]]]:
    """Yield the keys that lead to each leaf that lies in nothing but dicts, the leaf, and the keys of its dict."""
    if isinstance(spec, LeafSpec):
        yield place, spec, siblings
    elif isinstance(spec, dict):
        for key, child in spec.items():
            yield from _leaves_of_dicts(child, (*place, key), spec)


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

    def count_values(self, numbers: Ints, name: str) -> dict[str, int | float]:
        # Padded to the last bound: what the stored lengths leave to it, padding does not count.
        return DatasetView.all(self.base).count_values(numbers, name)

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
