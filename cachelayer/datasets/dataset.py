"""What can be read: elements by number. Whatever a view shows is a :class:`BaseDataset`.

Datasets are made of one another: most of them hold a dataset, and are one, so that any view can be made of any other::

    View, DataRef             what users see; it holds a
      DatasetView             some rows, in any order, of one of these datasets:     dataset_view
        Table                 leaves of stored records, and of added columns, of:    table
          VersionRecords        the shards of a version                              version_records
          GrowingRecords        the shards of a version that is being built          growing_records
          JoinedRecords         the shards of several versions                       joined
        Joined                DatasetViews, one after another                        joined
        WindowRows, PackRows  rows of values out of the documents of a DatasetView   sequences/documents
        PaddedElements        a DatasetView, with some leaves padded                 sequences/padded
        SeriesWindows         windows over the records of a DatasetView              sequences/rolling
        ClipRows              frames out of the videos of a DatasetView              sequences/clips
        WrappedItems          the items of an object of the user                     wrap

So ``ref[-1]`` goes down three steps::

    View.__getitem__        -1        selection.number(-1) is record 41
    Table.element           41        decodes what the shards return
    VersionRecords.record   41        reads bytes of a mapped file, of a local copy, or of a bucket

A stream that reads blocks from a bucket does it in two: it asks ``needed(numbers)`` which stored records the elements
are made of, fetches them, and passes them on as ``held``, from which ``elements`` and ``batch`` then read.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import ElementError
from cachelayer.protocols import Attempted, Dataset, Held, Info, Needed, Origins, Sources
from cachelayer.records.codec import Codec
from cachelayer.records.spans import Records
from cachelayer.specs.schema import Schema
from cachelayer.streams.reading.failures import attempt, is_of_element
from cachelayer.support.locks import PickledByFields
from cachelayer.support.memory import Ints, Placed

if TYPE_CHECKING:
    from cachelayer.arrayrecord.lengths import LengthColumn


class BaseDataset(PickledByFields, Dataset[Any]):
    """A dataset, with what most of them answer alike.

    Others have ``info``, ``origins``, ``element_spec``, ``__len__``, ``elements``, ``batch`` and ``sources``.
    """

    def element(self, number: int) -> Any:
        """Return one element."""
        return self.elements(np.array([number]))[0]

    @abstractmethod
    def elements(self, numbers: Ints, held: Held | None = None) -> list[Any]: ...

    def try_elements(self, numbers: Ints, held: Held | None = None, *, stops: bool) -> Attempted:
        elements, error = attempt(self.elements, numbers, held)
        if error is None:
            return Attempted(elements, {}, {})
        return one_by_one(lambda number: self.elements(np.array([number]), held)[0], numbers, stops=stops)

    def batch_of_keys(self, numbers: Ints, keys: Sequence[str]) -> dict[str, Any]:
        """Return the batch of dicts with only these of their keys: of stored records, nothing else is decoded."""
        return {key: values for key, values in self.batch(numbers).items() if key in keys}

    def needed(self, numbers: Ints) -> Needed:  # noqa: ARG002
        return {}

    def padding(self, numbers: Ints, name: str) -> int:  # noqa: ARG002
        """Return how many values of a field of fixed shape are padding, over some elements."""
        return 0


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


class Shards(Protocol):
    """Encoded records by number: of a version, or of several. Thread-safe and picklable. Erased records are empty."""

    @property
    def info(self) -> Info:
        """The facts that are known of the records before any is read."""

    @property
    def origins(self) -> Origins:
        """The digests of the records, their segments, and the versions that they come from."""

    @property
    def codec(self) -> Codec:
        """The codec of the records."""

    @property
    def reads_in_part(self) -> bool:
        """True if only the bytes of a record that are used are read."""

    def __len__(self) -> int: ...

    def with_shards(self, change: Callable[[Shards], Shards]) -> Shards:
        """Return the same records of changed shards: of several, each is changed by itself."""
        return change(self)

    def published(self, *, wait: bool = True) -> Shards | None:  # noqa: ARG002
        """Return the same records of a version that was being built; see :class:`cachelayer.protocols.DatasetRows`."""
        return self

    def record(self, number: int) -> bytearray:
        """Return one record; the caller may change it."""

    def records(self, numbers: Ints, held: Held | None = None, *, videos: bool = True) -> Records:
        """Return the records of these numbers, each in [0, len). Bytes of local files are read when they are used.

        Without ``videos``, the files of videos are fetched when they are used.
        """

    def lengths(self, leaf: int) -> LengthColumn:
        """Return the lengths of a leaf, by its number."""

    def needed(self, numbers: Ints) -> Needed:
        """Return the stored records; see :class:`cachelayer.protocols.Dataset`."""

    def sources(self, numbers: Ints) -> Sources:
        """Return the records of versions; see :class:`cachelayer.protocols.Dataset`."""


class Stored(BaseDataset):
    """Elements that are made of shards: a table, or several datasets of which one may be a table.

    The leaves of a table have numbers. Their lengths, and values out of the middle of a leaf, are read alone.
    """

    @property
    def has_leaves(self) -> bool:
        """True if all elements are stored leaves of one spec; else the methods for leaves must not be called."""
        return True

    @property
    @abstractmethod
    def codec(self) -> Codec:
        """The codec of the leaves."""

    @abstractmethod
    def with_shards(self, change: Callable[[Shards], Shards]) -> Self:
        """Return the same elements of changed shards; these if none changes."""

    @abstractmethod
    def undecoded(self) -> Stored | None:
        """Return the same elements with images and sounds as the bytes of their files; None if these are not known."""

    @abstractmethod
    def with_fields(self, leaves: Sequence[int]) -> Stored:
        """Return the same elements with some of the leaves, in ascending order of their numbers."""

    @abstractmethod
    def has_added(self, leaves: Sequence[int]) -> bool:
        """Return whether one of these leaves is a column that was added to the version."""

    @abstractmethod
    def lengths(self, leaf: int) -> LengthColumn:
        """Return the lengths of a leaf in all records."""

    @abstractmethod
    def leaf_values(self, numbers: Ints, reads: Sequence[LeafRead], held: Held | None = None) -> list[Any]:
        """Return values of several leaves of some records. Each record is read once.

        A read of ranges returns the array that received them, as :meth:`Codec.leaf_values` does; a read of whole leaves
        returns them stacked, as a :class:`cachelayer.Nullable` if they may be None.
        """

    def batch_of_keys(self, numbers: Ints, keys: Sequence[str]) -> dict[str, Any]:
        if not self.has_leaves:
            return super().batch_of_keys(numbers, keys)
        # The dataset of these keys is kept: it has planned how to decode them.
        narrow: dict[tuple[str, ...], Stored] = self.__dict__.setdefault("_narrow", {})
        if tuple(keys) not in narrow:
            narrow[tuple(keys)] = self.with_fields(leaves_below(self.codec.schema, keys))
        return narrow[tuple(keys)].batch(numbers)  # type: ignore[no-any-return]


def one_by_one(read: Callable[[int], Any], numbers: Ints, *, stops: bool) -> Attempted:
    """Read elements one by one.

    With ``stops``, the first error ends the rows. An error of the storage always does.
    """
    attempted = Attempted.of_rows(len(numbers))
    for row, number in enumerate(numbers.tolist()):
        attempted.elements[row], error = attempt(read, number)
        if error is None:
            continue
        if stops or not is_of_element(error) or not is_of_element(error.__cause__ or error):
            attempted.ended[row] = error
            break
        attempted.failed[row] = error
    return attempted


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


def leaves_below(schema: Schema, keys: Collection[str]) -> list[int]:
    """Return the numbers of the leaves below these keys of a dict, ascending."""
    wanted = {*keys}
    root = schema.root
    return [leaf for key, child in zip(root.keys, root.children, strict=True) if key in wanted for leaf in child.leaves]
