"""A dataset view: some rows of a dataset, in an order of their own. A public view holds one, and streams read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from cachelayer.datasets.dataset import BaseDataset, Shards, Stored
from cachelayer.datasets.origins import of_other_rows, selected_origins
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.protocols import Attempted, DatasetRows, Digests, Held, Info, Needed, Origins, Sources
from cachelayer.records.selection import Selection
from cachelayer.specs import tree
from cachelayer.specs.leaf_names import leaf_named, leaf_number, leaf_numbers, varying_leaf
from cachelayer.specs.schema import Schema
from cachelayer.specs.spec import ArraySpec, AudioSpec, EncodedSpec, SparseSpec, VideoSpec, describe_leaf, is_static
from cachelayer.specs.tree import Tree
from cachelayer.specs.values import Nullable, Ragged
from cachelayer.support.locks import cached_property
from cachelayer.support.memory import Ints, by_part, splits_of
from cachelayer.versions.view_calls import ViewCall, ViewName

if TYPE_CHECKING:
    from cachelayer.arrayrecord.lengths import LengthColumn
    from cachelayer.records.media import MediaFiles
    from cachelayer.records.stacking import Stacking


@dataclass(frozen=True, repr=False, eq=False)
class DatasetView(BaseDataset, DatasetRows[Any]):
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

    def __len__(self) -> int:
        return len(self.selection)

    @property
    def info(self) -> Info:
        return self.base.info

    @cached_property
    def origins(self) -> Origins:
        origins = selected_origins(self.base.origins, self.selection)
        if self.mixed:
            parts = tuple(part.origins for part in self.mixed)
            origins = of_other_rows(origins, Digests.joined(b"mixture", [part.digests for part in parts]))
            origins = replace(origins, parts=parts)
        return origins if self.name is None else replace(origins, references=(str(self.name.stored),))

    @property
    def element_spec(self) -> Tree:
        return self.base.element_spec

    def element(self, number: int) -> Any:
        return self.base.element(int(self.selection.numbers[number]))

    def elements(self, numbers: Ints, held: Held | None = None) -> list[Any]:
        return self.base.elements(self.selection.numbers_of(numbers), held)

    def try_elements(self, numbers: Ints, held: Held | None = None, *, stops: bool) -> Attempted:
        return self.base.try_elements(self.selection.numbers_of(numbers), held, stops=stops)

    def batch(self, numbers: Ints, held: Held | None = None) -> Any:
        return self.base.batch(self.selection.numbers_of(numbers), held)

    def batch_of_keys(self, numbers: Ints, keys: Sequence[str]) -> dict[str, Any]:
        return self.base.batch_of_keys(self.selection.numbers_of(numbers), keys)

    def needed(self, numbers: Ints) -> Needed:
        return self.base.needed(self.selection.numbers_of(numbers))

    def sources(self, numbers: Ints) -> Sources:
        return self.base.sources(self.selection.numbers_of(numbers))

    def padding(self, numbers: Ints, name: str) -> int:
        return self.base.padding(self.selection.numbers_of(numbers), name)

    # Questions of streams, builds and adapters.

    def batches(self, numbers: Ints, splits: Sequence[int], held: Held | None = None) -> Iterable[Any]:
        rows = [slice(begin, end) for begin, end in pairwise(splits)]
        schema = self._schema_of_batches
        if schema is None:
            return (self.batch(numbers[some], held) for some in rows)
        values, nulls = schema.split(self.batch(numbers, held))
        if not nulls:
            # Many small batches are packed at once, as elements are.
            return schema.pack_rows([[_rows(leaf, some) for some in rows] for leaf in values], nulls, len(rows))
        return (
            schema.pack([_rows(leaf, some) for leaf in values], {path: null[some] for path, null in nulls.items()})
            for some in rows
        )

    @cached_property
    def _schema_of_batches(self) -> Schema | None:
        """The schema by which what is read at once is cut into batches; None if batches are read one by one."""
        # Objects of the user are read batch by batch, so that an error belongs to its batch. So are elements without a
        # declared spec: what is read at once is cut into batches by its spec. And the shape of a batch of sparse arrays
        # depends on all of its rows.
        info = self.info
        if not info.is_declared or info.reading_cost == "foreign":
            return None
        schema = Schema.of(self.element_spec)
        return None if any(isinstance(leaf.spec, SparseSpec) for leaf in schema.leaves) else schema

    def count_values(self, numbers: Ints, name: str) -> dict[str, int | float]:
        parts = self.mixed or (self,)
        names = [part.info.name for part in parts]
        keys = [f"{key} ({names[:n].count(key) + 1})" if key in names[:n] else key for n, key in enumerate(names)]
        counts: dict[str, int | float] = dict.fromkeys(keys, 0)
        splits = splits_of(np.array(list(map(len, parts))))
        for part, _, own in by_part(splits, numbers):
            counts[keys[part]] = parts[part]._count_values(own, name)
        return counts

    def _count_values(self, numbers: Ints, name: str) -> int | float:
        spec = self.element_spec if self.leaves is None else self.leaves.codec.spec
        leaf = leaf_named(spec, name)
        if not is_static(leaf):
            return int(self.lengths(name).take(numbers).sum())
        if leaf.shape or not isinstance(leaf, ArraySpec):
            return len(numbers) * prod(dim or 0 for dim in leaf.shape) - self.padding(numbers, name)
        # A number that users have computed, such as the count of tokens.
        narrow = self.narrowed([name])
        values = Schema.of(narrow.element_spec).flatten(narrow.batch(numbers))
        column = values[leaf_number(narrow.element_spec, name)]
        if isinstance(column, Nullable):
            column = column.filled(0)
        if column.dtype.kind not in "biuf":
            raise InvalidArgumentError(f"{name!r} is {describe_leaf(leaf)}, which counts nothing")
        total: int | float = column.sum().item()
        return total

    def padded_as(self, number: int) -> DatasetView:  # noqa: ARG002
        return self

    def stacking(self, element_spec: Tree | None = None) -> Stacking:
        from cachelayer.records.infer import declared
        from cachelayer.records.stacking import Stacking

        return Stacking(self, None if element_spec is None else declared(element_spec))

    def published(self, *, wait: bool = True) -> DatasetView | None:
        if not self.info.is_growing:
            return self
        published = []

        def change(shards: Shards) -> Shards:
            published.append(shards.published(wait=wait))
            return published[-1] or shards

        view = self.with_shards(change)
        return None if None in published else view

    def undecoded(self) -> DatasetView | None:
        leaves = self.leaves
        base = None if leaves is None else leaves.undecoded()
        return None if base is None else self.with_base(base).named_by(ViewCall("raw"))

    # Further questions of streams, of the rows of a view alone.

    @property
    def is_view(self) -> bool:
        """True for some records, or some fields, of a version; False for a whole version, and for windows and packs."""
        return self.name is not None and bool(self.name.calls) and self.leaves is not None

    @property
    def title(self) -> str:
        """The kind of view that shows it and what it was made of; see :class:`Info`."""
        if self.is_view and self.name is not None:
            return f"View({self.name.shown!r})"
        return self.info.title

    def with_base(self, base: BaseDataset) -> DatasetView:
        """Return the same rows of another dataset, which has as many elements as the base."""
        return DatasetView(base, self.selection, name=self.name)

    def with_shards(self, change: Callable[[Shards], Shards]) -> Self:
        """Return the same rows of changed shards; these if none changes."""
        base = self.base.with_shards(change) if isinstance(self.base, Stored) else self.base
        if base is self.base:
            return self
        name = None if self.name is None else replace(self.name, version=base.origins.references[0])
        return replace(self, base=base, mixed=tuple(part.with_shards(change) for part in self.mixed), name=name)

    def named_by(self, call: ViewCall) -> DatasetView:
        """Return the same elements, whose reference also says this call."""
        return self if self.name is None else replace(self, name=self.name.then(call))

    @property
    def leaves(self) -> Stored | None:
        """The dataset of the stored leaves of the elements; None if the elements are not stored records."""
        return self.base if isinstance(self.base, Stored) and self.base.has_leaves else None

    def leaves_for(self, call: str) -> Stored:
        """Return the dataset of the stored leaves of the elements.

        ``call`` is what needs them, for the message.
        """
        leaves = self.leaves
        if leaves is None:
            is_foreign = self.info.reading_cost == "foreign"
            cure = "cache() it first" if is_foreign else f"call {call} of the datasets before"
            raise InvalidTypeError(f"{self.title} has no leaves of stored records, which {call} needs: {cure}")
        return leaves

    def narrowed(self, names: Sequence[str]) -> DatasetView:
        """Return the same rows with only these fields; these rows, if they are no dicts of stored leaves."""
        leaves = self.leaves
        if leaves is None or not isinstance(leaves.codec.spec, dict):
            return self
        return self.with_base(leaves.with_fields(leaf_numbers(leaves.codec.spec, names)))

    def origins_of_leaves(self, leaves: Sequence[int]) -> Origins:
        """Return the origins by whose digests an order, or a plan, knows the values and lengths of some leaves.

        The rows digest does not cover columns that were added to a version. What depends on one of these leaves is
        therefore known by the digest of the elements alone, and an added column has no digest of its first values.
        """
        stored = self.leaves
        if stored is not None and stored.has_added(leaves):
            return of_other_rows(self.origins, Digests.of(self.origins.digests.elements))
        return self.origins

    def lengths(self, name: str) -> LengthColumn:
        """Return the lengths of a leaf, by its name, in each record."""
        leaves = self.leaves_for("lengths() and what needs lengths")
        number = varying_leaf(leaves.codec.spec, name)
        path, stored = tree.leaves(leaves.codec.spec)[number]
        is_file = isinstance(stored, EncodedSpec) and not isinstance(stored, VideoSpec)
        is_decoded = is_file and dict(tree.leaves(self.element_spec)).get(path) != stored
        if is_decoded and not isinstance(stored, AudioSpec):
            raise InvalidArgumentError(
                f"{name!r} holds images, which have a height and a width: add_columns() keeps what you compute of "
                "them, for where() and count_by(); raw() has the numbers of the bytes of their files"
            )
        columns: dict[int, LengthColumn] = self.__dict__.setdefault("_columns", {})
        if number not in columns and is_decoded:
            from cachelayer.arrayrecord.lengths import LengthColumn

            columns[number] = LengthColumn.of_lengths(self.sound_lengths(name))
        elif number not in columns:
            columns[number] = leaves.lengths(number).selected(self.selection)
        return columns[number]

    def sound_files(self, name: str) -> MediaFiles:
        """Return the decoder of a sound."""
        from cachelayer.records.media import MediaFiles

        spec = self.leaves_for("to decode sounds").codec.spec
        path, leaf = tree.leaves(spec)[leaf_number(spec, name)]
        return MediaFiles(path, cast(EncodedSpec, leaf))

    def sound_lengths(self, name: str) -> Ints:
        """Return the number of samples of a sound in each record."""
        from cachelayer.datasets.sound_lengths import sound_lengths

        files = self.sound_files(name)
        leaf = leaf_number(self.leaves_for("to decode sounds").codec.spec, name)
        return sound_lengths(self.narrowed([name]), name, files, self.origins_of_leaves([leaf]).digests.rows)

    @property
    def nbytes(self) -> int:
        """About how many bytes the records take in their shards."""
        home = self.origins.home
        if home is None:
            return self.info.record_nbytes * len(self)
        shards = home.manifest.shards
        return int(shards.nbytes // max(1, int(shards.records.sum())) * len(self))

    @property
    def size_texts(self) -> dict[str, str]:
        """The number of records, and of a view of a version also their bytes, as texts that a person reads."""
        if self.name is None or not self.is_view:
            return {"records": str(len(self))}
        return {"records": f"{len(self)} of {self.name.records}", "nbytes": f"about {self.nbytes:,}"}

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={value}" for name, value in self.size_texts.items())
        published = self.published(wait=False)
        known = "being built" if published is None else f"digest='sha256:{published.origins.digests.elements}'"
        return f"{self.title[:-1]}, {sizes}, {known})"


def _rows(values: Any, rows: slice) -> Any:
    if isinstance(values, Ragged):
        return values.rows(rows.start, rows.stop)
    return values[rows]
