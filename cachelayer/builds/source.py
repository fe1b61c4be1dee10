"""The source of a version: one value, which says all that a build asks about the elements.

::

    the user's object ──as_source, or an adapter──> Source ──read(start, stop)──> Batch, Batch, ...
                                                           ──take(numbers)──────> Batch
                                                           ──place(record)──────> "rows.jsonl, line 9"

An adapter is a function that returns a :class:`Source` for an object of its library: :func:`source_of_items` if the
object has items by number. A source yields batches, or its elements come one by one: then :class:`ElementReader` copies
them into batches, and errors name the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count, islice
from time import monotonic
from types import WrapperDescriptorType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from cachelayer.builds.alike_elements import stack_alike
from cachelayer.builds.batches import (
    BATCH_NBYTES,
    BATCH_SECONDS,
    MAX_BATCH_RECORDS,
    Batch,
    ElementBatch,
    nowhere,
    snapshot,
)
from cachelayer.errors import CacheLayerError, InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.records.infer import approximate_nbytes
from cachelayer.specs.tree import Tree
from cachelayer.support.progress import Progress, current

if TYPE_CHECKING:
    # Worker processes import this module; what they do not need would make their start slower.
    from cachelayer.builds.parts import Parts
    from cachelayer.builds.source_files import FileFacts
    from cachelayer.versions.stored_version import StoredVersion

FAILURES = (Exception, GeneratorExit)
"""The exceptions that a source may raise."""
_NEXT = ("__next__", "next")


@dataclass(frozen=True, eq=False)
class Source:
    """Elements in order, and all that a build asks about them.

    What a source does not say has a default that is always right: it is read once, from its beginning, by one process,
    and its elements show their spec.
    """

    kind: str
    """The kind of the source, for the provenance, such as ``"list"`` or ``"arrays"``."""
    read: Callable[[int, int | None], Iterator[Batch]]
    """Yields batches of about ``BATCH_NBYTES`` from a record on, which is one of ``starts``, up to another record, or
    to the end for None. An error names the record."""
    take: Callable[[Sequence[int]], Batch] | None = None
    """Returns the elements with some numbers, in the order of the numbers, of which a range is quickest; None if they
    are found by reading from one of ``starts``."""
    place: Callable[[int], str] = nowhere
    """Returns where a record of the last batch was read, such as a file and its line; "" if its number tells enough.
    It is asked for errors that are shown."""
    element_spec: Tree | None = None
    """The spec of the elements; None if only the elements show it."""
    length: int | None = None
    """The number of elements; None if it is unknown. A source with another number of elements fails."""
    starts: Sequence[int] | None = None
    """The records at which reading can begin, again and again, in any process that has the source, without reading what
    is before; None if it is read once, from record 0."""
    parts: Parts | None = None
    """The parts, if a function of the user makes them (:func:`cachelayer.sharded`)."""
    endless: str = ""
    """What a user does to give the source an end, for an error; "" if it is not known to be endless."""
    items: Any = None
    """The object whose items, by number, are the elements; None if there is none."""
    nbytes: int | None = None
    """About the bytes of all rows, if they are in memory: then ``take`` runs no code of the user, and rows can be
    compared."""
    files: Sequence[FileFacts] = ()
    """The files that are read, as they were when the source was made."""
    files_now: Callable[[], Sequence[FileFacts]] = tuple
    """Returns the same files as they are now."""
    versions: Sequence[StoredVersion] = ()
    """The versions whose records are copied: if one is deleted or replaced meanwhile, nothing is published."""
    record_nbytes: float | None = None
    """The mean size of a record, if it is known in advance."""
    workers_make: Literal["nothing", "elements", "parts"] = "elements"
    """What worker processes make: elements, which the process of the build writes; whole parts, if it takes time to
    begin at a record; nothing, if one process makes the elements as quickly."""
    plan: Mapping[str, Any] | None = None
    """Values that decide the elements besides kind, length and spec, as JSON values."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What the source says of itself, for the metadata of the version."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """What the source says of where its records come from."""
    as_json: bool = False
    """Whether a field is JSON if its structure changes among the first elements."""

    def batches(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """Return an iterator over the elements ``start`` to ``stop``, or to the end, in batches."""
        if stop is None and self.endless:
            raise InvalidArgumentError(f"the source is endless: {self.endless}, or pass max_records=")
        if start and (self.starts is None or start not in self.starts):
            raise InvalidArgumentError(f"a source of {self.kind} cannot be read from record {start}")
        return with_length_check(self.read(start, stop), self.length, start, stop)


@dataclass(frozen=True, eq=False)
class ElementReader:
    """The ``read`` of a source whose elements come one by one."""

    elements: Callable[[int, int | None], Iterator[Any]]
    """Yields elements from a record on, up to another at least, or to the end for None."""

    def __call__(self, start: int, stop: int | None) -> Iterator[Batch]:
        return element_batches(self.elements(start, stop), start, None if stop is None else stop - start)


def read_once(elements: Iterator[Any]) -> ElementReader:
    """Return the ``read`` of a source that yields what an iterator gives, once."""
    return ElementReader(lambda _start, _stop: elements)


def with_length_check(
    batches: Iterator[Any], length: int | None, start: int, stop: int | None, size: Callable[[Any], int] = len
) -> Iterator[Any]:
    """Yield the batches of a source, and raise if they have more or fewer elements than the source promises.

    ``length`` is None if the source promises none, and ``size`` returns the number of elements of a batch.
    """
    if length is None:
        yield from batches
        return
    wanted = max(0, (length if stop is None else min(length, stop)) - start)
    yielded = 0
    for batch in batches:
        yielded += size(batch)
        if yielded > wanted:
            raise _wrong_length(length, f"goes on after {start + wanted}")
        yield batch
    if yielded < wanted:
        raise _wrong_length(length, f"ended after {start + yielded}")


def _wrong_length(length: int, what: str) -> SourceError:
    return SourceError(
        f"the source {what} elements, but its length is {length}: correct its __len__, or pass a function that yields "
        "the elements: it promises no length"
    )


@contextmanager
def errors_named(what: str) -> Iterator[None]:
    """Raise an error of the user's code as a :class:`SourceError` that says what failed."""
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


def with_record_in_errors(
    elements: Iterator[Any], records: Iterator[int], progress: Progress | None = None
) -> Iterator[Any]:
    """Yield elements; if their iterator fails, name the record.

    ``records`` yields the record number of each element, before that element is drawn. ``progress`` counts an element
    when the next one is asked for.
    """
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
        if progress is not None:
            progress.drawn += 1


def element_batches(elements: Iterator[Any], record: int, most: int | None = None) -> Iterator[Batch]:
    """Yield copies of elements in batches. A batch ends when it is full, or has taken long; an error names the record.

    The source may change an element when it makes the next one. At most ``most`` elements are drawn.
    """
    elements = islice(with_record_in_errors(elements, count(record), current()), most)
    for first in elements:
        batch, others = stack_alike(first, elements)
        if batch is not None:
            record += len(batch)
            # The element that is not like the first was drawn too. It is copied at once, because the consumer of this
            # batch may do anything before the next is asked for.
            others = _copies(iter(others), record)
            yield batch
        if others:
            items = _copies(chain(others, elements), record)
            record += len(items)
            yield ElementBatch(items)


def _copies(elements: Iterator[Any], record: int) -> list[Any]:
    """Draw as many elements as make a batch, and return copies of them."""
    items: list[Any] = []
    nbytes = 0
    until = monotonic() + BATCH_SECONDS
    for item in with_record_in_errors(map(snapshot, elements), count(record)):
        items.append(item)
        nbytes += approximate_nbytes(item)
        if len(items) == MAX_BATCH_RECORDS or nbytes >= BATCH_NBYTES or monotonic() > until:
            break
    return items


def _refuse_if_raised_within(iterator: Iterator[Any], end: StopIteration, record: int) -> None:
    """Raise if the StopIteration of an iterator such as ``map`` came from the function that it calls.

    That is a bug of the function, not the end of the iterator, and it would cut the version short without a word.
    """
    if not isinstance(type(iterator).__next__, WrapperDescriptorType):
        # An iterator that is written in Python may raise StopIteration in any of its functions, and mean the end.
        return
    within = end.__traceback__.tb_next if end.__traceback__ is not None else None
    name = None if within is None else within.tb_frame.f_code.co_name
    if name is not None and name not in _NEXT:
        raise SourceError(f"{failure_at(record)}: {name}() raised StopIteration") from end


def source_of_items(
    items: Any, *, fetch: Callable[[Sequence[int]], Iterable[Any]] | None = None, at_once: int | None = None
) -> Source:
    """Return the source of the items of an object.

    ``fetch`` returns up to ``at_once`` elements by their numbers; without it the items are the elements, which an
    iterator of the object may give quicker.
    """
    length = length_of(items)
    if length is None:
        raise InvalidTypeError(
            f"a {type(items).__name__} has items by number but no length, so its last item is unknown: give it a "
            "__len__"
        )
    # Without an iterator of its own, an object is iterated until an IndexError, which may come from a bug.
    iterates = fetch is None and getattr(type(items), "__iter__", None) not in (None, Sequence.__iter__)
    elements = _Items(items, length, fetch or partial(by_number, items), at_once or max(1, length), iterates)
    return Source(
        type(items).__name__,
        ElementReader(elements.read),
        elements.take,
        length=length,
        starts=range(length),
        items=items,
    )


def by_number(items: Any, numbers: Sequence[int], convert: Callable[[Any], Any] = lambda item: item) -> Iterator[Any]:
    """Yield the elements that are made of the items with some numbers."""
    return (convert(items[number]) for number in numbers)


@dataclass(frozen=True, eq=False)
class _Items:
    """Items by number, as elements."""

    items: Any
    length: int
    fetch: Callable[[Sequence[int]], Iterable[Any]]
    at_once: int
    iterates: bool
    """Whether an iterator gives the elements from the first on."""

    def read(self, start: int, stop: int | None) -> Iterator[Any]:
        if self.iterates and not start:
            yield from self.items
        else:
            end = self.length if stop is None else min(stop, self.length)
            for first in range(start, end, self.at_once):
                yield from self.fetch(range(first, min(first + self.at_once, end)))
        if stop is None and length_of(self.items) != self.length:
            raise SourceError(
                f"the length of the {type(self.items).__name__} was {self.length} when the build began, and is "
                f"{len(self.items)} now"
            )

    def take(self, numbers: Sequence[int]) -> ElementBatch:
        elements = (element for some in (numbers,) for element in self.fetch(some))
        return ElementBatch([*map(snapshot, with_record_in_errors(elements, iter(numbers)))])


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
