"""A table: leaves that are stored in shards, of a version or of several, and in columns that were added later.

Leaves are numbered through all groups, one group after another::

    groups     records: image, label      group 0: score      group 1: clip/vector, clip/model
    leaves              0      1                   2                   3            4

    Table.batch([7, 3])     shards.records([7, 3])       the bytes
                            codec.decode(...)            a column for each leaf
                            codec.batch(...)             arrays, in the structure of an element
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from cachelayer.datasets.dataset import LeafRead, Shards, Stored, leaves_below
from cachelayer.errors import CacheLayerError, CorruptionError, ElementError
from cachelayer.protocols import Held, Info, Needed, Origins, Sources, highest_cost, needed_together
from cachelayer.records.codec import Codec, codec_for, codec_named
from cachelayer.records.leaf_codecs import leaf_codec_for
from cachelayer.records.leaf_columns import Columns
from cachelayer.specs import tree
from cachelayer.specs.spec import ArraySpec, ImageSize, SizedImageSpec
from cachelayer.specs.tree import Tree
from cachelayer.support.locks import PickledByFields, cached_property
from cachelayer.support.memory import Ints
from cachelayer.versions.manifest import canonical_json

if TYPE_CHECKING:
    from cachelayer.arrayrecord.lengths import LengthColumn

_NAMES_OF_FILES = ("path", "__key__", "key")
"""The fields by which errors name a record."""


@dataclass(frozen=True, eq=False)
class Group(PickledByFields):
    """Leaves that are stored in the same shards, and how they are decoded."""

    shards: Shards
    chosen: tuple[int, ...] | None = None
    """The numbers of the leaves in the shards, ascending; None for all."""
    decodes: bool = True
    """True if images and sounds are decoded; else they are the bytes of their files."""
    image_sizes: tuple[tuple[int, ImageSize], ...] = ()
    """Pairs of the number of a leaf in the shards and the size that its images are decoded to."""

    @cached_property
    def codec(self) -> Codec:
        """The codec of the leaves as they are stored."""
        codec = self.shards.codec
        if self.image_sizes:
            from cachelayer.records.media import sized_spec

            codec = codec_named(codec.name, sized_spec(codec.spec, dict(self.image_sizes)))
        return codec if self.chosen is None else codec.chosen(self.chosen)

    @cached_property
    def element_codec(self) -> Codec:
        """The codec of the elements, which decodes images and audio if ``decodes`` is set."""
        return self.codec.decoding() if self.decodes else self.codec

    @cached_property
    def info(self) -> Info:
        info = self.shards.info
        nbytes = info.record_nbytes
        # Of records that are read whole, all bytes take memory, however few are decoded.
        if self.chosen is not None and self.shards.reads_in_part:
            parts = [part for _, leaf in tree.leaves(self.codec.spec) for part in leaf_codec_for(leaf).parts]
            # A part without a shape has any length.
            if all(part.shape is not None for part in parts):
                nbytes = min(nbytes, sum(part.nbytes for part in parts))
        if self.shards.codec.has_videos and not self.element_codec.reads_videos:
            from cachelayer.arrayrecord.records_without_files import HEAD_NBYTES

            nbytes = min(nbytes, HEAD_NBYTES)
        is_decoded = self.element_codec is not self.codec
        return replace(info, read_nbytes=nbytes, reading_cost="decoded" if is_decoded else info.reading_cost)

    def number(self, leaf: int) -> int:
        """Return the number that a leaf of the group has in the shards."""
        return leaf if self.chosen is None else self.chosen[leaf]

    def with_leaves(self, leaves: Sequence[int]) -> Group:
        """Return the group of some of the leaves."""
        if self.codec.schema.chosen(leaves) == self.codec.spec:
            return self
        return replace(self, chosen=tuple(map(self.number, leaves)))

    def without(self, keys: Mapping[str, Any]) -> Group | None:
        """Return the group of the leaves that are not below some keys; None if there are none."""
        leaves = leaves_below(self.codec.schema, [key for key in self.codec.spec if key not in keys])
        return self.with_leaves(leaves) if leaves else None

    def with_image_sizes(self, sizes: Mapping[int, ImageSize]) -> Group:
        """Return the group with images decoded to one size, by the number of their leaf."""
        image_sizes = dict(self.image_sizes) | {self.number(leaf): size for leaf, size in sizes.items()}
        return replace(self, decodes=True, image_sizes=tuple(image_sizes.items()))

    def columns(self, numbers: Ints) -> Columns:
        """Return the stored values of these elements: the columns of :attr:`codec`."""
        try:
            return self.codec.decode(self.shards.records(numbers, videos=self.codec.reads_videos))
        except (ValueError, CorruptionError) as error:
            self._raise_damage(error, numbers)

    def leaf_values(self, numbers: Ints, reads: Sequence[LeafRead], held: Held | None) -> list[Any]:
        """Return values of several leaves; see :meth:`Stored.leaf_values`."""
        codec = self.shards.codec
        try:
            records = self.shards.records(numbers, held, videos=False)
            return [
                codec.fixed_values(records, self.number(read.leaf))
                if read.starts is None or read.counts is None
                else codec.leaf_values(records, self.number(read.leaf), read.starts, read.counts, read.ends, read.into)
                for read in reads
            ]
        except (ValueError, CorruptionError) as error:
            self._raise_damage(error, numbers)

    @cached_property
    def reads_records(self) -> bool:
        """True if a single element is decoded from a whole record: not fields, nor videos that stay in their files."""
        return self.chosen is None and not (self.decodes and self.codec.has_videos)

    def element(self, number: int) -> Any:
        try:
            return self.element_codec.element(self.shards.record(number))
        except (ValueError, CorruptionError) as error:
            self._raise_damage(error, [number])

    def elements(self, numbers: Ints, held: Held | None = None) -> list[Any]:
        codec = self.element_codec
        try:
            records = self.shards.records(numbers, held, videos=codec.reads_videos)
            return codec.elements(codec.decode(records, numbers, separate_rows=True))
        except (ValueError, CorruptionError) as error:
            self._raise_damage(error, numbers)

    def batch(self, numbers: Ints, held: Held | None = None) -> Any:
        codec = self.element_codec
        try:
            return codec.batch(codec.decode(self.shards.records(numbers, held, videos=codec.reads_videos), numbers))
        except (ValueError, CorruptionError) as error:
            self._raise_damage(error, numbers)

    def _raise_damage(self, error: Exception, numbers: Sequence[int] | Ints) -> NoReturn:
        """Raise an error of reading with the name of the version or the record; one of numpy as a CorruptionError."""
        if isinstance(error, ElementError) and error.record is not None:
            number = int(numbers[error.record])
            raise error.at(record=number, place=self._file_of(number)) from error.__cause__
        name = self.shards.info.name
        if isinstance(error, CorruptionError):
            raise type(error)(f"{name}: {error}") from error
        if isinstance(error, CacheLayerError):
            raise error
        raise CorruptionError(f"{name}: a record does not decode: {error}. verify() tells which shard") from error

    def _file_of(self, number: int) -> str:
        """Return the path or key that a record has in a field, as folders and tar files give it; empty if it has none.

        An error names it, even if the field is not among those that are read.
        """
        codec = self.shards.codec
        spec = codec.spec
        named = [key for key in _NAMES_OF_FILES if isinstance(spec, dict) and spec.get(key) == ArraySpec(str)]
        if not named:
            return ""
        column = codec.chosen(leaves_below(codec.schema, named[:1]))
        [element] = column.elements(column.decode(self.shards.records(np.array([number]), videos=False)))
        return str(element[named[0]])


@dataclass(frozen=True, eq=False)
class Table(Stored):
    """Elements that are made of the leaves of one group, or dicts that have the keys of several."""

    shards: Shards
    """The records, whose rows the elements are, also if none of their leaves is chosen."""
    groups: tuple[Group, ...]
    """One group or more. No two have a key in common."""
    chosen: tuple[int, ...] | None = None
    """The numbers of the leaves that elements have, ascending; None for all."""

    @classmethod
    def of(cls, shards: Shards, columns: Sequence[Shards] = ()) -> Table:
        """Return the elements of records and columns, each of which replaces the keys that earlier ones have."""
        groups = [Group(shards)]
        for added in map(Group, columns):
            groups = [kept for group in groups if (kept := group.without(added.codec.spec)) is not None]
            groups.append(added)
        return cls(shards, tuple(groups))

    @property
    def is_whole(self) -> bool:
        """True if the elements are whole records, without added columns."""
        return self.chosen is None and len(self.groups) == 1 and self.groups[0].shards is self.shards

    def __len__(self) -> int:
        return len(self.shards)

    @cached_property
    def element_spec(self) -> Tree:
        return _merged([group.element_codec.spec for group in self.groups])

    @cached_property
    def codec(self) -> Codec:
        if len(self.groups) == 1:
            return self.groups[0].codec
        # No record is stored with it.
        return codec_for(_merged([group.codec.spec for group in self.groups]))

    @cached_property
    def info(self) -> Info:
        info = self.shards.info
        title = info.title if self.chosen is None else f"Fields({info.name!r})"
        every = [group.info for group in self.groups]
        if len(every) == 1:
            return replace(info, title=title, read_nbytes=every[0].read_nbytes, reading_cost=every[0].reading_cost)
        read_nbytes = sum(each.read_nbytes for each in every)
        cost = highest_cost(each.reading_cost for each in every)
        return replace(info, title=title, read_nbytes=read_nbytes, reading_cost=cost)

    @cached_property
    def origins(self) -> Origins:
        """The origins. Chosen leaves and sizes of images change the digest of the elements, not the rows digest."""
        origins = self.shards.origins
        digests = origins.digests
        if self.chosen is not None:
            digests = digests.of_elements(b"fields", np.array(self.chosen, "<i8").tobytes())
        sizes = [
            [number, *astuple(leaf.size)]
            for number, (_, leaf) in enumerate(tree.leaves(self.codec.spec))
            if isinstance(leaf, SizedImageSpec)
        ]
        if sizes:
            digests = digests.of_elements(b"decoded", canonical_json(sizes))
        return replace(origins, digests=digests)

    def sources(self, numbers: Ints) -> Sources:
        return self.shards.sources(numbers)

    def needed(self, numbers: Ints) -> Needed:
        if len(self.groups) == 1:
            return self.groups[0].shards.needed(numbers)
        return needed_together(group.shards.needed(numbers) for group in self.groups)

    # Other elements of the same rows.

    def undecoded(self) -> Table:
        return replace(self, groups=tuple(replace(group, decodes=False, image_sizes=()) for group in self.groups))

    def with_image_sizes(self, sizes: Mapping[int, ImageSize]) -> Table:
        """Return the same elements, with images decoded to one size, by the number of their leaf."""
        groups = []
        for group, own in zip(self.groups, self._leaves, strict=True):
            own_sizes = {leaf - own.start: size for leaf, size in sizes.items() if leaf in own}
            groups.append(group.with_image_sizes(own_sizes))
        return replace(self, groups=tuple(groups))

    def with_shards(self, change: Callable[[Shards], Shards]) -> Table:
        shards = self.shards.with_shards(change)
        groups = []
        for group in self.groups:
            # The records are the same shards, here and in their group.
            changed = shards if group.shards is self.shards else group.shards.with_shards(change)
            groups.append(group if changed is group.shards else replace(group, shards=changed))
        is_same = shards is self.shards and groups == [*self.groups]
        return self if is_same else Table(shards, tuple(groups), self.chosen)

    def with_fields(self, leaves: Sequence[int]) -> Table:
        # All leaves chosen are the elements themselves, with their digest, and are read faster.
        if self.codec.schema.chosen(leaves) == self.codec.spec:
            return self
        groups = []
        for group, own in zip(self.groups, self._leaves, strict=True):
            chosen = [leaf - own.start for leaf in leaves if leaf in own]
            if chosen:
                groups.append(group.with_leaves(chosen))
        numbers = range(self._leaves[-1].stop) if self.chosen is None else self.chosen
        return Table(self.shards, tuple(groups), tuple(numbers[leaf] for leaf in leaves))

    # Leaves, by their numbers.

    @cached_property
    def _leaves(self) -> list[range]:
        """The numbers of the leaves of each group."""
        ends = list(accumulate((len(tree.leaves(group.codec.spec)) for group in self.groups), initial=0))
        return [range(first, end) for first, end in pairwise(ends)]

    def _owner(self, leaf: int) -> tuple[int, int]:
        """Return the place of the group that has a leaf, and the number of the leaf there."""
        return next((place, leaf - own.start) for place, own in enumerate(self._leaves) if leaf in own)

    def has_added(self, leaves: Sequence[int]) -> bool:
        return any(self.groups[self._owner(leaf)[0]].shards is not self.shards for leaf in leaves)

    def lengths(self, leaf: int) -> LengthColumn:
        place, number = self._owner(leaf)
        group = self.groups[place]
        return group.shards.lengths(group.number(number))

    def leaf_values(self, numbers: Ints, reads: Sequence[LeafRead], held: Held | None = None) -> list[Any]:
        if len(self.groups) == 1:
            return self.groups[0].leaf_values(numbers, reads, held)
        owners = [self._owner(read.leaf) for read in reads]
        values: list[Any] = [None] * len(reads)
        for place, group in enumerate(self.groups):
            mine = [number for number, (owner, _) in enumerate(owners) if owner == place]
            if not mine:
                continue
            own_reads = [reads[number].of_leaf(owners[number][1]) for number in mine]
            for number, own_values in zip(mine, group.leaf_values(numbers, own_reads, held), strict=True):
                values[number] = own_values
        return values

    def columns(self, numbers: Ints) -> Columns:
        """Return the stored values of these elements: the columns of :attr:`codec`."""
        return Columns.merged([group.columns(numbers) for group in self.groups])

    # Elements.

    # Of one group, they are what its methods return: callers do not wait for another call.

    @cached_property
    def element(self) -> Callable[[int], Any]:
        if len(self.groups) == 1 and self.groups[0].reads_records:
            return self.groups[0].element
        return partial(_element, self.groups)

    @cached_property
    def elements(self) -> Callable[..., list[Any]]:
        return self.groups[0].elements if len(self.groups) == 1 else partial(_elements, self.groups)

    @cached_property
    def batch(self) -> Callable[..., Any]:
        return self.groups[0].batch if len(self.groups) == 1 else partial(_batch, self.groups)


def _element(groups: Sequence[Group], number: int) -> Any:
    return _elements(groups, np.array([number]))[0]


def _elements(groups: Sequence[Group], numbers: Ints, held: Held | None = None) -> list[Any]:
    return [_merged(row) for row in zip(*(group.elements(numbers, held) for group in groups), strict=True)]


def _batch(groups: Sequence[Group], numbers: Ints, held: Held | None = None) -> Any:
    return _merged([group.batch(numbers, held) for group in groups])


def _merged(dicts: Sequence[Any]) -> Any:
    """Return a dict with the keys of several, or the only element."""
    return dicts[0] if len(dicts) == 1 else {key: value for each in dicts for key, value in each.items()}
