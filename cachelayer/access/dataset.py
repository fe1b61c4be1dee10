"""Datasets that can be read, and views of some of their elements in any order."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Protocol

import numpy as np

from cachelayer.access.stored_leaves import StoredLeaves, leaves_below
from cachelayer.protocols import Attempted, Dataset, Failed, Held, Needed, Sources
from cachelayer.records import tree
from cachelayer.records.infer import declared
from cachelayer.records.memory import Ints
from cachelayer.records.spec import SparseSpec
from cachelayer.records.stacking import Stacking
from cachelayer.records.tree import Tree
from cachelayer.records.values import Nullable, Ragged
from cachelayer.streams.reading.failures import attempt, is_of_element
from cachelayer.versions.manifest import canonical_json

NO_NUMBERS = np.empty(0, np.int64)


class HasRows(Protocol):
    """Stored records, or a dataset that is made of them: each of its rows comes from somewhere."""

    def __len__(self) -> int: ...

    @property
    def references(self) -> tuple[str, ...]:
        """The references of the versions, or views of them, that the rows come from."""

    @property
    def segments(self) -> tuple[int, ...]:
        """The number of rows of each segment: of the first build, and of each append."""

    def in_shards(self, numbers: Ints) -> Iterator[tuple[Ints, tuple[int, ...], Ints]]:
        """Yield where rows lie: their places among the numbers, the segments of their shards, their numbers there.

        The numbers stay those of the rows in versions that are derived, and with more records appended.
        """

    def prefix_digest(self, segments: int) -> str | None:
        """Return the digest of the rows of the same dataset before the records of later segments were appended.

        Args:
            segments: the number of first segments, at least one and fewer than all.

        Returns:
            The digest; None if other rows came first then, or if that is not known.
        """

    @property
    def erased(self) -> Ints:
        """The numbers of the rows that were erased, ascending: to read one is an error."""

    @property
    def takes_requests(self) -> bool:
        """True if reading rows takes requests to an object store."""

    def needed(self, numbers: Ints) -> Needed:
        """Return the stored records that these rows are made of, without those that are best read where they lie."""

    def sources(self, numbers: Ints) -> Sources:
        """Return the records of stored versions, or of wrapped objects, that these rows are made of."""


class BaseDataset(Dataset[Any], HasRows, Protocol):
    """A dataset that can be read, and that views show parts of."""

    @property
    @abstractmethod
    def title(self) -> str:
        """How a view of it is shown: the kind of view, and what it was made of."""

    @property
    def references(self) -> tuple[str, ...]:
        return ()

    @property
    def segments(self) -> tuple[int, ...]:
        return (len(self),)

    def in_shards(self, numbers: Ints) -> Iterator[tuple[Ints, tuple[int, ...], Ints]]:
        yield np.arange(len(numbers)), self.segments, numbers

    @property
    def erased(self) -> Ints:
        return NO_NUMBERS

    @property
    def leaves(self) -> StoredLeaves | None:
        """The stored leaves of the elements; None if the elements are not stored records."""
        return None

    @property
    def categories(self) -> Mapping[str, Sequence[Any]]:
        """The texts that numbers in the elements stand for, by key."""
        return {}

    @property
    def takes_requests(self) -> bool:
        return False

    @property
    def declared_spec(self) -> Tree | None:
        return self.element_spec if self.info.is_declared else None

    def begins_with(self, records: int, digest: str) -> bool:
        if records == len(self) and digest == self.digests.rows:
            return True
        ends = accumulate(self.segments[:-1])
        return any(end == records and self.prefix_digest(count) == digest for count, end in enumerate(ends, 1))

    def prefix_digest(self, segments: int) -> str | None:  # noqa: ARG002
        return None

    def element(self, number: int) -> Any:
        return self.elements(np.array([number]))[0]

    @abstractmethod
    def elements(self, numbers: Ints, held: Held | None = None) -> list[Any]: ...

    def try_elements(self, numbers: Ints, held: Held | None = None, *, stops: bool) -> Attempted:
        elements, error = attempt(self.elements, numbers, held)
        if error is None:
            return elements, Failed()
        return one_by_one(lambda number: self.elements(np.array([number]), held)[0], numbers, stops=stops)

    @abstractmethod
    def batch(self, numbers: Ints, held: Held | None = None) -> Any: ...

    def batch_of_keys(self, numbers: Ints, keys: Sequence[str]) -> dict[str, Any]:
        """Return the batch of dicts with only these of their keys; of stored records nothing else is decoded."""
        leaves = self.leaves
        if leaves is None:
            return {key: values for key, values in self.batch(numbers).items() if key in keys}
        narrow: dict[tuple[str, ...], BaseDataset] = self.__dict__.setdefault("_narrow", {})
        if tuple(keys) not in narrow:
            narrow[tuple(keys)] = leaves.with_fields(leaves_below(leaves.codec.spec, keys))
        return narrow[tuple(keys)].batch(numbers)  # type: ignore[no-any-return]

    def batches(self, batches: Sequence[Ints], held: Held | None = None) -> Iterable[Any]:
        """Return a batch for each array of numbers. All are read at once; if they cannot be cut, one by one.

        Objects of the user are read one by one too, so that an error belongs to its batch.
        """
        if not self.info.is_declared or self.info.reading_cost == "foreign":
            return (self.batch(numbers, held) for numbers in batches)
        numbers = np.concatenate([NO_NUMBERS, *batches])
        sizes = list(map(len, batches))
        return cut_batches(lambda rows: self.batch(numbers[rows], held), self.element_spec, sizes)

    def needed(self, numbers: Ints) -> Needed:  # noqa: ARG002
        return {}

    def padded_as(self, number: int) -> BaseDataset:  # noqa: ARG002
        return self

    def stacking(self, element_spec: Tree | None = None) -> Stacking:
        return Stacking(self, None if element_spec is None else declared(element_spec))

    def stored(self) -> BaseDataset | None:
        return None

    def declared(self) -> BaseDataset:
        """Return the same elements, all of which are known to have the element spec."""
        return self


class SameRows(BaseDataset, Protocol):
    """A dataset with an element for each row of something else, in its order: what depends on rows is asked there."""

    @property
    @abstractmethod
    def underlying(self) -> HasRows:
        """The rows that the elements are of."""

    def __len__(self) -> int:
        return len(self.underlying)

    @property
    def references(self) -> tuple[str, ...]:
        return self.underlying.references

    @property
    def segments(self) -> tuple[int, ...]:
        return self.underlying.segments

    def in_shards(self, numbers: Ints) -> Iterator[tuple[Ints, tuple[int, ...], Ints]]:
        return self.underlying.in_shards(numbers)

    def prefix_digest(self, segments: int) -> str | None:
        return self.underlying.prefix_digest(segments)

    @property
    def erased(self) -> Ints:
        return self.underlying.erased

    @property
    def takes_requests(self) -> bool:
        return self.underlying.takes_requests

    def needed(self, numbers: Ints) -> Needed:
        return self.underlying.needed(numbers)

    def sources(self, numbers: Ints) -> Sources:
        return self.underlying.sources(numbers)


def derived_digest(digest: str, name: str, parameters: dict[str, Any]) -> str:
    """Return the digest of what is made of records.

    It is SHA-256 over the name, the digest of the records (32 bytes), and the canonical JSON of the parameters.
    """
    return hashlib.sha256(name.encode() + bytes.fromhex(digest) + canonical_json(parameters)).hexdigest()


def one_by_one(read: Callable[[int], Any], numbers: Ints, *, stops: bool) -> Attempted:
    """Read elements one by one, and return them with the error of each row that cannot be read.

    Args:
        read: reads an element by its number.
        numbers: the numbers.
        stops: whether no row is tried behind one that fails. It is never behind an error of the storage.
    """
    values, errors = list[Any](), Failed()
    for row, number in enumerate(numbers.tolist()):
        value, error = attempt(read, number)
        if error is not None:
            errors[row] = error
            if stops or not is_of_element(error) or not is_of_element(error.__cause__ or error):
                break
        values.append(value)
    return values, errors


def cut_batches(read: Callable[[slice], Any], spec: Tree, sizes: Sequence[int]) -> Iterable[Any]:
    """Return batches that were read at once and share their memory.

    Args:
        read: returns the batch of some of all rows.
        spec: the spec of the elements. The shape of a batch of sparse arrays depends on all of its rows, so these
            batches are read one by one.
        sizes: the number of rows of each batch.
    """
    rows = [slice(start, stop) for start, stop in pairwise(accumulate(sizes, initial=0))]
    if any(isinstance(leaf, SparseSpec) for _, leaf in tree.leaves(spec)):
        return map(read, rows)
    leaves = tree.flatten_batch(spec, read(slice(None)))
    return tree.row_packer(spec)([[_rows(values, some) for some in rows] for values in leaves], len(rows))


def _rows(values: Any, rows: slice) -> Any:
    if isinstance(values, Nullable):
        return values[rows]
    return values.rows(rows.start, rows.stop) if isinstance(values, Ragged) else values[rows]
