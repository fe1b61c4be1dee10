"""Read record numbers from what users pass: integers, masks, ranges and slices; lists, arrays, tensors, columns."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import InvalidArgumentError, InvalidTypeError, RecordIndexError

Numbers = NDArray[np.int64]

_WORD = np.iinfo(np.int64)
_ACCEPTED = "pass a sequence of integers, or a mask with one bool for each record"


def record_numbers(indices: Any, records: int) -> Numbers:
    """Return the indices that a user passed as record numbers, each in [0, records).

    Args:
        indices: integers, negative ones count from the end; or one bool for each record; or a slice. Integers and
            bools are a list, an array, or anything that numpy can convert to an array.
        records: how many records there are.

    Returns:
        int64 of shape ``[count]``; it may share the memory of ``indices``.

    Raises:
        RecordIndexError: if there is no such record.
        InvalidArgumentError: if a mask has another length, or the indices have not one dimension.
        InvalidTypeError: if the indices are neither all integers nor all bools.
    """
    numbers = numbers_or_mask(indices, records)
    return np.flatnonzero(numbers) if numbers.dtype == np.bool_ else numbers


def numbers_or_mask(indices: Any, records: int) -> NDArray[Any]:
    """Return record numbers as :func:`record_numbers` does, but a mask unchanged: bool of shape ``[records]``."""
    if isinstance(indices, slice):
        indices = sliced(range(records), indices)
    if isinstance(indices, range):
        return _of_range(indices, records)
    array = _as_array(indices, records)
    if array.ndim != 1:
        raise InvalidArgumentError(f"indices of shape {list(array.shape)}: pass one dimension")
    if array.dtype == np.bool_:
        return _checked_mask(array, records)
    if len(array) == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu":
        raise InvalidTypeError(f"indices of dtype {array.dtype}: {_ACCEPTED}")
    if array.dtype == np.uint64 and int(array.max()) > _WORD.max:
        raise outside(int(array.max()), records)
    return _in_bounds(array.astype(np.int64, copy=False), records)


def record_number(index: Any, records: int) -> int:
    """Return the index that a user passed as a record number, in [0, records).

    Raises:
        RecordIndexError: if there is no such record.
        InvalidTypeError: if it is not an integer; a bool is not one.
    """
    number = _integer(index)
    if number is None:
        raise InvalidTypeError(
            f"index {_shown(index)}: pass an integer or a slice, not a {type(index).__name__}; "
            "read() and select() take several numbers, or a mask"
        )
    if not -records <= number < records:
        raise outside(number, records)
    return number + records if number < 0 else number


def sliced(numbers: Any, rows: slice) -> Any:
    """Return ``numbers[rows]``.

    Raises:
        InvalidArgumentError, InvalidTypeError: if Python refuses such a slice.
    """
    try:
        return numbers[slice(rows.start, rows.stop, _step(rows.step, len(numbers)))]
    except TypeError as error:
        raise InvalidTypeError(f"{rows}: {error}") from None
    except ValueError as error:
        raise InvalidArgumentError(f"{rows}: {error}") from None


def _step(step: Any, records: int) -> int | None:
    """Return the step of a slice of so many numbers, cut to one that fits in int64 and chooses the same."""
    most = max(1, records)
    return None if step is None else max(-most, min(operator.index(step), most))


def outside(number: int, records: int) -> RecordIndexError:
    """Return the error for a record number that does not exist."""
    return RecordIndexError(f"record {number} of {records}: indices lie in [{-records}, {records})")


def _of_range(numbers: range, records: int) -> Numbers:
    if not numbers:
        return np.empty(0, np.int64)
    for number in (numbers[0], numbers[-1]):
        if not -records <= number < records:
            raise outside(number, records)
    return _in_bounds(np.arange(numbers.start, numbers.stop, numbers.step, dtype=np.int64), records)


def _in_bounds(numbers: Numbers, records: int) -> Numbers:
    # As unsigned integers, negative numbers are the largest: one comparison checks both ends.
    if len(numbers) == 0 or int(numbers.view(np.uint64).max()) < records:
        return numbers
    least, most = int(numbers.min()), int(numbers.max())
    if least < -records or most >= records:
        raise outside(least if least < -records else most, records)
    return np.where(numbers < 0, numbers + records, numbers)


def _checked_mask(mask: NDArray[np.bool_], records: int) -> NDArray[np.bool_]:
    if len(mask) != records:
        raise InvalidArgumentError(f"a mask of shape {list(mask.shape)}: pass one bool for each record, [{records}]")
    return mask


def _as_array(indices: Any, records: int) -> NDArray[Any]:
    """Return integers or bools as an array; return an array of anything else unchanged."""
    # Asking for numpy.ma imports it, which takes longer than to read a batch.
    if type(indices) is not np.ndarray and isinstance(indices, np.ndarray) and isinstance(indices, np.ma.MaskedArray):
        raise InvalidTypeError("a masked array hides numbers: pass a plain array of the numbers that you mean")
    if not isinstance(indices, np.ndarray) and hasattr(indices, "__array__"):
        try:
            indices = np.asarray(indices)
        except Exception as error:
            raise InvalidTypeError(f"a {type(indices).__name__} does not become an array: {error}") from error
    if isinstance(indices, np.ndarray):
        return _of_items(indices.tolist(), records) if indices.dtype == object and indices.ndim == 1 else indices
    # Records and streams are iterable too, but must be refused before any of them is read.
    is_records = hasattr(indices, "element_spec") or hasattr(indices, "get_state") or hasattr(indices, "with_state")
    if is_records or isinstance(indices, (str, bytes, Mapping, Set)) or not isinstance(indices, Iterable):
        raise InvalidTypeError(f"indices {_shown(indices)} of type {type(indices).__name__}: {_ACCEPTED}")
    return _of_items(indices if isinstance(indices, (list, tuple)) else list(indices), records)


def _of_items(items: Sequence[Any], records: int) -> NDArray[Any]:
    kinds = set(map(type, items))
    if kinds and kinds <= {bool, np.bool_}:
        return np.array(items, np.bool_)
    numbers = items if kinds <= {int} else [_item(place, item) for place, item in enumerate(items)]
    try:
        return np.array(numbers, np.int64)
    except OverflowError:
        raise outside(next(n for n in numbers if not _WORD.min <= n <= _WORD.max), records) from None


def _item(place: int, item: Any) -> int:
    if isinstance(item, (list, tuple, range)) or getattr(item, "ndim", None):
        raise InvalidArgumentError(f"indices hold {_shown(item)} at place {place}: pass one dimension")
    number = _integer(item)
    if number is None:
        kind = type(item).__name__
        raise InvalidTypeError(f"indices hold {_shown(item)} of type {kind} at place {place}: {_ACCEPTED}")
    return number


def _integer(value: Any) -> int | None:
    """Return an integer as an int, None for anything else; a bool, or an array of one, is not an integer."""
    if type(value) is int or isinstance(value, np.integer):
        return int(value)
    if isinstance(value, (bool, np.bool_)) or str(getattr(value, "dtype", "")).endswith("bool"):
        return None
    try:
        return operator.index(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
