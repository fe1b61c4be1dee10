"""Records compressed one by one: a varint of the decompressed size, then a zstd frame; an empty record is 0."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord import varints
from cachelayer.codec.frames import RecordBuffer
from cachelayer.codec.memory import Ints, splits_of
from cachelayer.errors import CorruptionError

# No record is larger, so that a size which was damaged cannot ask for all memory.
_MAX_RECORD_NBYTES = 2**32 - 1
_THREADS = min(4, os.cpu_count() or 1)
# Below this, handing work over takes longer than it saves.
_PARALLEL_NBYTES = 1 << 18


def decompressed(stored: RecordBuffer, name: Callable[[int], str]) -> RecordBuffer:
    """The records, decompressed in one call that needs no GIL.

    Args:
        name: what an error calls the record of a row.

    Raises:
        CorruptionError: where one does not decompress to its size.
    """
    try:
        return _at_once(stored)
    except CorruptionError as error:
        if len(stored) == 1:
            raise CorruptionError(f"{name(0)} {error}") from error
    for row in range(len(stored)):
        each = slice(row, row + 1)
        one = RecordBuffer(stored.buffer, stored.starts[each], stored.lengths[each])
        decompressed(one, lambda _, row=row: name(row))  # type: ignore[misc]
    raise CorruptionError(f"{name(0)} and others do not decompress together, but one by one")


def _at_once(stored: RecordBuffer) -> RecordBuffer:
    import zstandard

    sizes, frames = varints.decode_each(stored.buffer, stored.starts)
    lengths = stored.starts + stored.lengths - frames
    if len(sizes) and (int(sizes.max()) > _MAX_RECORD_NBYTES or int(sizes.min()) < 0 or int(lengths.min()) < 0):
        raise CorruptionError("has an impossible size")
    filled = np.flatnonzero(sizes)
    if len(filled) == 0:
        return RecordBuffer.packed(np.empty(0, np.uint8), sizes)
    segments = np.column_stack([frames[filled], lengths[filled]]).astype("<u8")
    parts = _THREADS if int(sizes.sum()) > _PARALLEL_NBYTES else 1
    bounds = np.linspace(0, len(filled), parts + 1).astype(np.int64)
    jobs = [
        (stored.memory(), segments[start:stop], sizes[filled[start:stop]])
        for start, stop in pairwise(bounds.tolist())
        if start < stop
    ]
    others = [_pool(os.getpid()).submit(_frames, *job) for job in jobs[1:]]
    try:
        done = [_frames(*jobs[0]), *(other.result() for other in others)]
    except (zstandard.ZstdError, MemoryError, ValueError) as error:
        wait(others)
        raise CorruptionError(f"does not decompress: {error}") from error
    values = np.frombuffer(b"".join(segment for part in done for segment in part), np.uint8)
    if len(values) != int(splits_of(sizes)[-1]):
        raise CorruptionError("does not decompress to its size")
    return RecordBuffer.packed(values, sizes)


def _frames(memory: memoryview, segments: NDArray[np.uint64], sizes: Ints) -> Any:
    import zstandard

    return zstandard.ZstdDecompressor().multi_decompress_to_buffer(
        zstandard.BufferWithSegments(memory, segments.tobytes()),
        decompressed_sizes=sizes.astype("<u8").tobytes(),
        threads=0,
    )


@cache
def _pool(pid: int) -> ThreadPoolExecutor:  # noqa: ARG001 - a child of a fork has none of its parent's threads
    # The library's own threads are started anew by each call, which takes most of what they save.
    return ThreadPoolExecutor(max(1, _THREADS - 1), "cachelayer-decompress")
