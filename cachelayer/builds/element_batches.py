"""Make batches of elements that the user's code gives one by one; its errors name the record.

Elements that are alike are copied straight into the rows of arrays, which is the quick way to keep them::

    elements                          columns
    {"x": float32[3], "label": 7}     x: float32[3, 3]     an array, with a row for each element
    {"x": float32[3], "label": 2}     label: [7, 2, 5]     a list, of values that are no arrays
    {"x": float32[3], "label": 5}

Others are copied one by one, by :func:`~cachelayer.builds.batches.snapshot`, which takes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count, islice
from operator import itemgetter
from time import monotonic
from types import WrapperDescriptorType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.builds.batches import (
    BATCH_NBYTES,
    BATCH_SECONDS,
    IMMUTABLE,
    MAX_BATCH_RECORDS,
    Batch,
    ElementBatch,
    RowBatch,
    snapshot,
)
from cachelayer.errors import CacheLayerError, SourceError
from cachelayer.records.infer import approximate_nbytes
from cachelayer.specs import tree
from cachelayer.specs.tree import Tree
from cachelayer.support.leases import empty
from cachelayer.support.progress import Progress, current

FAILURES = (Exception, GeneratorExit)
"""The exceptions that a source may raise."""
_NEXT = ("__next__", "next")
_VALUE_NBYTES = 8
"""About the bytes of a value that is no array."""


@contextmanager
def errors_named(what: str) -> Iterator[None]:
    """Raise an error of the user's code as a :class:`SourceError` that says what failed."""
    try:
        yield
    except CacheLayerError:
        raise
    except FAILURES as error:
        raise _failed(what, error) from error


def _failed(what: str, error: BaseException) -> SourceError:
    return SourceError(f"{what}: {type(error).__name__}: {error}")


def failure_at(record: int) -> str:
    return f"the source failed at record {record}"


def with_record_in_errors(
    elements: Iterator[Any], records: Iterator[int], progress: Progress | None = None
) -> Iterator[Any]:
    """Yield elements; if their iterator fails, name the record.

    ``records`` yields the record number of each element, before that element is drawn. ``progress`` counts an element
    when the next one is asked for.
    """
    for record in records:
        try:
            element = next(elements)
        except StopIteration as end:
            _refuse_if_raised_within(elements, end, record)
            return
        except CacheLayerError:
            raise
        except FAILURES as error:
            raise _failed(failure_at(record), error) from error
        yield element
        if progress is not None:
            progress.drawn += 1


def element_batches(elements: Iterator[Any], record: int, most: int | None = None) -> Iterator[Batch]:
    """Yield copies of elements in batches. A batch ends when it is full, or has taken long; an error names the record.

    The source may change an element when it makes the next one. At most ``most`` elements are drawn.
    """
    elements = islice(with_record_in_errors(elements, count(record), current()), most)
    for first in elements:
        batch, others = stack_alike(first, elements)
        if batch is not None:
            record += len(batch)
            # The element that is not like the first was drawn too. It is copied at once, because the consumer of this
            # batch may do anything before the next is asked for.
            others = _copies(iter(others), record)
            yield batch
        if others:
            items = _copies(chain(others, elements), record)
            record += len(items)
            yield ElementBatch(items)


def _copies(elements: Iterator[Any], record: int) -> list[Any]:
    """Draw as many elements as make a batch, and return copies of them."""
    items: list[Any] = []
    nbytes = 0
    until = monotonic() + BATCH_SECONDS
    for item in with_record_in_errors(map(snapshot, elements), count(record)):
        items.append(item)
        nbytes += approximate_nbytes(item)
        if len(items) == MAX_BATCH_RECORDS or nbytes >= BATCH_NBYTES or monotonic() > until:
            break
    return items


def _refuse_if_raised_within(iterator: Iterator[Any], end: StopIteration, record: int) -> None:
    """Raise if the StopIteration of an iterator such as ``map`` came from the function that it calls.

    That is a bug of the function, not the end of the iterator, and it would cut the version short without a word.
    """
    if not isinstance(type(iterator).__next__, WrapperDescriptorType):
        # An iterator that is written in Python may raise StopIteration in any of its functions, and mean the end.
        return
    within = end.__traceback__.tb_next if end.__traceback__ is not None else None
    name = None if within is None else within.tb_frame.f_code.co_name
    if name is not None and name not in _NEXT:
        raise SourceError(f"{failure_at(record)}: {name}() raised StopIteration") from end


