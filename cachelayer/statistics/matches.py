"""Find the records behind a number of the statistics: those with a value, a length, or null."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cachelayer.records.spec import LeafSpec, SparseSpec
from cachelayer.statistics.numbers import Number, are_numbers
from cachelayer.statistics.texts_and_images import shown_string
from cachelayer.statistics.unpack_leaf import Ints, is_text, unpack

Kind = Literal["null", "nan", "infinite", "value", "text", "length"]


@dataclass(frozen=True)
class Wanted:
    """What a leaf is to have.

    Args:
        kind: what is compared.
        low: the least value or length, or the text.
        high: the value or length above all that are wanted; None if only ``low`` is.
    """

    kind: Kind
    low: Number | str | None = None
    high: Number | None = None

    def holds(self, numbers: NDArray[Any]) -> NDArray[np.bool_]:
        if self.high is None:
            return np.asarray(numbers == self.low)
        return np.asarray((numbers >= self.low) & (numbers < self.high))


def can_have(spec: LeafSpec, kind: Kind) -> bool:
    """Return whether records can be found by this in a leaf."""
    if kind == "null":
        return spec.nullable
    # If inner dimensions vary too, the record of a value is not known.
    if None in spec.shape[1:]:
        return False
    if kind in ("value", "nan", "infinite"):
        is_time = isinstance(spec.dtype, np.dtype) and spec.dtype.kind in "Mm"
        return are_numbers(spec.dtype) and (kind == "nan" or not is_time)
    if kind == "text":
        return is_text(spec)
    return spec.shape[:1] == (None,) or isinstance(spec, SparseSpec) or (is_text(spec) and spec.shape == ())


def rows_with(spec: LeafSpec, batch: Any, count: int, wanted: Wanted) -> Ints:
    """Return the rows of a batch whose leaf has what is wanted, ascending.

    Args:
        spec: the spec of the leaf, of which :func:`can_have` is True.
        batch: the leaf, as ``ref.read`` returns it.
        count: the rows of the batch.
        wanted: what it is to have.
    """
    unpacked = unpack(spec, batch, count)
    rows, values = unpacked.rows, unpacked.values
    if wanted.kind == "null":
        return np.setdiff1d(np.arange(count), rows)
    lengths = next((unpacked.lengths[of] for of in unpacked.one_each if of in unpacked.lengths), None)
    if wanted.kind == "length" and lengths is not None:
        return rows[wanted.holds(lengths)]
    is_varying = spec.shape[:1] == (None,) or isinstance(spec, SparseSpec)
    each = lengths if is_varying and lengths is not None else np.ones(len(rows), np.int64)
    row_of_value = np.repeat(rows, each * (len(values) // max(1, int(each.sum()))))
    return np.unique(row_of_value[_matches(values, wanted)])


def _matches(values: NDArray[Any], wanted: Wanted) -> NDArray[np.bool_]:
    if wanted.kind == "text":
        return np.fromiter((shown_string(text) == wanted.low for text in values.tolist()), np.bool_, len(values))
    if values.dtype.kind in "Mm":
        return np.asarray(np.isnat(values))
    if values.dtype.kind == "b":
        # numpy compares bools with integers of 64 bits only.
        values = values.astype(np.int8)
    if values.dtype.kind not in "iu":
        with np.errstate(over="ignore"):
            values = values.astype(np.float64)
    if wanted.kind == "value":
        return wanted.holds(values)
    return np.asarray(np.isnan(values) if wanted.kind == "nan" else np.isinf(values))
