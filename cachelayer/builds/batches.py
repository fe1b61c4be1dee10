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
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import ElementError, InvalidTypeError
from cachelayer.records.codec import Codec
from cachelayer.records.frames import Frames
from cachelayer.records.leaf_columns import Columns
from cachelayer.records.pictures import picture_file
from cachelayer.records.value_conversion import as_leaf
from cachelayer.records.video import Video
from cachelayer.specs import tree
from cachelayer.specs.tree import Tree
from cachelayer.specs.values import Nullable, Ragged, Sparse

BATCH_NBYTES = 1 << 22
"""About the bytes of a batch."""
MAX_BATCH_RECORDS = 1024
_MAX_STACKED_RECORDS = 8 * MAX_BATCH_RECORDS
_COLUMN_NBYTES = 1 << 13
"""About the bytes of a column of a batch with very many columns: fewer take hardly less time."""
BATCH_SECONDS = 1.0
"""A batch of a slow source ends after about so long, so that its shard can be finished before a kill comes."""
IMMUTABLE = frozenset({bool, int, float, complex, type(None), str, bytes, Video})
"""Types of values that cannot change."""


class Batch(Protocol):
    """Some elements of a source, in order."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Self:
        """Return some of the elements."""

    def columns(self, codec: Codec) -> Columns:
        """Return the columns of the elements, for the codec to encode."""


B = TypeVar("B", bound=Batch)


def cut(batch: B, size: int) -> Iterator[B]:
    """Yield a batch in batches of ``size`` elements."""
    if 0 < len(batch) <= size:
        return iter((batch,))
    return (batch[first : first + size] for first in range(0, len(batch), size))


@dataclass(frozen=True, eq=False)
class ElementBatch:
    """A list of elements."""

    items: Sequence[Any]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, rows: slice, /) -> ElementBatch:
        return ElementBatch(self.items[rows])

    def columns(self, codec: Codec) -> Columns:
        return codec.columns(self.items)


@dataclass(frozen=True, eq=False)
class RowBatch:
    """Elements whose leaves are stacked on a leading axis."""

    batch: Tree
    """The structure of an element, with anything that has rows as leaves. A source may write into them later."""
    rows: int
    """The number of elements."""

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, rows: slice, /) -> RowBatch:
        """Return some of the rows, without a copy."""
        start, stop, _ = rows.indices(self.rows)
        return RowBatch(tree.map_structure(self.batch, partial(_rows, slice(start, stop))), stop - start)

    def columns(self, codec: Codec) -> Columns:
        with suppress(ElementError):
            return codec.batch_columns(self.batch, self.rows)
        # Leaves that are not stored as columns, such as lists, may fit element by element; if not, the error is that of
        # an element.
        return self.elements().columns(codec)

    def elements(self) -> ElementBatch:
        return ElementBatch(list(map(snapshot, self.views())))

    def views(self) -> Iterator[Tree]:
        """Yield the elements, which share the memory of the batch."""
        return (tree.map_structure(self.batch, partial(_row, row)) for row in range(self.rows))

    def copied(self) -> RowBatch:
        """Return the batch with copies of the arrays that lie in memory of others."""

        def copy(_path: str, leaf: Any) -> Any:
            return leaf.copy() if isinstance(leaf, np.ndarray) and leaf.base is not None else leaf

        return RowBatch(tree.map_structure(self.batch, copy), self.rows)

    def take(self, numbers: Sequence[int]) -> RowBatch:
        """Return the rows with some numbers, without a copy if they are a range."""
        if isinstance(numbers, range):
            return self[numbers.start : numbers.stop]
        return RowBatch(tree.map_structure(self.batch, partial(_rows, np.asarray(numbers))), len(numbers))


def _row(row: int, _path: str, leaf: Any) -> Any:
    return leaf[row]


def _rows(rows: slice | NDArray[Any], _path: str, leaf: Any) -> Any:
    return leaf.rows(rows.start, rows.stop) if isinstance(leaf, Ragged) and isinstance(rows, slice) else leaf[rows]


def snapshot(value: Any) -> Any:
    """Return a copy of an element that shares no memory with it.

    Mappings become dicts, objects with ``__array__`` numpy arrays, pictures of Pillow their files. A value that cannot
    be stored stays as it is: the encoder names its path when it refuses the value.
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
        return picture_file(value)
    try:
        leaf = as_leaf(value)
    except InvalidTypeError:
        return value
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


@dataclass(frozen=True, eq=False)
class EncodedBatch:
    """Elements that are encoded already: records, as the codec of the source's spec writes them."""

    frames: Frames
    spec: Tree
    """The spec of the source."""

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, rows: slice, /) -> EncodedBatch:
        return EncodedBatch(self.frames[rows], self.spec)

    def columns(self, codec: Codec) -> Columns:
        frames = self.frames
        return codec.decode(frames.records())


def nowhere(_: int) -> str:
    """Return the place of a record of which only the number is known: none."""
    return ""


def batch_records(record_nbytes: float, most: int = MAX_BATCH_RECORDS) -> int:
    """Return how many records of about this size make a batch; ``most`` at most."""
    return int(min(most, max(1, BATCH_NBYTES // max(1, record_nbytes))))


def stacked_records(record_nbytes: float, columns: int) -> int:
    """Return how many records of about this size make a batch of columns, whose cost hardly grows with the records."""
    nbytes = max(BATCH_NBYTES, columns * _COLUMN_NBYTES)
    return int(min(_MAX_STACKED_RECORDS, max(1, nbytes // max(1, record_nbytes))))
