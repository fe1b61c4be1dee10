"""Read the weights of a weighted sample: numbers that the user passes, a leaf of the records, or one for each class."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.records import dtypes
from cachelayer.records.leaf_names import leaf_number
from cachelayer.records.spec import ArraySpec, LeafSpec
from cachelayer.records.tree import Tree, flatten_like, leaves
from cachelayer.records.values import Nullable
from cachelayer.streams.alias_table import MOST_WEIGHTS

BALANCED = "balanced:"
_ACCEPTED = 'pass an array with one number for each record, the name of a leaf, or "balanced:" and the name of a leaf'
# Records whose leaf is read at a time.
_AT_ONCE = 1 << 16

Floats = NDArray[np.float64]


class Weighed(Protocol):
    """A view whose records have weights."""

    @property
    def digest(self) -> str:
        """The digest of the view, in hexadecimal."""

    @property
    def element_spec(self) -> Tree:
        """The spec of its elements."""

    def __len__(self) -> int: ...

    def read(self, indices: Any, fields: Sequence[str] | None = None) -> Any:
        """Return some elements, stacked."""


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of the records of a view.

    Args:
        source: a digest of what they are, in hexadecimal.
        of_leaf: whether they are read from the records.
        read: returns them; it raises InvalidArgumentError with the number of the first record whose weight is invalid.
    """

    source: str
    of_leaf: bool
    read: Callable[[], Floats]


def weights_of(view: Weighed, weights: Any) -> Weights:
    """Return the argument ``weights``, checked; the values of a leaf are checked when they are read.

    Raises:
        InvalidArgumentError, InvalidTypeError: if it is invalid, or there are no records.
    """
    if len(view) == 0:
        raise InvalidArgumentError("there are no records to draw from: sample() needs at least one")
    if len(view) > MOST_WEIGHTS:
        raise InvalidArgumentError(f"{len(view)} records: at most {MOST_WEIGHTS} can have weights, sample from a part")
    if not isinstance(weights, str):
        numbers = _positive(_numbers(weights, len(view)))
        digest = hashlib.sha256(b"array" + numbers.astype("<f8", copy=False).tobytes()).hexdigest()
        return Weights(digest, of_leaf=False, read=lambda: numbers)
    name = weights.removeprefix(BALANCED)
    leaf = leaves(view.element_spec)[leaf_number(view.element_spec, name)][1]
    digest = hashlib.sha256(b"leaf" + bytes.fromhex(view.digest) + weights.encode()).hexdigest()
    if name == weights:
        _check_number(name, leaf)
        return Weights(digest, of_leaf=True, read=lambda: _positive(_column(view, name)))
    _check_label(name, leaf)
    return Weights(digest, of_leaf=True, read=lambda: _balanced(view, name))


def _numbers(weights: Any, records: int) -> Floats:
    """Return numbers that a user passed as float64 of shape ``[records]``."""
    kind = type(weights).__name__
    # Asking for numpy.ma imports it.
    if type(weights) is not np.ndarray and isinstance(weights, np.ndarray) and isinstance(weights, np.ma.MaskedArray):
        raise InvalidTypeError("weights in a masked array hide numbers: pass a plain array, with 0 for what is masked")
    if not isinstance(weights, (list, tuple, range)) and not hasattr(weights, "__array__"):
        raise InvalidTypeError(f"weights of type {kind}: {_ACCEPTED}")
    try:
        array = np.asarray(weights)
    except Exception as error:
        raise InvalidTypeError(f"weights: the {kind} does not become an array: {error}") from error
    if array.ndim != 1 or len(array) != records:
        raise InvalidArgumentError(f"weights of shape {list(array.shape)}: pass one for each record, [{records}]")
    if not _is_number(array.dtype):
        raise InvalidTypeError(f"weights of dtype {array.dtype}: pass integers or floats of at most 64 bits")
    return array.astype(np.float64)


