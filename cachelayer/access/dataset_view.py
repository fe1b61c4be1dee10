"""A dataset view: some rows of a dataset, in an order of their own. A public view holds one, and streams read it.

And what datasets have in common whose rows are made of the records of a dataset view.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from cachelayer.access.dataset import BaseDataset, ShardRows, StoredLeaves, derived_digest
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.locks import cached_property
from cachelayer.protocols import Attempted, DatasetInfo, Digests, Held, Needed, Sources
from cachelayer.records import tree
from cachelayer.records.leaf_names import varying_leaf
from cachelayer.records.memory import Ints
from cachelayer.records.selection import Selection
from cachelayer.records.spec import EncodedSpec, VideoSpec
from cachelayer.records.tree import Tree
from cachelayer.versions.view_calls import ViewCall, ViewName

if TYPE_CHECKING:
    from cachelayer.arrayrecord.lengths import LengthColumn


@dataclass(frozen=True, repr=False, eq=False)
class DatasetView(BaseDataset):
    """Some elements of a dataset, in an order of their own.

    What is asked of row i is asked of the base, about element ``selection.number(i)``.
    """

    base: BaseDataset
    selection: Selection
    """The chosen elements of the base, in order."""
    mixed: tuple[DatasetView, ...] = ()
    """The parts of a mixture, which have its digests: the base joins what they are made of."""
    name: ViewName | None = None
    """The reference to the elements; None if they are of no version, or of several."""

    @classmethod
    def all(cls, base: BaseDataset) -> DatasetView:
        """Return all elements of a dataset, in its order."""
        return cls(base, Selection.all(len(base)))

    @property
    def is_view(self) -> bool:
        """True for some records, or some fields, of a version; False for a whole version, and for windows and packs."""
        return self.name is not None and bool(self.name.calls) and self.base.leaves is not None

    @property
    def title(self) -> str:
        if self.is_view and self.name is not None:
            return f"View({self.name.shown!r})"
        return self.base.title

    @cached_property
    def digests(self) -> Digests:
        if self.mixed:
            return Digests.joined(b"mixture", [part.digests for part in self.mixed])
        return self.base.digests.derived(lambda digest: self.selection.digest(digest, len(self.base)))

    def prefix_digest(self, segments: int) -> str | None:
        # A selection that mixes the segments of the base is one segment: none of the base's comes first in it.
        if self.mixed or len(self.segments) != len(self.base.segments):
            return None
        digest = self.base.prefix_digest(segments)
        if digest is None:
            return None
        rows = self.selection.slice(slice(sum(self.segments[:segments])))
        return rows.digest(digest, sum(self.base.segments[:segments]))

    @property
    def references(self) -> tuple[str, ...]:
        return self.base.references if self.name is None else (str(self.name.stored),)

    @property
    def element_spec(self) -> Tree:
        return self.base.element_spec

    @property
    def info(self) -> DatasetInfo:
        return self.base.info

    @property
    def takes_requests(self) -> bool:
        return self.base.takes_requests

    @property
    def segments(self) -> tuple[int, ...]:
        return self.selection.segment_sizes(self.base.segments)

    def in_shards(self, numbers: Ints) -> Iterator[ShardRows]:
        return self.base.in_shards(self.selection.numbers_of(numbers))

    def padding(self, numbers: Ints, name: str) -> int:
        return self.base.padding(self.selection.numbers_of(numbers), name)

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

    def batches(self, numbers: Ints, splits: Sequence[int], held: Held | None = None) -> Iterable[Any]:
        return self.base.batches(self.selection.numbers_of(numbers), splits, held)

    def needed(self, numbers: Ints) -> Needed:
        return self.base.needed(self.selection.numbers_of(numbers))

    def padded_as(self, number: int) -> DatasetView:
        base = self.base.padded_as(self.selection.number(number) if len(self) else 0)
        return self if base is self.base else replace(self, base=base)

    def sources(self, numbers: Ints) -> Sources:
        return self.base.sources(self.selection.numbers_of(numbers))

    def published(self, *, wait: bool = True) -> DatasetView | None:
        base = self.base.published(wait=wait)
        if base is None:
            return None
        if base is self.base:
            return self
        name = None if self.name is None else replace(self.name, version=base.references[0])
        mixed = [part.published(wait=wait) for part in self.mixed]
        return DatasetView(base, self.selection, tuple(part for part in mixed if part is not None), name)

    def undecoded(self) -> DatasetView | None:
        base = self.base.undecoded()
        return None if base is None else self.with_base(base).named_by(ViewCall("raw"))

    def with_base(self, base: BaseDataset) -> DatasetView:
        """Return the same rows of another dataset, which has as many elements as the base."""
        return DatasetView(base, self.selection, name=self.name)

    def named_by(self, call: ViewCall) -> DatasetView:
        """Return the same elements, whose reference also says this call."""
        return self if self.name is None else replace(self, name=self.name.then(call))

    def digests_of_leaves(self, leaves: Sequence[int]) -> Digests:
        """Return the digests by which an order, or a plan, knows the values and lengths of some leaves.

        The rows digest does not cover columns that were added to a version. What depends on one of these leaves is
        therefore known by the digest of the elements alone.
        """
        stored = self.base.leaves
        if stored is not None and stored.has_added(leaves):
            return Digests.of(self.digests.elements)
        return self.digests

    def prefix_digest_of_leaves(self, leaves: Sequence[int], segments: int) -> str | None:
        """Return the rows digest of :meth:`digests_of_leaves` before later segments were appended; see RowOrigins."""
        stored = self.base.leaves
        # An added column has no digest of its first values.
        return None if stored is not None and stored.has_added(leaves) else self.prefix_digest(segments)

    def leaves_for(self, call: str) -> StoredLeaves:
        """Return the stored leaves of the elements.

        Args:
            call: what needs them, for the message.

        Raises:
            InvalidTypeError: if the elements are not stored records.
        """
        leaves = self.base.leaves
        if leaves is None:
            is_foreign = self.info.reading_cost == "foreign"
            cure = "cache() it first" if is_foreign else f"call {call} of the datasets before"
            raise InvalidTypeError(f"{self.title} has no leaves of stored records, which {call} needs: {cure}")
        return leaves

    def lengths(self, name: str) -> LengthColumn:
        """Return the lengths of a leaf, by its name, in each record."""
        leaves = self.leaves_for("lengths() and what needs lengths")
        number = varying_leaf(leaves.codec.spec, name)
        path, stored = tree.leaves(leaves.codec.spec)[number]
        is_decoded = isinstance(stored, EncodedSpec) and not isinstance(stored, VideoSpec)
        if is_decoded and dict(tree.leaves(self.element_spec)).get(path) != stored:
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
        home = None if self.base.leaves is None else self.base.leaves.home
        if home is None:
            return self.info.record_nbytes * len(self)
        shards = home.manifest.shards
        return shards.nbytes // max(1, int(shards.records.sum())) * len(self)

    @property
    def size_texts(self) -> dict[str, str]:
        """The number of records, and of a view of a version also their bytes, as texts that a person reads."""
        if self.name is None or not self.is_view:
            return {"records": str(len(self))}
        return {"records": f"{len(self)} of {self.name.records}", "nbytes": f"about {self.nbytes:,}"}

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={value}" for name, value in self.size_texts.items())
        published = self.published(wait=False)
        known = "being built" if published is None else f"digest='sha256:{published.digests.elements}'"
        return f"{self.title[:-1]}, {sizes}, {known})"


class RowsOfRecords(BaseDataset):
    """Rows that are made of values of the records of a view: windows, packs, series, clips."""

    kind: ClassVar[str]
    """The name of the rows in their digest."""

    if TYPE_CHECKING:
        # A field of a dataclass, or a property.

        @property
        def records(self) -> DatasetView:
            """The records."""

    @property
    @abstractmethod
    def origin_digest(self) -> str:
        """The digest of what decides, with the parameters, which values of which records a row has."""

    @property
    @abstractmethod
    def parameters(self) -> dict[str, Any]:
        """The parameters that decide which values of which records a row has."""

    @property
    def element_parameters(self) -> dict[str, Any]:
        """The parameters that decide what else rows have."""
        return {}

    @cached_property
    def digests(self) -> Digests:
        rows = derived_digest(self.origin_digest, self.kind, self.parameters)
        parameters = {**self.parameters, **self.element_parameters}
        elements = derived_digest(self.records.digests.elements, self.kind, parameters)
        # After an erasure rows may have other numbers.
        return Digests(elements, rows, original=rows, planned=rows)

    @property
    def references(self) -> tuple[str, ...]:
        return self.records.references

    def in_shards(self, numbers: Ints) -> Iterator[ShardRows]:  # noqa: ARG002
        raise InvalidTypeError(
            f"{self.title}: its elements share records, which a split or a fold would put into several parts: split "
            f"the records first, and call {self.kind}() of each part, such as ref.split(..., seed=0)['train']"
            f".{self.kind}(...)"
        )

    @property
    def takes_requests(self) -> bool:
        return self.records.takes_requests
