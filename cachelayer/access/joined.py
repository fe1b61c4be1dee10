"""Datasets one after another: what :func:`cachelayer.concat` shows, and mixtures read.

::

    members   a: 3 elements   b: 2 elements   a[:1]
    number    0    1    2     3    4          5
    splits    0               3               5        6

Three kinds of members are joined, each more closely than the one before:

* any datasets of one element spec: each reads its own elements or batches, which are merged;
* datasets whose elements have the same stored leaves: lengths and values of leaves are joined too, for windows;
* whole records of one codec: their bytes are read by one call and decoded together, and specs may differ in which
  leaves may be None. A ``RecordElements`` then decodes the join, which is its ``RecordSource``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import Any, ClassVar, cast

import numpy as np

from cachelayer.access.dataset import BaseDataset, LeafRead, ShardRows, StoredLeaves, check_one_size
from cachelayer.access.dataset_view import DatasetView
from cachelayer.access.record_elements import RecordElements, RecordSource
from cachelayer.arrayrecord.lengths import LengthColumn
from cachelayer.errors import InvalidArgumentError
from cachelayer.locks import cached_property
from cachelayer.protocols import (
    Attempted,
    DatasetInfo,
    Digests,
    Held,
    Needed,
    Sources,
    highest_cost,
    joined_sources,
    needed_together,
)
from cachelayer.records.codec import Codec, codec_for, codec_named
from cachelayer.records.files_in_records import join_records
from cachelayer.records.infer import common_spec
from cachelayer.records.memory import Ints, Placed, groups_of, splits_of
from cachelayer.records.schema import Schema
from cachelayer.records.spans import Records, Spans
from cachelayer.records.spec import LeafSpec
from cachelayer.records.stacking import is_plain
from cachelayer.records.tree import Tree
from cachelayer.records.values import Nullable
from cachelayer.versions.stored_version import StoredVersion


@dataclass(frozen=True, eq=False)
class Joined(BaseDataset):
    """Datasets one after another."""

    members: tuple[DatasetView, ...]
    """One or more datasets. Their element specs are equal, unless only their records are read."""

    kind: ClassVar[str] = "Joined"

    @property
    def title(self) -> str:
        return f"Joined({list(self.members)!r})"

    @property
    def element_spec(self) -> Tree:
        return self.members[0].element_spec

    @cached_property
    def splits(self) -> Ints:
        """The number of the first element of each member, and at last the number of all elements."""
        return splits_of(np.array([len(member) for member in self.members], np.int64))

    def __len__(self) -> int:
        return int(self.splits[-1])

    def locate(self, number: int) -> tuple[DatasetView, int]:
        """Return the member that an element is in, and its number there."""
        part = int(self.splits[1:].searchsorted(number, side="right"))
        return self.members[part], number - int(self.splits[part])

    def by_member(self, numbers: Ints) -> Iterator[tuple[DatasetView, Ints, Ints]]:
        """Yield each member that some of these elements are in, their rows, and their numbers in the member."""
        part_of = self.splits[1:].searchsorted(numbers, side="right")
        for part, rows in groups_of(part_of, len(self.members)):
            yield self.members[part], rows, numbers[rows] - self.splits[part]

    @cached_property
    def digests(self) -> Digests:
        """The digests of the only member; of several, SHA-256 over ``concat`` and the digests of all, 32 bytes each."""
        return _joined_digests([member.digests for member in self.members])

    @property
    def references(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(reference for member in self.members for reference in member.references))

    @cached_property
    def info(self) -> DatasetInfo:
        every = [member.info for member in self.members]
        first, *others = [info.metadata for info in every]
        return DatasetInfo(
            name=" + ".join(info.name for info in every),
            metadata={key: value for key, value in first.items() if all(_has(other, key, value) for other in others)},
            record_nbytes=max(info.record_nbytes for info in every),
            read_nbytes=max(info.read_nbytes for info in every),
            records_per_read=min(info.records_per_read for info in every),
            reading_cost=highest_cost(info.reading_cost for info in every),
            is_declared=all(info.is_declared for info in every),
            together=max(info.together for info in every),
        )

    @property
    def takes_requests(self) -> bool:
        return any(member.takes_requests for member in self.members)

    def needed(self, numbers: Ints) -> Needed:
        return needed_together(member.needed(own) for member, _, own in self.by_member(numbers))

    @property
    def segments(self) -> tuple[int, ...]:
        return tuple(size for member in self.members for size in member.segments)

    def prefix_digest(self, segments: int) -> str | None:
        digests: list[Digests] = []
        segments_left = segments
        for member in self.members:
            count = len(member.segments)
            digest = member.digests.rows if segments_left >= count else member.prefix_digest(segments_left)
            if digest is None:
                return None
            digests.append(Digests.of(digest))
            segments_left -= count
            if segments_left <= 0:
                break
        return _joined_digests(digests).rows

    def in_shards(self, numbers: Ints) -> Iterator[ShardRows]:
        for member, rows, own in self.by_member(numbers):
            for places, segments, there in member.in_shards(own):
                yield ShardRows(rows[places], segments, there)

    def padding(self, numbers: Ints, name: str) -> int:
        return sum(member.padding(own, name) for member, _, own in self.by_member(numbers))

    @cached_property
    def erased(self) -> Ints:
        firsts = self.splits[:-1].tolist()
        return np.concatenate([member.erased + first for member, first in zip(self.members, firsts, strict=True)])

    def sources(self, numbers: Ints) -> Sources:
        return joined_sources([(rows, member.sources(own)) for member, rows, own in self.by_member(numbers)])

    def published(self, *, wait: bool = True) -> Joined | None:
        members = [member.published(wait=wait) for member in self.members]
        published = [member for member in members if member is not None]
        if len(published) < len(members):
            return None
        return self if all(map(is_, published, self.members)) else Joined(tuple(published))

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
        made = Attempted.of_rows(len(numbers))
        for member, rows, own in self.by_member(numbers):
            made.put(rows.tolist(), member.try_elements(own, held, stops=stops))
        return made

    def batch(self, numbers: Ints, held: Held | None = None) -> Any:
        # A batch of no elements has the arrays of the first member.
        groups = list(self.by_member(numbers)) or [(self.members[0], numbers, numbers)]
        batches = [(rows, member.batch(own, held)) for member, rows, own in groups]
        if len(batches) == 1:
            return batches[0][1]
        return _merge_batches(self.element_spec, batches, len(numbers))

    @property
    def leaves(self) -> StoredLeaves | None:
        first = self.members[0].base.leaves
        if first is None:
            return None
        for member in self.members[1:]:
            stored = member.base.leaves
            if stored is None or stored.codec.spec != first.codec.spec:
                return None
        return self

    def _leaves(self) -> Iterator[tuple[DatasetView, StoredLeaves]]:
        """Yield each member and its stored leaves."""
        for member in self.members:
            yield member, member.leaves_for("lengths() and what needs lengths")

    @cached_property
    def codec(self) -> Codec:
        """The codec of the leaves, or of the records if these are decoded together."""
        every = [(member.info.name, stored.codec) for member, stored in self._leaves()]
        return codec_named(every[0][1].name, common_spec([(name, codec.spec) for name, codec in every]))

    @property
    def home(self) -> StoredVersion | None:
        return next(self._leaves())[1].home

    def with_fields(self, leaves: Sequence[int]) -> Joined:
        members = [member.with_base(stored.with_fields(leaves)) for member, stored in self._leaves()]
        return Joined(tuple(members))

    def has_added(self, leaves: Sequence[int]) -> bool:
        return any(stored.has_added(leaves) for _, stored in self._leaves())

    def lengths(self, leaf: int) -> LengthColumn:
        return LengthColumn.joined(
            [stored.lengths(leaf).selected(member.selection) for member, stored in self._leaves()]
        )

    def leaf_values(self, numbers: Ints, reads: Sequence[LeafRead], held: Held | None = None) -> list[Any]:
        reads = [read if read.counts is None or read.into else self._into_new_array(read) for read in reads]
        groups = []
        for member, rows, own in list(self.by_member(numbers)) or [(self.members[0], numbers, numbers)]:
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

    # The methods below need members that are whole records of one codec.

    def with_sources(self, change: Callable[[RecordSource], RecordSource]) -> Joined:
        """Return the same records, whose members come from changed sources."""
        bases = (cast(RecordElements, member.base).with_sources(change) for member in self.members)
        members = (member.with_base(base) for member, base in zip(self.members, bases, strict=True))
        return Joined(tuple(members))

    @property
    def reads_in_part(self) -> bool:
        return all(source_of(member).reads_in_part for member in self.members)

    def record(self, number: int) -> bytearray:
        member, own = self.locate(number)
        return source_of(member).record(member.selection.number(own))

    def records(self, numbers: Ints, held: Held | None = None, *, videos: bool = True) -> Records:
        groups = [
            (rows, source_of(member).records(member.selection.numbers_of(own), held, videos=videos))
            for member, rows, own in self.by_member(numbers)
        ]
        return join_records(len(numbers), groups) if groups else Spans.of_bytes([])


def _joined_digests(digests: Sequence[Digests]) -> Digests:
    return digests[0] if len(digests) == 1 else Digests.joined(b"concat", digests)


def _has(metadata: Mapping[str, Any], key: str, value: Any) -> bool:
    return key in metadata and bool(metadata[key] == value)


def source_of(member: DatasetView) -> RecordSource:
    """Return the source of a member whose elements are stored records."""
    return cast(RecordElements, member.base).source


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
        if is_plain(leaf.spec):
            check_one_size(leaf.path, [part for _, part in parts])
        merged.append(_merge_leaf(leaf.spec, parts, rows))
    nulls = {
        node.path: _merge_fixed([(own, nulls[node.path]) for own, _, nulls in split], rows)
        for node in schema.nullable_dicts
    }
    return schema.pack(merged, nulls)


def _merge_leaf(leaf: LeafSpec, batches: Sequence[tuple[Ints, Any]], rows: int) -> Any:
    if is_plain(leaf):
        return _merge_fixed(batches, rows)
    # Batches of other leaves, such as a Ragged, have no rows that can be copied in place: values go through Python.
    listed: list[Any] = [None] * rows
    codec = codec_for(leaf)
    for own, values in batches:
        for row, value in zip(own.tolist(), codec.elements(codec.batch_columns(values, len(own))), strict=True):
            listed[row] = value
    return codec.batch(codec.columns(listed))


def join(members: Sequence[DatasetView]) -> BaseDataset:
    """Return datasets one after another; stored records of one codec are decoded together.

    Raises:
        InvalidArgumentError: if specs or codecs differ; the message names the datasets and the leaf.
    """
    bases = [member.base for member in members]
    if all(isinstance(base, RecordElements) and base.chosen is None for base in bases):
        return _join_records(members)
    flat: list[DatasetView] = []
    for member in members:
        base = member.base
        # All of an earlier join: its members are joined, so that concat of a concat has the digest of one concat.
        if isinstance(base, Joined) and member.digests == base.digests:
            flat += base.members
        else:
            flat.append(member)
    specs = [(member.title.partition("(")[0], member.element_spec) for member in flat]
    common = common_spec(specs)
    for name, spec in specs:
        if spec != common:
            raise InvalidArgumentError(f"{name} has elements {spec}, and others have {common}")
    return Joined(tuple(flat))


def _join_records(members: Sequence[DatasetView]) -> RecordElements:
    # A version that was built from an empty source has no element spec, so it fits every other.
    members = [member for member in members if member.element_spec is not None] or members[:1]
    bases = [cast(RecordElements, member.base) for member in members]
    names = [base.info.name for base in bases]
    common_spec([(name, base.element_spec) for name, base in zip(names, bases, strict=True)])
    codecs = {base.codec.name: name for name, base in zip(names, bases, strict=True)}
    if len(codecs) > 1:
        raise InvalidArgumentError(f"{' and '.join(codecs.values())} have different codecs: {' and '.join(codecs)}")
    common_spec([(name, base.codec.spec) for name, base in zip(names, bases, strict=True)])
    flat: list[DatasetView] = []
    for member, base in zip(members, bases, strict=True):
        source = base.source
        stored = member.with_base(base.undecoded())
        if isinstance(source, Joined) and stored.digests == source.digests:
            flat += source.members
        else:
            flat.append(stored)
    decodes = all(base.decodes for base in bases)
    return RecordElements(Joined(tuple(flat)), decodes, bases[0].image_sizes)
