"""Batches of elements, in each form that sources yield."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from cachelayer.builds.element_copies import snapshot
from cachelayer.errors import ElementError, SourceError
from cachelayer.records import tree
from cachelayer.records.codec import Codec
from cachelayer.records.column import Column
from cachelayer.records.record_buffers import Frames, RecordBuffer
from cachelayer.records.tree import Tree
from cachelayer.records.values import Nullable

BATCH_NBYTES = 1 << 22
MAX_BATCH_RECORDS = 1024
MAX_STACKED_RECORDS = 8 * MAX_BATCH_RECORDS
"""The most records of a batch whose cost hardly grows with their number."""
BATCH_SECONDS = 1.0
"""A batch of a slow source ends after about so long, so that its shard can be finished before a kill comes."""


class Batch(Protocol):
    """Some elements of a source, in order."""

    def __len__(self) -> int: ...

    def columns(self, codec: Codec) -> list[Column]:
        """Return the columns of the elements; errors count records from the first of the batch."""


@runtime_checkable
class Separable(Batch, Protocol):
    """A batch that can be taken apart, so that elements which do not fit a column can be skipped."""

    def apart(self) -> Iterator[Batch]:
        """Yield each element as a batch of its own."""


@dataclass(frozen=True, eq=False)
class ElementBatch:
    """Elements one by one."""

    items: Sequence[Any]

    def __len__(self) -> int:
        return len(self.items)

    def columns(self, codec: Codec) -> list[Column]:
        return codec.columns(self.items)

    def apart(self) -> Iterator[Batch]:
        return (ElementBatch([item]) for item in self.items)


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
class RowBatch:
    """Elements with their leaves stacked on a leading axis, which may fit the spec only one by one.

    Args:
        batch: the structure of an element, with arrays and Ragged as leaves. A source may write into them later.
        rows: the number of elements.
    """

    batch: Tree
    rows: int

    def __len__(self) -> int:
        return self.rows

    def columns(self, codec: Codec) -> list[Column]:
        with suppress(ElementError):
            return codec.batch_columns(self.batch)
        return codec.columns(self.elements().items)

    def elements(self) -> ElementBatch:
        return ElementBatch([snapshot(row_of(self.batch, row)) for row in range(self.rows)])

    def apart(self) -> Iterator[Batch]:
        return self.elements().apart()


@dataclass(frozen=True, eq=False)
class Prepared:
    """Elements in the columns of the codec of the source's spec."""

    prepared: list[Column]
    rows: int

    def __len__(self) -> int:
        return self.rows

    def columns(self, codec: Codec) -> list[Column]:  # noqa: ARG002
        return self.prepared


@dataclass(frozen=True, eq=False)
class Framed:
    """Elements that are encoded already: records of the codec of the source's spec."""

    frames: Frames

    def __len__(self) -> int:
        return len(self.frames)

    def columns(self, codec: Codec) -> list[Column]:
        frames = self.frames
        decoded = codec.decode(RecordBuffer(frames.buffer, frames.starts, frames.lengths))
        return [column for column in decoded if column is not None]


def row_of(batch: Tree, row: int) -> Tree:

    def taken(_path: str, leaf: Any) -> Any:
        if isinstance(leaf, Nullable):
            return leaf.values[row] if leaf.valid[row] else None
        return leaf[row]

    return tree.map_structure(batch, taken)


def batch_records(record_nbytes: float, most: int = MAX_BATCH_RECORDS) -> int:
    """Return the number of records that make a batch.

    Args:
        record_nbytes: the bytes of a record.
        most: the most records of a batch.
    """
    return int(min(most, max(1, BATCH_NBYTES // max(1, record_nbytes))))


def counted(batches: Iterator[Batch], length: int | None, first: int, limit: int | None) -> Iterator[Batch]:
    """Yield the batches of a source, and raise if their number of elements is not what the source promises.

    Args:
        batches: the batches that the source yields.
        length: the total number of elements that the source promises; None if it promises none.
        first: the number of the first of these elements in the source.
        limit: the number of elements that were asked for; None for all.
    """
    if length is None:
        yield from batches
        return
    wanted = max(0, length - first)
    wanted = wanted if limit is None else min(wanted, limit)
    yielded = 0
    for batch in batches:
        yielded += len(batch)
        if yielded > wanted:
            raise wrong_length(length, f"goes on after {first + wanted}")
        yield batch
    if yielded < wanted:
        raise wrong_length(length, f"ended after {first + yielded}")


def wrong_length(length: int, what: str) -> SourceError:
    """Return the error for a source that has more or fewer elements than its length says."""
    return SourceError(
        f"the source {what} elements, but its length is {length}: correct its __len__, or pass a function that yields "
        "the elements: it promises no length"
    )
