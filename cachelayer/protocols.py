"""Protocols through which streams see records, without knowing how the records are stored."""

from __future__ import annotations

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
class Facts:
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
    """

    name: str
    metadata: Mapping[str, Any]
    record_nbytes: int
    read_nbytes: int
    records_per_read: int
    reading_cost: ReadingCost = "stored"
    is_declared: bool = True


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

    def collator(self, elements: Sequence[Any], kinds: dict[str, bool], /) -> Callable[..., Any]:
        """Return a function that stacks elements to a batch after the user's functions have changed them.

        Its arguments are one or more of the changed elements, and the number of rows of the batch, by default one for
        each.

        Args:
            elements: elements of the spec, before functions change them.
            kinds: for each path of a leaf, whether functions pass it on unchanged; filled in by the first batch that
                shows it.
        """

    def joined(self, collators: Sequence[Callable[..., Any]], /) -> Callable[..., Any]:
        """Return a function that stacks elements of which each came through one of these collators, of one spec."""


class RecordReads(Protocol[T_co]):
    """Reads records by their numbers."""

    def __getitems__(self, indices: NDArray[np.int64], /) -> Sequence[T_co]:
        """Return the elements of these record numbers; the caller may change them."""

    def try_elements(self, indices: NDArray[np.int64], *, stops: bool) -> Attempted:
        """Return the elements of these record numbers, and the error of each row that cannot be made.

        Args:
            indices: the record numbers.
            stops: whether no row is tried behind one that fails. It is never behind an error of the storage.
        """

    def read(self, indices: NDArray[np.int64], /) -> Any:
        """Return the elements of these record numbers, stacked on a leading axis; the caller may change them."""

    def read_batches(self, batches: Sequence[NDArray[np.int64]], /) -> Iterable[Any]:
        """Return what ``read`` gives for each batch, all read at once; one batch may keep the memory of all alive."""


class BlockHolder(Protocol[T_co]):
    """Fetches blocks of records, from which records are read later. Thread-safe."""

    def fetch(self, numbers: NDArray[np.int64], /) -> Any:
        """Fetch the records of these numbers, with one request if they lie together."""

    def reads(
        self,
        blocks: Sequence[Any],
        owner: NDArray[np.int64],
        rows: NDArray[np.int64],
        numbers: NDArray[np.int64],
        /,
    ) -> RecordReads[T_co]:
        """Return what reads records out of blocks that were fetched.

        Args:
            blocks: the blocks.
            owner: for each record that is going to be read, which of ``blocks`` it is in.
            rows: for each, its row in its block.
            numbers: for each, its number.
        """


class RandomAccess(RecordReads[T_co], Protocol[T_co]):
    """Records that can be read in any order. Thread-safe."""

    @property
    def digest(self) -> str:
        """Identity of the records and their numbers, in hexadecimal."""

    @property
    def rows_digest(self) -> str:
        """Identity of the rows, whatever columns they have: orders and states refer to it."""

    @property
    def original_digest(self) -> str:
        """The digest that the rows had before records were erased; their digest, if they had other numbers then."""

    def prefix_digest(self, records: int, /) -> str | None:
        """Return the digest of the rows of the version that the first records are, if they are one."""

    @property
    def references(self) -> tuple[str, ...]:
        """The references of the versions, or views of them, that the records come from; empty if there are none."""

    @property
    def element_spec(self) -> Any:
        """The structure of an element, with leaf specs in it."""

    @property
    def declared_spec(self) -> Any:
        """The element spec that all records are known to have; None if it is only inferred from the first record."""

    @property
    def facts(self) -> Facts:
        """What is known of the records before any is read."""

    def __len__(self) -> int:
        """Number of records."""

    def sources(self, indices: NDArray[np.int64], /) -> Sources:
        """Return the records of stored versions, or of wrapped objects, that these records were made of."""

    def stacking(self, element_spec: Any = None, /) -> Stacker:
        """Return what makes batches: of elements of the records, or of elements of a declared spec."""

    def block_holder(self) -> BlockHolder[T_co] | None:
        """Return what fetches blocks of records; None if they are best read where they lie."""

    def stored(self) -> HasRecords[Any] | None:
        """Return the records as they are stored, images and audio as file bytes; None if they are not stored."""


class PaddedRecords(RandomAccess[T_co], Protocol[T_co]):
    """Records padded to the bound of a bucket."""

    def padded(self, indices: NDArray[np.int64], batch: Any, /) -> Any:
        """Return a batch of these records, padded."""


class HasRecords(Protocol[T_co]):
    """An object of the public API that has records, such as a ref or a view; streams, builds and adapters read them."""

    def __records__(self) -> RandomAccess[T_co]:
        """Return the records."""


def has_records(obj: object) -> TypeGuard[HasRecords[Any]]:
    """Return whether an object is one of ours that has records: no other object has that method."""
    return hasattr(type(obj), "__records__")


def records_of(obj: HasRecords[T]) -> RandomAccess[T]:
    """Return the records of a ref or a view."""
    return obj.__records__()
