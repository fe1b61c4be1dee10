"""Views of equal element specs, one after another, whatever their elements are made of."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.record_base import RecordBase, chosen_leaves
from cachelayer.access.stacking import is_plain
from cachelayer.access.view import View
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.locks import cached_property
from cachelayer.protocols import Failed, ReadingCost
from cachelayer.records import tree
from cachelayer.records.codec import Codec, codec_for
from cachelayer.records.common_spec import common_spec
from cachelayer.records.memory import groups_of, splits_of
from cachelayer.records.spec import LeafSpec
from cachelayer.records.tree import Tree
from cachelayer.tally import READING, turn_to


class JoinedViewsBase:
    """The elements of several views, one after another; see :class:`cachelayer.access.view.ViewBase`.

    Args:
        members: one or more views.

    Raises:
        InvalidArgumentError: if their element specs differ; the message names the leaf.
    """

    def __init__(self, members: Sequence[View[Any]]) -> None:
        self.members = tuple(members)
        specs = [(type(member).__name__, member.element_spec) for member in members]
        self.element_spec: Tree = common_spec(specs)
        for name, spec in specs:
            if spec != self.element_spec:
                raise InvalidArgumentError(f"{name} has elements {spec}, and others have {self.element_spec}")
        self._splits = splits_of(np.array([len(member) for member in members], np.int64))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.members,)

    @property
    def metadata(self) -> Mapping[str, Any]:
        return in_common([member.metadata for member in self.members])

    @property
    def codec(self) -> Codec:
        """Raise: these elements have no leaves of stored records.

        Raises:
            InvalidTypeError: in any case.
        """
        raise _no_stored_leaves()

    def fields(self, names: Sequence[str]) -> JoinedViewsBase:  # noqa: ARG002
        """Raise: see ``codec``.

        Raises:
            InvalidTypeError: in any case.
        """
        raise _no_stored_leaves()

    @cached_property
    def digest(self) -> str:
        """SHA-256 over ``concat`` and the digests of all members (32 bytes each); that of the only member."""
        digests = [member.digest for member in self.members]
        if len(digests) == 1:
            return digests[0]
        return hashlib.sha256(b"concat" + b"".join(map(bytes.fromhex, digests))).hexdigest()

    @property
    def stored_records(self) -> RecordBase | None:
        return self.members[0]._base.stored_records

    @property
    def segments(self) -> tuple[int, ...]:
        return tuple(size for member in self.members for size in member._selection.segment_sizes(member._base.segments))

    @property
    def records_per_read(self) -> int:
        return min(member._base.records_per_read for member in self.members)

    @property
    def record_nbytes(self) -> int:
        return max(member._base.record_nbytes for member in self.members)

    @property
    def reading_cost(self) -> ReadingCost:
        costs = {member._base.reading_cost for member in self.members}
        return next(cost for cost in ("foreign", "decoded", "stored") if cost in costs)

    def __len__(self) -> int:
        return int(self._splits[-1])

    def element(self, number: int) -> Any:
        index = int(self._splits[1:].searchsorted(number, side="right"))
        return self.members[index][number - int(self._splits[index])]

    def elements(self, numbers: NDArray[np.int64], *, failed: Failed | None = None) -> list[Any]:
        out: list[Any] = [None] * len(numbers)
        for index, rows in self._groups(numbers):
            turn_to(READING)
            mine: Failed | None = None if failed is None else {}
            found = self.members[index]._elements(numbers[rows] - self._splits[index], mine)
            if failed is not None and mine:
                failed.update({int(rows[row]): error for row, error in mine.items()})
            for row, element in zip(rows.tolist(), found, strict=True):
                out[row] = element
        return out

    def batch(self, numbers: NDArray[np.int64], names: Sequence[str] | None) -> Any:
        spec = self.element_spec
        if names is not None:
            chosen_leaves(spec, names)
            spec = {name: child for name, child in spec.items() if name in names}
        groups = self._groups(numbers) or [(0, np.empty(0, np.int64))]
        parts = []
        for index, rows in groups:
            turn_to(READING)
            parts.append((rows, self.members[index].read(numbers[rows] - self._splits[index], names)))
        return parts[0][1] if len(parts) == 1 else _stacked(spec, parts, len(numbers))

    def batches(self, batches: Sequence[NDArray[np.int64]]) -> list[Any]:
        if not all(map(is_plain, self._leaf_specs)):
            return [self.batch(numbers, None) for numbers in batches]
        splits = splits_of(np.array([len(batch) for batch in batches], np.int64)).tolist()
        whole = tree.flatten_like(
            self.element_spec, self.batch(np.concatenate([*batches, np.empty(0, np.int64)]), None)
        )
        pack = tree.packer(self.element_spec)
        return [pack(iter([leaf[start:stop] for leaf in whole])) for start, stop in pairwise(splits)]

    @property
    def _leaf_specs(self) -> list[LeafSpec]:
        return [leaf for _, leaf in tree.leaves(self.element_spec)]

    def _groups(self, numbers: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
        """Return the members that these elements come from, and the rows of each."""
        member_of = self._splits[1:].searchsorted(numbers, side="right")
        return list(groups_of(member_of, len(self.members)))


def _no_stored_leaves() -> InvalidTypeError:
    return InvalidTypeError(
        "joined windows, packs and padded records have no leaves of stored records: call lengths(), total(), "
        "fields(), windows() and packed() of the datasets before you join them"
    )


def in_common(metadata: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entries that are the same in the metadata of all of some datasets."""
    first, *others = metadata
    return {key: value for key, value in first.items() if all(key in other and other[key] == value for other in others)}


def _stacked(spec: Tree, parts: Sequence[tuple[NDArray[np.int64], Any]], rows: int) -> Any:
    """Return a batch of the rows of several batches.

    Args:
        spec: the spec of the elements.
        parts: for each batch, the rows that it has, and the batch.
        rows: the number of rows.
    """
    flat = [(mine, tree.flatten_like(spec, batch)) for mine, batch in parts]
    leaves = []
    for number, (_, leaf) in enumerate(tree.leaves(spec)):
        columns = [(mine, values[number]) for mine, values in flat]
        leaves.append(_stacked_leaf(leaf, columns, rows))
    return tree.packer(spec)(iter(leaves))


def _stacked_leaf(leaf: LeafSpec, columns: Sequence[tuple[NDArray[np.int64], Any]], rows: int) -> Any:
    if is_plain(leaf):
        first = columns[0][1]
        out = np.empty((rows, *first.shape[1:]), first.dtype)
        for mine, values in columns:
            out[mine] = values
        return out
    listed: list[Any] = [None] * rows
    codec = codec_for(leaf)
    for mine, values in columns:
        for row, value in zip(mine.tolist(), codec.elements(codec.batch_columns(values), len(mine)), strict=True):
            listed[row] = value
    return codec.batch(codec.columns(listed))
