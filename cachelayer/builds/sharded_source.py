"""Sources whose parts a function of the user makes: :func:`cachelayer.sharded`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, overload

from cachelayer.arguments import explains_options, integer
from cachelayer.builds.batches import Batch
from cachelayer.builds.parts import Part
from cachelayer.builds.source import Source, errors_named
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.protocols import T


@dataclass(frozen=True, eq=False)
class Sharded(Generic[T]):
    """A source in parts, as :func:`cachelayer.sharded` returns it.

    Raises:
        InvalidTypeError: if the function is not callable, or the count is not an integer.
        InvalidArgumentError: if the count is below 1.

    Examples:
        >>> source = cachelayer.sharded(lambda part, count: [f"{part} of {count}"], 3)
        >>> source.count, source.function(1, source.count)
        (3, ['1 of 3'])
        >>> list(cachelayer.Storage(folder).cache(source, "parts", "v1"))
        ['0 of 3', '1 of 3', '2 of 3']
    """

    function: Callable[[int, int], Any]
    """Takes the number of a part and the number of parts, and returns a source of the part's elements."""
    count: int
    """The number of parts."""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidTypeError(
                f"sharded: expected a function, got a value of type {type(self.function).__name__}: pass one that "
                "takes the number of a part and the number of parts, and returns a source of its elements"
            )
        object.__setattr__(self, "count", integer("count", self.count, 1))


def source_of_parts(sharded: Sharded[Any], open_part: Callable[[Any], Source]) -> Source:
    """Return the source of the elements of all parts, one part after another.

    Args:
        sharded: the source in parts.
        open_part: returns the source of whatever the function has returned.
    """
    parts = FunctionParts(sharded.function, sharded.count, open_part)
    return Source("sharded", parts.read, parts=parts, workers_make="parts")


class FunctionParts:
    """The parts that a function makes, each of which has a name.

    Args:
        function, count: as in :class:`Sharded`.
        open_part: returns the source of whatever the function has returned.
    """

    def __init__(self, function: Callable[[int, int], Any], count: int, open_part: Callable[[Any], Source]) -> None:
        self.count = count
        self._function = function
        self._open_part = open_part

    @property
    def plan(self) -> dict[str, Any]:
        return {"parts": self.count}

    def part(self, number: int) -> Part:
        """Return a part by its number.

        Raises:
            CacheLayerError: if the function fails, or returns no source.
        """
        with errors_named(f"{self.describe(number)}: the function failed"):
            returned = self._function(number, self.count)
        try:
            return Part(self._open_part(returned), name=self.describe(number))
        except (InvalidTypeError, InvalidArgumentError, SourceError) as error:
            raise type(error)(f"{self.describe(number)}: {error}") from error

    def describe(self, number: int) -> str:
        return f"part {number} of {self.count}"

    def read(self, _: int, stop: int | None) -> Iterator[Batch]:
        """Yield the elements of all parts, one part after another."""
        left = stop
        for number in range(self.count):
            for batch in self.part(number).source.batches(stop=left):
                left = None if left is None else left - len(batch)
                yield batch


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
        function: takes the number of a part and the number of parts, and returns a source of the part's elements:
            whatever :meth:`cachelayer.Storage.cache` takes. It is called in the process that builds the part, and again
            if that is interrupted, so it must give the same elements each time.
        count: the number of parts. Each begins a shard, so a part that is smaller than a shard makes a small file.

    Returns:
        A source for :meth:`cachelayer.Storage.cache`. The records of the version are in the order of the parts.

    Raises:
        InvalidTypeError, InvalidArgumentError: if an argument is invalid.

    Examples:
        >>> def words(part, count):  # such as the lines of every count-th file
        ...     return ["zero", "one", "two", "three", "four"][part::count]
        >>> source = cachelayer.sharded(words, 2)
        >>> list(cachelayer.Storage(folder).cache(source, "words", "v1"))  # with workers=, engine= or hosts=, the same
        ['zero', 'two', 'four', 'one', 'three']
    """
    return Sharded(function, count)
