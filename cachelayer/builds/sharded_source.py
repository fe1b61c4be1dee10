"""Sources in parts, which any number of processes build separately.

The parts depend only on the source and the options of the build, so the version is the same on any number of
processes. Each part begins a shard of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Protocol, overload, runtime_checkable

from cachelayer.arguments import integer
from cachelayer.builds.array_source import ArraySource
from cachelayer.builds.batches import Batch
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.build_shards import infer_spec
from cachelayer.builds.encode import encode
from cachelayer.builds.shard_cuts import RECORD_OVERHEAD
from cachelayer.builds.source import Seekable, Source, as_source
from cachelayer.errors import CacheLayerError, ElementError, InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.locks import cached_property
from cachelayer.protocols import T
from cachelayer.records.codec import TypedCodec, codec_for
from cachelayer.records.tree import Tree

_SAMPLE = 64
_LOOK_AHEAD = (1, 100, 10_000)
_PARTS_PER_WORKER = 2
_STANDARD = frozenset({"builtins", "itertools", "_io", "_csv"})
"""The modules of iterators that never begin again."""
FILLED = 0.8
"""How full to make the shard of a part if the sizes of its records are unknown in advance."""


@dataclass(frozen=True)
class Part:
    """A part of a source.

    Args:
        source: yields its elements.
        first: the number of the first of them in error messages.
        records: how many there are; None for all elements of the source.
        name: its name in error messages; empty if the record numbers are enough.
    """

    source: Source
    first: int = 0
    records: int | None = None
    name: str = ""


@runtime_checkable
class Parts(Protocol):
    """A source that comes in parts; it can be pickled."""

    @property
    def count(self) -> int:
        """How many parts."""

    @property
    def plan(self) -> dict[str, Any] | None:
        """What decides the parts, as JSON; None if the shards equal those of a build in one piece."""

    def describe(self, number: int) -> str:
        """Return what errors call a part."""

    def part(self, number: int) -> Part:
        """Return one of the parts.

        Raises:
            CacheLayerError: if it has no source.
        """


class Sharded(Generic[T]):
    """A source whose parts a function makes.

    Args:
        function: takes the number of a part and the number of parts, and returns a source of its elements.
        count: number of parts.

    Raises:
        InvalidTypeError: if the function is not callable, or the count is not an integer.
        InvalidArgumentError: if the count is below 1.
    """

    kind = "sharded"
    length: int | None = None

    def __init__(self, function: Callable[[int, int], Any], count: int) -> None:
        if not callable(function):
            raise InvalidTypeError(
                f"sharded: expected a function, got a value of type {type(function).__name__}: pass one that takes the "
                "number of a part and the number of parts, and returns a source of its elements"
            )
        self.function = function
        self.count = integer("count", count, 1)
        self._unbatch = False
        self._declared: Tree | None = None
        self._returned: Any = None

    @property
    def plan(self) -> dict[str, Any]:
        """What decides the parts."""
        return {"parts": self.count}

    @cached_property
    def element_spec(self) -> Tree | None:
        found = self._source(0).element_spec
        return self._declared if found is None else found

    def made_with(self, *, unbatch: bool, element_spec: Tree | None) -> Sharded[T]:
        """Return a source of the same parts, with each part unbatched or with the declared spec."""
        made: Sharded[T] = Sharded(self.function, self.count)
        made._unbatch, made._declared = unbatch, element_spec
        return made

    def part(self, number: int) -> Part:
        """Return one of the parts."""
        return Part(self._source(number), name=self.describe(number))

    def describe(self, number: int) -> str:
        """Return what errors call a part."""
        return f"part {number} of {self.count}"

    def _source(self, number: int) -> Source:
        try:
            made = self.function(number, self.count)
        except CacheLayerError:
            raise
        except Exception as error:
            raise SourceError(
                f"{self.describe(number)}: the function failed: {type(error).__name__}: {error}"
            ) from error
        self._refuse_begun(made, number)
        try:
            return as_source(made, unbatch=self._unbatch, element_spec=self._declared)
        except (InvalidTypeError, InvalidArgumentError, SourceError) as error:
            raise type(error)(f"{self.describe(number)}: {error}") from error

    def _refuse_begun(self, made: Any, number: int) -> None:
        """Raise if the function returns one iterator again and again: elements were taken from it before."""
        if type(made).__module__ not in _STANDARD or not isinstance(made, Iterator):
            return
        if made is self._returned:
            raise SourceError(
                f"{self.describe(number)}: the function returned a {type(made).__name__} that it had returned before, "
                "and the elements that were taken from it are lost: make a new one in each call"
            )
        self._returned = made

    def __getstate__(self) -> dict[str, Any]:
        # Few iterators can be pickled.
        return {**self.__dict__, "_returned": None}

    def batches(self, limit: int | None) -> Iterator[Batch]:
        """Yield the elements of all parts, one part after another."""
        left = limit
        for number in range(self.count):
            for batch in self._source(number).batches(left):
                left = None if left is None else left - len(batch)
                yield batch


@overload
def sharded(function: Callable[[int, int], Mapping[Any, Any]], count: int) -> Sharded[Any]: ...
@overload
def sharded(function: Callable[[int, int], Iterable[T]], count: int) -> Sharded[T]: ...
@overload
def sharded(function: Callable[[int, int], Any], count: int) -> Sharded[Any]: ...
def sharded(function: Callable[[int, int], Any], count: int) -> Sharded[Any]:
    """Return a source in parts, which several processes or hosts can build at the same time.

    Args:
        function: takes the number of a part and the number of parts, and returns a source of the elements of this part:
            whatever :meth:`cachelayer.Storage.cache` takes. It runs in the process that builds the part, and again
            if that was interrupted, so it gives the same elements each time.
        count: number of parts; each begins a shard of its own, so a part of less than a shard is a small file. The
            version has the records of the parts in the order of their numbers.

    Returns:
        What :meth:`cachelayer.Storage.cache` takes.

    Raises:
        InvalidTypeError, InvalidArgumentError: if an argument is invalid.
    """
    return Sharded(function, count)


@dataclass(frozen=True)
class Ranges:
    """A source that can begin at any record, divided into ranges of equal numbers of records.

    Args:
        source: the source.
        length: number of its elements.
        records: number of records in a part.
        is_exact: whether each part is exactly a shard of an undivided build.
    """

    source: Seekable
    length: int
    records: int
    is_exact: bool

    @property
    def count(self) -> int:
        """How many parts."""
        return -(-self.length // self.records)

    @property
    def plan(self) -> dict[str, Any] | None:
        """What decides the parts."""
        return None if self.is_exact else {"records": self.records}

    def describe(self, number: int) -> str:
        first = number * self.records
        return f"records {first} to {min(self.length, first + self.records) - 1}"

    def part(self, number: int) -> Part:
        first = number * self.records
        return Part(self.source.skipped(first), first, min(self.records, self.length - first))


def in_ranges(source: Seekable, length: int, spec: Tree, options: BuildOptions) -> Ranges:
    """Divide a source into ranges of about a shard each.

    Args:
        source: the source.
        length: number of its elements.
        spec: the spec of its elements.
        options: how it is built.
    """
    codec = codec_for(spec)
    if isinstance(codec, TypedCodec) and not codec.layout.variable_count and options.on_error == "raise":
        return Ranges(source, length, _in_a_shard(codec.layout.fixed_nbytes, options.shard_bytes), is_exact=True)
    step = max(1, length // _SAMPLE)
    sizes = [
        int(nbytes)
        for first in range(0, length, step)
        for frames in encode(source, spec, "skip", first, 1).frames
        for nbytes in frames.lengths
    ]
    mean = sum(sizes) / max(1, len(sizes))
    return Ranges(source, length, _in_a_shard(mean, int(options.shard_bytes * FILLED)), is_exact=False)


def _in_a_shard(record_nbytes: float, shard_bytes: int) -> int:
    return max(1, int(shard_bytes // (record_nbytes + RECORD_OVERHEAD)))


def spec_of(parts: Parts) -> Tree | None:
    """Return the spec of the elements of a source in parts: the declared one, else that of the first element."""
    unknown: ElementError | None = None
    for number in range(parts.count):
        source = parts.part(number).source
        if source.element_spec is not None:
            return source.element_spec
        try:
            found = _inferred(partial(_first, parts, number))
        except ElementError as error:
            # A leaf is None in all elements of this part: another part may show its dtype.
            unknown = error
        else:
            if found is not None:
                return found
    if unknown is not None:
        raise unknown
    return None


def _first(parts: Parts, number: int, limit: int) -> Iterator[Batch]:
    return parts.part(number).source.batches(limit)


def _inferred(batches: Callable[[int], Iterator[Batch]]) -> Tree | None:
    """Return the spec of a source's first elements, reading as few as possible; None if it has no element."""
    for limit in _LOOK_AHEAD:
        try:
            spec, seen = infer_spec(batches(limit))
        except ElementError:
            if limit == _LOOK_AHEAD[-1]:
                raise
        else:
            return None if next(seen, None) is None else spec
    return None


