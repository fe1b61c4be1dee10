"""Batches of elements, in each form that sources yield, and copies of elements that a source may change later."""

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
from cachelayer.records.infer import as_leaf
from cachelayer.records.layout import Column
from cachelayer.records.record_buffers import PackedRecords
from cachelayer.records.tree import Tree
from cachelayer.records.values import Nullable, Ragged, Sparse

BATCH_NBYTES = 1 << 22
MAX_BATCH_RECORDS = 1024
MAX_STACKED_RECORDS = 8 * MAX_BATCH_RECORDS
"""The most records of a batch whose cost hardly grows with their number."""
BATCH_SECONDS = 1.0
"""A batch of a slow source ends after about so long, so that its shard can be finished before a kill comes."""
_VALUE_NBYTES = 8
IMMUTABLE = frozenset({bool, int, float, complex, type(None), str, bytes})
"""Types of values that cannot change."""


class Batch(Protocol):
    """Some elements of a source, in order."""

    def __len__(self) -> int: ...

    def columns(self, codec: Codec) -> list[Column]:
        """Return the columns of the elements."""

    def apart(self) -> Iterator[Batch]:
        """Yield each element as a batch of its own: so those are found that do not fit."""


@dataclass(frozen=True, eq=False)
class ElementBatch:
    """Elements one by one."""

    items: Sequence[Any]

    def __len__(self) -> int:
        return len(self.items)

    def columns(self, codec: Codec) -> list[Column]:
        return codec.columns(self.items)

    def apart(self) -> Iterator[ElementBatch]:
        return (ElementBatch([item]) for item in self.items)


@dataclass(frozen=True, eq=False)
class RowBatch:
    """Elements with their leaves stacked on a leading axis.

    Args:
        batch: the structure of an element, with anything that has rows as leaves. A source may write into them later.
        rows: the number of elements.
    """

    batch: Tree
    rows: int

    def __len__(self) -> int:
        return self.rows

    def columns(self, codec: Codec) -> list[Column]:
        with suppress(ElementError):
            return codec.batch_columns(self.batch)
        # They may fit one by one.
        return self.elements().columns(codec)

    def elements(self) -> ElementBatch:
        return ElementBatch(list(map(snapshot, self.views())))

    def apart(self) -> Iterator[ElementBatch]:
        return self.elements().apart()

    def views(self) -> Iterator[Tree]:
        """Yield the elements, which share the memory of the batch."""
        return (tree.map_structure(self.batch, partial(_row, row)) for row in range(self.rows))

    def cut(self, start: int, stop: int, size: int) -> Iterator[RowBatch]:
        """Yield the rows of a range in batches of this size."""
        for first in range(start, stop, size):
            yield self.take(slice(first, min(first + size, stop)))

    def copied(self) -> RowBatch:
        """Return the batch with arrays of its own."""

        def own(_path: str, leaf: Any) -> Any:
            return leaf.copy() if isinstance(leaf, np.ndarray) and leaf.base is not None else leaf

        return RowBatch(tree.map_structure(self.batch, own), self.rows)

    def take(self, rows: slice | NDArray[Any]) -> RowBatch:
        """Return some of the rows: of a range without a copy, or of these numbers."""
        count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        return RowBatch(tree.map_structure(self.batch, partial(_rows, rows)), count)


def _row(row: int, _path: str, leaf: Any) -> Any:
    return leaf[row]


def _rows(rows: slice | NDArray[Any], _path: str, leaf: Any) -> Any:
    return leaf.rows(rows.start, rows.stop) if isinstance(leaf, Ragged) and isinstance(rows, slice) else leaf[rows]


def snapshot(value: Any) -> Any:
    """Return a copy of an element that shares no memory with it.

    Structures become dicts, lists and tuples; whatever has ``__array__`` becomes a numpy array. What cannot be stored
    stays as it is: the encoder refuses it by its path.
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
    """Copy elements that are like a first one straight into arrays with a row for each: the quick way to keep them.

    A long element, which makes a batch alone, is not copied: the source may change it when the next one is drawn.

    These are flat dicts, tuples and lists of arrays of one dtype and shape and of values that cannot change, or one
    such leaf. What is not alike is left to code that takes anything.

    Args:
        first: the first element.
        elements: the elements after it; no more are taken than make a batch.

    Returns:
        The batch, None if not even the first element can be copied so; and a list of the one that was taken but is not
        like the first, if there is one.
    """
    kind: Any = type(first)
    keys = list(first) if kind is dict else None
    is_tree = kind in (dict, list, tuple) or tree.is_namedtuple(first)
    leaves = list(first.values()) if kind is dict else list(first) if is_tree else [first]
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
    rows, texts, other, until = 0, 0, [], monotonic() + BATCH_SECONDS
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
                texts += len(leaf)
        if not is_alike:
            other = [element]
            break
        rows += 1
        if rows == most or texts + rows * nbytes >= BATCH_NBYTES or monotonic() > until:
            break
    # A leaf before the one that differs may have been added already.
    stacked = [np.fromiter(each[:rows], object, rows) if type(each) is list else each[:rows] for each in columns]
    if keys is not None:
        return RowBatch(dict(zip(keys, stacked, strict=True)), rows), other
    batch = stacked[0] if not is_tree else kind._make(stacked) if hasattr(kind, "_make") else kind(stacked)
    return RowBatch(batch, rows), other


def _room_for(leaf: NDArray[Any], rows: int) -> NDArray[Any]:
    """Return an array for so many rows like a leaf; for one row the leaf itself, since it is long."""
    return leaf[np.newaxis] if rows == 1 else np.empty((rows, *leaf.shape), leaf.dtype)


def _can_be_stacked(leaf: Any) -> bool:
    if type(leaf) is np.ndarray:
        # The rows of a stack of arrays without dimensions would be scalars.
        return leaf.ndim > 0 and not leaf.dtype.hasobject and leaf.dtype.kind != "T"
    # A void may be a view of memory that changes.
    return type(leaf) in IMMUTABLE or (isinstance(leaf, np.generic) and not isinstance(leaf, np.void))


@dataclass(frozen=True, eq=False)
class Framed:
    """Elements that are encoded already: records of the codec of the source's spec."""

    frames: Frames

    def __len__(self) -> int:
        return len(self.frames)

    def columns(self, codec: Codec) -> list[Column]:
        frames = self.frames
        return codec.decode(PackedRecords(frames.buffer, frames.starts, frames.lengths))

    def apart(self) -> Iterator[Framed]:
        return (Framed(self.frames[row : row + 1]) for row in range(len(self)))


def batch_records(record_nbytes: float, most: int = MAX_BATCH_RECORDS) -> int:
    """Return the number of records of about this size that make a batch."""
    return int(min(most, max(1, BATCH_NBYTES // max(1, record_nbytes))))
