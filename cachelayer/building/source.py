"""What a version is built from: anything that gives elements one after another, or many at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import numpy as np

from cachelayer.codec import Codec, Column
from cachelayer.elements import tree
from cachelayer.elements.infer import from_element
from cachelayer.elements.spec import ArraySpec
from cachelayer.elements.tree import Tree
from cachelayer.errors import CacheLayerError, InvalidArgumentError, InvalidTypeError, SourceError

R = TypeVar("R")
ENTRY_POINTS = "cachelayer.sources"
BATCH_NBYTES = 1 << 22
MAX_BATCH_RECORDS = 1024
_FIXED = frozenset({bool, int, float, complex, str, bytes, type(None)})
"""Types of values that nobody can change."""


class Batch(Protocol):
    """Some elements of a source, in order."""

    def __len__(self) -> int: ...

    def columns(self, codec: Codec) -> list[Column]:
        """The columns of the elements; errors count records from the first of the batch."""


@dataclass(frozen=True, eq=False)
class Elements:
    """Elements one by one."""

    items: Sequence[Any]

    def __len__(self) -> int:
        return len(self.items)

    def columns(self, codec: Codec) -> list[Column]:
        return codec.columns(self.items)


@dataclass(frozen=True, eq=False)
class Stacked:
    """Elements with their leaves stacked on a leading axis."""

    batch: Tree
    rows: int

    def __len__(self) -> int:
        return self.rows

    def columns(self, codec: Codec) -> list[Column]:
        return codec.batch_columns(self.batch)


@dataclass(frozen=True, eq=False)
class Prepared:
    """Elements in the columns of the codec of the source's spec."""

    prepared: list[Column]
    rows: int

    def __len__(self) -> int:
        return self.rows

    def columns(self, codec: Codec) -> list[Column]:  # noqa: ARG002
        return self.prepared


@runtime_checkable
class Source(Protocol):
    """Gives elements in order, in batches of about ``BATCH_NBYTES``."""

    @property
    def kind(self) -> str:
        """What it is, for the provenance."""

    @property
    def element_spec(self) -> Tree | None:
        """The schema that the source declares, or None where it declares none."""

    @property
    def length(self) -> int | None:
        """Number of elements, where it is known."""

    def batches(self, limit: int | None) -> Iterator[Batch]:
        """The elements, at most ``limit`` of them.

        Raises:
            SourceError: where the source fails, with the number of the record.
            InvalidArgumentError: where the source is known to be endless and there is no limit.
        """


@runtime_checkable
class Declarable(Protocol):
    """A source that takes the spec that a user declares: it must, where it gives columns of its own spec."""

    def with_element_spec(self, spec: Tree) -> Source: ...


@runtime_checkable
class Deferred(Protocol):
    """A source of others that are made later, in the way that is asked for."""

    def made_with(self, *, unbatch: bool, element_spec: Tree | None) -> Source: ...


@runtime_checkable
class Seekable(Protocol):
    """A source that can begin at any record, at little cost."""

    def skipped(self, records: int) -> Source:
        """The same source from this record on; its errors go on counting from there."""


@runtime_checkable
class Skippable(Protocol):
    """A source that can leave out its first records once at less cost than they have, but not again and again."""

    def rest(self, records: int) -> Source:
        """The same source from this record on; its errors go on counting from there."""


def from_record(source: Seekable | Skippable, records: int) -> Source:
    """The same source from this record on."""
    return source.skipped(records) if isinstance(source, Seekable) else source.rest(records)


@dataclass(frozen=True)
class Splits:
    """Several sources by name, as datasets have them for training and tests: a dataset of each."""

    parts: Mapping[str, Any]


def each_split(obj: Any, dataset_id: str, make: Callable[[Any, str], R]) -> R:
    """What ``make`` gives for an object and its id; of splits a dict of it, with ids ``<dataset id>.<split>``."""
    found = _adapted(obj, unbatch=False, element_spec=None) if isinstance(obj, Mapping) else None
    if not isinstance(found, Splits):
        return make(obj, dataset_id)
    # No type says which mappings are splits.
    return cast(R, {split: make(part, f"{dataset_id}.{split}") for split, part in found.parts.items()})


