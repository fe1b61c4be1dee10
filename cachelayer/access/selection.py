"""Which records of a base a view shows: arithmetic alone."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import InvalidArgumentError, InvalidTypeError, RecordIndexError

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Selection:
    """Records of a base, in order; a record may stand in it more than once.

    Args:
        numbers: a range, or int64 record numbers of the base.
    """

    numbers: range | Numbers

    @classmethod
    def all(cls, records: int) -> Selection:
        """Every record of a base."""
        return cls(range(records))

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def _is_whole(self) -> bool:
        """Whether indices are the base's own numbers."""
        numbers = self.numbers
        return isinstance(numbers, range) and numbers.start == 0 and numbers.step == 1

    def slice(self, rows: slice) -> Selection:
        """A part of the selection.

        Raises:
            InvalidArgumentError, InvalidTypeError: where Python refuses such a slice.
        """
        try:
            return Selection(self.numbers[rows])
        except TypeError as error:
            raise InvalidTypeError(f"{rows}: {error}") from None
        except ValueError as error:
            raise InvalidArgumentError(f"{rows}: {error}") from None

    def select(self, indices: Any) -> Selection:
        """The records of these indices, which may be negative."""
        numbers = self.take(indices).copy()
        numbers.setflags(write=False)
        return Selection(numbers)

    @property
    def has_repeats(self) -> bool:
        """Whether a record stands in it more than once."""
        if isinstance(self.numbers, range) or (np.diff(self.numbers) > 0).all():
            return False
        return len(np.unique(self.numbers)) < len(self.numbers)

    def segments(self, sizes: Sequence[int]) -> list[Numbers]:
        """The rows that lie in each of the base's segments, which follow one another and hold so many records."""
        if len(sizes) == 1:
            return [np.arange(len(self))]
        numbers = np.asarray(self.numbers, np.int64)
        segment_of = np.searchsorted(np.cumsum(np.asarray(sizes, np.int64)), numbers, side="right")
        return [np.flatnonzero(segment_of == segment) for segment in range(len(sizes))]

    def take(self, indices: Any) -> Numbers:
        """The base's record numbers of these indices; negative ones count from the end.

        Raises:
            RecordIndexError: where one is outside the selection.
            InvalidTypeError: where they are no integers.
        """
        wanted = _as_indices(indices)
        records = len(self)
        if len(wanted) == 0:
            return wanted
        # As unsigned integers negative ones are the largest: one comparison for both ends.
        if self._is_whole and int(wanted.view(np.uint64).max()) < records:
            return wanted
        least, most = int(wanted.min()), int(wanted.max())
        if least < -records or most >= records:
            outside = least if least < -records else most
            raise RecordIndexError(f"record {outside} of {records}: indices lie in [{-records}, {records})")
        if least < 0:
            wanted = np.where(wanted < 0, wanted + records, wanted)
        if isinstance(self.numbers, range):
            if self._is_whole:
                return wanted
            return np.asarray(self.numbers.start + wanted * self.numbers.step, np.int64)
        return np.asarray(self.numbers[wanted], np.int64)

    def number(self, index: Any) -> int:
        """The base's record number of one index."""
        try:
            return int(self.numbers[operator.index(index)])
        except (IndexError, OverflowError):
            records = len(self)
            raise RecordIndexError(f"record {index} of {records}: indices lie in [{-records}, {records})") from None
        except TypeError:
            raise InvalidTypeError(f"index {index!r}: pass an integer or a slice, no {type(index).__name__}") from None

    def digest(self, base_digest: str, base_records: int) -> str:
        """The digest of the view: the base's where it shows the whole base in order.

        SHA-256 over the base's digest (32 bytes) and the selection: ``range`` and start, step and count where the
        numbers form an arithmetic progression, else ``list`` and the numbers; all as little-endian int64.
        """
        progression = self.progression()
        if progression == (0, 1, base_records) or (base_records == len(self) == 0):
            return base_digest
        state = hashlib.sha256(bytes.fromhex(base_digest))
        if progression is not None:
            state.update(b"range" + np.array(progression, "<i8").tobytes())
        else:
            state.update(b"list" + np.asarray(self.numbers, "<i8").tobytes())
        return state.hexdigest()

    def progression(self) -> tuple[int, int, int] | None:
        """First number, step and count, where the numbers form an arithmetic progression."""
        count = len(self)
        if count == 0:
            return 0, 0, 0
        first = int(self.numbers[0])
        step = int(self.numbers[1]) - first if count > 1 else 1
        if isinstance(self.numbers, range) or (np.diff(self.numbers) == step).all():
            return first, step, count
        return None


def _as_indices(indices: Any) -> Numbers:
    if not isinstance(indices, np.ndarray):
        if isinstance(indices, (str, bytes)) or not isinstance(indices, Iterable):
            raise InvalidTypeError(f"indices {indices!r}: pass a sequence of integers")
        indices = np.asarray(list(indices) if not isinstance(indices, (list, tuple, range)) else indices)
        if indices.size == 0:
            return np.empty(0, np.int64)
    if indices.ndim != 1:
        raise InvalidArgumentError(f"indices of shape {list(indices.shape)}: pass one dimension")
    if indices.dtype.kind not in "iu":
        raise InvalidTypeError(f"indices of dtype {indices.dtype}: pass integers")
    if indices.dtype == np.uint64:
        # What int64 cannot hold must not come out negative; its largest number is outside of any selection too.
        indices = np.minimum(indices, np.uint64(np.iinfo(np.int64).max))
    numbers: Numbers = indices.astype(np.int64, copy=False)
    return numbers
