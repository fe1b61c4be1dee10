"""Decompress records, each stored as a varint of its decompressed size and a zstd frame; an empty record is a zero."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from cachelayer.arrayrecord import varints
from cachelayer.errors import CorruptionError
from cachelayer.records.memory import splits_of
from cachelayer.records.record_buffers import RecordBuffer

# A record is at most this large, so that a damaged size cannot demand all memory.
_MAX_RECORD_NBYTES = 2**32 - 1
# For fewer bytes, another thread begins too late to help.
_NBYTES_A_THREAD = 1 << 20
_MOST_THREADS = 8


def decompressed(stored: RecordBuffer, name: Callable[[int], str]) -> RecordBuffer:
    """Decompress records, all in one call that releases the GIL.

    Args:
        stored: the records as they are stored.
        name: returns what errors call the record of a row.
    """
    try:
        return _at_once(stored)
    except CorruptionError as error:
        if len(stored) == 1:
            raise CorruptionError(f"{name(0)} {error}") from error
        cause = error.__cause__
    for row in range(len(stored)):
        decompressed(stored[row : row + 1], lambda _, row=row: name(row))  # type: ignore[misc]
    if isinstance(cause, MemoryError):
        raise cause
    raise CorruptionError(f"{name(0)} and the others of its batch decompress one by one, but not together")


def _at_once(stored: RecordBuffer) -> RecordBuffer:
    import zstandard

    ends = stored.starts + stored.lengths
    nbytes, frames = varints.decode_each(stored.buffer, stored.starts, ends)
    if len(nbytes) and (int(nbytes.max()) > _MAX_RECORD_NBYTES or int(nbytes.min()) < 0):
        raise CorruptionError("has an impossible size")
    filled = np.flatnonzero(nbytes)
    splits = splits_of(nbytes)
    threads = min(_MOST_THREADS, os.cpu_count() or 1, int(splits[-1]) // _NBYTES_A_THREAD)
    try:
        values = np.empty(int(splits[-1]), np.uint8)
        if len(filled):
            places = np.column_stack([frames[filled], (ends - frames)[filled]]).astype("<u8").tobytes()
            found: Any = zstandard.ZstdDecompressor().multi_decompress_to_buffer(
                zstandard.BufferWithSegments(stored.memory(), places),
                decompressed_sizes=nbytes[filled].astype("<u8").tobytes(),
                threads=threads,
            )
            target = memoryview(values)  # type: ignore[arg-type]
            for start, stop, record in zip(splits[filled].tolist(), splits[filled + 1].tolist(), found, strict=True):
                target[start:stop] = record
    except (zstandard.ZstdError, MemoryError, ValueError) as error:
        raise CorruptionError(f"does not decompress: {error}") from error
    return RecordBuffer.packed(values, nbytes)
