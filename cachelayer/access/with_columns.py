"""Elements with columns that were added to their version: the records and each group of columns are read and merged.

Leaves are numbered through all members, one member after another::

    members     records: image, label      group 0: score      group 1: clip/vector, clip/model
    leaves               0      1                   2                   3            4
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, Self

from cachelayer.access.dataset import LeafRead, leaves_below
from cachelayer.access.record_elements import RecordElements, RecordSource, StoredElements
from cachelayer.arrayrecord.lengths import LengthColumn
from cachelayer.locks import cached_property
from cachelayer.protocols import DatasetInfo, Digests, Held, Needed, highest_cost, needed_together
from cachelayer.records import tree
from cachelayer.records.codec import Codec, codec_for
from cachelayer.records.leaf_columns import Columns
from cachelayer.records.memory import Ints
from cachelayer.records.spec import ImageSize
from cachelayer.records.tree import Tree


@dataclass(frozen=True, eq=False)
class WithColumns(StoredElements):
    """Dicts that have the keys of several members."""

    members: tuple[RecordElements, ...]
    """The records, unless none of their leaves is chosen, and groups of columns. No two have a key in common."""

    @classmethod
    def of(cls, base: RecordElements, groups: Sequence[RecordElements]) -> WithColumns:
        """Return elements in which each group replaces the keys that earlier members have."""
        members: list[RecordElements] = [base]
        for group in groups:
            earlier = [_without(member, group.codec.spec) for member in members]
            members = [member for member in earlier if member is not None]
            members.append(group)
        return cls(base.source, tuple(members))

    @property
    def _digests_of_all_leaves(self) -> Digests:
        digests = self.source.digests
        return digests if self.home is None else digests._replace(elements=self.home.manifest.unsliced_digest)

    @cached_property
    def element_spec(self) -> Tree:
        return _merged([member.element_spec for member in self.members])

    @cached_property
    def codec(self) -> Codec:
        """The codec of elements with the leaves of all members. No record is stored with it."""
        return codec_for(_merged([member.codec.spec for member in self.members]))

    @cached_property
    def info(self) -> DatasetInfo:
        every = [member.info for member in self.members]
        read_nbytes = sum(info.read_nbytes for info in every)
        cost = highest_cost(info.reading_cost for info in every)
        return replace(self.source.info, read_nbytes=read_nbytes, reading_cost=cost)

    @property
    def takes_requests(self) -> bool:
        return any(member.takes_requests for member in self.members)

    def needed(self, numbers: Ints) -> Needed:
        return needed_together(member.needed(numbers) for member in self.members)

    def undecoded(self) -> Self:
        return replace(self, members=tuple(member.undecoded() for member in self.members))

    def with_sources(self, change: Callable[[RecordSource], RecordSource]) -> Self:
        source = change(self.source)

        def changed(each: RecordSource) -> RecordSource:
            # The records are one source, here and in their member.
            return source if each is self.source else change(each)

        members = tuple(member.with_sources(changed) for member in self.members)
        return replace(self, source=source, members=members)

    def columns(self, numbers: Ints) -> Columns:
        return Columns.merged([member.columns(numbers) for member in self.members])

    def with_image_sizes(self, sizes: Mapping[int, ImageSize]) -> Self:
        members = []
        for member, leaves in zip(self.members, self._leaves, strict=True):
            own_sizes = {leaf - leaves.start: size for leaf, size in sizes.items() if leaf in leaves}
            members.append(member.with_image_sizes(own_sizes))
        return replace(self, members=tuple(members))

    @cached_property
    def _leaves(self) -> list[range]:
        """The numbers of the leaves of each member."""
        ends = list(accumulate((len(tree.leaves(member.codec.spec)) for member in self.members), initial=0))
        return [range(first, end) for first, end in pairwise(ends)]

    def _owner(self, leaf: int) -> tuple[int, int]:
        """Return the place of the member that has a leaf, and the number of the leaf there."""
        return next((place, leaf - own.start) for place, own in enumerate(self._leaves) if leaf in own)

    def with_fields(self, leaves: Sequence[int]) -> Self:
        if self.codec.schema.chosen(leaves) == self.codec.spec:
            return self
        members = []
        for member, own in zip(self.members, self._leaves, strict=True):
            chosen = [leaf - own.start for leaf in leaves if leaf in own]
            if chosen:
                members.append(member.with_fields(chosen) if len(chosen) < len(own) else member)
        numbers = range(self._leaves[-1].stop) if self.chosen is None else self.chosen
        return replace(self, members=tuple(members), chosen=tuple(numbers[leaf] for leaf in leaves))

    def has_added(self, leaves: Sequence[int]) -> bool:
        return any(self.members[self._owner(leaf)[0]].source is not self.source for leaf in leaves)

    def lengths(self, leaf: int) -> LengthColumn:
        place, number = self._owner(leaf)
        return self.members[place].lengths(number)

    def leaf_values(self, numbers: Ints, reads: Sequence[LeafRead], held: Held | None = None) -> list[Any]:
        owners = [self._owner(read.leaf) for read in reads]
        values: list[Any] = [None] * len(reads)
        for place, member in enumerate(self.members):
            mine = [number for number, (owner, _) in enumerate(owners) if owner == place]
            if not mine:
                continue
            own_reads = [reads[number].of_leaf(owners[number][1]) for number in mine]
            for number, own_values in zip(mine, member.leaf_values(numbers, own_reads, held), strict=True):
                values[number] = own_values
        return values

    def elements(self, numbers: Ints, held: Held | None = None) -> list[Any]:
        parts = [member.elements(numbers, held) for member in self.members]
        return [_merged(row) for row in zip(*parts, strict=True)]

    def batch(self, numbers: Ints, held: Held | None = None) -> Any:
        return _merged([member.batch(numbers, held) for member in self.members])


def _without(member: RecordElements, keys: Mapping[str, Any]) -> RecordElements | None:
    """Return elements without some keys; None if no leaf is left."""
    kept = [key for key in member.codec.spec if key not in keys]
    if len(kept) == len(member.codec.spec):
        return member
    leaves = leaves_below(member.codec.spec, kept)
    return member.with_fields(leaves) if leaves else None


def _merged(dicts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: value for each in dicts for key, value in each.items()}
