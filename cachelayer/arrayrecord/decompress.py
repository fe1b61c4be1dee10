"""Decompress records, each stored as a varint of its decompressed size and a zstd frame; an empty record is a zero."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord import varints
from cachelayer.errors import CorruptionError
from cachelayer.records.memory import Ints, splits_of
from cachelayer.records.record_buffers import RecordBuffer
from cachelayer.tally import DECODING, turn_to

# A record is at most this large, so that a damaged size cannot demand all memory.
_MAX_RECORD_NBYTES = 2**32 - 1
_THREADS = min(4, os.cpu_count() or 1)
# Below this, handing work to threads takes longer than it saves.
_PARALLEL_NBYTES = 1 << 18


StoredRows = tuple[Ints, RecordBuffer]
"""Rows of a batch, and their records as they are stored."""


def decompressed(parts: Sequence[StoredRows], name: Callable[[int], str], holder: object = None) -> RecordBuffer:
    """Decompress the records of a batch, in a few calls that release the GIL.

    Args:
        parts: the stored records and the rows of the batch that they belong to; each row is in one part.
        name: returns what errors call the record of a row.
        holder: an object that keeps the memory of the stored records alive while any thread reads it.

    Raises:
        CorruptionError: if a record does not decompress to its size.
    """
    turn_to(DECODING)
    try:
        return _at_once(parts, holder)
    except CorruptionError as error:
        if sum(len(rows) for rows, _ in parts) == 1:
            raise CorruptionError(f"{name(int(parts[0][0][0]))} {error}") from error
    only = np.zeros(1, np.int64)
    for rows, stored in parts:
        for place, row in enumerate(rows.tolist()):
            here = slice(place, place + 1)
            one = RecordBuffer(stored.buffer, stored.starts[here], stored.lengths[here])
            decompressed([(only, one)], lambda _, row=row: name(row), holder)  # type: ignore[misc]
    raise CorruptionError(f"{name(0)} and the others of its batch decompress one by one, but not together")


def _at_once(parts: Sequence[StoredRows], holder: object) -> RecordBuffer:
    import zstandard

    sizes = np.zeros(sum(len(rows) for rows, _ in parts), np.int64)
    jobs: list[tuple[Ints, memoryview, NDArray[np.uint64], Ints]] = []
    for rows, stored in parts:
        ends = stored.starts + stored.lengths
        nbytes, frames = varints.decode_each(stored.buffer, stored.starts, ends)
        if len(nbytes) and (int(nbytes.max()) > _MAX_RECORD_NBYTES or int(nbytes.min()) < 0):
            raise CorruptionError("has an impossible size")
        sizes[rows] = nbytes
        filled = np.flatnonzero(nbytes)
        segments = np.column_stack([frames, ends - frames])[filled].astype("<u8")
        count = _THREADS if int(nbytes.sum()) > _PARALLEL_NBYTES else 1
        bounds = np.linspace(0, len(filled), count + 1).astype(np.int64)
        jobs.extend(
            (rows[filled[start:stop]], stored.memory(), segments[start:stop], nbytes[filled[start:stop]])
            for start, stop in pairwise(bounds.tolist())
            if start < stop
        )
    if not jobs:
        return RecordBuffer.packed(np.empty(0, np.uint8), sizes)
    others = [_pool(os.getpid()).submit(_frames, *job[1:], holder) for job in jobs[1:]]
    try:
        done = [_frames(*jobs[0][1:], holder), *(other.result() for other in others)]
    except (zstandard.ZstdError, MemoryError, ValueError) as error:
        wait(others)
        raise CorruptionError(f"does not decompress: {error}") from error
    segments_of: list[Any] = [b""] * len(sizes)
    for (rows, *_), segments in zip(jobs, done, strict=True):
        for row, segment in zip(rows.tolist(), segments, strict=True):
            segments_of[row] = segment
    values = np.frombuffer(b"".join(segments_of), np.uint8)
    if len(values) != int(splits_of(sizes)[-1]):
        raise CorruptionError("does not decompress to its size")
    return RecordBuffer.packed(values, sizes)


def _frames(memory: memoryview, segments: NDArray[np.uint64], sizes: Ints, holder: object) -> Any:  # noqa: ARG001
    # The argument keeps the memory alive in this thread, even if the waiting thread was interrupted.
    import zstandard

    return zstandard.ZstdDecompressor().multi_decompress_to_buffer(
        zstandard.BufferWithSegments(memory, segments.tobytes()),
        decompressed_sizes=sizes.astype("<u8").tobytes(),
        threads=0,
    )


@cache
def _pool(pid: int) -> ThreadPoolExecutor:  # noqa: ARG001 - a forked child does not have its parent's threads
    # zstandard starts its own threads anew in each call, which costs most of the time that they save.
    return ThreadPoolExecutor(max(1, _THREADS - 1), "cachelayer-decompress")
