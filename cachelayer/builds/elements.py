"""Elements that the code of a user gives one by one: errors that name the record, and copies in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, count, islice
from time import monotonic
from types import WrapperDescriptorType
from typing import Any

from cachelayer.builds.batches import (
    BATCH_NBYTES,
    BATCH_SECONDS,
    MAX_BATCH_RECORDS,
    Batch,
    ElementBatch,
    snapshot,
    stack_alike,
)
from cachelayer.errors import CacheLayerError, SourceError
from cachelayer.progress import current
from cachelayer.records.infer import approximate_nbytes

FAILURES = (Exception, GeneratorExit)
"""What a source may raise."""
_NEXT = ("__next__", "next")


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


def batches_of_elements(elements: Callable[[int], Iterator[Any]], start: int, stop: int | None) -> Iterator[Batch]:
    """Yield copies of the elements from one on, up to another, in batches; an error names the record."""
    some = with_record_in_errors(elements(start), numbers(start))
    return element_batches(islice(some, None if stop is None else stop - start), start)


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
