"""Sources that yield one element at a time: iterators, and objects with items by number."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    snapshot,
    stack_alike,
)
from cachelayer.errors import CacheLayerError, InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.progress import current
from cachelayer.records.infer import approximate_nbytes, is_enough, lacks_keys
from cachelayer.records.tree import Tree

FAILURES = (Exception, GeneratorExit)
"""What a source may raise."""
_NEXT = ("__next__", "next")
_ONCE = "pass a function that returns a new one, so that each build begins with the first element"


class IterableSource:
    """Elements from an iterator.

    Args:
        iterator: the iterator.
        kind: what gives them, for the provenance.
        length: the number of elements in all; None if nobody promises it.
        element_spec: the spec of the elements, if it is known.
        endless: what a user does to give it an end; empty if it is not known to be endless.
    """

    def __init__(
        self,
        iterator: Iterator[Any],
        kind: str,
        length: int | None,
        element_spec: Tree | None = None,
        *,
        endless: str = "",
    ) -> None:
        self._iterator = iterator
        self.kind = kind
        self.length = length
        self.element_spec = element_spec
        self.provenance: dict[str, Any] = {}
        self._first = 0
        self._endless = endless
        self._peeked: list[Any] = []

    def elements(self) -> Iterator[Any]:
        return self._iterator

    def drawn(self, records: Iterator[int]) -> Iterator[Any]:
        """Yield the elements; errors name the records.

        Args:
            records: for each element, the number of the record that begins with it.
        """
        return chain(self._peeked, watched(self.elements(), islice(records, len(self._peeked), None)))

    def peek(self, spec: Tree) -> list[Any]:
        """Return copies of the first elements, which the build still gets; empty if there are none.

        Args:
            spec: the spec that a user declares; if the first element has no key that it lacks, no other is drawn.
        """
        if not self._peeked:
            self._peeked = self._first_elements(spec)
        return self._peeked

    def _first_elements(self, spec: Tree) -> list[Any]:
        first: list[Any] = []
        nbytes = 0
        for element in watched(map(snapshot, self.elements()), count(self._first)):
            first.append(element)
            nbytes += approximate_nbytes(element)
            if is_enough(len(first), nbytes) or not lacks_keys(spec, element):
                break
        return first

    def refuse_endless(self, limit: int | None) -> None:
        """Raise if the source is known to be endless and there is no limit."""
        if limit is None and self._endless:
            raise InvalidArgumentError(f"the source is endless: {self._endless}, or pass max_records=")

    def batches(self, limit: int | None) -> Iterator[Batch]:
        self.refuse_endless(limit)
        return element_batches(islice(self.drawn(numbers(self._first)), limit), self._first)


class SequenceSource(IterableSource):
    """The items of an object, by number.

    Args:
        items: the object.
        element_spec: the spec of the items, if it is known.
        by_number: ask for items by number even if the object has an iterator, which may be faster.
    """

    def __init__(self, items: Any, element_spec: Tree | None = None, *, by_number: bool = False) -> None:
        length = length_of(items)
        if length is None:
            raise InvalidTypeError(
                f"a {type(items).__name__} has items by number but no length, so its last item is unknown: give it "
                "a __len__"
            )
        super().__init__(iter(()), type(items).__name__, length, element_spec)
        self.items = items
        self._count = length
        # The iterators of Sequence, and of what has none, take any IndexError for the end, even one from a bug.
        self._by_number = by_number or getattr(type(items), "__iter__", None) in (None, Sequence.__iter__)

    def elements(self) -> Iterator[Any]:
        if self._first == 0 and not self._by_number:
            yield from self.items
        else:
            for number in range(self._first, self._count):
                yield self.items[number]
        if length_of(self.items) != self._count:
            raise SourceError(
                f"the length of the {self.kind} was {self._count} when the build began, and is {len(self.items)} now"
            )

    def peek(self, spec: Tree) -> list[Any]:
        return self._first_elements(spec)

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


def length_of(obj: Any) -> int | None:
    """Return the length of a source; None if it is unknown."""
    if not hasattr(obj, "__len__"):
        return None
    with errors_named(f"len() of the {type(obj).__name__} failed"):
        try:
            return len(obj)
        except (TypeError, NotImplementedError):
            # The two ways to say that the length is unknown.
            return None


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


@contextmanager
def errors_named(what: str) -> Iterator[None]:
    """Raise what fails in the code of a user as an error of the source, which says what failed."""
    try:
        yield
    except CacheLayerError:
        raise
    except FAILURES as error:
        raise _failed(what, error) from error


def _failed(what: str, error: BaseException) -> SourceError:
    return SourceError(f"{what}: {type(error).__name__}: {error}")


def failure_at(record: int) -> str:
    return f"the source failed at record {record}"


def numbers(first: int) -> Iterator[int]:
    """Yield the numbers of records. The progress counts a record once the next number is asked for."""
    progress = current()
    for record in count(first):
        yield record
        progress.drawn += 1


def watched(elements: Iterator[Any], records: Iterator[int]) -> Iterator[Any]:
    """Yield elements; if the iterator fails, name the record, which ``records`` has for each element."""
    for record in records:
        try:
            element = next(elements)
        except StopIteration as end:
            _refuse_if_raised_within(elements, end, record)
            return
        except CacheLayerError:
            raise
        except FAILURES as error:
            raise _failed(failure_at(record), error) from error
        yield element


def element_batches(elements: Iterator[Any], record: int) -> Iterator[Batch]:
    """Yield copies of elements in batches, each as soon as it is full or takes long.

    Args:
        elements: the elements, each of which may change when the next one is drawn.
        record: the number of the first of them.
    """
    for first in elements:
        batch, rest = stack_alike(first, elements)
        if batch is not None:
            record += len(batch)
            # Copied before others are drawn: nobody knows how long the source leaves it as it is.
            rest = _copies(iter(rest), record)
            yield batch
        if rest:
            items = _copies(chain(rest, elements), record)
            record += len(items)
            yield ElementBatch(items)


def _copies(elements: Iterator[Any], record: int) -> list[Any]:
    """Return copies of elements, enough for a batch. No more are drawn than are needed."""
    items: list[Any] = []
    nbytes, until = 0, monotonic() + BATCH_SECONDS
    for item in watched(map(snapshot, elements), count(record)):
        items.append(item)
        nbytes += approximate_nbytes(item)
        if len(items) == MAX_BATCH_RECORDS or nbytes >= BATCH_NBYTES or monotonic() > until:
            break
    return items


def _refuse_if_raised_within(iterator: Iterator[Any], end: StopIteration, record: int) -> None:
    """Raise if a function that an iterator such as ``map`` calls raised StopIteration: that is a bug, not the end."""
    if not isinstance(type(iterator).__next__, WrapperDescriptorType):
        # An iterator written in Python raises StopIteration itself, from any of its functions.
        return
    within = end.__traceback__.tb_next if end.__traceback__ is not None else None
    name = None if within is None else within.tb_frame.f_code.co_name
    if name is not None and name not in _NEXT:
        raise SourceError(f"{failure_at(record)}: {name}() raised StopIteration") from end
