"""The leaves of records as they are stored: what windows, packs and padded records are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.lengths import LengthColumn
from cachelayer.protocols import Held
from cachelayer.records import tree
from cachelayer.records.codec import Codec
from cachelayer.records.memory import Ints
from cachelayer.records.tree import Tree
from cachelayer.versions.stored_version import StoredVersion

if TYPE_CHECKING:
    from cachelayer.access.dataset import BaseDataset


@dataclass(frozen=True, eq=False)
class LeafRead:
    """Which values of a leaf are read of some records.

    Args:
        leaf: the number of the leaf.
        starts: for each record, the first value; None for the whole leaf, which has one shape in all records.
        counts: for each record, how many values.
        ends: for each record, True if the leaf must end with the last of these; None if it may always have more.
    """

    leaf: int
    starts: Ints | None = None
    counts: Ints | None = None
    ends: NDArray[np.bool_] | None = None

    def of_leaf(self, leaf: int) -> LeafRead:
        return replace(self, leaf=leaf)

    def of_rows(self, rows: Ints) -> LeafRead:
        """Return the part of this reading that some rows take."""
        if self.starts is None or self.counts is None:
            return self
        return LeafRead(self.leaf, self.starts[rows], self.counts[rows], None if self.ends is None else self.ends[rows])


class StoredLeaves(Protocol):
    """The leaves of records as they are stored, which windows, packs and padded records are made of."""

    @property
    def codec(self) -> Codec:
        """The codec of these leaves."""

    @property
    def home(self) -> StoredVersion | None:
        """The version beside which files about the records are stored; None if there is none."""

    def with_fields(self, leaves: Sequence[int]) -> BaseDataset:
        """Return the same elements with some of the leaves, by their numbers, ascending."""

    def has_added(self, leaves: Sequence[int]) -> bool:  # noqa: ARG002
        """Return whether one of these leaves is a column that was added to the version."""
        return False

    def lengths(self, leaf: int) -> LengthColumn:
        """Return the lengths of the leaf of this number in all records."""

    def leaf_values(self, numbers: Ints, reads: Sequence[LeafRead], held: Held | None = None) -> list[Any]:
        """Return values of leaves of some records, each of which is read once.

        Args:
            numbers: the records.
            reads: what is read of them; starts, counts and ends have an item for each record.
            held: records that were fetched.

        Returns:
            For each read, the values of all records one after another, see :meth:`Codec.leaf_values`; those of a whole
            leaf stacked, as a :class:`cachelayer.Nullable` if it may be None.
        """


def leaves_below(spec: Tree, keys: Sequence[str]) -> list[int]:
    """Return the numbers of the leaves below these keys of a dict, ascending."""
    ends = accumulate(len(tree.leaves(child)) for child in spec.values())
    below = [(key, range(end - len(tree.leaves(spec[key])), end)) for key, end in zip(spec, ends, strict=True)]
    return [leaf for key, leaves in below if key in keys for leaf in leaves]
