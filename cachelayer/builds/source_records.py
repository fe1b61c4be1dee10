"""Records of a source by number, encoded as a build encodes them: what a version that is being built has not stored."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from cachelayer.builds.batches import Batch
from cachelayer.builds.encode import UNDECODED, Encoder, RangeEncoder
from cachelayer.builds.source import Source
from cachelayer.errors import ElementError, SourceError
from cachelayer.records.codec import codec_for
from cachelayer.records.frames import Frames
from cachelayer.records.spans import Spans
from cachelayer.specs.tree import Tree
from cachelayer.support.locks import ProcessLock
from cachelayer.support.memory import Ints

_MOST_HELD_NBYTES = 1 << 28


class SourceRecords:
    """Reads records of a source with a length that can be read from some records. Thread-safe and picklable.

    One thread reads the source at a time.
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
        """Return the records of these numbers, and the numbers of the null bits that are set in some of them."""
        with self._lock.of_process():
            read = self._from_starts if self._source.take is None else partial(self._taken, self._source.take)
            frames, nulls = read(numbers.tolist())
        return frames.records(), nulls

    def _taken(self, take: Callable[[Sequence[int]], Batch], numbers: Sequence[int]) -> tuple[Frames, frozenset[int]]:
        batch = take(numbers)
        if len(batch) < len(numbers):
            raise SourceError(f"the source has no record {numbers[len(batch)]}, but its length is {self._length}")
        encoder = Encoder(self._codec, UNDECODED, place=lambda row: self._source.place(numbers[row]))
        try:
            return encoder.encode(batch), encoder.result.nullable
        except ElementError as error:
            if error.record is None:
                raise
            raise error.at(record=numbers[error.record]) from error.__cause__

    def _from_starts(self, numbers: Sequence[int]) -> tuple[Frames, frozenset[int]]:
        """Return records of a source that is read from its starts."""
        frames = list[Frames]()
        nulls = frozenset[int]()
        starts = self._source.starts or ()
        for number in numbers:
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
        stop = min(self._length, starts[after]) if after < len(starts) else self._length
        encoded, result = RangeEncoder(self._source, self._codec, UNDECODED)(begin, stop - begin)
        frames = Frames.joined(encoded)
        self._blocks[begin] = frames, result.nullable
        self._held_nbytes += frames.buffer.nbytes
        while len(self._blocks) > 1 and self._held_nbytes > _MOST_HELD_NBYTES:
            _, (oldest, _) = self._blocks.popitem(last=False)
            self._held_nbytes -= oldest.buffer.nbytes
        return self._blocks[begin]
