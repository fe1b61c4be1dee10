"""Concatenate datasets: ``cachelayer.concat`` and what it returns."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Generic, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.elements import Elements, chosen_leaves
from cachelayer.access.held import Held, joined
from cachelayer.access.record_elements import RecordElements, RecordSource
from cachelayer.access.stacking import is_plain
from cachelayer.access.stored_view import FieldsRef, StoredView
from cachelayer.access.version_lengths import selected_lengths
from cachelayer.access.view import View
from cachelayer.access.wrap import WrappedRef
from cachelayer.arrayrecord.lengths import LengthColumn
from cachelayer.arrayrecord.places import group_records
from cachelayer.errors import ErasedRecordError, InvalidArgumentError, InvalidTypeError
from cachelayer.locks import cached_property
from cachelayer.protocols import Failed, ReadingCost, T
from cachelayer.records import tree
from cachelayer.records.codec import Codec, codec_for, codec_named
from cachelayer.records.common_spec import common_spec
from cachelayer.records.memory import Ints, groups_of, move_ranges, splits_of
from cachelayer.records.record_buffers import Records
from cachelayer.records.selection import Selection
from cachelayer.records.spec import LeafSpec
from cachelayer.records.tree import Tree
from cachelayer.streams.stream import Stream
from cachelayer.versions.stored_version import StoredVersion


class _Part(Protocol):
    """One of several that lie one after another: a view, or some records of a version."""

    @property
    def digest(self) -> str: ...
    def __len__(self) -> int: ...


def _splits_of(parts: Sequence[_Part]) -> Ints:
    """Return the number of the first element of each part, and the end."""
    return splits_of(np.array([len(part) for part in parts], np.int64))


def _by_part(splits: Ints, numbers: Ints) -> Iterator[tuple[int, Ints, Ints]]:
    """Yield the parts that these elements are in; with each, its rows, and their numbers in it."""
    part_of = splits[1:].searchsorted(numbers, side="right")
    for part, rows in groups_of(part_of, len(splits) - 1):
        yield part, rows, numbers[rows] - splits[part]


def _digest_of(digests: Sequence[str]) -> str:
    """Return the only digest, or SHA-256 over ``concat`` and all of them (32 bytes each)."""
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256(b"concat" + b"".join(map(bytes.fromhex, digests))).hexdigest()


def _numbers_of(splits: Ints, rows: Iterable[Ints]) -> Ints:
    """Return the numbers of some elements of each part, given their rows in it."""
    return np.concatenate([own + first for own, first in zip(rows, splits[:-1].tolist(), strict=True)])


def _in_common(metadata: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entries that are the same in the metadata of all of some datasets."""
    first, *others = metadata
    return {key: value for key, value in first.items() if all(key in other and other[key] == value for other in others)}


@dataclass(frozen=True, eq=False)
class Member:
    """Records of one of the concatenated datasets.

    Args:
        source: the records of the dataset.
        selection: which of them, in order.
        digest, original_digest: the digest of these, and the one before any was erased, in hexadecimal.
    """

    source: RecordSource
    selection: Selection
    digest: str
    original_digest: str

    def __len__(self) -> int:
        return len(self.selection)


