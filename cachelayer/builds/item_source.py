"""Objects with items by number as sources: a build can begin at any item."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from cachelayer.builds.source import Source, errors_named
from cachelayer.errors import InvalidTypeError, SourceError


def source_of_items(
    items: Any,
    *,
    convert: Callable[[Any], Any] | None = None,
    elements: Callable[[int], Iterator[Any]] | None = None,
    by_number: bool = False,
) -> Source:
    """Return the source of the items of an object.

    Args:
        items: the object. Its length is the number of elements.
        convert: makes an element of an item; None if the items are the elements.
        elements: returns an iterator over the elements from a number on, if something quicker than ``items[number]``
            reads them; None if not.
        by_number: whether to ask for ``items[number]`` even if the object has an iterator, which may be quicker.
    """
    length = length_of(items)
    if length is None:
        raise InvalidTypeError(
            f"a {type(items).__name__} has items by number but no length, so its last item is unknown: give it a "
            "__len__"
        )
    if elements is None:
        # Without an iterator of its own, an object is iterated until an IndexError, which may come from a bug.
        by_number = by_number or getattr(type(items), "__iter__", None) in (None, Sequence.__iter__)
        elements = partial(_items_from, items, length, convert, by_number)
    return Source(type(items).__name__, elements=elements, length=length, starts=range(length), items=items)


def _items_from(
    items: Any, length: int, convert: Callable[[Any], Any] | None, by_number: bool, start: int
) -> Iterator[Any]:
    iterable = (items[number] for number in range(start, length)) if by_number or start else items
    for item in iterable:
        yield item if convert is None else convert(item)
    if length_of(items) != length:
        raise SourceError(
            f"the length of the {type(items).__name__} was {length} when the build began, and is {len(items)} now"
        )


def has_items(obj: Any) -> bool:
    """Return whether an object has items 0, 1, ... by number, so that a build can begin at any of them.

    A length and ``__getitem__`` are enough, unless it has ``keys``, as a mapping has, or ``__next__``, as an iterator.
    """
    if isinstance(obj, (Sequence, np.ndarray)):
        return True
    is_other = isinstance(obj, Mapping) or hasattr(obj, "keys") or hasattr(obj, "__next__")
    return hasattr(obj, "__getitem__") and not is_other and length_of(obj) is not None


def length_of(obj: Any) -> int | None:
    """Return the length of a source; None if it is unknown."""
    if not hasattr(obj, "__len__"):
        return None
    with errors_named(f"len() of the {type(obj).__name__} failed"):
        try:
            return len(obj)
        except (TypeError, NotImplementedError):
            # The two ways in which datasets say that their length is unknown.
            return None
