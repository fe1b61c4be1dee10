"""What leaf codecs share: the fixed parts of a record, and lengths as a record stores them."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import ElementError
from cachelayer.records.memory import Ints
from cachelayer.records.spec import LeafSpec

U32 = np.dtype("<u4")
_MAX_U32 = 2**32 - 1
FixedPart = tuple[np.dtype[Any], tuple[int, ...]]
"""The dtype and the shape of a part that has the same size in every record."""


def fixed_nbytes(part: FixedPart) -> int:
    """Return the bytes of a fixed part in a record."""
    return part[0].itemsize * prod(part[1])


def as_u32(spec: LeafSpec, lengths: Ints, row_of: Ints | None = None) -> NDArray[np.uint32]:
    """Return dimensions or row lengths as they are stored.

    Args:
        row_of: the row of each, for errors; by default its number.
    """
    too_long = np.argwhere(lengths > _MAX_U32)
    if len(too_long):
        place = too_long[0]
        row = int(place[0] if row_of is None else row_of[place[0]])
        raise ElementError(spec.describe(), f"a dimension of {lengths[tuple(place)]}", record=row)
    stored: NDArray[np.uint32] = lengths.astype(U32)
    return stored
