"""Sources whose parts a function makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, overload

from cachelayer.arguments import explains_options, integer
from cachelayer.builds.batches import Batch
from cachelayer.builds.parts import Part
from cachelayer.builds.source import Source
from cachelayer.errors import CacheLayerError, InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.protocols import T

_STANDARD = frozenset({"builtins", "itertools", "_io", "_csv"})
"""The modules of iterators that never begin again."""


class Sharded(Generic[T]):
    """A source whose parts a function makes.

    Args:
        function: takes the number of a part and the number of parts, and returns a source of its elements.
        count: number of parts.

    Raises:
        InvalidTypeError: if the function is not callable, or the count is not an integer.
        InvalidArgumentError: if the count is below 1.
    """

    def __init__(self, function: Callable[[int, int], Any], count: int) -> None:
        if not callable(function):
            raise InvalidTypeError(
                f"sharded: expected a function, got a value of type {type(function).__name__}: pass one that takes the "
                "number of a part and the number of parts, and returns a source of its elements"
            )
        self.function = function
        self.count = integer("count", count, 1)

    def source(self, open_part: Callable[[Any], Source]) -> Source:
        """Return the source of the elements of all parts, one part after another.

        Args:
            open_part: returns the source that an object is which the function returned.
        """
        parts = FunctionParts(self.function, self.count, open_part)
        return Source("sharded", parts.read, parts=parts, workers_make="parts")


class FunctionParts:
    """The parts that a function makes; each has a name.

    Args:
        function, count: those of :class:`Sharded`.
        open_part: returns the source that an object is which the function returned.
    """

    def __init__(self, function: Callable[[int, int], Any], count: int, open_part: Callable[[Any], Source]) -> None:
        self.count = count
        self._function = function
        self._open_part = open_part
        self._returned: Any = None

    @property
    def plan(self) -> dict[str, Any]:
        """What decides the parts."""
        return {"parts": self.count}

    def part(self, number: int) -> Part:
        """Return one of the parts.

        Raises:
            CacheLayerError: if it has no source.
        """
        try:
            made = self._function(number, self.count)
        except CacheLayerError:
            raise
        except Exception as error:
            raise SourceError(
                f"{self.describe(number)}: the function failed: {type(error).__name__}: {error}"
            ) from error
        self._refuse_begun(made, number)
        try:
            return Part(self._open_part(made), name=self.describe(number))
        except (InvalidTypeError, InvalidArgumentError, SourceError) as error:
            raise type(error)(f"{self.describe(number)}: {error}") from error

    def describe(self, number: int) -> str:
        """Return what errors call a part."""
        return f"part {number} of {self.count}"

    def read(self, _: int, stop: int | None) -> Iterator[Batch]:
        """Yield the elements of all parts, one part after another."""
        left = stop
        for number in range(self.count):
            for batch in self.part(number).source.batches(stop=left):
                left = None if left is None else left - len(batch)
                yield batch

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


@overload
def sharded(function: Callable[[int, int], Mapping[Any, Any]], count: int) -> Sharded[Any]: ...
@overload
def sharded(function: Callable[[int, int], Iterable[T]], count: int) -> Sharded[T]: ...
@overload
def sharded(function: Callable[[int, int], Any], count: int) -> Sharded[Any]: ...
@explains_options
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
