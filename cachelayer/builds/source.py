"""What a version is built from: one value, which says all that a build asks about it.

An adapter is a function that returns a :class:`Source` for an object of its library. Below it is how elements that the
code of a user gives one by one are read: errors name the record, and copies make batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, count, islice
from time import monotonic
from types import WrapperDescriptorType
from typing import TYPE_CHECKING, Any, Literal

from cachelayer.builds.batches import (
    BATCH_NBYTES,
    BATCH_SECONDS,
    MAX_BATCH_RECORDS,
    Batch,
    ElementBatch,
    snapshot,
    stack_alike,
)
from cachelayer.errors import CacheLayerError, InvalidArgumentError, SourceError
from cachelayer.progress import current
from cachelayer.records.infer import approximate_nbytes
from cachelayer.records.tree import Tree

if TYPE_CHECKING:
    # Worker processes import this module; what they do not need would make their start slower.
    from cachelayer.builds.parts import Parts
    from cachelayer.builds.source_files import FileFacts
    from cachelayer.versions.stored_version import StoredVersion

FAILURES = (Exception, GeneratorExit)
"""What a source may raise."""
_NEXT = ("__next__", "next")


@dataclass(frozen=True, eq=False)
class Table:
    """Rows in memory, of which any can be taken at little cost, and without running code of the user.

    Args:
        element_spec: the schema of a row.
        length: the number of rows.
        nbytes: their approximate size.
        take: returns the rows of a range, or of some numbers in their order.
    """

    element_spec: Tree
    length: int
    nbytes: int
    take: Callable[[slice | Sequence[int]], Batch]


@dataclass(frozen=True, eq=False)
class Source:
    """Elements in order, and all that a build asks about them.

    Args:
        kind: what it is, for the provenance.
        read: yields the elements from one record on, which is one of the starts, up to another, or to the end if that
            is None, in batches of about ``BATCH_NBYTES``. An error names the record. None if it has ``elements``.
        elements: yields the elements one by one from one of the starts on; None if it is read in batches.
        element_spec: the schema of the elements; None if only they show it.
        length: number of elements, if it is known: the build is held to it.
        starts: the records from which it can be read, again and again, in any process that has the source, and without
            reading what is before; None if it is read once, from record 0.
        parts: its parts, if a function makes them.
        endless: what a user does to give it an end; empty if it is not known to be endless.
        items: the object whose items are the elements, if it has them by number.
        table: its rows, if they are in memory.
        files: returns the current listings of the files that it reads.
        versions: the versions whose records it copies.
        record_nbytes: the mean size of a record, if it is known in advance.
        workers_make: what worker processes make of it: elements, which the build writes; whole parts, if it takes time
            to begin at a record; or nothing, if one process makes the elements as quickly.
        plan: what decides the elements besides kind, length and spec, as JSON.
        metadata: what it says of itself, for the metadata of the version.
        provenance: what it says of where its records come from.
        as_json: whether a field is JSON if its structure changes among the first elements.
    """

    kind: str
    read: Callable[[int, int | None], Iterator[Batch]] | None = None
    elements: Callable[[int], Iterator[Any]] | None = None
    element_spec: Tree | None = None
    length: int | None = None
    starts: Sequence[int] | None = None
    parts: Parts | None = None
    endless: str = ""
    items: Any = None
    table: Table | None = None
    files: Callable[[], Sequence[FileFacts]] = list
    versions: Sequence[StoredVersion] = ()
    record_nbytes: float | None = None
    workers_make: Literal["nothing", "elements", "parts"] = "elements"
    plan: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    as_json: bool = False

    def batches(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """Return an iterator over the elements from one record on, up to another, or to the end.

        Raises:
            InvalidArgumentError: if it cannot be read from there, or is endless and is to be read to its end.
            SourceError: while it is read, if it fails, or has another number of elements than it says.
        """
        if stop is None and self.endless:
            raise InvalidArgumentError(f"the source is endless: {self.endless}, or pass max_records=")
        if start and (self.starts is None or start not in self.starts):
            raise InvalidArgumentError(f"a source of {self.kind} cannot be read from record {start}")
        if self.read is None:
            batches = element_batches(self.one_by_one(start), start, None if stop is None else stop - start)
        else:
            batches = self.read(start, stop)
        return counted(batches, self.length, start, stop)

    def one_by_one(self, start: int = 0) -> Iterator[Any]:
        """Return an iterator over the elements from one on.

        Raises:
            InvalidArgumentError: if the source is read in batches.
        """
        if self.elements is None:
            raise InvalidArgumentError(f"unbatch=True: a source of {self.kind} gives elements already: leave it out")
        return self.elements(start)


def counted(
    batches: Iterator[Any], length: int | None, start: int, stop: int | None, size: Callable[[Any], int] = len
) -> Iterator[Any]:
    """Yield the batches of a source, and raise if their number of elements is not what the source promises.

    Args:
        batches: the batches that the source yields.
        length: the total number of elements that the source promises; None if it promises none.
        start, stop: the elements that were asked for; all from the start on if ``stop`` is None.
        size: returns the number of elements of a batch.
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


def with_record_in_errors(elements: Iterator[Any], records: Iterator[int]) -> Iterator[Any]:
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


def element_batches(elements: Iterator[Any], record: int, most: int | None = None) -> Iterator[Batch]:
    """Yield copies of elements in batches, each as soon as it is full or takes long; an error names the record.

    Args:
        elements: the elements, each of which may change when the next one is drawn.
        record: the number of the first of them.
        most: the most elements to draw; None for all.
    """
    elements = islice(with_record_in_errors(elements, numbers(record)), most)
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
    for item in with_record_in_errors(map(snapshot, elements), count(record)):
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