@dataclass(frozen=True, eq=False)
class JoinedRecords:
    """The records of several datasets of one codec, one after another.

    Args:
        members: one or more datasets; their element specs differ only in which leaves may be None.
    """

    members: tuple[Member, ...]

    kind: ClassVar[str] = "JoinedRef"

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedRecords, (self.members,)

    @property
    def name(self) -> str:
        return " + ".join(member.source.name for member in self.members)

    @cached_property
    def codec(self) -> Codec:
        codecs = [member.source.codec for member in self.members]
        spec = common_spec(
            [(member.source.name, codec.spec) for member, codec in zip(self.members, codecs, strict=True)]
        )
        return codec_named(codecs[0].name, spec)

    @property
    def metadata(self) -> Mapping[str, Any]:
        return _in_common([member.source.metadata for member in self.members])

    @cached_property
    def digest(self) -> str:
        return _digest_of([member.digest for member in self.members])

    @cached_property
    def original_digest(self) -> str:
        return _digest_of([member.original_digest for member in self.members])

    @cached_property
    def erased(self) -> Ints:
        return _numbers_of(self._splits, (each.selection.rows_of(each.source.erased) for each in self.members))

    def erased_error(self, number: int) -> ErasedRecordError:
        ((part, _, (own,)),) = self.by_member(np.array([number]))
        return self.members[part].source.erased_error(int(own))

    @property
    def home(self) -> StoredVersion | None:
        return self.members[0].source.home

    @property
    def segments(self) -> tuple[int, ...]:
        # A selection that mixes the segments of its dataset counts as one.
        return tuple(size for each in self.members for size in each.selection.segment_sizes(each.source.segments))

    @property
    def records_per_read(self) -> int:
        return min(member.source.records_per_read for member in self.members)

    @property
    def reads_in_part(self) -> bool:
        return all(member.source.reads_in_part for member in self.members)

    @property
    def takes_requests(self) -> bool:
        return any(member.source.takes_requests for member in self.members)

    @property
    def record_nbytes(self) -> int:
        return max(member.source.record_nbytes for member in self.members)

    @cached_property
    def _splits(self) -> Ints:
        return _splits_of(self.members)

    def __len__(self) -> int:
        return int(self._splits[-1])

    def by_member(self, numbers: Ints) -> Iterator[tuple[int, Ints, Ints]]:
        """Yield the members that these records come from; with each, its rows, and their numbers in its dataset."""
        for part, rows, own in _by_part(self._splits, numbers):
            yield part, rows, self.members[part].selection.numbers_of(own)

    def record(self, number: int) -> bytearray:
        part = int(self._splits[1:].searchsorted(number, side="right"))
        member = self.members[part]
        return member.source.record(member.selection.number(number - int(self._splits[part])))

    def records(self, numbers: Ints) -> Records:
        members = self.members
        groups = [(rows, members[part].source.records(own)) for part, rows, own in self.by_member(numbers)]
        return group_records(len(numbers), groups)

    def hold(self, numbers: Ints, share: float) -> Held:
        groups = [(rows, self.members[part].source.hold(own, share)) for part, rows, own in self.by_member(numbers)]
        return joined(len(numbers), groups)

    def announce(self, numbers: Ints) -> bool:
        announced = [self.members[part].source.announce(own) for part, _, own in self.by_member(numbers)]
        return any(announced)

    def lengths(self, leaf: int) -> LengthColumn:
        lengths = [selected_lengths(each.source.lengths(leaf), each.selection) for each in self.members]
        return LengthColumn.joined(lengths)


