"""Datasets that can be read, and views of some of their elements in any order."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate, pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.lengths import LengthColumn
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.locks import cached_property
from cachelayer.protocols import Attempted, Dataset, DatasetInfo, Digests, Failed, Held, Needed, Sources
from cachelayer.records import tree
from cachelayer.records.codec import Codec
from cachelayer.records.infer import declared
from cachelayer.records.leaf_names import varying_leaf
from cachelayer.records.memory import Ints
from cachelayer.records.selection import Selection
from cachelayer.records.spec import EncodedSpec, SparseSpec
from cachelayer.records.stacking import Stacking
from cachelayer.records.tree import Tree
from cachelayer.records.values import Nullable, Ragged
from cachelayer.streams.reading.failures import attempt, is_of_element
from cachelayer.versions.manifest import canonical_json
from cachelayer.versions.stored_version import StoredVersion
from cachelayer.versions.view_calls import ViewCall, ViewName

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


@dataclass(frozen=True, eq=False)
class LeafRead:
    """Which values of a leaf are read of some records.

    Args:
        leaf: the number of the leaf.
        starts: for each record, the first value; None for the whole leaf, which has one shape in all records.
        counts: for each record, how many values.
        ends: for each record, True if the leaf must end with the last of these; None if it may always have more.
    """

    leaf: int
    starts: Ints | None = None
    counts: Ints | None = None
    ends: NDArray[np.bool_] | None = None

    def of_leaf(self, leaf: int) -> LeafRead:
        return replace(self, leaf=leaf)

    def of_rows(self, rows: Ints) -> LeafRead:
        """Return the part of this reading that some rows take."""
        if self.starts is None or self.counts is None:
            return self
        return LeafRead(self.leaf, self.starts[rows], self.counts[rows], None if self.ends is None else self.ends[rows])


class StoredLeaves(Protocol):
    """The leaves of records as they are stored, which windows, packs and padded records are made of."""

    @property
    def codec(self) -> Codec:
        """The codec of these leaves."""

    @property
    def home(self) -> StoredVersion | None:
        """The version beside which files about the records are stored; None if there is none."""

    def with_fields(self, leaves: Sequence[int]) -> BaseDataset:
        """Return the same elements with some of the leaves, by their numbers, ascending."""

    def has_added(self, leaves: Sequence[int]) -> bool:  # noqa: ARG002
        """Return whether one of these leaves is a column that was added to the version."""
        return False

    def lengths(self, leaf: int) -> LengthColumn:
        """Return the lengths of the leaf of this number in all records."""

    def leaf_values(self, numbers: Ints, reads: Sequence[LeafRead], held: Held | None = None) -> list[Any]:
        """Return values of leaves of some records, each of which is read once.

        Args:
            numbers: the records.
            reads: what is read of them; starts, counts and ends have an item for each record.
            held: records that were fetched.

        Returns:
            For each read, the values of all records one after another, see :meth:`Codec.leaf_values`; those of a whole
            leaf stacked, as a :class:`cachelayer.Nullable` if it may be None.
        """


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


@dataclass(frozen=True, repr=False, eq=False)
class DatasetView(BaseDataset):
    """Some elements of a dataset, in an order of their own: what a view holds, and what streams read.

    Args:
        base: the dataset.
        selection: which of its elements, in order.
        named: their digests if these do not follow from the base.
        name: what a reference calls them; None if they are of no version, or of several.
    """

    base: BaseDataset
    selection: Selection
    named: Digests | None = None
    name: ViewName | None = None

    @classmethod
    def all(cls, base: BaseDataset) -> DatasetView:
        """Return all elements of a dataset."""
        return cls(base, Selection.all(len(base)))

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: self.__dict__[field.name] for field in fields(self)}

    @property
    def is_view(self) -> bool:
        """True if these are some records of a version: neither the whole version, nor windows or packs of records."""
        return self.name is not None and bool(self.name.calls) and self.base.leaves is not None

    @property
    def title(self) -> str:
        return f"View({self.name.shown!r}" if self.is_view and self.name is not None else self.base.title

    @cached_property
    def digests(self) -> Digests:
        if self.named is not None:
            return self.named
        of = {digest: self.selection.digest(digest, len(self.base)) for digest in {*self.base.digests}}
        return self.base.digests.derived(of.__getitem__)

    def prefix_digest(self, segments: int) -> str | None:
        sizes, own = self.base.segments, self.segments
        # Of rows that mix segments, those of the first segments do not come first.
        if self.named is not None or len(own) != len(sizes):
            return None
        digest = self.base.prefix_digest(segments)
        rows = self.selection.slice(slice(sum(own[:segments])))
        return None if digest is None else rows.digest(digest, sum(sizes[:segments]))

    @property
    def references(self) -> tuple[str, ...]:
        return self.base.references if self.name is None else (str(self.name),)

    @property
    def element_spec(self) -> Tree:
        return self.base.element_spec

    @property
    def info(self) -> DatasetInfo:
        return self.base.info

    @property
    def categories(self) -> Mapping[str, Sequence[Any]]:
        return self.base.categories

    @property
    def takes_requests(self) -> bool:
        return self.base.takes_requests

    @property
    def segments(self) -> tuple[int, ...]:
        return self.selection.segment_sizes(self.base.segments)

    def in_shards(self, numbers: Ints) -> Iterator[tuple[Ints, tuple[int, ...], Ints]]:
        return self.base.in_shards(self.selection.numbers_of(numbers))

    @property
    def erased(self) -> Ints:
        return self.selection.rows_of(self.base.erased)

    def __len__(self) -> int:
        return len(self.selection)

    def element(self, number: int) -> Any:
        return self.base.element(self.selection.number(number))

    def elements(self, numbers: Ints, held: Held | None = None) -> list[Any]:
        return self.base.elements(self.selection.numbers_of(numbers), held)

    def try_elements(self, numbers: Ints, held: Held | None = None, *, stops: bool) -> Attempted:
        return self.base.try_elements(self.selection.numbers_of(numbers), held, stops=stops)

    def batch(self, numbers: Ints, held: Held | None = None) -> Any:
        return self.base.batch(self.selection.numbers_of(numbers), held)

    def batch_of_keys(self, numbers: Ints, keys: Sequence[str]) -> dict[str, Any]:
        return self.base.batch_of_keys(self.selection.numbers_of(numbers), keys)

    def batches(self, batches: Sequence[Ints], held: Held | None = None) -> Iterable[Any]:
        return self.base.batches([self.selection.numbers_of(numbers) for numbers in batches], held)

    def needed(self, numbers: Ints) -> Needed:
        return self.base.needed(self.selection.numbers_of(numbers))

    def padded_as(self, number: int) -> DatasetView:
        base = self.base.padded_as(self.selection.number(number) if len(self) else 0)
        return self if base is self.base else replace(self, base=base)

    def sources(self, numbers: Ints) -> Sources:
        return self.base.sources(self.selection.numbers_of(numbers))

    def stored(self) -> DatasetView | None:
        base = self.base.stored()
        return None if base is None else self.changed(base).called(ViewCall("raw"))

    def changed(self, base: BaseDataset) -> DatasetView:
        """Return the same rows of another dataset of as many elements."""
        return DatasetView(base, self.selection, name=self.name)

    def called(self, call: ViewCall) -> DatasetView:
        """Return the same records under the name that a call of their view gives them."""
        return self if self.name is None else replace(self, name=self.name.then(call))

    def digests_of_leaves(self, leaves: Sequence[int]) -> Digests:
        """Return the digests of the elements for an order that depends on the values, or lengths, of some leaves."""
        base = self.base.leaves
        is_added = base is not None and base.has_added(leaves)
        return Digests.of(self.digests.elements) if is_added else self.digests

    def stored_leaves(self, call: str) -> StoredLeaves:
        """Return the leaves of the records that the elements are.

        Raises:
            InvalidTypeError: if they are not stored records; ``call`` names what needs them.
        """
        leaves = self.base.leaves
        if leaves is None:
            is_foreign = self.info.reading_cost == "foreign"
            cure = "cache() it first" if is_foreign else f"call {call} of the datasets before"
            raise InvalidTypeError(f"{self.title}) has no leaves of stored records, which {call} needs: {cure}")
        return leaves

    def lengths(self, name: str) -> LengthColumn:
        """Return the lengths of a leaf, by its name, in each record."""
        leaves = self.stored_leaves("lengths() and what needs lengths")
        number = varying_leaf(leaves.codec.spec, name)
        path, stored = tree.leaves(leaves.codec.spec)[number]
        if isinstance(stored, EncodedSpec) and dict(tree.leaves(self.element_spec)).get(path) != stored:
            raise InvalidArgumentError(
                f"{name!r} holds files, and how long they are when they are decoded is not stored: raw() has the "
                "numbers of their bytes. Pass long='truncate' or 'refuse' to padded(), or cache the decoded arrays"
            )
        columns: dict[int, LengthColumn] = self.__dict__.setdefault("_columns", {})
        if number not in columns:
            columns[number] = leaves.lengths(number).selected(self.selection)
        return columns[number]

    @property
    def nbytes(self) -> int:
        """About how many bytes the records take in their shards."""
        return self.info.record_nbytes * len(self)

    @property
    def sizes(self) -> dict[str, str]:
        """How many records there are, and of a view of a version also about how many bytes they take, for people."""
        if self.name is None or not self.is_view:
            return {"records": str(len(self))}
        return {"records": f"{len(self)} of {self.name.records}", "nbytes": f"about {self.nbytes:,}"}

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={value}" for name, value in self.sizes.items())
        return f"{self.title}, {sizes}, digest='sha256:{self.digests.elements}')"


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


def check_keys(spec: Tree, names: Any) -> None:
    """Raise unless these are keys of a dict."""
    if isinstance(names, bytes) or not isinstance(names, Sequence) or not isinstance(spec, dict):
        raise InvalidArgumentError(f"fields={names!r}: pass a tuple of keys; elements are {tree.describe(spec)}")
    for name in names:
        if not isinstance(name, str):
            raise InvalidTypeError(f"fields={names!r} holds {name!r} of type {type(name).__name__}: pass keys")
        if name not in spec:
            raise InvalidArgumentError(f"no field {name!r}: the element is {tree.describe(spec)}")


def leaves_below(spec: Tree, keys: Sequence[str]) -> list[int]:
    """Return the numbers of the leaves below these keys of a dict, ascending."""
    ends = accumulate(len(tree.leaves(child)) for child in spec.values())
    below = [(key, range(end - len(tree.leaves(spec[key])), end)) for key, end in zip(spec, ends, strict=True)]
    return [leaf for key, leaves in below if key in keys for leaf in leaves]
