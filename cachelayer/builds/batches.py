"""Batches of elements, in the forms that sources yield, and copies of elements that a source may change later.

::

    ElementBatch   a list of elements                             generators, sequences, datasets
    RowBatch       arrays with a row for each element             arrays, and elements that are alike
    EncodedBatch   records, as the codec of the spec writes them  versions that are rewritten, tf.data

An adapter may yield a form of its own, such as the rows of an Arrow table: whatever has the methods of :class:`Batch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import itemgetter
from time import monotonic
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import ElementError, InvalidTypeError
from cachelayer.records import tree
from cachelayer.records.codec import Codec
from cachelayer.records.frames import Frames
from cachelayer.records.leaf_columns import Column
from cachelayer.records.record_buffers import PackedRecords
from cachelayer.records.tree import Tree
from cachelayer.records.value_conversion import as_leaf
from cachelayer.records.values import Nullable, Ragged, Sparse

BATCH_NBYTES = 1 << 22
"""About the bytes of a batch."""
MAX_BATCH_RECORDS = 1024
MAX_STACKED_RECORDS = 8 * MAX_BATCH_RECORDS
"""The most records of a batch whose cost hardly grows with their number."""
BATCH_SECONDS = 1.0
"""A batch of a slow source ends after about so long, so that its shard can be finished before a kill comes."""
_VALUE_NBYTES = 8
"""About the bytes of a value that is no array."""
IMMUTABLE = frozenset({bool, int, float, complex, type(None), str, bytes})
"""Types of values that cannot change."""


class Batch(Protocol):
    """Some elements of a source, in order."""

    def __len__(self) -> int: ...

    def columns(self, codec: Codec) -> list[Column]:
        """Return the leaves of the elements, one column a leaf, for the codec to encode.

        Raises:
            ElementError: if an element does not fit the spec of the codec.
        """

    def one_by_one(self) -> Iterator[Batch]:
        """Yield each element as a batch of its own, to find out which element does not fit."""


@dataclass(frozen=True, eq=False)
class ElementBatch:
    """A list of elements."""

    items: Sequence[Any]

    def __len__(self) -> int:
        return len(self.items)

    def columns(self, codec: Codec) -> list[Column]:
        return codec.columns(self.items)

    def one_by_one(self) -> Iterator[ElementBatch]:
        return (ElementBatch([item]) for item in self.items)


@dataclass(frozen=True, eq=False)
class RowBatch:
    """Elements whose leaves are stacked on a leading axis."""

    batch: Tree
    """The structure of an element, with anything that has rows as leaves. A source may write into them later."""
    rows: int
    """The number of elements."""

    def __len__(self) -> int:
        return self.rows

    def columns(self, codec: Codec) -> list[Column]:
        with suppress(ElementError):
            return codec.batch_columns(self.batch)
        # Leaves that are not stored as columns, such as lists, may fit element by element; if not, the error is that of
        # an element.
        return self.elements().columns(codec)

    def elements(self) -> ElementBatch:
        return ElementBatch(list(map(snapshot, self.views())))

    def one_by_one(self) -> Iterator[ElementBatch]:
        return self.elements().one_by_one()

    def views(self) -> Iterator[Tree]:
        """Yield the elements, which share the memory of the batch."""
        return (tree.map_structure(self.batch, partial(_row, row)) for row in range(self.rows))

    def cut(self, start: int, stop: int, size: int) -> Iterator[RowBatch]:
        """Yield the rows from ``start`` to ``stop`` in batches of ``size`` rows."""
        for first in range(start, stop, size):
            yield self.take(slice(first, min(first + size, stop)))

    def copied(self) -> RowBatch:
        """Return the batch with copies of the arrays that lie in memory of others."""

        def copy(_path: str, leaf: Any) -> Any:
            return leaf.copy() if isinstance(leaf, np.ndarray) and leaf.base is not None else leaf

        return RowBatch(tree.map_structure(self.batch, copy), self.rows)

    def take(self, rows: slice | NDArray[Any]) -> RowBatch:
        """Return some of the rows: those of a slice, without a copy, or those with these numbers."""
        count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        return RowBatch(tree.map_structure(self.batch, partial(_rows, rows)), count)


def _row(row: int, _path: str, leaf: Any) -> Any:
    return leaf[row]


def _rows(rows: slice | NDArray[Any], _path: str, leaf: Any) -> Any:
    return leaf.rows(rows.start, rows.stop) if isinstance(leaf, Ragged) and isinstance(rows, slice) else leaf[rows]


def snapshot(value: Any) -> Any:
    """Return a copy of an element that shares no memory with it.

    Mappings become dicts, and objects with ``__array__`` become numpy arrays. A value that cannot be stored stays as it
    is: the encoder names its path when it refuses the value.
    """
    kind: Any = type(value)
    if kind in IMMUTABLE:
        return value
    if isinstance(value, np.ndarray):
        return value.copy()
    if kind is dict:
        return {key: child if type(child) in IMMUTABLE else snapshot(child) for key, child in value.items()}
    if isinstance(value, list):
        return [child if type(child) in IMMUTABLE else snapshot(child) for child in value]
    if isinstance(value, tuple):
        children = [child if type(child) in IMMUTABLE else snapshot(child) for child in value]
        return tuple(children) if kind is tuple or not tree.is_namedtuple(value) else kind._make(children)
    if isinstance(value, (np.generic, str, bytes)):
        return value
    if isinstance(value, Mapping):
        return {key: snapshot(child) for key, child in value.items()}
    if isinstance(value, Ragged):
        shapes = None if value.row_shapes is None else value.row_shapes.copy()
        return Ragged(snapshot(value.values), value.row_splits.copy(), shapes)
    if isinstance(value, Nullable):
        return Nullable(snapshot(value.values), value.valid.copy())
    if isinstance(value, Sparse):
        return Sparse(value.indices.copy(), value.values.copy(), value.dense_shape.copy())
    if not hasattr(value, "__array__"):
        return value
    try:
        leaf = as_leaf(value)
    except InvalidTypeError:
        return value
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def stack_alike(first: Any, elements: Iterator[Any]) -> tuple[RowBatch | None, list[Any]]:
    """Copy elements into the rows of arrays, for as long as they are like the first: the quick way to keep them.

    Elements are alike if they are flat dicts, tuples or lists with equal keys, whose arrays have equal dtypes and
    shapes, and whose other values cannot change; or if each is one such leaf. Other elements are copied by
    :func:`snapshot`, which takes anything and is several times slower.

    An element that makes a batch alone is not copied: the batch holds its arrays, which the source may change when it
    makes the next element.

    Args:
        first: the first element.
        elements: the elements after it. No more are drawn than make a batch.

    Returns:
        The batch, or None if the first element itself cannot be stacked; and the elements that were drawn and are not
        in the batch, of which there is one at most.
    """
    kind: Any = type(first)
    keys = list(first) if kind is dict else None
    is_tree = kind in (dict, list, tuple) or tree.is_namedtuple(first)
    if kind is dict:
        leaves = list(first.values())
    elif is_tree:
        leaves = list(first)
    else:
        leaves = [first]
    if not leaves or not all(map(_can_be_stacked, leaves)) or any(type(key) is not str for key in keys or ()):
        return None, [first]
    nbytes = sum(leaf.nbytes if type(leaf) is np.ndarray else _VALUE_NBYTES for leaf in leaves)
    most = min(MAX_BATCH_RECORDS, -(-BATCH_NBYTES // max(1, nbytes)))
    columns: list[Any] = [_room_for(leaf, most) if type(leaf) is np.ndarray else [] for leaf in leaves]
    # A getter of one key returns its value, not a tuple.
    values_of: Any = itemgetter(*keys) if keys and len(keys) > 1 else lambda element: (element[next(iter(keys or ()))],)
    numbered = list(enumerate(zip(leaves, columns, strict=True)))
    # An element that makes a batch alone lies in its columns already.
    copied = numbered if most > 1 else []
    arrays = [(n, column, leaf.dtype, leaf.shape) for n, (leaf, column) in copied if type(leaf) is np.ndarray]
    values = [(n, column.append, IMMUTABLE | {type(leaf)}) for n, (leaf, column) in numbered if type(column) is list]
    rows = 0
    text_nbytes = 0
    other: list[Any] = []
    until = monotonic() + BATCH_SECONDS
    # This loop runs once for each element of a slow source, so it is written for speed: no calls, no allocations.
    for element in chain([first], elements):
        own: Any = element if is_tree else (element,)
        is_alike = type(element) is kind and len(own) == len(leaves)
        if keys is not None and is_alike:
            try:
                own = values_of(element)
            except KeyError:
                is_alike = False
        for number, column, dtype, shape in arrays if is_alike else ():
            leaf = own[number]
            if type(leaf) is not np.ndarray or leaf.shape != shape or (leaf.dtype is not dtype and leaf.dtype != dtype):
                is_alike = False
                break
            column[rows] = leaf
        for number, append, kinds in values if is_alike else ():
            leaf = own[number]
            if type(leaf) not in kinds:
                is_alike = False
                break
            append(leaf)
            if type(leaf) is str or type(leaf) is bytes:
                text_nbytes += len(leaf)
        if not is_alike:
            other = [element]
            break
        rows += 1
        if rows == most or text_nbytes + rows * nbytes >= BATCH_NBYTES or monotonic() > until:
            break
    # The element that differs may have left some of its leaves in the columns: these are cut off.
    stacked = [np.fromiter(each[:rows], object, rows) if type(each) is list else each[:rows] for each in columns]
    batch: Tree
    if keys is not None:
        batch = dict(zip(keys, stacked, strict=True))
    elif not is_tree:
        batch = stacked[0]
    elif hasattr(kind, "_make"):
        batch = kind._make(stacked)
    else:
        batch = kind(stacked)
    return RowBatch(batch, rows), other


def _room_for(leaf: NDArray[Any], rows: int) -> NDArray[Any]:
    """Return an empty array for rows like a leaf; for one row the leaf itself, which is too long to be copied."""
    return leaf[np.newaxis] if rows == 1 else np.empty((rows, *leaf.shape), leaf.dtype)


def _can_be_stacked(leaf: Any) -> bool:
    if type(leaf) is np.ndarray:
        # The rows of a stack of arrays without dimensions would be scalars.
        return leaf.ndim > 0 and not leaf.dtype.hasobject and leaf.dtype.kind != "T"
    # A void may be a view of memory that changes.
    return type(leaf) in IMMUTABLE or (isinstance(leaf, np.generic) and not isinstance(leaf, np.void))


@dataclass(frozen=True, eq=False)
class EncodedBatch:
    """Elements that are encoded already: records, as the codec of the source's spec writes them."""

    frames: Frames

    def __len__(self) -> int:
        return len(self.frames)

    def columns(self, codec: Codec) -> list[Column]:
        frames = self.frames
        return codec.decode(PackedRecords(frames.buffer, frames.starts, frames.lengths))

    def one_by_one(self) -> Iterator[EncodedBatch]:
        return (EncodedBatch(self.frames[row : row + 1]) for row in range(len(self)))


def batch_records(record_nbytes: float, most: int = MAX_BATCH_RECORDS) -> int:
    """Return how many records of about this size make a batch; ``most`` at most."""
    return int(min(most, max(1, BATCH_NBYTES // max(1, record_nbytes))))