class JoinedElements(Elements):
    """The elements of several views, one after another.

    If all are views of stored records, with leaves that are stored in one way, it has the leaves of these records too,
    as a :class:`RecordElements` has them: their other leaves may differ.

    Args:
        members: one or more views.
    """

    def __init__(self, members: Sequence[View[Any]]) -> None:
        self.members = tuple(members)
        self._splits = _splits_of(members)
        specs = [(type(member).__name__, member.element_spec) for member in members]
        self._element_spec = common_spec(specs)
        for name, spec in specs:
            if spec != self._element_spec:
                raise InvalidArgumentError(f"{name} has elements {spec}, and others have {self._element_spec}")

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedElements, (self.members,)

    @property
    def title(self) -> str:
        return f"JoinedRef({list(self.members)!r}"

    @property
    def element_spec(self) -> Tree:
        return self._element_spec

    @property
    def metadata(self) -> Mapping[str, Any]:
        return _in_common([member.metadata for member in self.members])

    @cached_property
    def digest(self) -> str:
        return _digest_of([member.digest for member in self.members])

    @cached_property
    def original_digest(self) -> str:
        return _digest_of([member._records.original_digest for member in self.members])

    @cached_property
    def erased(self) -> Ints:
        return _numbers_of(self._splits, (each._erased for each in self.members))

    @property
    def segments(self) -> tuple[int, ...]:
        return tuple(size for each in self.members for size in each._selection.segment_sizes(each._elements.segments))

    @property
    def records_per_read(self) -> int:
        return min(member._elements.records_per_read for member in self.members)

    @property
    def record_nbytes(self) -> int:
        return max(member._elements.record_nbytes for member in self.members)

    @property
    def reading_cost(self) -> ReadingCost:
        costs = {member._elements.reading_cost for member in self.members}
        return next(cost for cost in ("foreign", "decoded", "stored") if cost in costs)

    def __len__(self) -> int:
        return int(self._splits[-1])

    def element(self, number: int) -> Any:
        part = int(self._splits[1:].searchsorted(number, side="right"))
        return self.members[part][number - int(self._splits[part])]

    def elements(self, numbers: Ints, failed: Failed | None = None) -> list[Any]:
        out: list[Any] = [None] * len(numbers)
        for part, rows, own in _by_part(self._splits, numbers):
            errors: Failed | None = None if failed is None else {}
            elements = self.members[part]._records.elements(own, errors)
            for row, element in zip(rows.tolist(), elements, strict=True):
                out[row] = element
            if failed is not None and errors:
                failed.update({int(rows[row]): error for row, error in errors.items()})
        return out

    def batch(self, numbers: Ints, names: Sequence[str] | None = None) -> Any:
        spec = self.element_spec
        if names is not None:
            chosen_leaves(spec, names)
            spec = {name: child for name, child in spec.items() if name in names}
        batches = []
        for part, rows, own in list(_by_part(self._splits, numbers)) or [(0, numbers, numbers)]:
            batches.append((rows, self.members[part].read(own, names)))
        return batches[0][1] if len(batches) == 1 else _merge_batches(spec, batches, len(numbers))

    def batches(self, batches: Sequence[Ints]) -> Iterable[Any]:
        if not all(is_plain(leaf) for _, leaf in tree.leaves(self.element_spec)):
            return super().batches(batches)
        # Arrays of several batches are read at once, and cut.
        splits = splits_of(np.array([len(batch) for batch in batches], np.int64)).tolist()
        whole = self.batch(np.concatenate([*batches, np.empty(0, np.int64)]))
        leaves, pack = tree.flatten_like(self.element_spec, whole), tree.packer(self.element_spec)
        return [pack(iter([leaf[start:stop] for leaf in leaves])) for start, stop in pairwise(splits)]

    @property
    def has_leaves(self) -> bool:
        """Whether it has the leaves of stored records."""
        specs = []
        for member in self.members:
            base = member._elements
            if not isinstance(base, RecordElements) and not (isinstance(base, JoinedElements) and base.has_leaves):
                return False
            specs.append(base.codec.spec)
        return all(spec == specs[0] for spec in specs)

    @cached_property
    def _stored(self) -> Sequence[StoredView[Any]]:
        """The members, if they have leaves of stored records."""
        if not self.has_leaves:
            raise InvalidTypeError(
                "joined windows, packs and padded records have no leaves of stored records: call lengths(), total(), "
                "fields(), windows() and packed() of the datasets before you join them"
            )
        return [member for member in self.members if isinstance(member, StoredView)]

    @property
    def codec(self) -> Codec:
        """The codec of the leaves alone. No record was encoded by it."""
        return codec_for(self._stored[0]._elements.codec.spec)

    @property
    def name(self) -> str:
        return " + ".join(member._elements.name for member in self._stored)

    @property
    def home(self) -> StoredVersion | None:
        """The version beside which files about the records are stored."""
        return self._stored[0]._elements.home

    def with_fields(self, leaves: Sequence[int]) -> JoinedElements:
        """Return some of the leaves, by their numbers."""
        return JoinedElements([FieldsRef(each._elements.with_fields(leaves), each._selection) for each in self._stored])

    def lengths(self, leaf: int) -> LengthColumn:
        return LengthColumn.joined(
            [selected_lengths(each._elements.lengths(leaf), each._selection) for each in self._stored]
        )

    def leaf_values(
        self,
        leaves: Sequence[int],
        numbers: Ints,
        starts: Ints,
        counts: Ints,
        ends: NDArray[np.bool_] | None = None,
    ) -> list[NDArray[Any]]:
        """Return what :meth:`RecordElements.leaf_values` does."""
        groups = []
        for part, rows, within in list(_by_part(self._splits, numbers)) or [(0, numbers, numbers)]:
            member, own_ends = self._stored[part], None if ends is None else ends[rows]
            own = member._selection.numbers_of(within)
            groups.append((rows, member._elements.leaf_values(leaves, own, starts[rows], counts[rows], own_ends)))
        if len(groups) == 1:
            return groups[0][1]
        return [_merge_values([(rows, values[leaf]) for rows, values in groups], counts) for leaf in range(len(leaves))]


