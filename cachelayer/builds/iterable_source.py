"""Sources that yield one element at a time: iterators, and objects with items by number."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from itertools import chain, count, islice
from time import monotonic
from types import WrapperDescriptorType
from typing import Any

import numpy as np

from cachelayer.builds.batches import (
    BATCH_NBYTES,
    BATCH_SECONDS,
    MAX_BATCH_RECORDS,
    Batch,
    ElementBatch,
)
from cachelayer.builds.element_copies import approximate_nbytes, snapshot
from cachelayer.errors import CacheLayerError, InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.progress import current
from cachelayer.records.alike import ColumnPlan
from cachelayer.records.tree import Tree

FAILURES = (Exception, GeneratorExit)
"""What a source may raise."""
_NEXT = ("__next__", "next")
_KEYS = "If its items have other keys than 0, 1, ..., pass a function that returns its iterator"
_ONCE = "pass a function that returns a new one, so that each build begins with the first element"


class IterableSource:
    """Elements from an iterator.

    Args:
        iterator: the iterator.
        kind: what gives them, for the provenance.
        length: the number of elements in all; None if nobody promises it.
        first: the number of the first element.
        element_spec: the spec of the elements, if it is known.
        endless: what a user does to give it an end; empty if it is not known to be endless.
    """

    def __init__(
        self,
        iterator: Iterator[Any],
        kind: str,
        length: int | None,
        first: int = 0,
        element_spec: Tree | None = None,
        *,
        endless: str = "",
    ) -> None:
        self._iterator = iterator
        self.kind = kind
        self.length = length
        self.element_spec = element_spec
        self._first = first
        self._endless = endless
        self._peeked: list[Any] = []

    def elements(self) -> Iterator[Any]:
        return self._iterator

    @property
    def taken(self) -> Sequence[Any]:
        """The elements that were taken from the iterator to look at them."""
        return self._peeked

    def peek(self, spec: Tree) -> list[Any]:  # noqa: ARG002
        """Return a list of the first element, which the build still gets; an empty list if there is none.

        Args:
            spec: the spec that a user declares; a source may return nothing if it is complete.
        """
        if not self._peeked:
            self._peeked = list(islice(watched(self._iterator, self._first), 1))
        return self._peeked

    def refuse_endless(self, limit: int | None) -> None:
        """Raise if the source is known to be endless and there is no limit."""
        if limit is None and self._endless:
            raise InvalidArgumentError(f"the source is endless: {self._endless}, or pass max_records=")

    def batches(self, limit: int | None) -> Iterator[Batch]:
        self.refuse_endless(limit)
        elements = islice(watched(self.elements(), self._first, self._peeked), limit)
        record = self._first
        for first in elements:
            rest = chain((first,), elements)
            plan = ColumnPlan.of(first)
            if plan is not None:
                alike, other = plan.keep(rest, MAX_BATCH_RECORDS, BATCH_NBYTES, BATCH_SECONDS)
                record += len(alike)
                # Copied at once: nobody knows how long the source leaves it as it is.
                rest = chain([_copy(each, record) for each in other], elements)
                yield ElementBatch(alike)
                if not other:
                    continue
            items = _copied(rest, record)
            yield ElementBatch(items)
            record += len(items)


class SequenceSource(IterableSource):
    """The items of an object, by number.

    Args:
        items: the object.
        first: the number of the first item to yield.
        element_spec: the spec of the items, if it is known.
        by_number: ask for items by number even if the object has an iterator, which may be faster.
    """

    def __init__(
        self, items: Any, first: int = 0, element_spec: Tree | None = None, *, by_number: bool = False
    ) -> None:
        length = length_of(items)
        if length is None:
            raise InvalidTypeError(
                f"a {type(items).__name__} has items by number but no length, so its last item is unknown: give it "
                "a __len__"
            )
        super().__init__(iter(()), type(items).__name__, length, first, element_spec)
        self._items = items
        self._count = length
        self._by_number = by_number or not has_own_iterator(items)

    def elements(self) -> Iterator[Any]:
        if self._first == 0 and not self._by_number:
            yield from self._items
        else:
            yield from numbered(self._items.__getitem__, self._first, self._count)
        if length_of(self._items) != self._count:
            raise SourceError(
                f"the length of the {self.kind} was {self._count} when the build began, and is {len(self._items)} now"
            )

    def peek(self, spec: Tree) -> list[Any]:  # noqa: ARG002
        return list(islice(watched(self.elements(), self._first), 1))

    def skipped(self, records: int) -> SequenceSource:
        """Return a source of these items that begins at a later one."""
        skipped = copy(self)
        skipped._first += records
        return skipped


def has_items(obj: Any) -> bool:
    """Return whether an object has items 0, 1, ... by number, so that a build can begin at any of them.

    A length and ``__getitem__`` are enough, unless it has ``keys``, as a mapping has, or ``__next__``.
    """
    if isinstance(obj, (Sequence, np.ndarray)):
        return True
    is_other = isinstance(obj, Mapping) or hasattr(obj, "keys") or hasattr(obj, "__next__")
    return hasattr(obj, "__getitem__") and not is_other and length_of(obj) is not None


def has_own_iterator(items: Any) -> bool:
    """Return whether an object has an iterator of its own.

    The iterator of ``collections.abc.Sequence``, and the one that Python makes from ``__getitem__``, treat any
    IndexError as the end, even one from a bug in the items.
    """
    own = getattr(type(items), "__iter__", None)
    return own is not None and own is not Sequence.__iter__


def numbered(item: Callable[[int], Any], first: int, length: int) -> Iterator[Any]:
    """Yield the items from a number on."""
    for number in range(first, length):
        try:
            found = item(number)
        except (IndexError, StopIteration, KeyError) as error:
            hint = f". {_KEYS}" if isinstance(error, KeyError) else ""
            raise SourceError(
                f"the source failed at item {number} of {length}: {type(error).__name__}: {error}{hint}"
            ) from error
        yield found


def length_of(obj: Any) -> int | None:
    """Return the length of a source; None if it is unknown."""
    if not hasattr(obj, "__len__"):
        return None
    try:
        return len(obj)
    except (TypeError, NotImplementedError):
        # The two ways to say that the length is unknown.
        return None
    except Exception as error:
        raise SourceError(f"len() of the {type(obj).__name__} failed: {type(error).__name__}: {error}") from error


def refuse_if_begun(iterator: Any) -> None:
    """Raise if elements were already taken from an iterator: the build would get only the rest.

    Generators and the iterators of lists and tuples show it; other iterators do not.
    """
    if inspect.isgenerator(iterator):
        state = inspect.getgeneratorstate(iterator)
        if state == inspect.GEN_CREATED:
            return
        has = "has ended" if state == inspect.GEN_CLOSED else "has begun, and the elements it gave are lost"
        raise InvalidArgumentError(f"the generator {iterator.__name__} {has}: {_ONCE}")
    if type(iterator) in (type(iter([])), type(iter(()))):
        position = iterator.__reduce__()[2:]
        if position and position[0] > 0:
            raise InvalidArgumentError(f"{position[0]} elements of the {type(iterator).__name__} were taken: {_ONCE}")


def guarded(elements: Iterator[Any], first: int = 0) -> Iterator[Any]:
    """Yield copies of elements and count them for the progress; if the iterator or a copy fails, name the record.

    Args:
        elements: the iterator.
        first: the number of its first element in the source.
    """
    return map(_copy, watched(elements, first), count(first))


def watched(elements: Iterator[Any], first: int = 0, peeked: Sequence[Any] = ()) -> Iterator[Any]:
    """Yield elements and count them for the progress; if the iterator fails, name the record. See :func:`guarded`.

    Args:
        elements: the iterator.
        first: the number of the first element in the source.
        peeked: elements that were taken from the iterator before; they come first.
    """
    record, progress = first, current()
    for element in peeked:
        progress.drawn += 1
        yield element
        record += 1
    while True:
        try:
            element = next(elements)
        except StopIteration as end:
            refuse_if_raised_within(elements, end, record)
            return
        except CacheLayerError:
            raise
        except FAILURES as error:
            raise failed(record, error) from error
        progress.drawn += 1
        yield element
        record += 1


def _copy(element: Any, record: int) -> Any:
    try:
        return snapshot(element)
    except CacheLayerError:
        raise
    except FAILURES as error:
        raise failed(record, error) from error


def _copied(elements: Iterator[Any], first: int) -> list[Any]:
    """Return copies of some elements, enough for a batch.

    Args:
        elements: the elements; no more are taken than are needed.
        first: the number of the first of them.
    """
    items: list[Any] = []
    nbytes, until = 0, monotonic() + BATCH_SECONDS
    for item in islice(map(_copy, elements, count(first)), MAX_BATCH_RECORDS):
        items.append(item)
        nbytes += approximate_nbytes(item)
        if nbytes >= BATCH_NBYTES or monotonic() > until:
            break
    return items


def failed(record: int, error: BaseException) -> SourceError:
    return SourceError(f"the source failed at record {record}: {type(error).__name__}: {error}")


def refuse_if_raised_within(iterator: Iterator[Any], end: StopIteration, record: int) -> None:
    """Raise if a function that an iterator such as ``map`` calls raised StopIteration: that is a bug, not the end."""
    if not isinstance(type(iterator).__next__, WrapperDescriptorType):
        # An iterator written in Python raises StopIteration itself, from any of its functions.
        return
    within = end.__traceback__.tb_next if end.__traceback__ is not None else None
    name = None if within is None else within.tb_frame.f_code.co_name
    if name is not None and name not in _NEXT:
        raise SourceError(f"the source failed at record {record}: {name}() raised StopIteration") from end
