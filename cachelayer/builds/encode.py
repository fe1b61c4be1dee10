"""Encode the batches of a source as records, in this process or in worker processes.

An element that does not fit the spec is an error, or is left out and counted. A batch that fails is halved again and
again, to find out which elements do not fit.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING, Literal

from cachelayer.builds.batches import (
    BATCH_NBYTES,
    BATCH_SECONDS,
    MAX_BATCH_RECORDS,
    Batch,
    EncodedBatch,
    nowhere,
)
from cachelayer.engines.processes import ProcessPool
from cachelayer.errors import ElementError, SourceError
from cachelayer.records.codec import Codec
from cachelayer.records.frames import Frames
from cachelayer.records.media import check_files
from cachelayer.support.progress import Progress
from cachelayer.versions.notes import PartResult

if TYPE_CHECKING:
    # Worker processes import this module; the sources that they do not read would make their start slower.
    from cachelayer.builds.source import Source

OnError = Literal["raise", "skip"]
ON_ERROR: tuple[OnError, ...] = ("raise", "skip")
# What an error says of an array, such as "float32[3]". Only that is stored: anything else could show a value.
_DTYPE_AND_SHAPE = re.compile(r"None|(bool|bfloat16|(u?int|float|complex)\d+)\[[\d, ]*\]", re.ASCII)


@dataclass(frozen=True)
class Checks:
    """How elements are checked."""

    skips: bool = False
    """Whether elements are left out that do not fit the spec, or have an image or sound that does not decode; else they
    are errors."""
    validates: bool = True
    """Whether images and sounds are decoded."""


UNDECODED = Checks(validates=False)
_SAMPLE = 8
"""How many elements are encoded to learn how long one takes and how large it is."""
EncodedRange = tuple[list[Frames], PartResult]
"""The records of a range of elements, and the result of that range without shards."""
_RANGES_PER_WORKER = 2
"""How many ranges a worker process has in progress: it begins the next one while the first is on its way."""


@dataclass(eq=False)
class Encoder:
    """Encodes the batches of a source one after another."""

    codec: Codec
    checks: Checks = Checks()
    first: int = 0
    """The number of the first element in the source."""
    place: Callable[[int], str] = nowhere
    """Given the number of a record, returns its file and line, for an error that is shown."""
    part: str = ""
    """The text before the number of an element in stored errors, if the number does not tell enough."""
    result: PartResult = field(default_factory=PartResult)
    """The result of encoding the elements so far, without shards."""

    def encode(self, batch: Batch) -> Frames:
        """Return the records of the next elements of the source, and count these elements."""
        if isinstance(batch, EncodedBatch):
            if batch.spec != self.codec.spec:
                raise SourceError(f"its elements are {batch.spec}, and those of the first part {self.codec.spec}")
            self.result = self.result.then(PartResult(elements=len(batch)))
            return batch.frames
        good = list(self._fitting(batch))
        return good[0] if len(good) == 1 else Frames.joined(good)

    def take(self, encoded: EncodedRange) -> list[Frames]:
        """Return the records of the next elements, which a worker process has encoded, and count these elements."""
        frames, result = encoded
        self.result = self.result.then(result)
        return frames

    def _fitting(self, batch: Batch) -> Iterator[Frames]:
        """Yield the records of the elements that fit, and count all. Raise the error of another, or leave it out."""
        try:
            columns = batch.columns(self.codec)
            if self.checks.validates:
                check_files(self.codec.schema, columns)
            frames = self.codec.encode(columns)
        except ElementError as error:
            if len(batch) == 1:
                record = self.first + self.result.elements
                # Of the elements that are left out, the first alone is shown with its place.
                located = error.at(record=record, place="" if self.result.left_out else self.place(record))
                if not self.checks.skips:
                    raise located from error.__cause__
                part = f"{self.part}: " if self.part else ""
                line = f"{part}{_without_values(located)}"
                left_out = PartResult(elements=1, left_out=1, first_left_out=(line,), first_reason=f"{part}{located}")
                self.result = self.result.then(left_out)
                return
        else:
            self.result = self.result.then(PartResult((), self.codec.null_bits_in(columns), len(batch)))
            yield frames
            return
        middle = len(batch) // 2
        yield from self._fitting(batch[0:middle])
        yield from self._fitting(batch[middle : len(batch)])


def _without_values(error: ElementError) -> str:
    """Return the text of an error without any value of the element: the provenance stores it."""
    got = error.got if _DTYPE_AND_SHAPE.fullmatch(error.got) else "another value"
    return str(ElementError(error.expected, got, path=error.path, record=error.record))


@dataclass(frozen=True, eq=False)
class RangeEncoder:
    """Encodes ranges of the elements of a source, which can be read from where they begin."""

    source: Source
    codec: Codec
    checks: Checks

    def __call__(self, start: int, count: int) -> EncodedRange:
        """Encode ``count`` elements from the element ``start`` on."""
        encoder = Encoder(self.codec, self.checks, start, self.source.place)
        frames = [encoder.encode(batch) for batch in self.source.batches(start, start + count)]
        return frames, encoder.result


def encode_with_workers(
    encode: RangeEncoder, workers: int, parts: Iterable[tuple[int, range]]
) -> Generator[tuple[int, EncodedRange], None, None]:
    """Encode parts of a source in worker processes, range by range; closing the generator kills the processes.

    A range is at most a batch, so that all processes work on the same part, and a small version is divided too.

    Yields the number of the part, and its next range, in the order of the elements. A part is drawn when there is room
    for it. ``encode`` is pickled, by value if the main program defines the source.
    """
    with ProcessPool(encode, workers, "workers: the source") as pool:
        most = 0
        pending: deque[tuple[int, Future[bytes]]] = deque()
        for number, records in parts:
            most = most or _most_records(encode, records)
            # Each part leaves work for every process.
            size = max(1, min(most, -(-len(records) // (workers * _RANGES_PER_WORKER))))
            for first in range(records.start, records.stop, size):
                end = min(first + size, records.stop)
                pending.append((number, pool.submit(f"records {first} to {end - 1}", first, end - first)))
                if len(pending) >= _RANGES_PER_WORKER * workers:
                    part, encoded = pending.popleft()
                    yield part, pool.result(encoded)
        for part, encoded in pending:
            yield part, pool.result(encoded)


def _most_records(encode: RangeEncoder, part: range) -> int:
    """Return the most records of a range, judged by the first elements of a part.

    A range is to take a second or so, and to make no more than a batch.
    """
    began = monotonic()
    elements = 0
    records = 0
    nbytes = 0
    most = min(_SAMPLE, len(part))
    # These elements are encoded again with their range. Elements that do not fit raise then, and not here.
    sample = replace(encode, checks=replace(encode.checks, skips=True))
    with Progress("", None, enabled=False):
        while elements < most and nbytes < BATCH_NBYTES:
            for frames in sample(part.start + elements, 1)[0]:
                records += len(frames)
                nbytes += int(frames.lengths.sum())
            elements += 1
    in_time = int(BATCH_SECONDS * elements // max(1e-9, monotonic() - began))
    fitting = int(BATCH_NBYTES // max(1, nbytes / max(1, records)))
    return max(1, min(MAX_BATCH_RECORDS, fitting, in_time))
