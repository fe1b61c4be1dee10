"""Some leaves of the records of several datasets, one after another, whose other leaves may differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.joined_views import JoinedViewsBase
from cachelayer.access.record_base import RecordBase
from cachelayer.access.selected_lengths import selected
from cachelayer.access.stored_view import StoredView
from cachelayer.access.view import View
from cachelayer.arrayrecord.length_column import JoinedColumn, LengthColumn
from cachelayer.locks import cached_property
from cachelayer.records.codec import Codec, codec_for
from cachelayer.records.memory import Ints, move_ranges, splits_of
from cachelayer.versions.stored_version import StoredVersion


class JoinedFieldsBase(JoinedViewsBase):
    """Joined views of stored records: elements come from the views, lengths and values from what is stored.

    Args:
        members: one or more views; their leaves are stored in one way.
    """

    members: tuple[StoredView[Any], ...]

    @cached_property
    def codec(self) -> Codec:
        """The codec of these leaves alone. No record was encoded by it."""
        return codec_for(self.members[0]._base.codec.spec)

    @classmethod
    def of(cls, views: Sequence[View[Any]]) -> JoinedViewsBase:
        """Return views one after another: as this class, if all are of records that store their leaves in one way."""
        stored = [view for view in views if isinstance(view, StoredView) and _has_leaves(view)]
        if len(stored) == len(views) and all(view._base.codec.spec == stored[0]._base.codec.spec for view in stored):
            return cls(stored)
        return JoinedViewsBase(views)

    @property
    def name(self) -> str:
        return " + ".join(member._base.name for member in self.members)

    @property
    def home(self) -> StoredVersion | None:
        return self.members[0]._base.home

    def fields(self, names: Sequence[str]) -> Self:
        """Return some of these leaves."""
        return type(self)([member.fields(*names) for member in self.members])

    def lengths(self, leaf: int) -> LengthColumn:
        return JoinedColumn([selected(member._base.lengths(leaf), member._selection) for member in self.members])

    def leaf_values(
        self,
        leaves: Sequence[int],
        numbers: Ints,
        starts: Ints,
        counts: Ints,
        ends: NDArray[np.bool_] | None = None,
    ) -> list[NDArray[Any]]:
        """Return what :meth:`cachelayer.access.record_base.RecordBase.leaf_values` does."""
        found = []
        for index, rows in self._groups(numbers) or [(0, np.empty(0, np.int64))]:
            member = self.members[index]
            own = member._selection.numbers_of(numbers[rows] - self._splits[index])
            own_ends = None if ends is None else ends[rows]
            found.append((rows, member._base.leaf_values(leaves, own, starts[rows], counts[rows], own_ends)))
        if len(found) == 1:
            return found[0][1]
        return [_together([(rows, values[place]) for rows, values in found], counts) for place in range(len(leaves))]


def _has_leaves(view: StoredView[Any]) -> bool:
    return isinstance(view._base, (RecordBase, JoinedFieldsBase))


def _together(parts: Sequence[tuple[Ints, NDArray[Any]]], counts: Ints) -> NDArray[Any]:
    """Return the values of all rows, given some of the rows at a time: the values of each row one after another."""
    dtype = parts[0][1].dtype
    nbytes = counts * dtype.itemsize
    begins = splits_of(nbytes)
    out = np.empty(int(begins[-1]), np.uint8)
    for rows, values in parts:
        move_ranges(out, begins[:-1][rows], values.view(np.uint8), splits_of(nbytes[rows])[:-1], nbytes[rows])
    return out.view(dtype)
