"""Protocols through which streams see records, without knowing how the records are stored."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# The error of each element that could not be made, by its row.
Failed = dict[int, BaseException]
# Elements by row, of which those that have an error are None. If there are fewer than were asked for, the last error is
# that of the row after them, and no row behind it was tried.
Attempted = tuple[list[Any], Failed]

# "stored": about the bytes of the record. "decoded": many times more memory. "foreign": an object of the user makes it.
ReadingCost = Literal["stored", "decoded", "foreign"]


def highest_cost(costs: Iterable[ReadingCost]) -> ReadingCost:
    """Return what an element costs that is read in parts of these costs."""
    return max(costs, key=("stored", "decoded", "foreign").index)


@dataclass(frozen=True)
class DatasetInfo:
    """What is known of a dataset before any of it is read.

    Args:
        name: its name in errors.
        metadata: that of the version that it comes from; see :attr:`cachelayer.DataRef.metadata`.
        record_nbytes: approximate bytes of a stored record. The default sizes of a shuffle in blocks follow from it,
            so it depends on what is stored alone: not on where it lies, nor on how much of it is read.
        read_nbytes: approximate bytes that are read of a record.
        records_per_read: how many records a stream with smaller batches should read at once.
        reading_cost: what is known about the cost of reading an element.
        is_declared: True if all elements are known to have the element spec, False if it is that of the first.
        together: how many elements in a row are read with little more than the records that they are made of: blocks
            of fewer would each read the same long documents, or the same group of packed ones.
    """

    name: str
    metadata: Mapping[str, Any]
    record_nbytes: int
    read_nbytes: int
    records_per_read: int
    reading_cost: ReadingCost = "stored"
    is_declared: bool = True
    together: int = 1


class RecordSpan(NamedTuple):
    """A record that an element was made of; or the values of a document in it, if the element is a window or a pack.

    Args:
        dataset: where it is: the reference of a version, or the identity of a wrapped object.
        record: its number there.
        begin, end: the first value of the document that the element holds, and the one after the last; None if it holds
            the record.
        offset: the place in the element where these values begin.
    """

    dataset: str
    record: int
    begin: int | None
    end: int | None
    offset: int


@dataclass(frozen=True, eq=False)
class Sources:
    """The records that some elements were made of: a row for each record of each element, in the order of the elements.

    All but ``datasets`` are int64 of shape ``[rows]``.

    Args:
        datasets: where records come from: the references of versions, or the identities of wrapped objects.
        element: which of the elements asked for.
        dataset: which of ``datasets``.
        record: the number of the record in that dataset.
        begin, end: which values of the record's document the element holds; -1 if it is the whole record.
        offset: where these values begin in the element.
    """

    datasets: tuple[str, ...]
    element: NDArray[np.int64]
    dataset: NDArray[np.int64]
    record: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    offset: NDArray[np.int64]

    @classmethod
    def whole(cls, dataset: str, records: NDArray[np.int64]) -> Sources:
        """Return the sources of elements that are whole records of one dataset."""
        zeros, none = np.zeros(len(records), np.int64), np.full(len(records), -1)
        return cls((dataset,), np.arange(len(records)), zeros, records, none, none, zeros)

    @classmethod
    def joined(cls, groups: Sequence[tuple[NDArray[np.int64], Sources]]) -> Sources:
        """Return the sources of the elements of several groups, each with the places of its elements among all."""
        names = list(dict.fromkeys(name for _, group in groups for name in group.datasets))
        columns = [
            (
                places[group.element],
                np.array([names.index(name) for name in group.datasets], np.int64)[group.dataset],
                *(group.record, group.begin, group.end, group.offset),
            )
            for places, group in groups
        ]
        whole = [np.concatenate([np.empty(0, np.int64), *parts]) for parts in zip(*columns, strict=True)]
        whole = whole or [np.empty(0, np.int64)] * 6
        order = np.argsort(whole[0], kind="stable")
        return cls(tuple(names), *(column[order] for column in whole))

    def spans(self) -> list[RecordSpan]:
        """Return the records one by one."""
        columns = (self.dataset, self.record, self.begin, self.end, self.offset)
        spans = []
        for number, record, begin, end, offset in zip(*(column.tolist() for column in columns), strict=True):
            name, is_whole = self.datasets[number], begin < 0
            spans.append(RecordSpan(name, record, None if is_whole else begin, None if is_whole else end, offset))
        return spans

    def by_dataset(self) -> dict[str, NDArray[np.int64]]:
        """Return the record numbers that come from each dataset, ascending, each once."""
        return {
            name: np.unique(self.record[self.dataset == number])
            for number, name in enumerate(self.datasets)
            if (self.dataset == number).any()
        }


class Stacker(Protocol):
    """Makes batches of elements of one spec. Picklable."""

    @property
    def spec(self) -> Any:
        """The spec of the elements."""

    def conform(self, elements: Sequence[Any], /) -> Sequence[Any]:
        """Return the elements converted to the spec.

        Raises:
            ElementError: if one does not fit; its ``record`` is the index of the element in the argument.
        """

    @property
    def is_plain(self) -> bool:
        """True if batches of all leaves are plain arrays, or lists of strings, whoever makes them."""

    def passing(self, element: Any, /) -> Callable[[Any], Mapping[str, Any]]:
        """Return a function that finds the leaves of an element that the user's functions have passed on.

        Its argument is what they made of the element. It returns the spec of each leaf that they passed on, by its path
        in what they made, but of none whose batches are plain arrays.

        Args:
            element: an element of the spec, before functions change it.
        """

    def collate(self, elements: Sequence[Any], passed_on: Mapping[str, Any], rows: int | None = None, /) -> Any:
        """Return the batch of elements that functions made: leaves that they passed on are as in the dataset.

        Args:
            elements: one or more elements.
            passed_on: the specs of the leaves that are passed on, by their paths; see :meth:`passing`.
            rows: how many elements the batch has, counted from the first; None for all.
        """


class StoredSource(Protocol):
    """Where stored records come from, such as a version in a bucket; hashable by its identity."""

    def fetch_block(self, numbers: NDArray[np.int64], /) -> Any:
        """Fetch records that are read later, those that lie together with one request.

        Args:
            numbers: the numbers of the records, ascending, each once.
        """


Needed = Mapping[StoredSource, NDArray[np.int64]]
"""The records that some elements are made of, and that take requests: their numbers, ascending, by where they are."""
Held = Mapping[StoredSource, Sequence[Any]]
"""What was fetched of them: for each source, what its :meth:`StoredSource.fetch_block` returned."""


def needed_together(parts: Iterable[Needed]) -> Needed:
    """Return the records that are needed in several parts."""
    numbers: dict[StoredSource, list[NDArray[np.int64]]] = {}
    for part in parts:
        for source, some in part.items():
            numbers.setdefault(source, []).append(some)
    return {source: some[0] if len(some) == 1 else np.unique(np.concatenate(some)) for source, some in numbers.items()}


class Digests(NamedTuple):
    """What elements and their numbers are known by, each a SHA-256 in hexadecimal.

    Args:
        elements: of the elements.
        rows: of the rows alone, whatever columns they have: orders and states refer to it.
        original: of the rows before any record was erased; if they had other numbers then, of the rows.
    """

    elements: str
    rows: str
    original: str

    @classmethod
    def of(cls, digest: str) -> Digests:
        """Return one digest for all three."""
        return cls(digest, digest, digest)

    @classmethod
    def joined(cls, name: bytes, several: Sequence[Digests]) -> Digests:
        """Return those of what is made of several datasets: SHA-256 over a name and their digests, 32 bytes each."""
        joined = (b"".join([name, *map(bytes.fromhex, digests)]) for digests in zip(*several, strict=True))
        return cls(*(hashlib.sha256(text).hexdigest() for text in joined))

    def derived(self, digest_of: Callable[[str], str]) -> Digests:
        """Return the digests of what is derived from the elements: each follows from one of these."""
        return Digests(*map(digest_of, self))


class Dataset(Protocol[T_co]):
    """Elements by number, each number in [0, len): what streams, builds and adapters read. Thread-safe and picklable.

    What holds another dataset, such as a selection, windows or a concatenation, is one itself.
    """

    @property
    def digests(self) -> Digests:
        """What the elements and their numbers are known by."""

    @property
    def info(self) -> DatasetInfo:
        """What is known of the elements before any is read."""

    @property
    def references(self) -> tuple[str, ...]:
        """The references of the versions, or views of them, that the records come from; empty if there are none."""

    @property
    def element_spec(self) -> Any:
        """The structure of an element, with leaf specs in it."""

    @property
    def takes_requests(self) -> bool:
        """True if reading elements takes requests to an object store."""

    @property
    def declared_spec(self) -> Any:
        """The element spec that all elements are known to have; None if it is only inferred from the first."""

    def begins_with(self, records: int, digest: str, /) -> bool:
        """Return whether the first elements are the rows of this digest, as before records were appended."""

    def __len__(self) -> int:
        """Number of elements."""

    def elements(self, numbers: NDArray[np.int64], held: Held | None = None, /) -> Sequence[T_co]:
        """Return the elements of these numbers; the caller may change them.

        Args:
            numbers: the numbers.
            held: records that were fetched; others are read where they lie.
        """

    def try_elements(self, numbers: NDArray[np.int64], held: Held | None = None, /, *, stops: bool) -> Attempted:
        """Return the elements of these numbers, and the error of each row that cannot be made.

        Args:
            numbers: the numbers.
            held: records that were fetched.
            stops: whether no row is tried behind one that fails. It is never behind an error of the storage.
        """

    def batch(self, numbers: NDArray[np.int64], held: Held | None = None, /) -> Any:
        """Return the elements stacked on a leading axis, which the caller may change.

        Args:
            numbers: the numbers.
            held: records that were fetched.
        """

    def batches(self, batches: Sequence[NDArray[np.int64]], held: Held | None = None, /) -> Iterable[Any]:
        """Return a batch for each array of numbers, all read at once; one may keep the memory of all alive."""

    def needed(self, numbers: NDArray[np.int64], /) -> Needed:
        """Return the stored records that these elements are made of, without those that are best read where they lie.

        Whoever holds them reads the elements without a request.
        """

    def padded_as(self, number: int, /) -> Dataset[T_co]:
        """Return the same elements in batches of the shape that the element of this number has, if they have several.

        That is so if they come from buckets of lengths.
        """

    def sources(self, numbers: NDArray[np.int64], /) -> Sources:
        """Return the records of stored versions, or of wrapped objects, that these elements are made of."""

    def stacking(self, element_spec: Any = None, /) -> Stacker:
        """Return what makes batches: of the elements, or of elements of a declared spec."""

    def undecoded(self) -> Dataset[Any] | None:
        """Return the same elements undecoded, images and audio as file bytes; None if they are not stored."""


class HasRecords(Protocol[T_co]):
    """An object of the public API that has records, such as a ref or a view; streams, builds and adapters read them."""

    def __records__(self) -> Dataset[T_co]:
        """Return the records."""


def has_records(obj: object) -> TypeGuard[HasRecords[Any]]:
    """Return whether an object is one of ours that has records: no other object has that method."""
    return hasattr(type(obj), "__records__")


def records_of(obj: HasRecords[T]) -> Dataset[T]:
    """Return the records of a ref or a view."""
    return obj.__records__()
