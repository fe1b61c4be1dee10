"""The protocols :class:`Dataset` and :class:`DatasetRows`, through which elements are read by number, and their values.

A version, windows, a concatenation: each is a :class:`Dataset`. Streams, builds and adapters know nothing else about
records than what a :class:`DatasetRows` says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal, NamedTuple, Protocol, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
NO_NUMBERS: NDArray[np.int64] = np.empty(0, np.int64)

Failed = dict[int, BaseException]
"""The error of each element that could not be made, by its row."""


class Attempted(NamedTuple):
    """What was made of some rows: their elements, and the errors of others."""

    elements: list[Any]
    """The elements by row; None for rows that failed or were not tried."""
    failed: Failed
    """Errors of rows for which the elements of other records may stand in."""
    ended: Failed
    """Errors that end the rows: those behind the first of them may not have been tried."""

    @classmethod
    def of_rows(cls, rows: int) -> Attempted:
        """Return what was made of so many rows: nothing yet."""
        return cls([None] * rows, {}, {})

    @property
    def end(self) -> int:
        """The number of rows before the first error that ends them."""
        return min(self.ended, default=len(self.elements))

    def put(self, rows: Sequence[int], attempted: Attempted) -> None:
        """Put in what was made of some of the rows."""
        for row, element in zip(rows, attempted.elements, strict=True):
            self.elements[row] = element
        for errors, errors_of_rows in ((self.failed, attempted.failed), (self.ended, attempted.ended)):
            errors.update((rows[index], error) for index, error in errors_of_rows.items())


ReadingCost = Literal["stored", "decoded", "foreign"]
"""What it takes to read an element. ``"stored"``: about the bytes of its record. ``"decoded"``: many times more memory.
``"foreign"``: an object of the user makes it."""


def highest_cost(costs: Iterable[ReadingCost]) -> ReadingCost:
    """Return the cost of an element whose parts have these costs."""
    return max(costs, key=("stored", "decoded", "foreign").index)


@dataclass(frozen=True)
class Info:
    """The facts about a dataset that are known before any of it is read."""

    name: str
    """Its name in errors."""
    title: str
    """The kind of view that shows it and what it was made of, such as ``Windows('d@v1', 'tokens', length=8)``."""
    metadata: Mapping[str, Any]
    """The metadata of the version that it comes from; see :attr:`cachelayer.DataRef.metadata`."""
    record_nbytes: int
    """Approximate bytes of a record.

    The default sizes of a shuffle in blocks follow from this number. So it is the same for one digest of the rows,
    however they are compressed, whatever was erased, and whatever else is read of them.
    """
    read_nbytes: int
    """Approximate bytes that are stored, and are read, of a record."""
    records_per_read: int
    """How many records a stream with smaller batches should read at once."""
    reading_cost: ReadingCost = "stored"
    is_declared: bool = True
    """True if all elements are known to have the element spec; False if it was inferred from the first."""
    together: int = 1
    """How many consecutive elements share the records that they are made of, such as a long document or a group of
    packed documents. Smaller blocks would read the same records several times."""
    is_growing: bool = False
    """True if some of the records are of a version that was being built when it was opened."""
    excludes_erased: bool = False
    """True if streams, and reads of ranges, leave erased records out; False if these raise an error."""


class RecordSpan(NamedTuple):
    """A record that an element was made of, or the part of a document that a window or a pack holds.

    Examples:
        >>> ref = cachelayer.Storage(folder).cache([{"tokens": [1, 2, 3]}, {"tokens": [4, 5]}], "docs@v1")
        >>> windows = ref.windows("tokens", 4)
        >>> windows[0]["tokens"].tolist()
        [1, 2, 3, 4]
        >>> [(span.record, span.begin, span.end, span.offset) for span in windows.sources(0)]
        [(0, 0, 3, 0), (1, 0, 1, 3)]
        >>> ref.sources(1)[0].record, ref.sources(1)[0].begin  # the whole record
        (1, None)
    """

    dataset: str
    """The dataset of the record: the reference of a version, or the identity of a wrapped object."""
    record: int
    """The number of the record in that dataset."""
    begin: int | None
    """The first value of the document that the element holds; None if the element holds the whole record."""
    end: int | None
    """The value after the last that the element holds; None if the element holds the whole record."""
    offset: int
    """The place in the element where these values begin."""


@dataclass(frozen=True, eq=False)
class Sources:
    """The records that some elements were made of, as a table: a row for each record of each element.

    Rows are in the order of the elements. All columns are int64 of shape ``[rows]``.

    Examples:
        >>> ref = cachelayer.Storage(folder).cache([{"tokens": [1, 2, 3]}, {"tokens": [4, 5]}], "docs@v1")
        >>> sources = ref.windows("tokens", 4).stream(1).sources(0)  # of the first step, a window over both documents
        >>> sources.element.tolist(), sources.record.tolist(), sources.begin.tolist(), sources.end.tolist()
        ([0, 0], [0, 1], [0, 0], [3, 1])
    """

    datasets: tuple[str, ...]
    """The datasets of the records: references of versions, or identities of wrapped objects."""
    element: NDArray[np.int64]
    """The element, counted from the first that was asked for."""
    dataset: NDArray[np.int64]
    """The dataset of the record: an index of :attr:`datasets`."""
    record: NDArray[np.int64]
    """The number of the record in that dataset."""
    begin: NDArray[np.int64]
    """The first value of the record's document that the element holds; -1 if it holds the whole record."""
    end: NDArray[np.int64]
    """The value after the last that the element holds; -1 if it holds the whole record."""
    offset: NDArray[np.int64]
    """The place in the element where these values begin."""

    def spans(self) -> list[RecordSpan]:
        """Return the rows of the table one by one.

        Examples:
            >>> ref = cachelayer.Storage(folder).cache([{"tokens": [1, 2, 3]}, {"tokens": [4, 5]}], "docs@v1")
            >>> [(span.record, span.end) for span in ref.windows("tokens", 4).stream(1).sources(0).spans()]
            [(0, 3), (1, 1)]
        """
        columns = (self.dataset, self.record, self.begin, self.end, self.offset)
        spans = []
        for dataset, record, begin, end, offset in zip(*(column.tolist() for column in columns), strict=True):
            if begin < 0:
                spans.append(RecordSpan(self.datasets[dataset], record, None, None, offset))
            else:
                spans.append(RecordSpan(self.datasets[dataset], record, begin, end, offset))
        return spans

    def by_dataset(self) -> dict[str, NDArray[np.int64]]:
        """Return the numbers of the records of each dataset, ascending and without repeats.

        Examples:
            >>> ref = cachelayer.Storage(folder).cache(range(100, 110), "numbers@v1")
            >>> sources = ref.stream(4, shuffle=True, seed=0).sources(0)
            >>> sources.by_dataset()[ref.reference].tolist() == sorted(sources.record.tolist())
            True
        """
        return {
            name: np.unique(self.record[self.dataset == number])
            for number, name in enumerate(self.datasets)
            if (self.dataset == number).any()
        }


