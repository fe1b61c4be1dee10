"""Encode batches of a source as records; elements that cannot be stored raise, or are left out and counted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from cachelayer.builds.batches import Batch, Elements, Framed, Rows, Separable
from cachelayer.errors import ElementError
from cachelayer.records import tree
from cachelayer.records.codec import Codec
from cachelayer.records.column import Column
from cachelayer.records.media import check_files
from cachelayer.records.record_buffers import Frames
from cachelayer.records.spec import LeafSpec
from cachelayer.records.tree import Tree
from cachelayer.records.wider_spec import as_code, wider
from cachelayer.user_warnings import warn

OnError = Literal["raise", "skip"]
ON_ERROR: tuple[OnError, ...] = ("raise", "skip")
_SHOWN = 10


@dataclass(frozen=True)
class Block:
    """Encoded elements of a source.

    Args:
        elements: the number of elements of the source.
        frames: the records.
        nullable: the numbers of the leaves that are None in some element.
        left_out: the first elements that were left out.
        left_out_count: the number of elements that were left out.
    """

    elements: int
    frames: list[Frames]
    nullable: frozenset[int]
    left_out: list[ElementError]
    left_out_count: int


@dataclass(frozen=True)
class LeftOut:
    """The elements that were left out of a version.

    Args:
        count: their number.
        of: the number of all elements.
        first: descriptions of the first of them.
    """

    count: int
    of: int
    first: tuple[str, ...]

    def then(self, later: LeftOut) -> LeftOut:
        """Return the sum of this and of what was left out of the elements that follow."""
        return LeftOut(self.count + later.count, self.of + later.of, (*self.first, *later.first)[:_SHOWN])

    @property
    def provenance(self) -> dict[str, Any]:
        """The number and the first of them; empty if nothing was left out."""
        return {"left_out": {"records": self.count, "first": list(self.first)}} if self.count else {}

    def warn(self) -> None:
        """Warn if elements were left out."""
        if self.count:
            warn(f"{self.count} of {self.of} records were left out. The first: {self.first[0]}")


class Encoder:
    """Encodes the batches of a source one after another.

    Args:
        codec: the codec.
        on_error: ``"skip"`` leaves out elements that do not fit the spec, and those with an image or sound that does
            not decode; ``"raise"`` raises an error for the former.
        first: the number of the first element in the source.
        nullable: the numbers of the leaves that were None in some element before.
    """

    def __init__(self, codec: Codec, on_error: OnError, first: int = 0, nullable: Iterable[int] = ()) -> None:
        self._codec = codec
        self._skips = on_error == "skip"
        self._records = self._first = first
        self._nullable = set(nullable)
        self._left_out: list[ElementError] = []
        self._left_out_count = 0

    def encode(self, batch: Batch) -> Frames:
        """Return the records of a batch.

        Raises:
            ElementError: for an element that does not fit, with its record number in the source.
        """
        if isinstance(batch, Framed):
            self._records += len(batch)
            return batch.frames
        try:
            frames = self._encoded(batch)
        except ElementError as error:
            if not self._skips:
                error.hint = " ".join(filter(None, (error.hint, self._proposal(batch, error.record or 0))))
                raise error.at(record=self._records + (error.record or 0)) from error.__cause__
            frames = self._encoded(self._good(batch))
        self._records += len(batch)
        return frames

    def _encoded(self, batch: Batch) -> Frames:
        columns = batch.columns(self._codec)
        if self._skips:
            check_files(self._codec.spec, columns)
        frames = self._codec.encode(columns, len(batch))
        self._nullable.update(index for index, column in enumerate(columns) if column.nulls is not None)
        return frames

    def _proposal(self, batch: Batch, row: int) -> str:
        """Return how to declare a spec that fits an element which did not; empty if that is unlikely to be the fix."""
        batch = batch.elements() if isinstance(batch, Rows) else batch
        if not isinstance(batch, Elements):
            return ""
        proposed = wider(self._codec.spec, batch.items[row], may_add=self._records + row == 0)
        code = "" if proposed is None else as_code(proposed)
        return f"If it should fit, pass element_spec={code}." if code else ""

    def _good(self, batch: Batch) -> Elements:
        """Return the elements of a batch that can be stored, and count the others."""
        good: list[Any] = []
        for row, one in enumerate(self._apart(batch)):
            try:
                columns: list[Column] = one.columns(self._codec)
                check_files(self._codec.spec, columns)
                self._codec.encode(columns, 1)
                good.extend(self._codec.elements(columns, 1))
            except ElementError as error:
                self._left_out_count += 1
                if len(self._left_out) < _SHOWN:
                    self._left_out.append(error.at(record=self._records + row))
        return Elements(good)

    def _apart(self, batch: Batch) -> Iterator[Batch]:
        """Return the elements of a batch, each as a batch of its own.

        Raises:
            ElementError: if the batch cannot be taken apart into elements.
        """
        if isinstance(batch, Separable):
            return batch.apart()
        try:
            return Elements(self._codec.elements(batch.columns(self._codec), len(batch))).apart()
        except ElementError as error:
            raise error.at(record=self._records + (error.record or 0)) from error.__cause__

    def block(self, frames: list[Frames]) -> Block:
        """Return what was encoded, with its records, for the encoder of another process."""
        return Block(self._records - self._first, frames, self.nullable, self._left_out, self._left_out_count)

    def take(self, block: Block) -> list[Frames]:
        """Return the records of the next block, and count them as if they had been encoded here."""
        self._records += block.elements
        self._nullable |= block.nullable
        self._left_out.extend(block.left_out[: _SHOWN - len(self._left_out)])
        self._left_out_count += block.left_out_count
        return block.frames

    @property
    def nullable(self) -> frozenset[int]:
        """The numbers of the leaves that were None in some element so far."""
        return frozenset(self._nullable)

    @property
    def left_out(self) -> LeftOut:
        """What was left out so far."""
        return LeftOut(self._left_out_count, self._records - self._first, tuple(map(str, self._left_out)))


def marked(spec: Tree, nullable: Collection[int]) -> Tree:
    """Return a spec with the leaves of these numbers marked nullable."""
    numbers = iter(range(len(tree.leaves(spec))))

    def mark(_path: str, leaf: LeafSpec | None) -> LeafSpec | None:
        if leaf is None:
            return None
        return leaf.as_nullable() if next(numbers) in nullable else leaf

    return tree.map_structure(spec, mark)
