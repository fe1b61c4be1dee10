"""Datasets one after another: what :func:`cachelayer.concat` shows, and mixtures read.

::

    members   a: 3 elements   b: 2 elements   a[:1]
    number    0    1    2     3    4          5
    splits    0               3               5        6

Three kinds of members are joined, each more closely than the one before:

* any datasets of one element spec: each reads its own elements or batches, which are merged;
* tables of the same stored leaves: lengths and values of leaves are joined too, for windows;
* whole records of one codec: their bytes are read by one call and decoded together, and specs may differ in which
  leaves may be None. They are a :class:`Table` again, of the :class:`JoinedRecords` of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np

from cachelayer.arrayrecord.lengths import LengthColumn
from cachelayer.datasets.dataset import LeafRead, Shards, Stored, check_one_size
from cachelayer.datasets.dataset_view import DatasetView
from cachelayer.datasets.origins import joined_origins
from cachelayer.datasets.table import Group, Table
from cachelayer.errors import InvalidArgumentError
from cachelayer.protocols import (
    Attempted,
    Held,
    Info,
    Needed,
    Origins,
    Sources,
    highest_cost,
    joined_sources,
    needed_together,
)
from cachelayer.records.codec import Codec, codec_for, codec_named
from cachelayer.records.files_in_records import join_records
from cachelayer.records.infer import common_spec
from cachelayer.records.spans import Records, Spans
from cachelayer.records.stacking import has_plain_batches
from cachelayer.specs import tree
from cachelayer.specs.schema import Schema
from cachelayer.specs.spec import DECIMAL_DIGITS, LeafSpec, said_of_columns
from cachelayer.specs.tree import Tree
from cachelayer.specs.values import Nullable
from cachelayer.support.locks import PickledByFields, cached_property
from cachelayer.support.memory import Ints, Placed, by_part, splits_of


@dataclass(frozen=True, eq=False)
class Members(PickledByFields):
    """Rows of several datasets, one after another."""

    members: tuple[DatasetView, ...]
    """One or more."""

    @cached_property
    def splits(self) -> Ints:
        """The number of the first row of each member, and at last the number of all rows."""
        return splits_of(np.array([len(member) for member in self.members], np.int64))

    def __len__(self) -> int:
        return int(self.splits[-1])

    def locate(self, number: int) -> tuple[DatasetView, int]:
        """Return the member that a row is in, and its number there."""
        part = int(self.splits[1:].searchsorted(number, side="right"))
        return self.members[part], number - int(self.splits[part])

    def by_member(self, numbers: Ints) -> Iterator[tuple[DatasetView, Ints, Ints]]:
        """Yield each member that some of these rows are in, which of them are, and their numbers in the member."""
        for part, rows, own in by_part(self.splits, numbers):
            yield self.members[part], rows, own

    def padding(self, numbers: Ints, name: str) -> int:
        return sum(member.padding(own, name) for member, _, own in self.by_member(numbers))

    def _groups(self, numbers: Ints) -> list[tuple[DatasetView, Ints, Ints]]:
        """Return what :meth:`by_member` yields; of no rows, the first member, whose arrays an empty batch has."""
        return list(self.by_member(numbers)) or [(self.members[0], numbers, numbers)]

    @cached_property
    def info(self) -> Info:
        every = [member.info for member in self.members]
        first, *others = [info.metadata for info in every]
        name = " + ".join(info.name for info in every)
        return Info(
            name=name,
            title=self._title(name),
            metadata={key: value for key, value in first.items() if all(_has(other, key, value) for other in others)},
            record_nbytes=max(info.record_nbytes for info in every),
            read_nbytes=max(info.read_nbytes for info in every),
            records_per_read=min(info.records_per_read for info in every),
            reading_cost=highest_cost(info.reading_cost for info in every),
            is_declared=all(info.is_declared for info in every),
            together=max(info.together for info in every),
            is_growing=any(info.is_growing for info in every),
            excludes_erased=any(info.excludes_erased for info in every),
        )

    def _title(self, name: str) -> str:
        return f"Joined({name!r})"

    @cached_property
    def origins(self) -> Origins:
        return joined_origins([member.origins for member in self.members])

    def needed(self, numbers: Ints) -> Needed:
        if not len(numbers):
            return needed_together(member.needed(numbers) for member in self.members)
        return needed_together(member.needed(own) for member, _, own in self.by_member(numbers))

    def sources(self, numbers: Ints) -> Sources:
        return joined_sources([(rows, member.sources(own)) for member, rows, own in self.by_member(numbers)])

    def with_shards(self, change: Callable[[Shards], Shards]) -> Self:
        members = [member.with_shards(change) for member in self.members]
        return self if members == [*self.members] else replace(self, members=tuple(members))

    def _common_codec(self, codecs: Sequence[Codec]) -> Codec:
        """Return the codec of what all members have, given theirs."""
        specs = [(member.info.name, codec.spec) for member, codec in zip(self.members, codecs, strict=True)]
        return codec_named(codecs[0].name, common_spec(specs))


def _has(metadata: Mapping[str, Any], key: str, value: Any) -> bool:
    return key in metadata and bool(metadata[key] == value)


@dataclass(frozen=True, eq=False)
class JoinedRecords(Members, Shards):
    """The records of several shards of one codec, one after another. The members are tables of whole records."""

    @cached_property
    def codec(self) -> Codec:
        return self._common_codec([shards_of(member).codec for member in self.members])

    @property
    def reads_in_part(self) -> bool:
        return all(shards_of(member).reads_in_part for member in self.members)

    def record(self, number: int) -> bytearray:
        member, own = self.locate(number)
        return shards_of(member).record(int(member.selection.numbers[own]))

    def records(self, numbers: Ints, held: Held | None = None, *, videos: bool = True) -> Records:
        groups = [
            (rows, shards_of(member).records(member.selection.numbers_of(own), held, videos=videos))
            for member, rows, own in self.by_member(numbers)
        ]
        return join_records(len(numbers), groups) if groups else Spans.of_bytes([])

    def lengths(self, leaf: int) -> LengthColumn:
        return LengthColumn.joined(
            [shards_of(member).lengths(leaf).selected(member.selection) for member in self.members]
        )


def shards_of(member: DatasetView) -> Shards:
    """Return the shards of the rows of a table."""
    return cast(Table, member.base).shards


@dataclass(frozen=True, eq=False)
class Joined(Members, Stored):
    """Datasets of one element spec, one after another."""

    def _title(self, name: str) -> str:  # noqa: ARG002
        return f"Joined({list(self.members)!r})"

    @property
    def element_spec(self) -> Tree:
        return self.members[0].element_spec

    def undecoded(self) -> None:
        return None

    # Elements.

    def element(self, number: int) -> Any:
        member, own = self.locate(number)
        return member.element(own)

    def elements(self, numbers: Ints, held: Held | None = None) -> list[Any]:
        out: list[Any] = [None] * len(numbers)
        for member, rows, own in self.by_member(numbers):
            for row, element in zip(rows.tolist(), member.elements(own, held), strict=True):
                out[row] = element
        return out

    def try_elements(self, numbers: Ints, held: Held | None = None, *, stops: bool) -> Attempted:
        attempted = Attempted.of_rows(len(numbers))
        for member, rows, own in self.by_member(numbers):
            attempted.put(rows.tolist(), member.try_elements(own, held, stops=stops))
        return attempted

    def batch(self, numbers: Ints, held: Held | None = None) -> Any:
        batches = [(rows, member.batch(own, held)) for member, rows, own in self._groups(numbers)]
        if len(batches) == 1:
            return batches[0][1]
        return _merge_batches(self.element_spec, batches, len(numbers))

    # Leaves, if all members are tables.

    @cached_property
    def has_leaves(self) -> bool:
        every = [member.leaves for member in self.members]
        return all(each is not None and each.codec.spec == cast(Stored, every[0]).codec.spec for each in every)

    def _leaves(self) -> Iterator[tuple[DatasetView, Stored]]:
        """Yield each member and the dataset of its stored leaves."""
        for member in self.members:
            yield member, member.leaves_for("lengths() and what needs lengths")

    @cached_property
    def codec(self) -> Codec:
        return self._common_codec([stored.codec for _, stored in self._leaves()])

    def with_fields(self, leaves: Sequence[int]) -> Joined:
        return Joined(tuple(member.with_base(stored.with_fields(leaves)) for member, stored in self._leaves()))

    def has_added(self, leaves: Sequence[int]) -> bool:
        return any(stored.has_added(leaves) for _, stored in self._leaves())

    def lengths(self, leaf: int) -> LengthColumn:
        return LengthColumn.joined(
            [stored.lengths(leaf).selected(member.selection) for member, stored in self._leaves()]
        )

    def leaf_values(self, numbers: Ints, reads: Sequence[LeafRead], held: Held | None = None) -> list[Any]:
        reads = [read if read.counts is None or read.into else self._into_new_array(read) for read in reads]
        groups = []
        for member, rows, own in self._groups(numbers):
            own_reads = [read.of_rows(rows) for read in reads]
            stored = member.leaves_for("lengths()")
            groups.append((rows, stored.leaf_values(member.selection.numbers_of(own), own_reads, held)))
        merged = []
        for place, read in enumerate(reads):
            if read.into is None:
                merged.append(_merge_fixed([(rows, values[place]) for rows, values in groups], len(numbers)))
            else:
                # All members have written into the same array.
                merged.append(read.into.values)
        return merged

    def _into_new_array(self, read: LeafRead) -> LeafRead:
        _, dtype = self.codec.varying[read.leaf]
        splits = splits_of(cast(Ints, read.counts))
        return replace(read, into=Placed(np.empty(int(splits[-1]), dtype), splits[:-1]))


def _merge_fixed(groups: Sequence[tuple[Ints, Any]], count: int) -> Any:
    """Return the stacked values of all rows, given those of several groups of rows."""
    if any(isinstance(values, Nullable) for _, values in groups):
        parts = []
        for rows, values in groups:
            part = values if isinstance(values, Nullable) else Nullable(values, np.ones(len(rows), np.bool_))
            parts.append((rows, part))
        merged = _merge_fixed([(rows, part.values) for rows, part in parts], count)
        return Nullable(merged, _merge_fixed([(rows, part.valid) for rows, part in parts], count))
    first = groups[0][1]
    if len(groups) == 1:
        return first
    out = np.empty((count, *first.shape[1:]), first.dtype)
    for rows, values in groups:
        out[rows] = values
    return out


def _merge_batches(spec: Tree, batches: Sequence[tuple[Ints, Any]], rows: int) -> Any:
    """Return the batch of all rows, given several times some of the rows and the batch of these."""
    schema = Schema.of(spec)
    split = [(own, *schema.split(batch)) for own, batch in batches]
    merged = []
    for number, leaf in enumerate(schema.leaves):
        parts = [(own, values[number]) for own, values, _ in split]
        if has_plain_batches(leaf.spec):
            check_one_size(leaf.path, [part for _, part in parts])
        merged.append(_merge_leaf(leaf.spec, parts, rows))
    nulls = {
        node.path: _merge_fixed([(own, nulls[node.path]) for own, _, nulls in split], rows)
        for node in schema.nullable_dicts
    }
    return schema.pack(merged, nulls)


def _merge_leaf(leaf: LeafSpec, batches: Sequence[tuple[Ints, Any]], rows: int) -> Any:
    if has_plain_batches(leaf):
        return _merge_fixed(batches, rows)
    # Batches of other leaves, such as a Ragged, have no rows that can be copied in place: values go through Python.
    listed: list[Any] = [None] * rows
    codec = codec_for(leaf)
    for own, values in batches:
        for row, value in zip(own.tolist(), codec.elements(codec.batch_columns(values, len(own))), strict=True):
            listed[row] = value
    return codec.batch(codec.columns(listed))


def join(members: Sequence[DatasetView]) -> Stored:
    """Return datasets one after another; stored records of one codec are decoded together."""
    _check_digits(members)
    tables = [view.base for view in members if isinstance(view.base, Table) and view.base.is_whole]
    if len(tables) == len(members):
        return _join_records(members, tables)
    flat: list[DatasetView] = []
    for view in members:
        # All of an earlier join: its members are joined, so that concat of a concat has the digest of one concat.
        is_joined = isinstance(view.base, Joined) and view.origins.digests == view.base.origins.digests
        flat += cast(Joined, view.base).members if is_joined else [view]
    specs = [(view.title.partition("(")[0], view.element_spec) for view in flat]
    common = common_spec(specs)
    for name, spec in specs:
        if spec != common:
            raise InvalidArgumentError(f"{name} has elements {spec}, and others have {common}")
    return Joined(tuple(flat))


def _check_digits(members: Sequence[DatasetView]) -> None:
    """Raise if integers that stand for decimals count other units in some of the datasets."""
    # An empty version has no spec, and fits every other.
    views = [view for view in members if view.element_spec is not None]
    told = [(view, said_of_columns(view.info.metadata, DECIMAL_DIGITS)) for view in views]
    if not any(digits for _, digits in told):
        return
    for path, _ in tree.leaves(told[0][0].element_spec):
        names = {digits.get(path): view.info.name for view, digits in told}
        if len(names) > 1:
            counts = " and ".join(f"{'no' if digits is None else digits} in {name}" for digits, name in names.items())
            raise InvalidArgumentError(
                f"leaf {path} has integers that stand for decimals, with digits after the point: {counts}. Cache one "
                "anew, cast to the type of the other"
            )


def _join_records(members: Sequence[DatasetView], tables: Sequence[Table]) -> Table:
    # A version that was built from an empty source has no element spec, so it fits every other.
    pairs = [pair for pair in zip(members, tables, strict=True) if pair[1].element_spec is not None]
    pairs = pairs or [(members[0], tables[0])]
    groups = [table.groups[0] for _, table in pairs]
    names = [table.info.name for _, table in pairs]
    common_spec([(name, group.element_codec.spec) for name, group in zip(names, groups, strict=True)])
    codecs = {group.codec.name: name for name, group in zip(names, groups, strict=True)}
    if len(codecs) > 1:
        raise InvalidArgumentError(f"{' and '.join(codecs.values())} have different codecs: {' and '.join(codecs)}")
    common_spec([(name, group.codec.spec) for name, group in zip(names, groups, strict=True)])
    flat: list[DatasetView] = []
    for view, table in pairs:
        shards = table.shards
        stored = view.with_base(table.undecoded())
        is_joined = isinstance(shards, JoinedRecords) and stored.origins.digests == shards.origins.digests
        flat += cast(JoinedRecords, shards).members if is_joined else [stored]
    decodes = all(group.decodes for group in groups)
    joined = JoinedRecords(tuple(flat))
    return Table(joined, (Group(joined, None, decodes, groups[0].image_sizes),))