def metadata_of(source: Source) -> dict[str, Any]:
    """What a source says of itself, for the metadata of the version; most say nothing."""
    return dict(getattr(source, "metadata", {}))


def _returned(function: Callable[[], Any]) -> Any:
    """What a function that makes a source returns."""
    try:
        return function()
    except CacheLayerError:
        raise
    except Exception as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise SourceError(f"{name}() failed before it returned a source: {type(error).__name__}: {error}") from error


def as_source(obj: Any, *, unbatch: bool = False, element_spec: Tree | None = None) -> Source:
    """The source that an object is.

    Args:
        obj: a source, what an adapter knows, an array, a dict of arrays, an iterable, or a function that returns one.
        unbatch: each element of ``obj`` is a batch: take it apart along the leading axis of its leaves.
        element_spec: the spec that the user declares.

    Raises:
        InvalidTypeError: where it is none of these.
        InvalidArgumentError: where ``unbatch`` has no meaning for it.
    """
    if isinstance(obj, Deferred):
        return obj.made_with(unbatch=unbatch, element_spec=element_spec)
    if element_spec is not None and isinstance(obj, Declarable):
        obj = obj.with_element_spec(element_spec)
    if isinstance(obj, Source):
        if unbatch:
            raise InvalidArgumentError(f"unbatch=True: a source of {obj.kind} gives elements already: leave it out")
        return obj
    adapted = _adapted(obj, unbatch=unbatch, element_spec=element_spec)
    if isinstance(adapted, Splits):
        raise InvalidTypeError(
            f"a {type(obj).__name__} has the splits {', '.join(adapted.parts)}, each a dataset of its own: pass it to "
            "cache() or submit() itself, not a function that returns it, or choose one of them"
        )
    if adapted is not None:
        return adapted
    if callable(obj) and not isinstance(obj, Iterable):
        return as_source(_returned(obj), unbatch=unbatch, element_spec=element_spec)
    if not unbatch and _is_stack(obj):
        return ArraySource(obj)
    if isinstance(obj, (str, bytes, bytearray, Mapping)) or (isinstance(obj, np.ndarray) and obj.ndim == 0):
        raise InvalidTypeError(
            f"{tree.describe(obj)} is not a source: pass an iterable of elements, a function that returns one, "
            "an array, or a dict of arrays of equal length"
        )
    try:
        iterator = iter(obj)
    except TypeError as error:
        raise InvalidTypeError(
            f"a {type(obj).__name__} is not a source: pass a tf.data.Dataset, an iterable of elements, a function that "
            "returns one, an array, or a dict of arrays"
        ) from error
    if isinstance(obj, Sequence) and not unbatch:
        return SequenceSource(obj)
    length = None if unbatch else _length_of(obj)
    return IterableSource(_unbatched(iterator) if unbatch else iterator, type(obj).__name__, length)


def _length_of(obj: Any) -> int | None:
    try:
        return len(obj)
    except TypeError:
        return None


def _adapted(obj: Any, *, unbatch: bool, element_spec: Tree | None) -> Source | Splits | None:
    """The source that an adapter makes of it; only those are asked whose framework is loaded already."""
    # Imported here: it takes a tenth of the time of importing the whole package.
    from importlib.metadata import entry_points

    for entry in entry_points(group=ENTRY_POINTS):
        if sys.modules.get(entry.name) is not None:
            adapter: Callable[..., Source | Splits | None] = entry.load()
            source = adapter(obj, unbatch=unbatch, element_spec=element_spec)
            if source is not None:
                return source
    return None


def _is_stack(obj: Any) -> bool:
    if isinstance(obj, np.ndarray):
        return obj.ndim > 0 and obj.dtype != object
    return isinstance(obj, dict) and bool(obj) and all(_is_stack(value) for value in obj.values())


