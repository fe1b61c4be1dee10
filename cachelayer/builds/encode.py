"""Encode batches of a source as records, here or in worker processes.

ElementBatch that cannot be stored raise, or are left out and counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Literal

from cachelayer.builds.batches import (
    BATCH_NBYTES,
    BATCH_SECONDS,
    MAX_BATCH_RECORDS,
    Batch,
    ElementBatch,
    Framed,
    RowBatch,
    Separable,
    counted,
)
from cachelayer.builds.source import Seekable
from cachelayer.engines.engine import errors_of
from cachelayer.engines.processes import DiedError, ProcessPool
from cachelayer.errors import ElementError, SourceError
from cachelayer.progress import Progress
from cachelayer.records import tree
from cachelayer.records.codec import Codec, codec_for
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
_SAMPLE = 8
_BLOCKS_PER_WORKER = 2


@dataclass(frozen=True)
class EncodedChunk:
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
        batch = batch.elements() if isinstance(batch, RowBatch) else batch
        if not isinstance(batch, ElementBatch):
            return ""
        proposed = wider(self._codec.spec, batch.items[row], may_add=self._records + row == 0)
        code = "" if proposed is None else as_code(proposed)
        return f"If it should fit, pass element_spec={code}." if code else ""

    def _good(self, batch: Batch) -> ElementBatch:
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
        return ElementBatch(good)

    def _apart(self, batch: Batch) -> Iterator[Batch]:
        """Return the elements of a batch, each as a batch of its own."""
        if isinstance(batch, Separable):
            return batch.apart()
        try:
            return ElementBatch(self._codec.elements(batch.columns(self._codec), len(batch))).apart()
        except ElementError as error:
            raise error.at(record=self._records + (error.record or 0)) from error.__cause__

    def block(self, frames: list[Frames]) -> EncodedChunk:
        """Return what was encoded, with its records, for the encoder of another process."""
        return EncodedChunk(self._records - self._first, frames, self.nullable, self._left_out, self._left_out_count)

    def take(self, block: EncodedChunk) -> list[Frames]:
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
        return LeftOut(self._left_out_count, self._records - self._first, tuple(map(str, self._left_out)))


def marked(spec: Tree, nullable: Collection[int]) -> Tree:
    """Return a spec with the leaves of these numbers marked nullable."""
    numbers = iter(range(len(tree.leaves(spec))))

    def mark(_path: str, leaf: LeafSpec | None) -> LeafSpec | None:
        if leaf is None:
            return None
        return leaf.as_nullable() if next(numbers) in nullable else leaf

    return tree.map_structure(spec, mark)


def encode_with_workers(
    source: Seekable, spec: Tree, on_error: OnError, workers: int, start: int, stop: int
) -> Generator[EncodedChunk, None, None]:
    """Yield the elements from ``start`` to ``stop`` of a source in blocks, in order; closing it kills the processes.

    Args:
        source: the source, which can begin at any record; it is pickled, by value if the main program defines it.
        spec: the element spec.
        on_error: what to do with elements that do not fit.
        workers: number of processes; each has two blocks in progress.
        start, stop: the elements.
    """
    encode_block = partial(encode, source, spec, on_error)
    with ProcessPool(encode_block, workers, "workers: the source") as pool:
        size = _block_records(partial(encode, source, spec, "skip"), workers, start, stop)
        pending: deque[tuple[str, Future[EncodedChunk]]] = deque()
        for first in range(start, stop, size):
            end = min(first + size, stop)
            pending.append((f"records {first} to {end - 1}", pool.submit(first, end - first)))
            if len(pending) >= _BLOCKS_PER_WORKER * workers:
                yield _result(*pending.popleft())
        while pending:
            yield _result(*pending.popleft())


def _block_records(encode_sample: partial[EncodedChunk], workers: int, start: int, stop: int) -> int:
    """Return the number of records in a block, from the first: no worker should idle, or work on one, for long."""
    began = monotonic()
    # An element that does not fit is encoded again later; then it raises or is left out.
    with Progress("", None, enabled=False):
        sample = encode_sample(start, min(_SAMPLE, stop - start))
    in_time = int(BATCH_SECONDS * _SAMPLE // max(1e-9, monotonic() - began))
    sizes = [nbytes for frames in sample.frames for nbytes in frames.lengths]
    share = -(-(stop - start) // (workers * _BLOCKS_PER_WORKER))
    fitting = int(BATCH_NBYTES // max(1, sum(sizes) / max(1, len(sizes))))
    return max(1, min(MAX_BATCH_RECORDS, fitting, share, in_time))


def _result(records: str, block: Future[EncodedChunk]) -> EncodedChunk:
    with errors_of(f"the worker process of {records}"):
        try:
            return block.result()
        except DiedError as error:
            raise SourceError(f"a worker process {error} while it made {records}") from error


def encode(source: Seekable, spec: Tree, on_error: OnError, start: int, count: int) -> EncodedChunk:
    """Encode one block of a source which can begin at any record."""
    encoder = Encoder(codec_for(spec), on_error, start)
    begun = source.skipped(start)
    frames = [encoder.encode(batch) for batch in counted(begun.batches(count), begun.length, start, count)]
    return encoder.block(frames)
