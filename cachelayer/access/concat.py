"""Concatenate datasets: ``cachelayer.concat`` and what it returns."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Self

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.dataref import DataRef
from cachelayer.access.held import Held, joined
from cachelayer.access.joined_fields import JoinedFieldsBase
from cachelayer.access.joined_shards import JoinedShards
from cachelayer.access.joined_views import JoinedViewsBase, in_common
from cachelayer.access.local_shards import GroupedRecords, LocalShards
from cachelayer.access.record_base import RecordBase
from cachelayer.access.selected_lengths import selected
from cachelayer.access.stored_view import StoredView
from cachelayer.access.view import View
from cachelayer.access.wrap import WrappedRef
from cachelayer.arrayrecord.length_column import JoinedColumn, LengthColumn
from cachelayer.arrayrecord.places import UniformRecords, VaryingRecords
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.locks import cached_property
from cachelayer.objects.local_cache import CacheFolder
from cachelayer.protocols import T
from cachelayer.records.codec import Codec, codec_named
from cachelayer.records.common_spec import common_spec
from cachelayer.records.memory import groups_of
from cachelayer.records.record_buffers import Records
from cachelayer.records.selection import Selection
from cachelayer.records.spec import ImageSize
from cachelayer.streams.stream import Stream
from cachelayer.versions.stored_version import StoredVersion

_MOST_CALLS_HIDDEN = 2


@dataclass(frozen=True, eq=False)
class Member:
    """One of the concatenated datasets, or a view of one.

    Args:
        base: the records of the dataset.
        selection: the records of it that the view has, in order.
        digest: the digest of the view, in hexadecimal.
    """

    base: RecordBase
    selection: Selection
    digest: str

    def __len__(self) -> int:
        return len(self.selection)

    @property
    def segments(self) -> tuple[int, ...]:
        """The number of records of each segment of the dataset; a single one if the selection mixes the segments."""
        return self.selection.segment_sizes(self.base.segments)


class JoinedBase(RecordBase):
    """The records of several datasets, one after another.

    Args:
        members: one or more datasets, of one codec and compatible element specs.

    Raises:
        InvalidArgumentError: if codecs differ, or specs are incompatible; the message names the leaf.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = tuple(members)
        self._splits = np.cumsum([0, *map(len, members)])
        common_spec([(member.base.name, member.base.element_spec) for member in members])
        spec = common_spec([(member.base.name, member.base.codec.spec) for member in members])
        kinds = {member.base.codec.name: member.base.name for member in members}
        if len(kinds) > 1:
            raise InvalidArgumentError(f"{' and '.join(kinds.values())} have different codecs: {' and '.join(kinds)}")
        self._codec = codec_named(next(iter(kinds)), spec)

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedBase, (self.members,)

    @property
    def codec(self) -> Codec:
        return self._codec

    @property
    def decodes(self) -> bool:
        return all(member.base.decodes for member in self.members)

    def stored(self) -> Self:
        return type(self)([replace(member, base=member.base.stored()) for member in self.members])

    def sized(self, sizes: Mapping[int, ImageSize]) -> Self:
        return type(self)([replace(member, base=member.base.sized(sizes)) for member in self.members])

    @property
    def name(self) -> str:
        return " + ".join(member.base.name for member in self.members)

    @property
    def metadata(self) -> Mapping[str, Any]:
        return in_common([member.base.metadata for member in self.members])

    @property
    def digest(self) -> str:
        return self._digest

    @cached_property
    def _digest(self) -> str:
        """The digest of the only member, or SHA-256 over ``concat`` and the digests of all members (32 bytes each)."""
        digests = [member.digest for member in self.members]
        if len(digests) == 1:
            return digests[0]
        return hashlib.sha256(b"concat" + b"".join(map(bytes.fromhex, digests))).hexdigest()

    @property
    def home(self) -> StoredVersion | None:
        """The version of the first dataset: what is stored about all of them lies beside it."""
        return self.members[0].base.home

    @property
    def copies(self) -> CacheFolder | None:
        return self.members[0].base.copies

    @property
    def segments(self) -> tuple[int, ...]:
        return tuple(size for member in self.members for size in member.segments)

    @property
    def records_per_read(self) -> int:
        fewest = min(member.base.records_per_read for member in self.members)
        # To find records of several members takes longer, so a read takes more of them to hide what each call costs.
        return fewest if self.is_fetched else fewest * min(len(self.members), _MOST_CALLS_HIDDEN)

    @property
    def reads_in_part(self) -> bool:
        return all(member.base.reads_in_part for member in self.members)

    @property
    def record_nbytes(self) -> int:
        return max(member.base.record_nbytes for member in self.members)

    def __len__(self) -> int:
        return int(self._splits[-1])

    def record(self, number: int) -> bytearray:
        index = int(np.searchsorted(self._splits, number, side="right")) - 1
        member = self.members[index]
        return member.base.record(member.selection.number(number - int(self._splits[index])))

    def located(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the member of each of these record numbers, and its number there."""
        member_of = np.searchsorted(self._splits, numbers, side="right") - 1
        return member_of, numbers - self._splits[member_of]

    @cached_property
    def _local(self) -> Sequence[LocalShards]:
        """The shards of each member's dataset, if all lie on this host."""
        found = [shards for member in self.members if (shards := member.base.local_shards) is not None]
        return found if len(found) == len(self.members) > 1 else []

    @cached_property
    def _shards(self) -> JoinedShards | None:
        return JoinedShards.of(self._local)

    @cached_property
    def _firsts(self) -> NDArray[np.int64]:
        """The number of the first record of each member's dataset in ``_shards``."""
        return np.array([self._shards.first(each) for each in self._local if self._shards], np.int64)

    @cached_property
    def _offsets(self) -> NDArray[np.int64] | None:
        """What to add to the numbers of each member for those in ``_shards``; None if that is not enough."""
        starts = []
        for member, shards in zip(self.members, self._local, strict=True):
            numbers = member.selection.numbers
            if isinstance(numbers, range) and numbers.step == 1 and 0 <= numbers.start <= numbers.stop <= len(shards):
                starts.append(numbers.start)
        return self._firsts + starts - self._splits[:-1] if len(starts) == len(self.members) else None

    def _in_shards(self, numbers: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the numbers of records in ``_shards``; None if a selection has records that are not there."""
        if self._offsets is not None:
            return numbers + self._offsets[self.located(numbers)[0]] if self._offsets.any() else numbers
        out = np.empty_like(numbers)
        for index, rows, own in self._by_member(numbers):
            if int(own.min()) < 0 or int(own.max()) >= len(self._local[index]):
                return None
            out[rows] = self._firsts[index] + own
        return out

    def _together(self, numbers: NDArray[np.int64], *, in_part: bool) -> Records | None:
        """Return the records in one call for all members; None if they must be read member by member."""
        found = None if self._shards is None else self._in_shards(numbers)
        return None if found is None or self._shards is None else self._shards.records(found, in_part=in_part)

    def records(self, numbers: NDArray[np.int64], *, in_part: bool = False) -> Records:
        together = self._together(numbers, in_part=in_part)
        if together is not None:
            return together
        parts = list(self._by_member(numbers))
        if len(parts) == 1:
            return self.members[parts[0][0]].base.records(parts[0][2], in_part=in_part)
        # Records of which nothing is read yet are read together.
        groups = [(rows, self.members[index].base.records(own, in_part=True)) for index, rows, own in parts]
        varying = VaryingRecords.joined(len(numbers), groups)
        if varying is not None:
            return varying if in_part else varying.places.records("none")
        return UniformRecords.joined(len(numbers), groups) or GroupedRecords(len(numbers), groups)

    def hold(self, numbers: NDArray[np.int64], share: float) -> Held:
        groups = [(rows, self.members[index].base.hold(own, share)) for index, rows, own in self._by_member(numbers)]
        return joined(len(numbers), groups)

    @property
    def is_fetched(self) -> bool:
        return any(member.base.is_fetched for member in self.members)

    def announce(self, numbers: NDArray[np.int64]) -> bool:
        announced = [self.members[index].base.announce(own) for index, _, own in self._by_member(numbers)]
        return any(announced)

    def are_quick_alone(self, numbers: NDArray[np.int64]) -> bool:
        return all(self.members[index].base.are_quick_alone(own) for index, _, own in self._by_member(numbers))

    def _by_member(self, numbers: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the members that have these records; with each, the rows of its records and their numbers in it."""
        member_of, within = self.located(numbers)
        for index, rows in groups_of(member_of, len(self.members)):
            yield index, rows, self.members[index].selection.numbers_of(within[rows])

    def lengths(self, leaf: int) -> LengthColumn:
        return JoinedColumn([selected(member.base.lengths(leaf), member.selection) for member in self.members])


class JoinedRef(StoredView[T], Generic[T]):
    """Several datasets as one, with the interface of a DataRef. :func:`cachelayer.concat` returns it."""

    _base: JoinedBase

    def _with_selection(self, selection: Selection) -> Self:
        return type(self)(self._base, selection)

    def _stored(self) -> JoinedRef[Any]:
        return JoinedRef(self._base.stored(), self._selection)

    def __repr__(self) -> str:
        return f"JoinedRef({self._base.name!r}, records={len(self)}, digest='sha256:{self.digest}')"


class JoinedViews(JoinedRef[T], Generic[T]):
    """Several views as one, some of which are not of stored records."""

    _base: JoinedViewsBase  # type: ignore[assignment]

    def __init__(self, base: JoinedViewsBase, selection: Selection | None = None) -> None:
        super().__init__(base, selection)

    def _stored(self) -> None:  # type: ignore[override]
        return None

    def decoded(self, *names: str, size: tuple[int, int], crop: bool = False) -> Self:  # noqa: ARG002
        raise InvalidTypeError("these views are joined already: call decoded() on each dataset, before views of it")

    def fields(self, *names: str) -> JoinedViews[Any]:  # type: ignore[override]
        return JoinedViews(self._base.fields(names), self._selection)

    def __repr__(self) -> str:
        return f"JoinedRef({list(self._base.members)!r}, records={len(self)}, digest='sha256:{self.digest}')"


def concat(refs: Iterable[View[T]]) -> JoinedRef[T]:
    """Concatenate datasets: the records of the first, then those of the second, and so on. This copies nothing.

    Args:
        refs: DataRefs, views of them, or results of ``concat``. Their element specs may differ only in which leaves may
            be None. Windows, packs and padded records can be among them: then all element specs must be equal.

    Raises:
        InvalidArgumentError: if there are no datasets, or their specs differ; the message names the leaf.
        InvalidTypeError: for other objects.
    """
    if isinstance(refs, (View, Stream)) or not isinstance(refs, Iterable):
        raise InvalidTypeError(f"concat takes a list of DataRefs, not a {type(refs).__name__}: pass concat([a, b])")
    refs = list(refs)
    if not refs:
        raise InvalidArgumentError("nothing to join: pass one DataRef or more")
    for ref in refs:
        if not isinstance(ref, View) or isinstance(ref, WrappedRef):
            raise InvalidTypeError(
                f"a {type(ref).__name__} has no stored records to join: cache it first, with storage.cache()"
            )
    stored = [ref for ref in refs if isinstance(ref, (DataRef, JoinedRef)) and not isinstance(ref, JoinedViews)]
    if len(stored) < len(refs):
        return JoinedViews(JoinedFieldsBase.of([member for ref in refs for member in _views_in(ref)]))
    members = [member for ref in stored for member in _members(ref)]
    # A version that was built from an empty source has no element spec, so it fits every other.
    return JoinedRef(JoinedBase([member for member in members if member.base.element_spec is not None] or members[:1]))


def _views_in(ref: View[Any]) -> Sequence[View[Any]]:
    if isinstance(ref, JoinedViews) and ref.digest == ref._base.digest:
        return ref._base.members
    return [ref]


def _members(ref: DataRef[Any] | JoinedRef[Any]) -> Sequence[Member]:
    if isinstance(ref, JoinedRef) and ref.digest == ref._base.digest:
        return ref._base.members
    return [Member(ref._base, ref._selection, ref.digest)]