def _merge_values(groups: Sequence[tuple[Ints, NDArray[Any]]], counts: Ints) -> NDArray[Any]:
    """Return the values of all rows one after another, given those of the rows of each group."""
    dtype = groups[0][1].dtype
    nbytes = counts * dtype.itemsize
    begins = splits_of(nbytes)
    out = np.empty(int(begins[-1]), np.uint8)
    for rows, values in groups:
        move_ranges(out, begins[:-1][rows], values.view(np.uint8), splits_of(nbytes[rows])[:-1], nbytes[rows])
    return out.view(dtype)


def _merge_batches(spec: Tree, batches: Sequence[tuple[Ints, Any]], rows: int) -> Any:
    """Return a batch of the rows of several batches.

    Args:
        spec: the spec of the elements.
        batches: for each batch, the rows that it has, and the batch.
        rows: the number of rows.
    """
    flat = [(own, tree.flatten_like(spec, batch)) for own, batch in batches]
    leaves = []
    for number, (_, leaf) in enumerate(tree.leaves(spec)):
        leaves.append(_merge_leaf(leaf, [(own, values[number]) for own, values in flat], rows))
    return tree.packer(spec)(iter(leaves))


def _merge_leaf(leaf: LeafSpec, batches: Sequence[tuple[Ints, Any]], rows: int) -> Any:
    if is_plain(leaf):
        first = batches[0][1]
        out = np.empty((rows, *first.shape[1:]), first.dtype)
        for own, values in batches:
            out[own] = values
        return out
    listed: list[Any] = [None] * rows
    codec = codec_for(leaf)
    for own, values in batches:
        for row, value in zip(own.tolist(), codec.elements(codec.batch_columns(values), len(own)), strict=True):
            listed[row] = value
    return codec.batch(codec.columns(listed))


class JoinedRef(StoredView[T], Generic[T]):
    """Several datasets as one, with the interface of a DataRef. :func:`cachelayer.concat` returns it."""


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
    stored = [ref for ref in refs if isinstance(ref._elements, RecordElements) and ref._elements.chosen is None]
    return JoinedRef(_join_records(stored)) if len(stored) == len(refs) else join_views(refs)


def join_views(refs: Sequence[View[T]]) -> JoinedRef[T]:
    """Concatenate views of any kind, whose element specs are equal."""
    members: list[View[Any]] = []
    for ref in refs:
        base = ref._elements
        members += base.members if isinstance(base, JoinedElements) and ref.digest == base.digest else [ref]
    return JoinedRef(JoinedElements(members))


def _join_records(refs: Sequence[View[Any]]) -> RecordElements:
    """Return the elements of views of stored records."""
    # A version that was built from an empty source has no element spec, so it fits every other.
    refs = [ref for ref in refs if ref.element_spec is not None] or refs[:1]
    bases = [ref._elements for ref in refs if isinstance(ref._elements, RecordElements)]
    common_spec([(base.name, base.element_spec) for base in bases])
    codecs = {base.codec.name: base.name for base in bases}
    if len(codecs) > 1:
        raise InvalidArgumentError(f"{' and '.join(codecs.values())} have different codecs: {' and '.join(codecs)}")
    source = JoinedRecords(tuple(member for ref in refs for member in _members_of(ref)))
    common_spec([(base.name, base.codec.spec) for base in bases])
    return RecordElements(source, all(base.decodes for base in bases), bases[0].sizes)


def _members_of(ref: View[Any]) -> Sequence[Member]:
    source = cast(RecordElements, ref._elements).source
    if isinstance(source, JoinedRecords) and ref.digest == source.digest:
        return source.members
    return [Member(source, ref._selection, ref.digest, ref._records.original_digest)]
