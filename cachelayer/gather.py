"""Copy ranges of bytes out of several buffers: with compiled functions if they are installed, else with numpy.

:mod:`cachelayer._gather_numpy` says what the functions do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    from cachelayer._gather import copy_ranges, copy_rows  # type: ignore[import-not-found]

    IS_COMPILED = True
except ImportError:
    from cachelayer._gather_numpy import copy_ranges, copy_rows

    IS_COMPILED = False

__all__ = ["IS_COMPILED", "Buffers", "copy_ranges", "copy_rows"]


@dataclass(frozen=True, eq=False, slots=True)
class Buffers:
    """Memory that ranges are copied out of."""

    table: NDArray[np.int64]
    """int64 of shape ``[buffers, 4]``; see :mod:`cachelayer._gather_numpy`."""
    owners: Sequence[Any]
    """What keeps the memory alive: an array for each buffer, or what owns several."""