class ArraySource:
    """An array, or a nested dict of arrays of equal length: element i is row i of each.

    Raises:
        InvalidTypeError: where the lengths differ.
    """

    kind = "arrays"

    def __init__(self, arrays: Tree) -> None:
        self._arrays = arrays
        found = tree.leaf_values(arrays)
        lengths = {path: len(array) for path, array in found}
        if len(set(lengths.values())) > 1:
            raise InvalidTypeError(f"arrays of different lengths are not a source: {lengths}")
        self.length: int | None = next(iter(lengths.values()))
        self.element_spec: Tree | None = tree.map_structure(
            self._arrays, lambda _, array: ArraySpec(from_element(array).dtype, array.shape[1:])
        )
        nbytes = sum(array.nbytes for _, array in found)
        self._batch = batch_records(nbytes / max(1, self.length))
        self._first = 0

    def skipped(self, records: int) -> ArraySource:
        """The same arrays from a row on."""
        skipped = copy(self)
        skipped._first += records
        return skipped

    def batches(self, limit: int | None) -> Iterator[Batch]:
        rows = self.length or 0
        stop = rows if limit is None else min(rows, self._first + limit)
        for start in range(self._first, stop, self._batch):
            end = min(start + self._batch, stop)
            yield Stacked(tree.map_structure(self._arrays, partial(_rows, slice(start, end))), end - start)


class IterableSource:
    """Elements from an iterator."""

    element_spec: Tree | None = None

    def __init__(self, iterator: Iterator[Any], kind: str, length: int | None, first: int = 0) -> None:
        self._iterator = iterator
        self.kind = kind
        self.length = length
        self._first = first

    def _elements(self) -> Iterator[Any]:
        return self._iterator

    def batches(self, limit: int | None) -> Iterator[Batch]:
        items: list[Any] = []
        nbytes = 0
        for element in islice(guarded(self._elements(), self._first), limit):
            items.append(_snapshot(element))
            nbytes += _approximate_nbytes(element)
            if nbytes >= BATCH_NBYTES or len(items) == MAX_BATCH_RECORDS:
                yield Elements(items)
                items, nbytes = [], 0
        if items:
            yield Elements(items)


class SequenceSource(IterableSource):
    """The elements of a sequence."""

    def __init__(self, items: Sequence[Any], first: int = 0) -> None:
        super().__init__(iter(()), type(items).__name__, len(items), first)
        self._items = items

    def _elements(self) -> Iterator[Any]:
        # The iterator of the sequence itself, where it is read from its begin: it may know a faster way.
        items, first = self._items, self._first
        return map(items.__getitem__, range(first, len(items))) if first else iter(items)

    def skipped(self, records: int) -> SequenceSource:
        """The same sequence from an element on."""
        return SequenceSource(self._items, self._first + records)


def guarded(elements: Iterator[Any], first: int = 0) -> Iterator[Any]:
    """The same elements, which begin with this record of the source; a failure of theirs names the record.

    Raises:
        SourceError: where they raise, from what they raised.
    """
    record = first
    while True:
        try:
            element = next(elements)
        except StopIteration:
            return
        except CacheLayerError:
            raise
        except Exception as error:
            raise SourceError(f"the source failed at record {record}: {type(error).__name__}: {error}") from error
        yield element
        record += 1


def batch_records(record_nbytes: float) -> int:
    """How many records make a batch."""
    return int(min(MAX_BATCH_RECORDS, max(1, BATCH_NBYTES // max(1, record_nbytes))))


def _unbatched(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        lengths = {path: len(leaf) for path, leaf in tree.leaf_values(batch)}
        if len(set(lengths.values())) > 1:
            raise SourceError(f"unbatch: the leaves of a batch have different lengths: {lengths}")
        for row in range(next(iter(lengths.values()), 0)):
            yield tree.map_structure(batch, partial(_rows, row))


def _rows(rows: slice | int, _path: str, leaf: Any) -> Any:
    return leaf[rows]


def _snapshot(value: Any) -> Any:
    """The element as it is now: sources may write the next one into the same arrays."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {key: child if type(child) in _FIXED else _snapshot(child) for key, child in value.items()}
    if tree.is_namedtuple(value):
        return value._make(map(_snapshot, value))
    if isinstance(value, list):
        return [_snapshot(child) for child in value]
    if isinstance(value, tuple):
        return tuple([_snapshot(child) for child in value])
    return value


def _approximate_nbytes(value: Any) -> int:
    if type(value) is np.ndarray:
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(_approximate_nbytes, value.values()))
    if isinstance(value, (tuple, list)):
        return sum(map(_approximate_nbytes, value))
    if isinstance(value, (bytes, str)):
        return len(value)
    nbytes = getattr(value, "nbytes", 8)
    return nbytes if isinstance(nbytes, int) else 8
