r"""The kinds of leaves, and the parts that a record stores of each.

=============  ============================  ================================  =====================================
leaf           what it holds                 fixed parts                       varying parts
=============  ============================  ================================  =====================================
FixedLeaf      numbers of known shape        the array                         \-
VaryingLeaf    numbers of shape ``[None]``   \-                                values
StringLeaf     one ``bytes`` or ``str``      \-                                its bytes
JsonLeaf       a value of JSON               \-                                the bytes of its text
ArrayLeaf      other arrays                  u32: the shape                    values
RaggedLeaf     a ragged array                u32: shape of the inner values    u32 row lengths of each level; values
SparseLeaf     a sparse array                i64: the dense shape              i64 places, value by value; values
VideoLeaf      the file of a video           u32: its CRC32C                   its index; the file, behind all others
=============  ============================  ================================  =====================================

*values* are one part of the dtype. Of strings they are two parts: the u32 byte lengths, and the bytes of all strings.
So there are two primitives, and everything else is several of them::

    leaf                            value                            parts
    FixedLeaf,   int16 [2]          [1, 2]                           0100 0200
    VaryingLeaf, int16 [None]       [1, 2, 3]                        0100 0200 0300
    StringLeaf,  str                "hé"                             68 c3a9
    JsonLeaf                        {"b": 1, "a": [2]}               {"a":[2],"b":1}
    ArrayLeaf,   int16 [None, 2]    [[1, 2]]                         1 2 | 0100 0200
    ArrayLeaf,   str [None]         ["a", "bc"]                      2 | 1 2 | abc
    RaggedLeaf,  int16 [None, None] [[1], [], [2, 3]]                (no inner shape) | 1 0 2 | 0100 0200 0300
    SparseLeaf,  int16 [None]       7 at place 5 of 9                9 | 5 | 0700

A leaf translates many values at once, for batches, and single values, for ``ref[i]``::

    rows, a list of values  -- encode -------->           -- value, values -->  values of rows
    batch, stacked values   -- encode_batch -->  parts    -- batch ---------->  a batch
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from cachelayer.records import dtypes
from cachelayer.records.composite_leaves import ArrayLeaf, RaggedLeaf, SparseLeaf
from cachelayer.records.layout import LeafPart
from cachelayer.records.leaf_columns import PartRows
from cachelayer.records.simple_leaves import FixedLeaf, JsonLeaf, StringLeaf, VaryingLeaf
from cachelayer.records.spec import JsonSpec, LeafSpec, RaggedSpec, SparseSpec, VideoSpec
from cachelayer.records.video_leaf import VideoLeaf


class Leaf(Protocol):
    """Translates one leaf between values and parts. None is no value here: a null row holds the filler."""

    parts: tuple[LeafPart, ...]

    def filler(self) -> Any:
        """Return the value that is stored in place of None."""

    def encode(self, rows: Sequence[Any]) -> tuple[PartRows, ...]:
        """Return the parts of the values of some rows.

        Raises:
            ElementError: if a value does not fit; the record of the error is the index of the value.
        """

    def encode_batch(self, batch: Any) -> tuple[PartRows, ...]:
        """Return the parts of the rows of a batch: values stacked on a leading axis."""

    def value(self, *parts: NDArray[Any]) -> Any:
        """Return the value of one row from its parts, whose memory it may share."""

    def values(self, parts: tuple[PartRows, ...]) -> list[Any]:
        """Return the value of each row. Few of them share memory, so that one may be kept without the others."""

    def batch(self, parts: tuple[Any, ...]) -> Any:
        """Return the values of all rows stacked on a leading axis."""


def leaf_of(spec: LeafSpec) -> Leaf:
    """Return how a leaf of this spec is stored."""
    if isinstance(spec, RaggedSpec):
        return RaggedLeaf(spec)
    if isinstance(spec, SparseSpec):
        return SparseLeaf(spec)
    if isinstance(spec, JsonSpec):
        return JsonLeaf(spec)
    if isinstance(spec, VideoSpec):
        return VideoLeaf(spec)
    if dtypes.is_string(spec.dtype):
        return ArrayLeaf(spec) if spec.shape else StringLeaf(spec)
    if spec.is_static:
        return FixedLeaf(spec)
    return VaryingLeaf(spec) if spec.shape == (None,) else ArrayLeaf(spec)
