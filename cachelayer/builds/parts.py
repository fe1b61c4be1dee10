"""The parts of a source, each of which a process builds by itself.

::

    Ranges        records 0 to 799 | 800 to 1599 | 1600 to 2000    of a source that can be read from there
    SourceParts   part 0 of 3      | part 1 of 3 | part 2 of 3     each a source: of a file, or of cachelayer.sharded
    Whole         all records                                      of a source that cannot be divided

Where the parts begin depends on the source and the options alone, never on who builds them. Each part begins a shard.
So a version has the same shards on any number of processes and hosts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from cachelayer.builds.batches import Batch, stacked_records
from cachelayer.builds.build_options import RECORD_OVERHEAD, BuildOptions
from cachelayer.builds.encode import UNDECODED, Checks, Encoder, RangeEncoder
from cachelayer.builds.source import Part, Parts, Source
from cachelayer.errors import ElementError, InvalidArgumentError, SourceError
from cachelayer.provenance.stored_values import hashed, stored
from cachelayer.records.codec import Codec, codec_for
from cachelayer.records.frames import Frames
from cachelayer.specs.tree import Tree
from cachelayer.support.locks import cached_property
from cachelayer.support.user_warnings import warn

_COMPARED = 16
"""How many records are compared before several processes build one version."""
_SAMPLE = 64
"""How many records are encoded to estimate the mean size of a record."""
FILLED = 0.8
"""The share of a shard that a part of records of estimated size is to fill, so that few parts need a second shard."""


@contextmanager
def part_in_errors(part: Part) -> Iterator[None]:
    """Add the name of a part, if it has one, to the errors that are raised meanwhile."""
    try:
        yield
    except ElementError as error:
        if not part.name:
            raise
        place = f"{part.name}, {error.place}" if error.place else part.name
        raise error.at(place=place) from error
    except SourceError as error:
        if not part.name:
            raise
        raise type(error)(f"{part.name}: {error}") from error


@dataclass(frozen=True)
class Ranges:
    """Ranges of records of a source that can be read from some records on."""

    source: Source
    length: int
    """How many elements are taken from the source."""
    records: int
    """About how many records a part has."""
    is_all: bool = True
    """Whether all elements of the source are taken."""

    @cached_property
    def starts(self) -> Sequence[int]:
        """The first record of each part.

        A part has at most ``records`` records, unless there are more between two starts of the source::

            starts of the source     0    100    200            900    1000      records=250
            starts of the parts      0           200            900
        """
        if isinstance(self.source.starts, range):
            # The source can be read from any record.
            return range(0, self.length, self.records)
        starts = [0]
        within = [start for start in self.source.starts or () if start < self.length]
        for start, end in pairwise([*within, self.length]):
            if start > starts[-1] and end - starts[-1] > self.records:
                starts.append(start)
        return starts

    @property
    def count(self) -> int:
        return len(self.starts)

    @property
    def plan(self) -> dict[str, Any]:
        return {"records": self.records, "parts": self.count}

    def describe(self, number: int) -> str:
        records = self.range(number)
        return f"records {records[0]} to {records[-1]}"

    def range(self, number: int) -> range:
        """Return the numbers of the records of a part."""
        return range(self.starts[number], self.length if number + 1 == self.count else self.starts[number + 1])

    def part(self, number: int) -> Part:
        records = self.range(number)
        # The last part is read to the end of the source, to see whether that has more elements than its length.
        is_last = self.is_all and records.stop == self.length
        return Part(self.source, records.start, None if is_last else records.stop)


@dataclass(frozen=True)
class Whole:
    """A source that cannot be divided: one part, which one process builds."""

    source: Source
    stop: int | None
    """How many elements are taken from the source; None for all."""

    count: ClassVar[int] = 1
    plan: ClassVar[None] = None

    def describe(self, _: int) -> str:
        return f"all elements of a source of {self.source.kind}"

    def part(self, _: int) -> Part:
        return Part(self.source, 0, self.stop)


class SourceParts:
    """Parts that are sources themselves. Each has a name, because records are numbered within their part.

    Their kind is ``"file"``, or ``"part"`` if the user's function makes them. ``open_part`` is called anew in each
    process that builds the part.
    """

    def __init__(self, kind: str, count: int, open_part: Callable[[int], Source]) -> None:
        self.count = count
        self.kind = kind
        self._open = open_part
        self._reading: tuple[Source, int] | None = None
        """The part that ``read`` has come to, and the number of its first record."""

    @property
    def plan(self) -> dict[str, Any]:
        return {"parts": self.count}

    def describe(self, number: int) -> str:
        return f"{self.kind} {number} of {self.count}"

    def part(self, number: int) -> Part:
        return Part(self._open(number), name=self.describe(number))

    def source(self, kind: str, **facts: Any) -> Source:
        """Return the source of the elements of all parts, one part after another."""
        return Source(kind, self._read, place=self._place, parts=self, workers_make="parts", **facts)

    def _read(self, _: int, stop: int | None) -> Iterator[Batch]:
        record = 0
        for part in map(self.part, range(self.count)):
            self._reading = part.source, record
            with part_in_errors(part):
                for batch in part.source.batches(stop=None if stop is None else stop - record):
                    record += len(batch)
                    yield batch
            if record == stop:
                return

    def _place(self, record: int) -> str:
        if self._reading is None:
            return ""
        source, first = self._reading
        return source.place(record - first)


def source_of_files(kind: str, sources: Sequence[Source], element_spec: Tree, **facts: Any) -> Source:
    """Return the source of some files, each of which is a part if there are several."""
    if len(sources) == 1:
        return sources[0]
    return SourceParts("file", len(sources), sources.__getitem__).source(kind, element_spec=element_spec, **facts)


def in_ranges(source: Source, length: int, options: BuildOptions) -> Ranges:
    """Divide a source into ranges of about a shard each, by a rule that depends on the source and the options alone.

    If all records have one size, each part is a full shard. Else a part is to fill 0.8 of a shard with records of mean
    size. The source tells the mean; if not, it is that of 64 records that are spread over the source, or of the first
    of them that would fill a shard.
    """
    shard_bytes = options.shard_bytes
    codec = codec_for(options.element_spec)
    is_all = options.max_records is None
    if not codec.layout.varying_count:
        return Ranges(source, length, _in_a_shard(codec.layout.fixed_nbytes, shard_bytes), is_all)
    mean = source.record_nbytes
    if mean is None:
        nbytes = 0
        records = 0
        for record_nbytes in _sampled(source, codec, range(0, length, max(1, -(-length // _SAMPLE)))):
            nbytes += record_nbytes
            records += 1
            if nbytes >= shard_bytes:
                break
        mean = nbytes / max(1, records)
    return Ranges(source, length, _in_a_shard(mean, int(shard_bytes * FILLED)), is_all)


def _sampled(source: Source, codec: Codec, numbers: range) -> Iterator[int]:
    """Yield the bytes of some records. One that does not fit is an error, or left out, when its part is built."""
    checks = Checks(skips=True, validates=False)
    if source.take is None or source.nbytes is None:
        encode = RangeEncoder(source, codec, checks)
        for number in numbers:
            for frames in encode(number, 1)[0]:
                yield from frames.lengths.tolist()
        return
    # Of rows in memory, many take hardly longer than one.
    at_once = stacked_records(source.nbytes / max(1, source.length or 0), len(codec.leaves))
    for first in range(0, len(numbers), at_once):
        rows = source.take([*numbers[first : first + at_once]])
        yield from Encoder(codec, checks).encode(rows).lengths.tolist()


def _in_a_shard(record_nbytes: float, shard_bytes: int) -> int:
    return max(1, int(shard_bytes // (record_nbytes + RECORD_OVERHEAD)))


def compared_records(parts: Ranges | SourceParts, spec: Tree) -> dict[str, str]:
    """Return hashes of a few records, spread evenly, that all who build must have alike; none if they are random."""
    if isinstance(parts, Ranges):
        starts = parts.source.starts or ()
        spread = [number * (parts.length - 1) // _COMPARED for number in range(_COMPARED + 1)]
        begins = sorted({starts[bisect_right(starts, number) - 1] for number in spread})
        first = {f"record {start}": (parts.source, start) for start in begins}
    else:
        numbers = sorted({number * (parts.count - 1) // _COMPARED for number in range(_COMPARED + 1)})
        first = {parts.describe(number): (parts.part(number).source, 0) for number in numbers}
    codec = codec_for(spec)
    hashes: dict[str, set[str]] = {}
    # Only code gives other records each time; files do not.
    for name, (source, start) in [*first.items()] * (2 if isinstance(parts, Ranges) else 1):
        # An element that does not fit is an error, or is left out, when its part is built.
        with suppress(ElementError, SourceError):
            frames = RangeEncoder(source, codec, UNDECODED)(start, 1)[0]
            hashes.setdefault(name, set()).add(stored(hashed(b"".join(map(Frames.memory, frames)))))
    if any(len(each) > 1 for each in hashes.values()):
        return {}
    return {name: each.pop() for name, each in hashes.items()}


def divide(source: Source, options: BuildOptions, length: int | None) -> Parts:
    """Return the parts of a source, of which ``length`` elements are taken if that is known."""
    if source.parts is not None and options.max_records is None:
        return source.parts
    if source.kind == "sharded":
        raise InvalidArgumentError(
            "max_records: it is unknown which records of a source in parts come first: limit them in the function"
        )
    # A source of length 0 is read whole too: it may have more elements than it says.
    if source.starts is not None and length:
        return in_ranges(source, length, options)
    if options.engine is not None and length != 0:
        raise InvalidArgumentError(
            f"engine: {type(options.engine).__name__} builds parts, and a source of {source.kind} cannot be divided: "
            "pass cachelayer.sharded(function, count), or a sequence with a length"
        )
    if options.workers > 1 and source.length != 0:
        warn(
            f"workers={options.workers}: a source of {source.kind} cannot be divided, so one process makes and writes "
            "its elements. More processes can work on a sequence with a length, on most datasets, and on what "
            "cachelayer.sharded(function, count) returns"
        )
    return Whole(source, options.max_records)