def _is_number(dtype: dtypes.DType) -> bool:
    return isinstance(dtype, np.dtype) and dtype != np.bool_ and np.can_cast(dtype, np.float64)


def _positive(weights: Floats) -> Floats:
    """Return weights if they are finite and not negative, and not all 0.

    Raises:
        InvalidArgumentError: if they are not; it names the first record whose weight is wrong.
    """
    wrong = np.flatnonzero(~((weights >= 0) & (weights < np.inf)))
    if len(wrong):
        record = int(wrong[0])
        more = f", as the first of {len(wrong)} such records" if len(wrong) > 1 else ""
        raise InvalidArgumentError(
            f"record {record} has the weight {weights[record]}{more}: weights are finite and not negative"
        )
    if not weights.any():
        raise InvalidArgumentError(f"all {len(weights)} weights are 0, so no record can be drawn")
    return weights


def _check_number(name: str, leaf: LeafSpec) -> None:
    if not isinstance(leaf, ArraySpec) or leaf.shape or not _is_number(leaf.dtype):
        raise InvalidArgumentError(f"{name!r} is {leaf.describe()}: a weight is one number, which is not a bool")


def _check_label(name: str, leaf: LeafSpec) -> None:
    kind = leaf.dtype.kind if isinstance(leaf.dtype, np.dtype) else "U"
    if isinstance(leaf, ArraySpec) and not leaf.shape and kind in "iubSU":
        return
    raise InvalidArgumentError(f"{name!r} is {leaf.describe()}: the label of a class is an integer, a string or a bool")


def _balanced(view: Weighed, name: str) -> Floats:
    """Return for each record 1 divided by the number of records of its class."""
    labels = _labels(view, name)
    _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(counts) == 1:
        label = next(_pieces(view, name)).tolist()[0]
        raise InvalidArgumentError(
            f"all {len(labels)} records have the label {label!r} in {name!r}: there are no classes to balance"
        )
    weights: Floats = 1.0 / counts[classes]
    return weights


def _column(view: Weighed, name: str) -> Floats:
    return np.concatenate([piece.astype(np.float64) for piece in _pieces(view, name)])


def _labels(view: Weighed, name: str) -> NDArray[Any]:
    """Return the label of each record; strings are numbered."""
    numbers: dict[Any, int] = {}

    def numbered(labels: NDArray[Any]) -> NDArray[Any]:
        if labels.dtype != np.object_:
            return labels
        return np.array([numbers.setdefault(label, len(numbers)) for label in labels.tolist()])

    return np.concatenate([numbered(piece) for piece in _pieces(view, name)])


def _pieces(view: Weighed, name: str) -> Iterator[NDArray[Any]]:
    """Yield a leaf of all records, some at a time.

    Raises:
        InvalidArgumentError: if it is None in a record; the message has its number.
    """
    spec, keys = _part_with(view.element_spec, leaf_number(view.element_spec, name))
    number = leaf_number(spec, name)
    for first in range(0, len(view), _AT_ONCE):
        batch = view.read(range(first, min(first + _AT_ONCE, len(view))), keys)
        values = flatten_like(spec, batch)[number]
        if isinstance(values, Nullable):
            missing = np.flatnonzero(~values.valid)
            if len(missing):
                raise InvalidArgumentError(
                    f"record {first + int(missing[0])} has no {name!r}, it is None: exclude() the records that have "
                    "none, or pass an array of weights"
                )
            values = values.values
        yield np.asarray(values)


def _part_with(spec: Tree, number: int) -> tuple[Tree, Sequence[str] | None]:
    """Return the part of an element with a leaf, and the key of the dict by which it is read; None reads all."""
    if not isinstance(spec, dict):
        return spec, None
    ends = accumulate(len(leaves(child)) for child in spec.values())
    key = next(key for key, end in zip(spec, ends, strict=True) if number < end)
    return {key: spec[key]}, (key,)
