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
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from cachelayer.builds.batches import Batch, ElementBatch, nowhere, snapshot
from cachelayer.builds.element_batches import element_batches, errors_named, with_record_in_errors
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.specs.tree import Tree

if TYPE_CHECKING:
    # Worker processes import this module; what they do not need would make their start slower.
    from cachelayer.versions.stored_version import StoredVersion


@dataclass(frozen=True)
class FileFacts:
    """The facts about a file that a listing tells, without opening the file."""

    name: str
    """The path, or the URL."""
    nbytes: int
    modified: str | None
    """When it was written, or what a store has instead, such as an ETag; None if unknown."""


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
        batches = self.read(start, stop)
        return batches if self.length is None else with_length_check(batches, self.length, start, stop)


@dataclass(frozen=True)
class Part:
    """The elements ``first`` to ``stop`` of a source; all from ``first`` on if ``stop`` is None."""

    source: Source
    first: int = 0
    stop: int | None = None
    name: str = ""
    """The name of the part in errors; "" if record numbers, which count from the first part on, tell enough."""


class Parts(Protocol):
    """The parts of a source; they can be pickled."""

    @property
    def count(self) -> int:
        """The number of parts."""

    @property
    def plan(self) -> dict[str, Any] | None:
        """The values that decide where the parts begin, as JSON values; None if there is only one."""

    def describe(self, number: int) -> str:
        """Return the name of a part in errors."""

    def part(self, number: int) -> Part:
        """Return a part by its number."""


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
    batches: Iterator[Any], length: int, start: int, stop: int | None, size: Callable[[Any], int] = len
) -> Iterator[Any]:
    """Yield the batches of a source, and raise if they have more or fewer elements than the source promises.

    ``size`` returns the number of elements of a batch.
    """
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
