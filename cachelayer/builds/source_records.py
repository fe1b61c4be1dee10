"""Records of a source by number, encoded as a build encodes them: what a version that is being built has not stored."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from cachelayer.builds.batches import Batch, ElementBatch, snapshot
from cachelayer.builds.encode import Encoder
from cachelayer.builds.source import Source, with_record_in_errors
from cachelayer.errors import ElementError
from cachelayer.locks import ProcessLock
from cachelayer.records.codec import codec_for
from cachelayer.records.frames import Frames
from cachelayer.records.memory import Ints
from cachelayer.records.spans import Spans
from cachelayer.records.tree import Tree

_MOST_HELD_NBYTES = 1 << 28


class SourceRecords:
    """Reads records of a source with a length that can be read from some records. Thread-safe and picklable.

    Args:
        source: the source; one thread reads it at a time.
        length: the number of elements that are taken from it.
    """

    def __init__(self, source: Source, length: int, spec: Tree) -> None:
        self._source = source
        self._length = length
        self._spec = spec
        self._codec = codec_for(spec)
        self._lock = ProcessLock()
        self._blocks: OrderedDict[int, tuple[Frames, frozenset[int]]] = OrderedDict()
        """The records from some starts of the source up to the next, if reading from a start reads many."""
        self._held_nbytes = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return SourceRecords, (self._source, self._length, self._spec)

    def __call__(self, numbers: Ints) -> tuple[Spans, frozenset[int]]:
        """Return the records of these numbers, and the numbers of the null bits that are set in some of them.

        Raises:
            SourceError: if the source fails, or has another number of elements than it says.
            ElementError: if an element does not fit the spec; names its number.
        """
        with self._lock.of_process():
            if self._source.table is not None or self._source.elements is not None:
                frames, nulls = self._encoded(self._batch(numbers.tolist()), numbers)
            else:
                frames, nulls = self._from_starts(numbers)
        return frames.records(), nulls

    def _batch(self, numbers: list[int]) -> Batch:
        table = self._source.table
        if table is not None:
            return table.take(numbers)
        return ElementBatch(list(map(snapshot, with_record_in_errors(self._elements(numbers), iter(numbers)))))

    def _elements(self, numbers: Sequence[int]) -> Iterator[Any]:
        """Yield the elements of these numbers; those in a row are read by one iterator."""
        following = -1
        elements: Iterator[Any] = iter(())
        for number in numbers:
            if number != following:
                elements = self._source.one_by_one(number)
            yield next(elements)
            following = number + 1

    def _encoded(self, batch: Batch, numbers: Ints) -> tuple[Frames, frozenset[int]]:
        encoder = Encoder(self._codec, "raise", validate=False)
        try:
            return encoder.encode(batch), encoder.result.nullable
        except ElementError as error:
            if error.record is None:
                raise
            raise error.at(record=int(numbers[error.record])) from error.__cause__

    def _from_starts(self, numbers: Ints) -> tuple[Frames, frozenset[int]]:
        """Return records of a source that is read in batches from its starts."""
        frames = list[Frames]()
        nulls = frozenset[int]()
        starts = self._source.starts or ()
        if isinstance(starts, range):
            for first, stop in _in_a_row(numbers.tolist()):
                records, their_nulls = self._read(first, stop)
                frames.append(records)
                nulls |= their_nulls
            return Frames.joined(frames), nulls
        for number in numbers.tolist():
            begin = starts[bisect_right(starts, number) - 1]
            records, their_nulls = self._block(begin)
            frames.append(records[number - begin : number - begin + 1])
            nulls |= their_nulls
        return Frames.joined(frames), nulls

    def _block(self, begin: int) -> tuple[Frames, frozenset[int]]:
        """Return the records from a start to the next, such as those of a row group of a file, and keep them."""
        if begin in self._blocks:
            self._blocks.move_to_end(begin)
            return self._blocks[begin]
        starts = self._source.starts or ()
        after = bisect_right(starts, begin)
        block = self._read(begin, min(self._length, starts[after]) if after < len(starts) else self._length)
        self._blocks[begin] = block
        self._held_nbytes += block[0].buffer.nbytes
        while len(self._blocks) > 1 and self._held_nbytes > _MOST_HELD_NBYTES:
            _, (frames, _) = self._blocks.popitem(last=False)
            self._held_nbytes -= frames.buffer.nbytes
        return block

    def _read(self, first: int, stop: int) -> tuple[Frames, frozenset[int]]:
        encoder = Encoder(self._codec, "raise", first, validate=False)
        frames = Frames.joined(list(map(encoder.encode, self._source.batches(first, stop))))
        return frames, encoder.result.nullable


def _in_a_row(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first number and the end of each range of consecutive numbers."""
    first = numbers[0]
    for number, following in pairwise([*numbers, -1]):
        if following != number + 1:
            yield first, number + 1
            first = following
