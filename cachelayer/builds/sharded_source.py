"""Sources whose parts a function of the user makes: :func:`cachelayer.sharded`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, overload

from cachelayer.builds.element_batches import errors_named
from cachelayer.builds.parts import SourceParts
from cachelayer.builds.source import Source
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.protocols import T
from cachelayer.specs.spec import DECIMAL_DIGITS, said_of_columns
from cachelayer.support.arguments import explains_options, integer
from cachelayer.support.locks import cached_property

_ONCE = ("builtins", "itertools", "_csv")
"""The modules of iterators that never begin again."""


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
        >>> list(cachelayer.Storage(folder).cache(source, "parts@v1"))
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


class _PartOpener:
    """Makes the sources of parts.

    Args:
        open_part: makes one of whatever the user's function has returned.
    """

    def __init__(self, sharded: Sharded[Any], open_part: Callable[[Any], Source]) -> None:
        self._sharded = sharded
        self._open_part = open_part
        self._iterator: Any = None
        """The iterator that the function returned last in this process."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _PartOpener, (self._sharded, self._open_part)

    def __call__(self, number: int) -> Source:
        source = self._opened(number)
        digits = said_of_columns(source.metadata, DECIMAL_DIGITS)
        if number and digits:
            first = self._first_digits
            if digits != first:
                raise InvalidArgumentError(
                    f"part {number} of {self._sharded.count}: its integers stand for decimals with {digits} digits "
                    f"after the point, and those of part 0 with {first}: cast them to one type in the function"
                )
        return source

    @cached_property
    def _first_digits(self) -> Mapping[str, Any]:
        """The digits of the decimals of part 0. A process that builds other parts opens it once to know them."""
        return said_of_columns(self._opened(0).metadata, DECIMAL_DIGITS)

    def _opened(self, number: int) -> Source:
        name = f"part {number} of {self._sharded.count}"
        with errors_named(f"{name}: the function failed"):
            returned = self._sharded.function(number, self._sharded.count)
        iterator = returned if type(returned).__module__ in _ONCE and isinstance(returned, Iterator) else None
        if iterator is not None and iterator is self._iterator:
            raise SourceError(
                f"{name}: the function returned a {type(returned).__name__} that it had returned before, and the "
                "elements that were taken from it are lost: make a new one in each call"
            )
        self._iterator = iterator
        try:
            return self._open_part(returned)
        except (InvalidTypeError, InvalidArgumentError, SourceError) as error:
            raise type(error)(f"{name}: {error}") from error


def source_of_sharded(sharded: Sharded[Any], open_part: Callable[[Any], Source]) -> Source:
    """Return the source of the elements of all parts; ``open_part`` makes one of whatever the function has returned."""
    return SourceParts("part", sharded.count, _PartOpener(sharded, open_part)).source("sharded")


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
        A source for :meth:`cachelayer.Storage.cache`. The records of the version are in the order of the parts. Of
        parts that are frames or tables, ``to_arrow()`` gives the types that the element spec implies.

    Raises:
        InvalidTypeError, InvalidArgumentError: if an argument is invalid.

    Examples:
        >>> def words(part, count):  # such as the lines of every count-th file
        ...     return ["zero", "one", "two", "three", "four"][part::count]
        >>> source = cachelayer.sharded(words, 2)
        >>> list(cachelayer.Storage(folder).cache(source, "words@v1"))  # with workers=, engine= or hosts=, the same
        ['zero', 'two', 'four', 'one', 'three']
    """
    return Sharded(function, count)