def sources_of_records(dataset: str, records: NDArray[np.int64]) -> Sources:
    """Return the sources of elements each of which is a whole record of one dataset."""
    zeros = np.zeros(len(records), np.int64)
    none = np.full(len(records), -1)
    return Sources((dataset,), np.arange(len(records)), zeros, records, none, none, zeros)


def joined_sources(groups: Sequence[tuple[NDArray[np.int64], Sources]]) -> Sources:
    """Return the sources of all elements of several groups.

    A group has the places of its elements among all elements, and their sources.
    """
    names = list(dict.fromkeys(name for _, sources in groups for name in sources.datasets))
    tables = []
    for places, sources in groups:
        numbers = np.array([names.index(name) for name in sources.datasets], np.int64)
        element = places[sources.element]
        dataset = numbers[sources.dataset]
        tables.append((element, dataset, sources.record, sources.begin, sources.end, sources.offset))
    if not tables:
        return Sources((), *[np.empty(0, np.int64)] * 6)
    columns = [np.concatenate(parts) for parts in zip(*tables, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return Sources(tuple(names), *(column[order] for column in columns))


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
    def varying(self) -> Mapping[str, Any]:
        """The specs of the parts of elements whose batches are no plain arrays, by their paths."""

    def passing(self, element: Any, /) -> Callable[[Any], Mapping[str, Any]]:
        """Return a function that finds out which leaves of an element the user's functions have passed on unchanged.

        The function takes the result of the user's functions. It returns the specs of the leaves that were passed on,
        by their paths in the result. Leaves whose batches are plain arrays are left out.

        Args:
            element: an element of the spec, before the user's functions change it.
        """

    def collate(self, elements: Sequence[Any], passed_on: Mapping[str, Any], rows: int | None = None, /) -> Any:
        """Return the batch of elements that the user's functions made.

        Args:
            elements: one or more elements.
            passed_on: the specs of the leaves that are batched as those of the dataset; see :meth:`passing`.
            rows: how many elements the batch has, counted from the first; None for all.
        """


class StoredSource(Protocol):
    """A place where records are stored, such as a version in a bucket. Hashable by its identity."""

    def fetch_block(self, numbers: NDArray[np.int64], /) -> Any:
        """Fetch records that are read later; one request fetches records that lie together.

        Args:
            numbers: the numbers of the records, ascending and without repeats.
        """

    def prepare(self, numbers: NDArray[np.int64], later: NDArray[np.int64], readers: int, /) -> None:
        """Get ready to read records, as part of an epoch of all; this may wait, and begin copies of what comes later.

        Args:
            numbers: the numbers of the records.
            later: the numbers of some records that are read later in the epoch.
            readers: the number of processes that take turns at reading.
        """


Needed = Mapping[StoredSource, NDArray[np.int64]]
"""The numbers of the records that some elements are made of, and that take requests, ascending, by their source."""
Held = Mapping[StoredSource, Sequence[Any]]
"""The records that were fetched: for each source, the results of its :meth:`StoredSource.fetch_block`."""


def needed_together(parts: Iterable[Needed]) -> Needed:
    """Return the records that are needed in several parts."""
    numbers: dict[StoredSource, list[NDArray[np.int64]]] = {}
    for part in parts:
        for source, numbers_of_part in part.items():
            numbers.setdefault(source, []).append(numbers_of_part)
    needed = {}
    for source, several in numbers.items():
        needed[source] = several[0] if len(several) == 1 else np.unique(np.concatenate(several))
    return needed


class Digests(NamedTuple):
    """The identities of a dataset, each a SHA-256 in hexadecimal."""

    elements: str
    """The digest of the elements."""
    rows: str
    """The digest of the rows, whichever leaves are read of them: orders and states refer to it."""
    original: str
    """The digest of the rows before any record was erased; the digest of the rows if they had other numbers then."""
    planned: str
    """The hash in place of the digest of the rows while their version was being built; the digest if there is none."""

    is_plan: bool = False
    """True if it is being built, or a part of it is: the hashes of the plans stand for all digests."""

    @classmethod
    def of(cls, digest: str, *, is_plan: bool = False) -> Digests:
        """Return one digest for all."""
        return cls(digest, digest, digest, digest, is_plan)

    @classmethod
    def joined(cls, name: bytes, several: Sequence[Digests]) -> Digests:
        """Return the digests of a dataset made of several: SHA-256 of a name and their digests, 32 bytes each."""
        every = zip(*(digests[:4] for digests in several), strict=True)
        texts = [hashlib.sha256(b"".join([name, *map(bytes.fromhex, of_each)])).hexdigest() for of_each in every]
        # Those that are built have a plan too, which states go on with when all are.
        return cls.of(texts[3], is_plan=True) if any(each.is_plan for each in several) else cls._make([*texts, False])

    def of_elements(self, name: bytes, facts: bytes) -> Digests:
        """Return the digests of the same rows, of which other elements are made: of a name and facts about these."""
        text = bytes.fromhex(self.elements) + name + facts
        return self._replace(elements=hashlib.sha256(text).hexdigest())

    def derived(self, digest_of: Callable[[str], str]) -> Digests:
        """Return the digests of a dataset derived from this one: a function makes each of the digest in its place."""
        # They are often one, which is hashed once.
        derived = {digest: digest_of(digest) for digest in {*self[:4]}}
        return Digests._make([*map(derived.__getitem__, self[:4]), self.is_plan])


class ShardRows(NamedTuple):
    """Rows that lie in the shards of one version, each by a number that no derived or appended version changes."""

    places: NDArray[np.int64]
    """The places of these rows among the rows that were asked for."""
    segments: tuple[int, ...]
    """The number of records of each segment of the shards."""
    numbers: NDArray[np.int64]
    """The number of each row in the shards."""


@dataclass(frozen=True, eq=False)
class Origins:
    """What the rows of a dataset are known by, and where they come from."""

    digests: Digests
    segments: tuple[int, ...]
    """The number of rows of each segment: of the first build, and of each append."""
    references: tuple[str, ...] = ()
    """The references of the versions, or views of them, that the rows come from; empty if there are none."""
    home: Any = None
    """The version beside which plans of the rows are stored; None if they are stored records of no single version."""
    erased: NDArray[np.int64] = field(default_factory=lambda: NO_NUMBERS)
    """The numbers of the erased rows, ascending: to read one raises an ErasedRecordError."""
    earlier: Callable[[int], str | None] | None = None
    """Given a number of first segments, returns the digest of the rows before later segments were appended; None if
    the first rows were others then. Without it that is not known."""
    placed: Callable[[NDArray[np.int64]], Iterator[ShardRows]] | None = None
    """Yields where the rows of some numbers lie, one group for each version; without it the rows are those of one."""
    parts: tuple[Origins, ...] = ()
    """The origins of the parts of a mixture, in their order."""

    def begins_with(self, records: int, digest: str) -> bool:
        """Return whether the rows of the first elements have this digest: the others were appended since."""
        if records == sum(self.segments) and digest == self.digests.rows:
            return True
        ends = accumulate(self.segments[:-1])
        return any(end == records and self.earlier_digest(count) == digest for count, end in enumerate(ends, 1))

    def earlier_digest(self, segments: int) -> str | None:
        """Return the digest of the rows before the records of later segments were appended; None if it is not known.

        Args:
            segments: the number of first segments, at least one and fewer than all.
        """
        return None if self.earlier is None else self.earlier(segments)

    def in_shards(self, numbers: NDArray[np.int64]) -> Iterator[ShardRows]:
        """Return where the rows of these numbers lie, one group for each version."""
        if self.placed is None:
            return iter([ShardRows(np.arange(len(numbers)), self.segments, numbers)])
        return self.placed(numbers)


class Dataset(Protocol[T_co]):
    """Elements that are read by their numbers, from 0 to the length. Thread-safe and picklable.

    A selection, windows or a concatenation holds other datasets, and is a dataset itself.
    """

    @property
    def info(self) -> Info:
        """The facts about the dataset that are known before any of it is read."""

    @property
    def origins(self) -> Origins:
        """What the rows are known by, and where they come from."""

    @property
    def element_spec(self) -> Any:
        """The structure of an element, with leaf specs in it."""

    def __len__(self) -> int:
        """Number of elements."""

    def elements(self, numbers: NDArray[np.int64], held: Held | None = None, /) -> Sequence[T_co]:
        """Return the elements of these numbers; the caller may change them.

        Args:
            numbers: the numbers.
            held: records that were fetched; others are read from their source.
        """

    def try_elements(self, numbers: NDArray[np.int64], held: Held | None = None, /, *, stops: bool) -> Attempted:
        """Return the elements of these numbers, and the errors of elements that cannot be made.

        Args:
            numbers: the numbers.
            held: records that were fetched.
            stops: whether the first error ends the rows. An error of the storage always does.
        """

    def batch(self, numbers: NDArray[np.int64], held: Held | None = None, /) -> Any:
        """Return the elements stacked on a leading axis, which the caller may change.

        Args:
            numbers: the numbers.
            held: records that were fetched.
        """

    def needed(self, numbers: NDArray[np.int64], /) -> Needed:
        """Return the stored records that these elements are made of, unless reading them takes no request.

        A caller who holds these records reads the elements without a request. Of no elements, it names the sources that
        take requests.
        """

    def sources(self, numbers: NDArray[np.int64], /) -> Sources:
        """Return the records of stored versions, or of wrapped objects, that these elements are made of."""


class DatasetRows(Dataset[T_co], Protocol[T_co]):
    """Some rows of a dataset, as streams, builds and adapters read them."""

    def batches(self, numbers: NDArray[np.int64], splits: Sequence[int], held: Held | None = None, /) -> Iterable[Any]:
        """Return the batches of consecutive rows. All are read at once, and may share memory.

        Args:
            numbers: the numbers of all rows.
            splits: the first row of each batch, then the number of all rows.
            held: records that were fetched.
        """

    def count_values(self, numbers: NDArray[np.int64], name: str, /) -> dict[str, int | float]:
        """Return how many values a field has in some rows, or the sum of its numbers, by the parts of a mixture."""

    def padded_as(self, number: int, /) -> DatasetRows[T_co]:
        """Return the rows padded to the shape of the element of this number.

        Only elements in buckets of lengths have several shapes; any others return themselves.
        """

    def published(self, *, wait: bool = True) -> DatasetRows[T_co] | None:
        """Return the same elements of a version that was being built, once it is published; else these.

        Args:
            wait: wait for the end of the build; without it, the result is None as long as the version is being built.
        """

    def stacking(self, element_spec: Any = None, /) -> Stacker:
        """Return the stacker of the elements, or of elements of a declared spec."""

    def undecoded(self) -> DatasetRows[Any] | None:
        """Return the same elements undecoded, images and audio as file bytes; None if they are not stored."""


def declared_spec(dataset: Dataset[Any]) -> Any:
    """Return the element spec that all elements are known to have; None if it is only inferred from the first."""
    return dataset.element_spec if dataset.info.is_declared else None


def takes_requests(dataset: Dataset[Any]) -> bool:
    """Return whether reading elements takes requests to an object store."""
    return bool(dataset.needed(NO_NUMBERS))


def identity_of_records(records: Dataset[Any]) -> tuple[str, str]:
    """Return the digest and the declared spec of elements: if both are equal, the elements are the same."""
    return records.origins.digests.elements, repr(declared_spec(records))


class HasRecords(Protocol[T_co]):
    """A public object that has records, such as a ref or a view: streams, builds and adapters read them."""

    def __records__(self) -> DatasetRows[T_co]:
        """Return the records."""


def has_records(obj: object) -> TypeGuard[HasRecords[Any]]:
    """Return whether an object is a public object of this package that has records: no other has that method."""
    return hasattr(type(obj), "__records__")


def records_of(obj: HasRecords[T]) -> DatasetRows[T]:
    """Return the records of a ref or a view."""
    return obj.__records__()


class HasParts(Protocol):
    """A mixture, over which streams of an older mixture go on."""

    def __mixture__(self, order: Any, global_batch: int) -> tuple[DatasetRows[Any], Any]:
        """Return the records of all parts, and their order in such steps, shuffled as that of the older mixture."""


def has_parts(obj: object) -> TypeGuard[HasParts]:
    """Return whether an object is a mixture: no other has that method."""
    return hasattr(type(obj), "__mixture__")
