"""Read record numbers from what users pass: integers, masks, ranges and slices; lists, arrays, tensors, columns."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import InvalidArgumentError, InvalidTypeError, RecordIndexError

Numbers = NDArray[np.int64]
_ACCEPTED = "pass a sequence of integers, or a mask with one bool for each record"


def record_numbers(indices: Any, records: int) -> Numbers:
    """Return the indices that a user passed as record numbers, each in [0, records).

    Args:
        indices: integers, negative ones count from the end; or one bool for each record; or a slice. Integers and
            bools are a list, an array, or anything that numpy can convert to an array.
        records: how many records there are.

    Returns:
        int64 of shape ``[count]``; it may share the memory of ``indices``.
    """
    numbers = numbers_or_mask(indices, records)
    return np.flatnonzero(numbers) if numbers.dtype == np.bool_ else numbers


def numbers_or_mask(indices: Any, records: int) -> NDArray[Any]:
    """Return record numbers as :func:`record_numbers` does, but a mask unchanged: bool of shape ``[records]``."""
    if isinstance(indices, slice):
        indices = sliced(indices, records)
    if isinstance(indices, range):
        # The largest and the smallest of them are its ends.
        ends = [record_number(number, records) for number in (indices[0], indices[-1])] if indices else []
        array: NDArray[Any] = np.arange(indices.start, indices.stop, indices.step) if ends else np.empty(0, np.int64)
        return _in_bounds(array, records)
    array = _as_array(indices)
    if array.ndim != 1:
        raise InvalidArgumentError(f"indices of shape {list(array.shape)}: pass one dimension")
    if array.dtype == np.bool_:
        if len(array) != records:
            raise InvalidArgumentError(f"a mask of shape [{len(array)}]: pass one bool for each record, [{records}]")
        return array
    if len(array) == 0:
        return np.empty(0, np.int64)
    if array.dtype == np.object_ or array.dtype == np.uint64:
        # Integers that int64 may not hold.
        array = np.array([record_number(number, records) for number in array])
    if array.dtype.kind not in "iu":
        raise InvalidTypeError(f"indices of dtype {array.dtype}: {_ACCEPTED}")
    return _in_bounds(array.astype(np.int64, copy=False), records)


def record_number(index: Any, records: int) -> int:
    """Return the index that a user passed as a record number, in [0, records)."""
    number = _integer(index)
    if number is None:
        raise InvalidTypeError(
            f"index {_shown(index)}: pass an integer or a slice, not a {type(index).__name__}; "
            "read() and select() take several numbers, or a mask"
        )
    if not -records <= number < records:
        raise RecordIndexError(f"record {number} of {records}: indices lie in [{-records}, {records})")
    return number + records if number < 0 else number


def sliced(rows: slice, records: int) -> range:
    """Return the record numbers that a slice chooses."""
    try:
        numbers = range(records)[rows]
    except TypeError as error:
        raise InvalidTypeError(f"{rows}: {error}") from None
    except ValueError as error:
        raise InvalidArgumentError(f"{rows}: {error}") from None
    if len(numbers) > 1:
        return numbers
    # The step of one number may be larger than int64 holds.
    return range(numbers[0], numbers[0] + 1) if numbers else range(0)


def _in_bounds(numbers: Numbers, records: int) -> Numbers:
    # As unsigned integers, negative numbers are the largest: one comparison checks both ends.
    if len(numbers) == 0 or int(numbers.view(np.uint64).max()) < records:
        return numbers
    for number in (numbers.min(), numbers.max()):
        record_number(number, records)
    return np.where(numbers < 0, numbers + records, numbers)


def _as_array(indices: Any) -> NDArray[Any]:
    """Return what a user passed as an array; integers and bools are never mixed in it."""
    kind = type(indices).__name__
    if kind == "MaskedArray":
        raise InvalidTypeError("a masked array hides numbers: pass a plain array of the numbers that you mean")
    if not hasattr(indices, "__array__"):
        # Records and streams are iterable too, but must be refused before any of them is read.
        is_records = any(hasattr(indices, name) for name in ("element_spec", "get_state", "with_state"))
        if is_records or isinstance(indices, (str, bytes, Mapping, Set)) or not isinstance(indices, Iterable):
            raise InvalidTypeError(f"indices {_shown(indices)} of type {kind}: {_ACCEPTED}")
        indices = list(indices)
    try:
        array = np.asarray(indices)
    except ValueError as error:
        raise InvalidArgumentError(f"indices {_shown(indices)}: pass one dimension: {error}") from error
    except Exception as error:
        raise InvalidTypeError(f"a {kind} does not become an array: {error}") from error
    items = indices if isinstance(indices, list) else array.tolist() if array.dtype == np.object_ else []
    kinds = set(map(type, items))
    if array.ndim == 1 and not (kinds <= {int} or kinds <= {bool, np.bool_}):
        for item in items:
            if _integer(item) is None:
                raise InvalidTypeError(f"indices hold {_shown(item)} of type {type(item).__name__}: {_ACCEPTED}")
    return np.array(items) if array.dtype == np.object_ else array


def _integer(value: Any) -> int | None:
    """Return an integer as an int, None for anything else; a bool, or an array of one, is not an integer."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool"):
        return None
    try:
        return operator.index(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
