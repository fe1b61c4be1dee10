"""Find the records behind a number of the statistics: those with a value, a length, or null."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cachelayer.records import dtypes
from cachelayer.records.spec import LeafSpec, SparseSpec
from cachelayer.statistics.numbers import Number, are_numbers
from cachelayer.statistics.texts_and_images import shown_string
from cachelayer.statistics.unpack_leaf import Ints, Unpacked, unpack

Kind = Literal["null", "nan", "infinite", "value", "text", "length"]
# Lengths of which a record has one.
_ONE_EACH = ("axis 0", "values")


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
        """Return which of some numbers are wanted."""
        if self.high is None:
            return np.asarray(numbers == self.low)
        return np.asarray((numbers >= self.low) & (numbers < self.high))


def can_have(spec: LeafSpec, kind: Kind) -> bool:
    """Return whether records can be found by this in a leaf."""
    if kind == "null":
        return True
    # If inner dimensions vary too, the record of a value is not known.
    if None in spec.shape[1:]:
        return False
    if kind in ("value", "nan", "infinite"):
        return are_numbers(spec.dtype)
    if kind == "text":
        return _is_string(spec)
    return spec.shape[:1] == (None,) or isinstance(spec, SparseSpec) or (_is_string(spec) and spec.shape == ())


def _is_string(spec: LeafSpec) -> bool:
    return dtypes.is_string(spec.dtype) or (isinstance(spec.dtype, np.dtype) and spec.dtype.kind in "SU")


def rows_with(spec: LeafSpec, batch: Any, count: int, wanted: Wanted) -> Ints:
    """Return the rows of a batch whose leaf has what is wanted, ascending.

    Args:
        spec: the spec of the leaf, of which :func:`can_have` is True.
        batch: the leaf, as ``ref.read`` returns it.
        count: the rows of the batch.
        wanted: what it is to have.
    """
    unpacked = unpack(spec, batch, count)
    if wanted.kind == "null":
        return np.setdiff1d(np.arange(count), unpacked.rows)
    if wanted.kind == "length":
        lengths = next((unpacked.lengths[of] for of in _ONE_EACH if of in unpacked.lengths), None)
        if lengths is None:
            lengths = np.fromiter(map(len, unpacked.values.tolist()), np.int64, len(unpacked.values))
        return unpacked.rows[wanted.holds(lengths)]
    found = _TESTS[wanted.kind](unpacked.values, wanted)
    return np.unique(_row_of_each(unpacked)[found])


def _row_of_each(unpacked: Unpacked) -> Ints:
    """Return the row of each value."""
    rows, values = unpacked.rows, len(unpacked.values)
    lengths = next((unpacked.lengths[of] for of in _ONE_EACH if of in unpacked.lengths), np.ones(len(rows), np.int64))
    return np.repeat(rows, lengths * (values // max(1, int(lengths.sum()))))


def _text(values: NDArray[Any], wanted: Wanted) -> NDArray[np.bool_]:
    return np.fromiter((shown_string(each) == wanted.low for each in values.tolist()), np.bool_, len(values))


def _value(values: NDArray[Any], wanted: Wanted) -> NDArray[np.bool_]:
    if values.dtype.kind == "b":
        # numpy compares bools with integers of 64 bits only.
        values = values.astype(np.int8)
    return wanted.holds(values if values.dtype.kind in "iu" else _wide(values))


def _wide(values: NDArray[Any]) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        return values.astype(np.float64)


def _nan(values: NDArray[Any], wanted: Wanted) -> NDArray[np.bool_]:  # noqa: ARG001 - the signature of all tests
    return np.asarray(np.isnat(values) if values.dtype.kind in "Mm" else np.isnan(_wide(values)))


def _infinite(values: NDArray[Any], wanted: Wanted) -> NDArray[np.bool_]:  # noqa: ARG001 - the signature of all tests
    return np.isinf(_wide(values))


_TESTS: dict[Kind, Callable[[NDArray[Any], Wanted], NDArray[np.bool_]]] = {
    "value": _value,
    "text": _text,
    "nan": _nan,
    "infinite": _infinite,
}