@dataclass(frozen=True)
class Division:
    """A build in parts.

    Args:
        parts: the source.
        options: how each part is built, with the element spec.
    """

    parts: Parts
    options: BuildOptions


def divide(source: Source, options: BuildOptions, *, apart: bool) -> Division | None:
    """Divide a build into parts if that is possible and useful; return None to build it in one piece.

    Args:
        source: what is built.
        options: the options of the build.
        apart: whether an engine or other hosts build it.
    """
    if isinstance(source, Parts):
        if options.max_records is not None:
            raise InvalidArgumentError(
                "max_records: it is unknown which records of a source in parts come first: limit them in the function"
            )
        spec = options.element_spec if options.element_spec is not None else spec_of(source)
        return Division(source, replace(options, element_spec=spec, workers=1, engine=None))
    if not apart and (options.workers == 1 or isinstance(source, ArraySource)):
        return None
    length = options.expected(source.length)
    if not isinstance(source, Seekable) or length is None:
        if options.engine is not None:
            raise InvalidArgumentError(
                f"engine={options.engine!r}: a source of {source.kind} cannot be divided: pass "
                "cachelayer.sharded(function, count), or a sequence with a length"
            )
        return None
    spec = options.element_spec if options.element_spec is not None else source.element_spec
    if spec is None:
        spec = _inferred(lambda limit: source.skipped(0).batches(min(limit, length)))
    ranges = in_ranges(source, length, spec, options)
    if not apart and not (ranges.is_exact and ranges.count >= _PARTS_PER_WORKER * options.workers):
        return None
    return Division(ranges, replace(options, element_spec=spec, max_records=None, workers=1, engine=None))
