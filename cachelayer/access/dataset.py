"""What can be read: elements by number. Whatever a view shows is a :class:`BaseDataset`.

Datasets are made of one another: most of them hold a dataset, and are one, so that any view can be made of any other::

    View, DataRef             what users see; it holds a
      DatasetView             some rows, in any order, of one of these datasets:     dataset_view
        RecordElements        elements decoded from stored records, of one of:       record_elements
          VersionRecords        the records of a version                             version_records
          GrowingRecords        the records of a version that is being built         growing_records
          Joined                the records of several versions
        WithColumns           RecordElements, merged with columns added later        with_columns
        Joined                DatasetViews, one after another                        joined
        WindowRows, PackRows  rows of values out of the documents of a DatasetView   sequences/documents
        PaddedElements        a DatasetView, with some leaves padded                 sequences/padded
        SeriesWindows         windows over the records of a DatasetView              sequences/rolling
        ClipRows              frames out of the videos of a DatasetView              sequences/clips
        WrappedItems          the items of an object of the user                     wrap

So ``ref[-1]`` goes down three steps::

    View.__getitem__        -1        selection.number(-1) is record 41
    RecordElements.element  41        decodes what the source returns
    VersionRecords.record   41        reads bytes of a mapped file, of a local copy, or of a bucket

A stream that reads blocks from a bucket does it in two: it asks ``needed(numbers)`` which stored records the elements
are made of, fetches them, and passes them on as ``held``, from which ``elements`` and ``batch`` then read.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import ElementError
from cachelayer.locks import PickledByFields, cached_property
from cachelayer.protocols import Attempted, Dataset, Held, Needed, Sources
from cachelayer.records import tree
from cachelayer.records.codec import Codec
from cachelayer.records.memory import Ints, Placed
from cachelayer.records.schema import Schema
from cachelayer.records.spec import SparseSpec
from cachelayer.records.tree import Tree
from cachelayer.records.values import Ragged
from cachelayer.streams.reading.failures import attempt, is_of_element
from cachelayer.versions.manifest import canonical_json
from cachelayer.versions.stored_version import StoredVersion

if TYPE_CHECKING:
    from cachelayer.arrayrecord.lengths import LengthColumn
    from cachelayer.records.stacking import Stacking

NO_NUMBERS = np.empty(0, np.int64)


class ShardRows(NamedTuple):
    """Rows that lie in the shards of one version, each by a number that no derived or appended version changes."""

    places: Ints
    """The places of these rows among the rows that were asked for."""
    segments: tuple[int, ...]
    """The number of records of each segment of the shards."""
    numbers: Ints
    """The number of each row in the shards."""


class RowOrigins(Protocol):
    """The origins of rows. Stored records answer these questions, and so do datasets that are made of them.

    The defaults fit rows of one segment that come from no version.
    """

    def __len__(self) -> int:
        """Return the number of rows."""

    @property
    def references(self) -> tuple[str, ...]:
        """The references of the versions, or views of them, that the rows come from."""
        return ()

    @property
    def segments(self) -> tuple[int, ...]:
        """The number of rows of each segment: of the first build, and of each append."""
        return (len(self),)

    def in_shards(self, numbers: Ints) -> Iterator[ShardRows]:
        """Yield where the rows of these numbers lie, one group for each version."""
        yield ShardRows(np.arange(len(numbers)), self.segments, numbers)

    def prefix_digest(self, segments: int) -> str | None:  # noqa: ARG002
        """Return the digest of the rows as it was before the records of later segments were appended.

        Args:
            segments: the number of first segments, at least one and fewer than all.

        Returns:
            The digest; None if the first rows were others then, or if that is not known.
        """
        return None

    @property
    def erased(self) -> Ints:
        """The numbers of the erased rows, ascending: to read one raises an ErasedRecordError."""
        return NO_NUMBERS

    @property
    def takes_requests(self) -> bool:
        """True if reading rows takes requests to an object store."""
        return False

    def needed(self, numbers: Ints) -> Needed:  # noqa: ARG002
        """Return the stored records that these rows are made of, except records that are best read where they lie."""
        return {}

    def sources(self, numbers: Ints) -> Sources:
        """Return the records of versions, or the items of wrapped objects, that these rows are made of."""


@dataclass(frozen=True, eq=False)
class LeafRead:
    """The values of a leaf that are read of each of some records: all of them, or a range."""

    leaf: int
    """The number of the leaf."""
    starts: Ints | None = None
    """The first value of the range of each record; None for all values of a leaf of one shape."""
    counts: Ints | None = None
    """The number of values of each range; None as for ``starts``."""
    ends: NDArray[np.bool_] | None = None
    """True for each record whose leaf must end with the range; None if leaves may be longer."""
    into: Placed | None = None
    """Receives the values; None to return them in a new array, one range after another."""

    def of_leaf(self, leaf: int) -> LeafRead:
        return replace(self, leaf=leaf)

    def of_rows(self, rows: Ints) -> LeafRead:
        """Return the read of some of the records."""
        if self.starts is None or self.counts is None:
            return self
        ends = None if self.ends is None else self.ends[rows]
        into = None if self.into is None else self.into._replace(places=self.into.places[rows])
        return LeafRead(self.leaf, self.starts[rows], self.counts[rows], ends, into)


class StoredLeaves(Protocol):
    """The leaves of records as they are stored, by their numbers: lengths, and values out of the middle of a leaf."""

    @property
    def codec(self) -> Codec:
        """The codec of the leaves."""

    @property
    def home(self) -> StoredVersion | None:
        """The version beside which plans of the records are stored; None if they are of no single version."""

    def with_fields(self, leaves: Sequence[int]) -> BaseDataset:
        """Return the same elements with some of the leaves, in ascending order of their numbers."""

    def has_added(self, leaves: Sequence[int]) -> bool:  # noqa: ARG002
        """Return whether one of these leaves is a column that was added to the version."""
        return False

    def lengths(self, leaf: int) -> LengthColumn:
        """Return the lengths of a leaf in all records."""

    def leaf_values(self, numbers: Ints, reads: Sequence[LeafRead], held: Held | None = None) -> list[Any]:
        """Return values of several leaves of some records. Each record is read once.

        Args:
            numbers: the records.
            reads: what is read of each leaf; ``starts``, ``counts`` and ``ends`` have an item for each record.
            held: records that were fetched.

        Returns:
            The values of each read: the array that received ranges, as :meth:`Codec.leaf_values` returns it; or whole
            leaves stacked, as a :class:`cachelayer.Nullable` if they may be None.
        """


class BaseDataset(PickledByFields, RowOrigins, Dataset[Any]):
    """A dataset, with defaults for most of what it is asked.

    :class:`cachelayer.protocols.Dataset` says what streams, builds and adapters ask, :class:`RowOrigins` what is asked
    about rows; what only this package asks is documented here. A dataset must have ``title``, ``digests``, ``info``,
    ``element_spec``, ``__len__``, ``elements``, ``batch`` and ``sources``. The defaults fit one that is of no version.
    """

    @property
    @abstractmethod
    def title(self) -> str:
        """The kind of view that shows it and what it was made of, such as ``Windows('d@v1', 'tokens', length=8)``."""

    @property
    def leaves(self) -> StoredLeaves | None:
        """The stored leaves of the elements; None if the elements are not stored records."""
        return None

    @property
    def declared_spec(self) -> Tree | None:
        return self.element_spec if self.info.is_declared else None

    def with_declared_spec(self) -> BaseDataset:
        """Return the same elements, all of which are known to have the element spec."""
        return self

    def begins_with(self, records: int, digest: str) -> bool:
        if records == len(self) and digest == self.digests.rows:
            return True
        ends = accumulate(self.segments[:-1])
        return any(end == records and self.prefix_digest(count) == digest for count, end in enumerate(ends, 1))

    def padding(self, numbers: Ints, name: str) -> int:  # noqa: ARG002
        """Return how many values of an array are padding, over some elements.

        Args:
            numbers: the elements.
            name: the leaf, of one fixed shape.
        """
        return 0

    def element(self, number: int) -> Any:
        """Return one element."""
        return self.elements(np.array([number]))[0]

    def published(self, *, wait: bool = True) -> BaseDataset | None:  # noqa: ARG002
        return self

    @abstractmethod
    def elements(self, numbers: Ints, held: Held | None = None) -> list[Any]: ...

    def try_elements(self, numbers: Ints, held: Held | None = None, *, stops: bool) -> Attempted:
        elements, error = attempt(self.elements, numbers, held)
        if error is None:
            return Attempted(elements, {}, {})
        return one_by_one(lambda number: self.elements(np.array([number]), held)[0], numbers, stops=stops)

    @abstractmethod
    def batch(self, numbers: Ints, held: Held | None = None) -> Any: ...

    def batch_of_keys(self, numbers: Ints, keys: Sequence[str]) -> dict[str, Any]:
        """Return the batch of dicts with only these of their keys: of stored records, nothing else is decoded."""
        leaves = self.leaves
        if leaves is None:
            return {key: values for key, values in self.batch(numbers).items() if key in keys}
        # The dataset of these keys is kept: it has planned how to decode them.
        narrow: dict[tuple[str, ...], BaseDataset] = self.__dict__.setdefault("_narrow", {})
        if tuple(keys) not in narrow:
            narrow[tuple(keys)] = leaves.with_fields(leaves_below(leaves.codec.spec, keys))
        return narrow[tuple(keys)].batch(numbers)  # type: ignore[no-any-return]

    def batches(self, numbers: Ints, splits: Sequence[int], held: Held | None = None) -> Iterable[Any]:
        rows = [slice(begin, end) for begin, end in pairwise(splits)]
        # Objects of the user are read batch by batch, so that an error belongs to its batch. So are elements without a
        # declared spec: what is read at once is cut into batches by its spec. And the shape of a batch of sparse arrays
        # depends on all of its rows.
        if not self.info.is_declared or self.info.reading_cost == "foreign" or has_sparse(self.element_spec):
            return (self.batch(numbers[some], held) for some in rows)
        schema = self._schema
        values, nulls = schema.split(self.batch(numbers, held))
        if not nulls:
            # Many small batches are packed at once, as elements are.
            return schema.pack_rows([[_rows(leaf, some) for some in rows] for leaf in values], nulls, len(rows))
        return (
            schema.pack([_rows(leaf, some) for leaf in values], {path: null[some] for path, null in nulls.items()})
            for some in rows
        )

    @cached_property
    def _schema(self) -> Schema:
        return Schema.of(self.element_spec)

    def padded_as(self, number: int) -> BaseDataset:  # noqa: ARG002
        return self

    def stacking(self, element_spec: Tree | None = None) -> Stacking:
        from cachelayer.records.infer import declared
        from cachelayer.records.stacking import Stacking

        return Stacking(self, None if element_spec is None else declared(element_spec))

    def undecoded(self) -> BaseDataset | None:
        return None


class SameRows(BaseDataset):
    """A dataset whose element i is made of row i of ``underlying``. Questions about rows go to ``underlying``."""

    @property
    @abstractmethod
    def underlying(self) -> RowOrigins:
        """The rows that the elements are made of."""

    def __len__(self) -> int:
        return len(self.underlying)

    @property
    def references(self) -> tuple[str, ...]:
        return self.underlying.references

    @property
    def segments(self) -> tuple[int, ...]:
        return self.underlying.segments

    def in_shards(self, numbers: Ints) -> Iterator[ShardRows]:
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
    """Return SHA-256 over a name, the digest of records (32 bytes), and the canonical JSON of parameters.

    It is the digest of what the name calls, such as windows, made of these records with these parameters.
    """
    return hashlib.sha256(name.encode() + bytes.fromhex(digest) + canonical_json(parameters)).hexdigest()


def one_by_one(read: Callable[[int], Any], numbers: Ints, *, stops: bool) -> Attempted:
    """Read elements one by one.

    Args:
        read: reads an element by its number.
        numbers: the numbers.
        stops: whether the first error ends the rows. An error of the storage always does.
    """
    made = Attempted.of_rows(len(numbers))
    for row, number in enumerate(numbers.tolist()):
        made.elements[row], error = attempt(read, number)
        if error is None:
            continue
        if stops or not is_of_element(error) or not is_of_element(error.__cause__ or error):
            made.ended[row] = error
            break
        made.failed[row] = error
    return made


def has_sparse(spec: Tree) -> bool:
    """Return whether elements have sparse arrays."""
    return any(isinstance(leaf, SparseSpec) for _, leaf in tree.leaves(spec))


def _rows(values: Any, rows: slice) -> Any:
    if isinstance(values, Ragged):
        return values.rows(rows.start, rows.stop)
    return values[rows]


def check_one_size(path: str, arrays: Iterable[NDArray[Any]]) -> None:
    """Raise unless a batch can have all rows of some arrays: of elements whose spec is inferred from the first."""
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) > 1:
        raise ElementError(
            "clips of one size in a batch",
            " and ".join(str(list(shape)) for shape in sorted(shapes)),
            path=path,
            hint="Call decoded(size=(height, width)) before clips(), or resize them with stream(...).map(...).",
        )


def leaves_below(spec: Tree, keys: Sequence[str]) -> list[int]:
    """Return the numbers of the leaves below these keys of a dict, ascending."""
    ends = accumulate(len(tree.leaves(child)) for child in spec.values())
    below = [(key, range(end - len(tree.leaves(spec[key])), end)) for key, end in zip(spec, ends, strict=True)]
    return [leaf for key, leaves in below if key in keys for leaf in leaves]
