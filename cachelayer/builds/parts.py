"""Sources in parts, which any number of processes build separately.

The parts depend only on the source and the options of the build, so the version is the same on any number of
processes. Each part begins a shard of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from cachelayer.builds.batches import Batch
from cachelayer.builds.build_options import RECORD_OVERHEAD, BuildOptions
from cachelayer.builds.encode import encode
from cachelayer.builds.source import Source
from cachelayer.errors import ElementError, InvalidArgumentError, SourceError
from cachelayer.locks import cached_property
from cachelayer.records.codec import codec_for

_SAMPLE = 64
FILLED = 0.8
"""How full to make the shard of a part if the sizes of its records are unknown in advance."""


@dataclass(frozen=True)
class Part:
    """A part of a source.

    Args:
        source: yields its elements.
        first, stop: those of the source that belong to it: all from the first on if ``stop`` is None.
        name: its name in error messages; empty if the record numbers are enough.
    """

    source: Source
    first: int = 0
    stop: int | None = None
    name: str = ""

    def batches(self) -> Iterator[Batch]:
        """Yield the elements."""
        return self.source.batches(self.first, self.stop)


@contextmanager
def part_in_errors(part: Part) -> Iterator[None]:
    """Add the part to errors whose record numbers do not tell it."""
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


class Parts(Protocol):
    """The parts of a source; they can be pickled."""

    @property
    def count(self) -> int:
        """How many parts."""

    @property
    def plan(self) -> dict[str, Any]:
        """What decides the parts, as JSON."""

    def describe(self, number: int) -> str:
        """Return what errors call a part."""

    def part(self, number: int) -> Part:
        """Return one of the parts.

        Raises:
            CacheLayerError: if it has no source.
        """


@dataclass(frozen=True)
class Ranges:
    """Ranges of a source that can be read from some records.

    Args:
        source: the source.
        length: number of the elements that are taken from it.
        records: about how many are in a part.
        is_all: whether these are all of its elements.
    """

    source: Source
    length: int
    records: int
    is_all: bool = True

    @cached_property
    def starts(self) -> Sequence[int]:
        """The first record of each part.

        A part has as many records as are wanted, or fewer, but at least those from one start of the source to the next.
        """
        if isinstance(self.source.starts, range):
            return range(0, self.length, self.records)
        starts = [0]
        within = [start for start in self.source.starts or () if start < self.length]
        for start, end in pairwise([*within, self.length]):
            if start > starts[-1] and end - starts[-1] > self.records:
                starts.append(start)
        return starts

    @property
    def count(self) -> int:
        """How many parts."""
        return len(self.starts)

    @property
    def plan(self) -> dict[str, Any]:
        """What decides the parts."""
        return {"records": self.records, "parts": self.count}

    def describe(self, number: int) -> str:
        records = self.range(number)
        return f"records {records[0]} to {records[-1]}"

    def range(self, number: int) -> range:
        """Return the numbers of the records of a part."""
        return range(self.starts[number], self.length if number + 1 == self.count else self.starts[number + 1])

    def part(self, number: int) -> Part:
        records = self.range(number)
        # The end of the source is asked for more, to see whether it has more than it says.
        is_last = self.is_all and records.stop == self.length
        return Part(self.source, records.start, None if is_last else records.stop)


def in_ranges(source: Source, length: int, options: BuildOptions) -> Ranges:
    """Divide a source into ranges of about a shard each, by a rule that depends on the source and the options alone.

    If all records have one size, each part is a full shard. Else their mean size is that which the source tells, or
    that of up to 64 spread records, or of so many of these as fill a shard, and a part is to fill 0.8 of a shard.

    Args:
        source: the source.
        length: number of the elements that are taken from it.
        options: how it is built, with the spec of its elements.
    """
    spec, shard_bytes = options.element_spec, options.shard_bytes
    codec = codec_for(spec)
    is_all = options.max_records is None
    if not codec.layout.varying_count:
        return Ranges(source, length, _in_a_shard(codec.layout.fixed_nbytes, shard_bytes), is_all)
    mean = source.record_nbytes
    if mean is None:
        sampled = range(0, length, max(1, -(-length // _SAMPLE)))
        nbytes = records = 0
        for first in sampled:
            # What does not fit is an error when it is built, or left out then.
            with suppress(ElementError):
                for frames in encode(source, spec, "raise", first, 1)[0]:
                    nbytes, records = nbytes + int(frames.lengths.sum()), records + len(frames)
            if nbytes >= shard_bytes:
                break
        mean = nbytes / max(1, records)
    return Ranges(source, length, _in_a_shard(mean, int(shard_bytes * FILLED)), is_all)


def _in_a_shard(record_nbytes: float, shard_bytes: int) -> int:
    return max(1, int(shard_bytes // (record_nbytes + RECORD_OVERHEAD)))


def divide(source: Source, options: BuildOptions) -> Parts | None:
    """Return the parts of a source; None if it cannot be divided.

    They do not depend on who builds them, so that the version is the same on any number of processes and hosts.

    Args:
        source: the source.
        options: how it is built, with the spec of its elements.
    """
    if source.parts is not None:
        if options.max_records is not None:
            raise InvalidArgumentError(
                "max_records: it is unknown which records of a source in parts come first: limit them in the function"
            )
        return source.parts
    length = options.expected(source.length)
    # Whether a source that says that it is empty is so shows when it is read.
    if source.starts is not None and length:
        return in_ranges(source, length, options)
    if options.engine is not None and length != 0:
        raise InvalidArgumentError(
            f"engine: {type(options.engine).__name__} builds parts, and a source of {source.kind} cannot be divided: "
            "pass cachelayer.sharded(function, count), or a sequence with a length"
        )
    return None
