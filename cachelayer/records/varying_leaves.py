"""Leaves of varying length, read from stored records without decoding them: their lengths, and ranges of values.

These are arrays of shape ``[None]``, and single ``bytes`` and ``str``, images and sounds among them. The length of an
array is the number of its values; that of the others is the number of their bytes, for ``str`` in UTF-8. None has the
length 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import CorruptionError, InvalidArgumentError
from cachelayer.records import dtypes, tree
from cachelayer.records.codec import PLAIN, Codec
from cachelayer.records.leaf_names import leaf_number
from cachelayer.records.leaves import leaf_of
from cachelayer.records.memory import Ints
from cachelayer.records.record_buffers import Records
from cachelayer.records.spec import ArraySpec, EncodedSpec, LeafSpec
from cachelayer.records.tree import Tree


def varying_leaves(spec: Tree) -> list[int]:
    """Return the numbers of the leaves that have lengths."""
    return [number for number, (_, leaf) in enumerate(tree.leaves(spec)) if _varies(leaf)]


def _varies(leaf: LeafSpec) -> bool:
    if not isinstance(leaf, (ArraySpec, EncodedSpec)):
        return False
    return leaf.shape == (None,) or (leaf.shape == () and dtypes.is_string(leaf.dtype))


def varying_leaf(spec: Tree, name: Any) -> int:
    """Return the number of the leaf of this name, which must have lengths."""
    number = leaf_number(spec, name)
    leaf = tree.leaves(spec)[number][1]
    if not _varies(leaf):
        raise InvalidArgumentError(
            f"{name!r} is {leaf.describe()}: only arrays of shape [None], bytes and str have lengths"
        )
    return number


class VaryingLeaves:
    """Reads the leaves of varying length of stored records.

    Args:
        codec: the codec of the records.

    Attributes:
        numbers: the numbers of these leaves, ascending.
    """

    def __init__(self, codec: Codec) -> None:
        self.numbers = varying_leaves(codec.spec)
        self._codec = codec
        leaves = [leaf for _, leaf in tree.leaves(codec.spec)]
        # The place and the dtype of the varying part of which each has as many items as the leaf has values.
        self._parts = {
            number: next(
                (place, part.dtype)
                for place, part in zip(codec.layout.places[number], leaf_of(leaves[number]).parts, strict=True)
                if part.shape is None
            )
            for number in self.numbers
        }

    def lengths(self, records: Records) -> Ints:
        """Return the lengths of all these leaves, 0 for an erased record: int64 of shape ``[rows, leaves]``."""
        if self._codec.name == PLAIN:
            return records.lengths.reshape(-1, 1)
        layout = self._codec.layout
        held, width = records.lengths > 0, 4 * layout.varying_count
        short = np.flatnonzero(held & (records.lengths < layout.fixed_nbytes))
        if len(short):
            raise CorruptionError(f"a record of {records.lengths[short[0]]} bytes is shorter than its fixed parts")
        nbytes = np.zeros((len(records), layout.varying_count), np.int64)
        raw = records.slab(layout.lengths, width) if held.all() else records.ranges(held * layout.lengths, held * width)
        nbytes[held] = raw.view("<u4").reshape(np.count_nonzero(held), layout.varying_count)
        parts = [place for place, _ in self._parts.values()]
        sizes = np.array([dtype.itemsize for _, dtype in self._parts.values()], np.int64)
        return nbytes[:, parts] // sizes

    def values(
        self, records: Records, number: int, starts: Ints, counts: Ints, ends: NDArray[np.bool_] | None = None
    ) -> NDArray[Any]:
        """Return some consecutive values of a leaf of each record, one after another.

        Nothing is read past the end of a leaf, whatever starts and counts are.

        Args:
            records: the records.
            number: the number of the leaf, one of ``numbers``.
            starts: for each record, the first value.
            counts: for each record, how many values.
            ends: for each record, True if the leaf must end with the last of these; None if it may always have more.

        Returns:
            An array of the leaf's dtype; uint8 for ``bytes`` and ``str``.
        """
        part, dtype = self._parts[number]
        all_begins, all_nbytes = self._codec.varying_ranges(records)
        begins, held = all_begins[:, part], all_nbytes[:, part] // dtype.itemsize
        are_wrong = (starts < 0) | (counts < 0) | (counts > held) | (starts > held - counts)
        if ends is not None:
            are_wrong |= ends & (starts + counts != held)
        wrong = np.flatnonzero(are_wrong)
        if len(wrong):
            row = int(wrong[0])
            raise CorruptionError(
                f"values {starts[row]} to {starts[row] + counts[row]} of a record that has {held[row]}: "
                "its length is not the one that is stored beside the shard"
            )
        values: NDArray[Any] = records.ranges(begins + starts * dtype.itemsize, counts * dtype.itemsize).view(dtype)
        return values
