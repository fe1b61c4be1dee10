"""Record numbers as users hand them in: integers, masks, ranges, slices; lists, arrays, tensors, columns of tables."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import InvalidArgumentError, InvalidTypeError, RecordIndexError

Numbers = NDArray[np.int64]

_WORD = np.iinfo(np.int64)
_ACCEPTED = "pass a sequence of integers, or a mask of one bool a record"


def record_numbers(given: Any, records: int) -> Numbers:
    """Return what a user handed in as the numbers of records, each in [0, records).

    Args:
        given: integers, of which negative ones count from the end; or one bool a record; or a slice. A list, an array,
            or anything that numpy makes an array of.
        records: how many records there are.

    Returns:
        int64 of shape ``[count]``; it may share the memory of ``given``.

    Raises:
        RecordIndexError: if there is no such record.
        InvalidArgumentError: if a mask has another length, or there is not one dimension.
        InvalidTypeError: if it holds anything but integers, or anything but bools.
    """
    found = numbers_or_mask(given, records)
    return np.flatnonzero(found) if found.dtype == np.bool_ else found


def numbers_or_mask(given: Any, records: int) -> NDArray[Any]:
    """Return what :func:`record_numbers` does, but a mask as it is: bool of shape ``[records]``."""
    if isinstance(given, slice):
        given = sliced(range(records), given)
    if isinstance(given, range):
        return _of_range(given, records)
    array = _as_array(given, records)
    if array.ndim != 1:
        raise InvalidArgumentError(f"indices of shape {list(array.shape)}: pass one dimension")
    if array.dtype == np.bool_:
        return _checked_mask(array, records)
    if len(array) == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu":
        raise InvalidTypeError(f"indices of dtype {array.dtype}: pass integers, or a mask of one bool a record")
    if array.dtype == np.uint64 and int(array.max()) > _WORD.max:
        raise outside(int(array.max()), records)
    return _in_bounds(array.astype(np.int64, copy=False), records)


def record_number(given: Any, records: int) -> int:
    """Return what a user handed in as the number of one record, in [0, records).

    Raises:
        RecordIndexError: if there is no such record.
        InvalidTypeError: if it is no integer; a bool is none.
    """
    number = _integer(given)
    if number is None:
        raise InvalidTypeError(
            f"index {_shown(given)}: pass an integer or a slice, no {type(given).__name__}; "
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
        return numbers[rows]
    except TypeError as error:
        raise InvalidTypeError(f"{rows}: {error}") from None
    except ValueError as error:
        raise InvalidArgumentError(f"{rows}: {error}") from None


def outside(number: int, records: int) -> RecordIndexError:
    """Return the error that says that there is no record of this number."""
    return RecordIndexError(f"record {number} of {records}: indices lie in [{-records}, {records})")


def _of_range(given: range, records: int) -> Numbers:
    if not given:
        return np.empty(0, np.int64)
    for number in (given[0], given[-1]):
        if not -records <= number < records:
            raise outside(number, records)
    return _in_bounds(np.arange(given.start, given.stop, given.step, dtype=np.int64), records)


def _in_bounds(numbers: Numbers, records: int) -> Numbers:
    # As unsigned integers negative ones are the largest: one comparison for both ends.
    if len(numbers) == 0 or int(numbers.view(np.uint64).max()) < records:
        return numbers
    least, most = int(numbers.min()), int(numbers.max())
    if least < -records or most >= records:
        raise outside(least if least < -records else most, records)
    return np.where(numbers < 0, numbers + records, numbers)


def _checked_mask(mask: NDArray[np.bool_], records: int) -> NDArray[np.bool_]:
    if len(mask) != records:
        raise InvalidArgumentError(f"a mask of shape {list(mask.shape)}: pass one bool a record, [{records}]")
    return mask


def _as_array(given: Any, records: int) -> NDArray[Any]:
    """Return integers or bools as an array; anything else that is an array already is returned as it is."""
    if isinstance(given, np.ma.MaskedArray):
        raise InvalidTypeError("a masked array hides numbers: pass those that are meant")
    if not isinstance(given, np.ndarray) and hasattr(given, "__array__"):
        try:
            given = np.asarray(given)
        except Exception as error:
            raise InvalidTypeError(f"a {type(given).__name__} does not become an array: {error}") from error
    if isinstance(given, np.ndarray):
        return _of_items(given.tolist(), records) if given.dtype == object and given.ndim == 1 else given
    # Records, and streams of them, are iterable too: all of them would be read before the first is refused.
    is_records = hasattr(given, "element_spec") or hasattr(given, "get_state") or hasattr(given, "with_state")
    if is_records or isinstance(given, (str, bytes, Mapping, Set)) or not isinstance(given, Iterable):
        raise InvalidTypeError(f"indices {_shown(given)} of type {type(given).__name__}: {_ACCEPTED}")
    return _of_items(given if isinstance(given, (list, tuple)) else list(given), records)


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
    """Return an integer as an int, or None for anything else; a bool, or an array of one, is none."""
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
