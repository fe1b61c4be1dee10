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
    """Which values of a leaf are read, of each of some records: all of them, or a range."""

    leaf: int
    """The number of the leaf."""
    starts: Ints | None = None
    """The first value of the range of each record; None for all values of a leaf of one shape."""
    counts: Ints | None = None
    """The number of values of each range; None as for ``starts``."""
    ends: NDArray[np.bool_] | None = None
    """True for each record whose leaf must end with the range; None if leaves may be longer."""

    def of_leaf(self, leaf: int) -> LeafRead:
        return replace(self, leaf=leaf)

    def of_rows(self, rows: Ints) -> LeafRead:
        """Return the ranges of some of the records."""
        if self.starts is None or self.counts is None:
            return self
        ends = None if self.ends is None else self.ends[rows]
        return LeafRead(self.leaf, self.starts[rows], self.counts[rows], ends)


class StoredLeaves(Protocol):
    """The leaves of records as they are stored, by their numbers: lengths, and values out of the middle of a leaf."""

    @property
    def codec(self) -> Codec:
        """The codec of the leaves."""

    @property
    def home(self) -> StoredVersion | None:
        """The version beside which plans of the records are stored; None if they are of no single version."""

    def with_fields(self, leaves: Sequence[int]) -> BaseDataset:
        """Return the same elements with some of the leaves, in ascending order of their numbers."""

    def has_added(self, leaves: Sequence[int]) -> bool:  # noqa: ARG002
        """Return whether one of these leaves is a column that was added to the version."""
        return False

    def lengths(self, leaf: int) -> LengthColumn:
        """Return the lengths of a leaf in all records."""

    def leaf_values(self, numbers: Ints, reads: Sequence[LeafRead], held: Held | None = None) -> list[Any]:
        """Return values of several leaves of some records. Each record is read once.

        Args:
            numbers: the records.
            reads: what is read of each leaf; ``starts``, ``counts`` and ``ends`` have an item for each record.
            held: records that were fetched.

        Returns:
            The values of each read: ranges one after another, as :meth:`Codec.leaf_values` returns them; or whole
            leaves stacked, as a :class:`cachelayer.Nullable` if they may be None.
        """


def leaves_below(spec: Tree, keys: Sequence[str]) -> list[int]:
    """Return the numbers of the leaves below these keys of a dict, ascending."""
    ends = accumulate(len(tree.leaves(child)) for child in spec.values())
    below = [(key, range(end - len(tree.leaves(spec[key])), end)) for key, end in zip(spec, ends, strict=True)]
    return [leaf for key, leaves in below if key in keys for leaf in leaves]
