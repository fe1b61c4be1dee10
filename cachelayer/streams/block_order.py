"""An order in blocks: records that lie together come together, and each shard reads only its own blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Blocks:
    """Sizes of a shuffle in blocks; pass it as ``shuffle=``. Sizes that are None are chosen by the version.

    Args:
        records: number of consecutive records in a block; by default about 1 MiB of them.
        window: number of blocks over all lanes among which records are shuffled; by default about 1 GiB of them.
        lanes: number of lanes, a power of two: the blocks of a lane are read one after another, by one shard if the
            number of shards is a power of two of at most that many. By default 1,024, and fewer in small versions.
    """

    records: int | None = None
    window: int | None = None
    lanes: int | None = None
