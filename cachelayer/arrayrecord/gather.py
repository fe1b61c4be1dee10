"""Gather windows of mapped memory: in this thread, or shared among threads if that is quicker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.address_space import AddressSpace
from cachelayer.records.memory import RELEASING_ITEMS, Ints, aligns, empty, gather_aligned
from cachelayer.records.threads import Gain, Job, quickest

# What a core's second cache holds, beside other things.
_CACHED_NBYTES = 1 << 17
# To align shorter rows, one more copy takes less time than to gather their last bytes apart.
_SHIFTED_NBYTES = 1 << 10
# What was learnt about sharing gathers of rows, by the binary logarithm of their size.
GAINS: defaultdict[int, Gain] = defaultdict(Gain)


def jobs_of(copy: Callable[[int, int], None], rows: int, count: int) -> list[Job]:
    """Return about ``count`` jobs that copy all rows."""
    bounds = [rows * job // count for job in range(count + 1)]
    return [partial(copy, first, last) for first, last in pairwise(bounds) if first < last]


def gathered(space: AddressSpace, nbytes: int, starts: Ints, holder: object) -> NDArray[Any]:
    """Return the windows of so many bytes that begin at these places, behind the signatures of their files.

    Args:
        holder: an object that keeps the files mapped.
    """
    windows, rows = space.windows(nbytes), len(starts)
    found: list[NDArray[Any]] = []

    def gather() -> None:
        if aligns(rows * nbytes) and nbytes >= _SHIFTED_NBYTES:
            found[:] = [gather_aligned(space.windows, starts, nbytes)]
        elif aligns(rows * nbytes):
            for job in parts(min(-(-rows * nbytes // _CACHED_NBYTES), max(1, rows // RELEASING_ITEMS))):
                job()
        else:
            found[:] = [windows[starts]]

    def parts(count: int) -> list[Job]:
        # numpy gathers into new memory only, so each thread copies what it has gathered while that is in its cache.
        out = empty((rows,), windows.dtype)
        found[:] = [out]
        out_bytes = out.view(np.uint8)

        # A thread that copies keeps the files mapped, even if the thread that reads was interrupted.
        def copy(first: int, last: int, _: object = holder) -> None:
            out_bytes[first * nbytes : last * nbytes] = windows[starts[first:last]].view(np.uint8)

        return jobs_of(copy, rows, count)

    quickest(gather, parts, rows * nbytes, GAINS[nbytes.bit_length()])
    return found[0]