@dataclass(frozen=True, eq=False)
class _Structure:
    """The structure of an element: a flat dict, list or tuple of leaves, or one leaf."""

    kind: Any
    """The type of the element."""
    keys: list[Any] | None
    """The keys of a dict; None for anything else."""
    is_tree: bool
    """Whether it has several leaves; else it is a leaf."""
    leaves: list[Any]
    leaves_of: Callable[[Any], Any]
    """Takes the leaves of an element of this structure, by their numbers."""

    @classmethod
    def of(cls, element: Any) -> _Structure:
        kind = type(element)
        if kind is dict:
            keys = list(element)
            # An itemgetter of one key returns the value, and no tuple.
            leaves_of = itemgetter(*keys) if len(keys) > 1 else lambda alike: tuple(map(alike.__getitem__, keys))
            return cls(kind, keys, True, list(element.values()), leaves_of)
        if kind in (list, tuple) or tree.is_namedtuple(element):
            return cls(kind, None, True, list(element), lambda alike: alike)
        return cls(kind, None, False, [element], lambda alike: (alike,))

    def joined(self, columns: list[Any]) -> Tree:
        """Return columns in the places of the leaves."""
        if self.keys is not None:
            return dict(zip(self.keys, columns, strict=True))
        if not self.is_tree:
            return columns[0]
        return self.kind._make(columns) if hasattr(self.kind, "_make") else self.kind(columns)


def stack_alike(first: Any, elements: Iterator[Any]) -> tuple[RowBatch | None, list[Any]]:
    """Copy elements into the rows of arrays, for as long as they are like the first.

    Elements are alike if they are flat dicts, tuples or lists with equal keys, whose arrays have equal dtypes and
    shapes, and whose other values cannot change; or if each is one such leaf.

    An element that makes a batch alone is not copied: the batch holds its arrays, which the source may change when it
    makes the next element.

    Returns the batch, or None if the first element itself cannot be stacked; and the elements that were drawn and are
    not in the batch, of which there is one at most.
    """
    structure = _Structure.of(first)
    leaves = structure.leaves
    if not leaves or not all(map(_can_be_stacked, leaves)) or any(type(key) is not str for key in structure.keys or ()):
        return None, [first]
    nbytes = sum(leaf.nbytes if type(leaf) is np.ndarray else _VALUE_NBYTES for leaf in leaves)
    most = min(MAX_BATCH_RECORDS, -(-BATCH_NBYTES // max(1, nbytes)))
    columns: list[Any] = [_room_for(leaf, most) if type(leaf) is np.ndarray else [] for leaf in leaves]
    rows, others = _fill(columns, chain([first], elements), structure, nbytes, most)
    # The element that differs may have left some of its leaves in the columns: these are cut off.
    stacked = [np.fromiter(each[:rows], object, rows) if type(each) is list else each[:rows] for each in columns]
    return RowBatch(structure.joined(stacked), rows), others


def _fill(
    columns: list[Any], elements: Iterator[Any], structure: _Structure, nbytes: int, most: int
) -> tuple[int, list[Any]]:
    """Write elements into the rows of columns, until one is not like the first, or the batch is full or takes long.

    Returns the number of rows, and the element that is not like the first, if one was drawn.
    """
    kind = structure.kind
    leaves = structure.leaves
    # A leaf that is an element has no length, and is the only one of its row.
    size = len(leaves) if structure.is_tree else None
    leaves_of = structure.leaves_of
    numbered = list(enumerate(zip(leaves, columns, strict=True)))
    # An element that makes a batch alone lies in its columns already.
    copied = numbered if most > 1 else []
    arrays = [(n, column, leaf.dtype, leaf.shape) for n, (leaf, column) in copied if type(leaf) is np.ndarray]
    values = [(n, column.append, IMMUTABLE | {type(leaf)}) for n, (leaf, column) in numbered if type(column) is list]
    rows = 0
    filled = 0
    until = monotonic() + BATCH_SECONDS
    # This loop runs for every element, so it does as little as possible: no function is called for a leaf.
    for element in elements:
        if type(element) is not kind or (size is not None and len(element) != size):
            return rows, [element]
        try:
            own = leaves_of(element)
        except KeyError:
            return rows, [element]
        for number, column, dtype, shape in arrays:
            leaf = own[number]
            if type(leaf) is not np.ndarray or (leaf.dtype is not dtype and leaf.dtype != dtype) or leaf.shape != shape:
                return rows, [element]
            column[rows] = leaf
        for number, append, kinds in values:
            leaf = own[number]
            if type(leaf) not in kinds:
                return rows, [element]
            append(leaf)
            if type(leaf) is str or type(leaf) is bytes:
                filled += len(leaf)
        rows += 1
        filled += nbytes
        if rows == most or filled >= BATCH_NBYTES or monotonic() > until:
            break
    return rows, []


def _room_for(leaf: NDArray[Any], rows: int) -> NDArray[Any]:
    """Return an empty array for rows like a leaf; for one row the leaf itself, which is too long to be copied."""
    if rows == 1:
        return leaf[np.newaxis]
    return np.ndarray((rows, *leaf.shape), leaf.dtype, empty((rows * leaf.nbytes,)))


def _can_be_stacked(leaf: Any) -> bool:
    if type(leaf) is np.ndarray:
        # The rows of a stack of arrays without dimensions would be scalars.
        return leaf.ndim > 0 and not leaf.dtype.hasobject and leaf.dtype.kind != "T"
    # A void may be a view of memory that changes.
    return type(leaf) in IMMUTABLE or (isinstance(leaf, np.generic) and not isinstance(leaf, np.void))
