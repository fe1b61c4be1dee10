"""The plan of one leaf: where its parts and its null bits lie in records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.records import dtypes
from cachelayer.records.layout import LeafPart
from cachelayer.records.leaf_columns import NULL_DICT, PartRows
from cachelayer.records.leaves import Leaf
from cachelayer.records.media import Files, files_of
from cachelayer.records.memory import Ints
from cachelayer.records.null_marks import InnerDict
from cachelayer.records.spec import EncodedSpec, LeafSpec
from cachelayer.records.values import NullDict


@dataclass(frozen=True, eq=False)
class LeafPlan:
    """How one leaf is written into records and read from them."""

    number: int
    """The number of the leaf in the records, which is also the number of its null bit."""
    path: str
    """Where the leaf is in an element, as errors name it."""
    spec: LeafSpec
    """What the records store."""
    leaf: Leaf
    """Translates between values and parts; of images and sounds that are decoded, the values are decoded ones."""
    parts: tuple[tuple[int, LeafPart], ...]
    """The parts of the leaf, each with its place: of a fixed part the offset, of a varying part the number."""
    files: Files | None = None
    """Decodes the images, sounds or videos of the leaf; None if they are not decoded."""
    dicts_around: tuple[InnerDict, ...] = ()
    """The dicts around the leaf, the outermost first."""
    values_bit: int | None = None
    """The number of the null bit of the values within the leaf; None if none of them can be null."""
    null_mask: int = field(init=False)
    """The null bits that make the leaf None, its own and those of dicts around it: bit n for the null bit n."""
    value_of: Callable[..., Any] = field(init=False)
    """Makes the value of one row from its parts."""

    def __post_init__(self) -> None:
        bits = [self.number] if self.spec.nullable else []
        bits += [inner.bit for inner in self.dicts_around if inner.nullable]
        object.__setattr__(self, "null_mask", sum(1 << bit for bit in bits))
        object.__setattr__(self, "value_of", self.leaf.value if self.files is None else self.files.value)

    def decoding(self) -> LeafPlan:
        """Return the plan of the leaf with its images or sounds decoded; this plan if it has none."""
        if not isinstance(self.spec, EncodedSpec):
            return self
        files = files_of(self.path, self.spec)
        return replace(self, leaf=files.leaf, files=files)

    @property
    def null_bits(self) -> frozenset[int]:
        """The numbers of all null bits that concern the leaf."""
        of_values = [] if self.values_bit is None else [self.values_bit]
        return frozenset([self.number, *(inner.bit for inner in self.dicts_around), *of_values])

    def null_value(self, bits: int) -> NullDict | None:
        """Return what stands for the leaf in an element whose null bits make it None.

        That is None, or the mark of the outermost dict that is None, which a packer needs to make that dict None.
        """
        for inner in self.dicts_around:
            if inner.nullable and bits & 1 << inner.bit:
                return NullDict(inner.depth)
        return None

    def column_nulls(self, bits: NDArray[np.bool_]) -> NDArray[Any]:
        """Return the nulls of the column of the leaf, from the null bits of records: bool of shape ``[rows, bits]``."""
        nullable = [inner for inner in self.dicts_around if inner.nullable]
        if not nullable:
            return bits[:, self.number]
        nulls = bits[:, self.number].astype(np.uint8)
        # The outermost dict comes last, so its mark stays.
        for inner in reversed(nullable):
            nulls[bits[:, inner.bit]] = NULL_DICT + inner.depth
        return nulls

    def value_counts(self, nbytes: Ints) -> Ints:
        """Return how many values each row has, from the bytes of the varying parts: of shape ``[rows, parts]``."""
        counting = self._counting_part
        if counting is None:
            return np.full(len(nbytes), self._values_in_fixed_part, np.int64)
        place, part = self.parts[counting]
        return nbytes[:, place] // part.dtype.itemsize

    def value_splits(self, parts: Sequence[PartRows]) -> Ints:
        """Return where the values of each row of a column begin if they follow one another, and the end."""
        counting = self._counting_part
        if counting is None:
            return np.arange(len(parts[0]) + 1, dtype=np.int64) * self._values_in_fixed_part
        splits: Ints = parts[counting].splits
        return splits

    @property
    def _counting_part(self) -> int | None:
        """The index of the part that has an item for each value; None if the number of values is known."""
        if self.parts[-1][1].shape is not None:
            return None
        # Strings have two parts: their lengths, one for each string, and their bytes.
        return len(self.parts) - (2 if dtypes.is_string(self.spec.dtype) else 1)

    @property
    def _values_in_fixed_part(self) -> int:
        ((_, part),) = self.parts
        return prod(part.shape or ())

    @property
    def has_file(self) -> bool:
        """True if it is a video."""
        return self.parts[-1][1].is_file

    @property
    def first_varying(self) -> tuple[int, np.dtype[Any]]:
        """The number and the dtype of the first varying part."""
        return next((place, part.dtype) for place, part in self.parts if part.shape is None)
