"""Selections: which records of its base a view has. And record numbers, from what users pass as indices.

A selection has the record numbers of its rows in one of three forms, the smallest that holds them::

    view of a base of 10,000 records       numbers
    base[100:200:2]                        range(100, 200, 2)
    base.exclude([7])                      a Bitmap: one bit for each record of the base, and a count every 512
    base.select([9, 3, 9])                 an array: [9, 3, 9]

Users pass integers, masks, ranges and slices, as lists, arrays, tensors and columns.
"""

from __future__ import annotations

import hashlib
import operator
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import InvalidArgumentError, InvalidTypeError, RecordIndexError
from cachelayer.support.arguments import refuse_other_index
from cachelayer.support.memory import Ints

_ACCEPTED = "pass a sequence of integers, or a mask with one bool for each record"

_PIECE = 1 << 16
"""How many numbers are computed at a time when all are needed."""
_NUMBER_BITS = 64
"""The bits of a number in an array."""
_ROW = 512
"""The bits of a row of a bitmap."""
# For each byte, the places of its set bits, ascending; then the places of its other bits.
_PLACES = np.argsort(~np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), kind="stable")


class Bitmap(Sequence[int]):
    """Ascending or descending numbers, with a bit for each number that there may be.

    The bits lie in rows of 512. For each row the bitmap has the count of numbers before it, so a binary search finds
    the row of the number with some rank. In the row, counts of 8 words and then of 8 bytes lead to its bit::

        numbers 1, 3, 600     bits, row 0: 0101000...    row 1: ...1...     before: 0, 2, 3
        the number of rank 2 is the first one in row 1, whose bit is 600 - 512

    ``bits`` is uint8 of shape ``[rows, 64]``, the lowest bit of a byte first. ``ranks`` are those of the numbers that
    are meant, in their order; None for all.
    """

    def __init__(self, bits: NDArray[np.uint8], ranks: range | None = None) -> None:
        self._bits = bits
        counts = np.bitwise_count(bits.view(np.uint64)).sum(axis=1)
        self._before = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
        self._ranks = range(int(self._before[-1])) if ranks is None else ranks

    @classmethod
    def of_mask(cls, mask: NDArray[np.bool_]) -> Bitmap:
        """Return the numbers for which a mask is True."""
        bits = np.zeros((-(-len(mask) // _ROW), _ROW // 8), np.uint8)
        packed = np.packbits(mask, bitorder="little")
        bits.reshape(-1)[: len(packed)] = packed
        return cls(bits)

    def __reduce__(self) -> tuple[Any, ...]:
        return Bitmap, (self._bits, self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Bitmap: ...
    def __getitem__(self, index: int | slice) -> int | Bitmap:
        if isinstance(index, slice):
            part = copy(self)
            part._ranks = self._ranks[index]
            return part
        return int(self.take(np.array([range(len(self))[index]]))[0])

    def take(self, places: Ints) -> Ints:
        """Return the numbers at these places, all in [0, len)."""
        ranks = _of_range(self._ranks, places)
        if len(ranks) > _ROW and (np.diff(ranks) == 1).all():
            return self._consecutive(int(ranks[0]), int(ranks[-1]) + 1)
        row = self._before.searchsorted(ranks, side="right") - 1
        words = self._bits.view(np.uint64)[row]
        word, rank = _group_of(words, ranks - self._before[row])
        octets = words[np.arange(len(ranks)), word].view(np.uint8).reshape(-1, 8)
        octet, rank = _group_of(octets, rank)
        numbers: Ints = row * _ROW + word * 64 + octet * 8 + _PLACES[octets[np.arange(len(ranks)), octet], rank]
        return numbers

    def _consecutive(self, start: int, stop: int) -> Ints:
        """Return the numbers of consecutive ranks: their rows of bits are unpacked at once."""
        first = int(self._before.searchsorted(start, side="right")) - 1
        last = int(self._before.searchsorted(stop - 1, side="right")) - 1
        numbers = np.flatnonzero(np.unpackbits(self._bits[first : last + 1], bitorder="little"))
        begin = start - int(self._before[first])
        return numbers[begin : begin + stop - start] + first * _ROW


def _group_of(groups: NDArray[Any], ranks: Ints) -> tuple[Ints, Ints]:
    """Return which of eight groups of bits, for each rank, has the set bit of this rank, and its rank in the group."""
    counts = np.cumsum(np.bitwise_count(groups), axis=1, dtype=np.int64)
    group = (counts <= ranks[:, None]).sum(axis=1)
    before = np.where(group > 0, counts[np.arange(len(ranks)), group - 1], 0)
    return group, ranks - before


@dataclass(frozen=True, eq=False)
class Selection:
    """Some records of a base, in order. A record may come more than once."""

    numbers: range | Ints | Bitmap
    """The number of each of these records in the base."""

    @classmethod
    def all(cls, records: int) -> Selection:
        """Return the selection of every record of a base."""
        return cls(range(records))

    def __len__(self) -> int:
        return len(self.numbers)

    def slice(self, rows: slice) -> Selection:
        """Return the selection of the records of a slice."""
        chosen = sliced(rows, len(self))
        # A stop of -1, after a negative step, is the begin; in a slice it would be the end.
        stop = chosen.stop if chosen.stop >= 0 else None
        return Selection(self.numbers[slice(chosen.start, stop, chosen.step)])

    def select(self, indices: Any) -> Selection:
        """Return the selection of the records of these indices, in their order; or of a mask or a slice."""
        if isinstance(indices, slice):
            return self.slice(indices)
        wanted = numbers_or_mask(indices, len(self))
        if wanted.dtype == np.bool_:
            return self._of_mask(wanted)
        # A copy, so that later changes to the caller's array do not change the selection.
        numbers = self.numbers_of(wanted.copy())
        numbers.setflags(write=False)
        return Selection(numbers)

    def exclude(self, indices: Any) -> Selection:
        """Return the selection without the records of these indices."""
        mask = np.ones(len(self), np.bool_)
        mask[record_numbers(indices, len(self))] = False
        return self._of_mask(mask)

    def _of_mask(self, mask: NDArray[np.bool_]) -> Selection:
        """Return the selection of the records for which a mask is True, in the smallest form that holds it."""
        numbers = self.numbers
        first = int(mask.argmax()) if len(mask) else 0
        count = int(np.count_nonzero(mask))
        if mask[first : first + count].all():
            return Selection(numbers[first : first + count])
        chosen = self.numbers_of(np.flatnonzero(mask))
        if isinstance(numbers, np.ndarray) or count * _NUMBER_BITS < max(numbers[0], numbers[-1]):
            return Selection(chosen)
        # Ranges and bitmaps only grow or only fall, so the set of the numbers tells their order.
        mask_of_base = np.zeros(int(chosen.max()) + 1, np.bool_)
        mask_of_base[chosen] = True
        bitmap = Bitmap.of_mask(mask_of_base)
        return Selection(bitmap if numbers[0] < numbers[-1] else bitmap[::-1])

    def segment_sizes(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Return how many rows lie in each segment of the base, of such sizes; of all if they mix the segments."""
        records = len(self)
        if len(sizes) == 1:
            return (records,)
        ends = np.cumsum(np.asarray(sizes, np.int64)).tolist()
        if isinstance(self.numbers, np.ndarray):
            segment_of = np.searchsorted(ends, self.numbers, side="right")
            counts = np.bincount(segment_of, minlength=len(sizes))
            in_order = bool((np.diff(segment_of) >= 0).all())
        else:
            falls = records > 1 and self.numbers[0] > self.numbers[-1]
            growing: Any = self.numbers[::-1] if falls else self.numbers
            counts = np.diff([0, *(bisect_left(growing, end) for end in ends)])
            in_order = not falls or bool(np.count_nonzero(counts) < 2)
        return tuple(counts.tolist()) if in_order else (records,)

    def take(self, indices: Any) -> Ints:
        """Return the record numbers in the base of the records of these indices, or of a mask or a slice."""
        numbers = self.numbers
        wanted = record_numbers(indices, len(numbers))
        return _of_range(numbers, wanted) if isinstance(numbers, range) else numbers.take(wanted)

    def numbers_of(self, rows: Ints) -> Ints:
        """Return the record numbers in the base of these rows, all in [0, len)."""
        numbers = self.numbers
        return _of_range(numbers, rows) if isinstance(numbers, range) else numbers.take(rows)

    def rows_of(self, numbers: Ints) -> Ints:
        """Return the rows whose records have one of these numbers in the base, ascending."""
        if len(numbers) == 0:
            return np.empty(0, np.int64)
        selected = self.numbers
        if isinstance(selected, range):
            rows = [selected.index(number) for number in numbers.tolist() if number in selected]
            return np.sort(np.array(rows, np.int64))
        rows_of_pieces = [
            np.flatnonzero(np.isin(piece, numbers)) + place * _PIECE for place, piece in enumerate(self.pieces())
        ]
        return np.concatenate(rows_of_pieces)

    def number(self, index: Any) -> int:
        """Return the record number in the base of the record of one index."""
        return int(self.numbers[record_number(index, len(self))])

    def pieces(self) -> Iterator[Ints]:
        """Yield the record numbers in the base of all rows, some at a time; at least one piece, which may be empty."""
        for start in range(0, max(1, len(self)), _PIECE):
            yield self.numbers_of(np.arange(start, min(start + _PIECE, len(self))))

    def digest(self, base_digest: str, base_records: int) -> str:
        """Return the digest of the view: the digest of the base if the view is the whole base in order.

        Otherwise it is the SHA-256 of the 32 bytes of the digest of the base, and of the selection: ``range``, start,
        step and count if the numbers form an arithmetic progression, else ``list`` and the numbers. Numbers are
        little-endian int64.
        """
        progression = self.progression()
        if progression == (0, 1, base_records) or (base_records == len(self) == 0):
            return base_digest
        state = hashlib.sha256(bytes.fromhex(base_digest))
        if progression is not None:
            state.update(b"range" + np.array(progression, "<i8").tobytes())
        else:
            state.update(b"list")
            for piece in self.pieces():
                state.update(piece.astype("<i8", copy=False).data)
        return state.hexdigest()

    def progression(self) -> tuple[int, int, int] | None:
        """Return first number, step and count if the numbers form an arithmetic progression, else None."""
        count = len(self)
        if count == 0:
            return 0, 0, 0
        first = int(self.numbers[0])
        step = int(self.numbers[1]) - first if count > 1 else 1
        if isinstance(self.numbers, range):
            return first, step, count
        expected = first
        for piece in self.pieces():
            if int(piece[0]) != expected or not (np.diff(piece) == step).all():
                return None
            expected = int(piece[-1]) + step
        return first, step, count


def _of_range(numbers: range, places: Ints) -> Ints:
    if numbers.start == 0 and numbers.step == 1:
        return places
    return np.asarray(numbers.start + places * numbers.step, np.int64)


def record_numbers(indices: Any, records: int) -> Ints:
    """Return the record numbers of the indices that a user passed, all in [0, records).

    Indices are integers, of which negative ones count from the end; or a bool for each record; or a slice. The result,
    int64 of shape ``[count]``, may share their memory.
    """
    if type(indices) is np.ndarray and indices.dtype == np.int64 and indices.ndim == 1:
        return _in_bounds(indices, records)
    numbers = numbers_or_mask(indices, records)
    return np.flatnonzero(numbers) if numbers.dtype == np.bool_ else numbers


def numbers_or_mask(indices: Any, records: int) -> NDArray[Any]:
    """Return record numbers as :func:`record_numbers` does, but a mask unchanged: bool of shape ``[records]``."""
    if isinstance(indices, slice):
        indices = sliced(indices, records)
    if isinstance(indices, range):
        if not indices:
            return np.empty(0, np.int64)
        # Its ends are its largest and smallest numbers. They are checked before the array, which could be too large.
        record_number(indices[0], records)
        record_number(indices[-1], records)
        return _in_bounds(np.arange(indices.start, indices.stop, indices.step), records)
    array = _as_array(indices)
    if array.ndim != 1:
        raise InvalidArgumentError(f"indices of shape {list(array.shape)}: pass one dimension")
    if array.dtype == np.bool_:
        refuse_other_index("a mask", indices)
        if len(array) != records:
            raise InvalidArgumentError(f"a mask of shape [{len(array)}]: pass one bool for each record, [{records}]")
        return array
    if len(array) == 0:
        return np.empty(0, np.int64)
    if array.dtype == np.object_ or array.dtype == np.uint64:
        # int64 may not hold these integers.
        array = np.array([record_number(number, records) for number in array])
    if array.dtype.kind not in "iu":
        raise InvalidTypeError(f"indices of dtype {array.dtype}: {_ACCEPTED}")
    return _in_bounds(array.astype(np.int64, copy=False), records)


def record_number(index: Any, records: int) -> int:
    """Return the record number of the index that a user passed, in [0, records)."""
    number = _integer(index)
    if number is None:
        cure = "read() and select() take several numbers, or a mask"
        if isinstance(index, str):
            cure = f"fields({index!r}) is a view of this field, and read(slice(None), fields={index!r}) reads it"
        raise InvalidTypeError(
            f"index {_shown(index)}: pass an integer or a slice, not a {type(index).__name__}; {cure}"
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


def _in_bounds(numbers: Ints, records: int) -> Ints:
    # As unsigned integers, negative numbers are the largest: one comparison checks both ends.
    if len(numbers) == 0 or int(numbers.view(np.uint64).max()) < records:
        return numbers
    for number in (numbers.min(), numbers.max()):
        record_number(number, records)
    return np.where(numbers < 0, numbers + records, numbers)


def _as_array(indices: Any) -> NDArray[Any]:
    """Return the indices that a user passed as an array, in which integers and bools are never mixed."""
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
    items: list[Any] = []
    if isinstance(indices, list):
        items = indices
    elif array.dtype == np.object_:
        items = array.tolist()
    kinds = set(map(type, items))
    if array.ndim == 1 and not (kinds <= {int} or kinds <= {bool, np.bool_}):
        for item in items:
            if _integer(item) is None:
                raise InvalidTypeError(f"indices hold {_shown(item)} of type {type(item).__name__}: {_ACCEPTED}")
    return np.array(items) if array.dtype == np.object_ else array


def _integer(value: Any) -> int | None:
    """Return an integer as an int, None for anything else. A bool is no integer, nor is an array of one bool."""
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
