"""Elements with columns that were added to their version: what is read of the records and of each group is merged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, Self

from cachelayer.access.record_elements import RecordElements, RecordSource, StoredElements
from cachelayer.access.stored_leaves import LeafRead
from cachelayer.access.version_records import VersionRecords
from cachelayer.arrayrecord.lengths import LengthColumn
from cachelayer.locks import cached_property
from cachelayer.protocols import DatasetInfo, Digests, Held, Needed, highest_cost, needed_together
from cachelayer.records import tree
from cachelayer.records.codec import Codec, codec_for
from cachelayer.records.leaf_columns import Column
from cachelayer.records.leaf_names import chosen_spec
from cachelayer.records.memory import Ints
from cachelayer.records.spec import ImageSize
from cachelayer.records.tree import Tree


def version_elements(records: VersionRecords) -> StoredElements:
    """Return the elements of a version, with its added columns if it has any."""
    base, version = RecordElements(records), records.version
    if not version.manifest.columns:
        return base
    groups = [RecordElements(replace(records, group=number)) for number in range(len(version.manifest.columns))]
    return WithColumns.of(base, groups)


@dataclass(frozen=True, eq=False)
class WithColumns(StoredElements):
    """Elements of records and of columns that were added, as one dict each.

    Args:
        members: the records, unless none of their leaves is shown, and groups of columns; no two have a key in common.
    """

    members: tuple[RecordElements, ...]

    @classmethod
    def of(cls, base: RecordElements, groups: Sequence[RecordElements]) -> WithColumns:
        """Return elements in which each group replaces the keys that are there before it."""
        members: list[RecordElements] = []
        for member in [base, *groups]:
            replaced = member.codec.spec
            members = [left for each in members if (left := _without(each, replaced)) is not None]
            members.append(member)
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
        """The codec of elements with these leaves; nothing is stored so."""
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
        members = (
            member.with_sources(lambda each: source if each is self.source else change(each)) for member in self.members
        )
        return replace(self, source=source, members=tuple(members))

    def columns(self, numbers: Ints) -> list[Column]:
        return [column for member in self.members for column in member.columns(numbers)]

    def with_image_sizes(self, sizes: Mapping[int, ImageSize]) -> Self:
        owned = [{leaf - first: sizes[leaf] for leaf in sizes if leaf in leaves} for first, leaves in self._leaves]
        members = tuple(member.with_image_sizes(own) for member, own in zip(self.members, owned, strict=True))
        return replace(self, members=members)

    @cached_property
    def _leaves(self) -> list[tuple[int, range]]:
        """For each member the number of its first leaf, and the numbers of all of them."""
        ends = list(accumulate((len(tree.leaves(member.codec.spec)) for member in self.members), initial=0))
        return [(first, range(first, end)) for first, end in pairwise(ends)]

    def _owner(self, leaf: int) -> tuple[int, int]:
        """Return which member a leaf is of, and its number there."""
        return next((place, leaf - first) for place, (first, own) in enumerate(self._leaves) if leaf in own)

    def with_fields(self, leaves: Sequence[int]) -> Self:
        if chosen_spec(self.codec.spec, leaves) == self.codec.spec:
            return self
        members = []
        for member, (first, own) in zip(self.members, self._leaves, strict=True):
            mine = [leaf - first for leaf in leaves if leaf in own]
            if mine:
                members.append(member.with_fields(mine) if len(mine) < len(own) else member)
        numbers = range(self._leaves[-1][1].stop) if self.chosen is None else self.chosen
        return replace(self, members=tuple(members), chosen=tuple(numbers[leaf] for leaf in leaves))

    def has_added(self, leaves: Sequence[int]) -> bool:
        return any(self.members[self._owner(leaf)[0]].source is not self.source for leaf in leaves)

    def lengths(self, leaf: int) -> LengthColumn:
        place, number = self._owner(leaf)
        return self.members[place].lengths(number)

    def leaf_values(self, numbers: Ints, reads: Sequence[LeafRead], held: Held | None = None) -> list[Any]:
        owners = [self._owner(read.leaf) for read in reads]
        values: dict[int, Any] = {}
        for place, member in enumerate(self.members):
            mine = [number for number, (owner, _) in enumerate(owners) if owner == place]
            if mine:
                own = [reads[number].of_leaf(owners[number][1]) for number in mine]
                values |= zip(mine, member.leaf_values(numbers, own, held), strict=True)
        return [values[number] for number in range(len(reads))]

    def elements(self, numbers: Ints, held: Held | None = None) -> list[Any]:
        parts = [member.elements(numbers, held) for member in self.members]
        return [_merged(row) for row in zip(*parts, strict=True)]

    def batch(self, numbers: Ints, held: Held | None = None) -> Any:
        return _merged([member.batch(numbers, held) for member in self.members])


def _without(member: RecordElements, keys: Mapping[str, Any]) -> RecordElements | None:
    """Return elements without some keys; None if nothing is left."""
    spec, first = member.codec.spec, 0
    left: list[int] = []
    for key, child in spec.items():
        count = len(tree.leaves(child))
        left += [] if key in keys else range(first, first + count)
        first += count
    if len(left) == first:
        return member
    return member.with_fields(left) if left else None


def _merged(dicts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: value for each in dicts for key, value in each.items()}
