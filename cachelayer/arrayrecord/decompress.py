"""Decompress records, each stored as a varint of its decompressed size and a zstd frame; an empty record is a zero."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from cachelayer.arrayrecord import varints
from cachelayer.errors import CorruptionError
from cachelayer.records.memory import Bytes, Ints, splits_of
from cachelayer.records.record_buffers import RecordBuffer
from cachelayer.records.threads import Gain, Job, quickest
from cachelayer.tally import DECODING, turn_to

# A record is at most this large, so that a damaged size cannot demand all memory.
_MAX_RECORD_NBYTES = 2**32 - 1
_GAIN = Gain()
# From this size on, a call for each record costs less than one more copy.
_LONG = 1 << 14

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
    frames = []
    for rows, stored in parts:
        ends = stored.starts + stored.lengths
        nbytes, starts = varints.decode_each(stored.buffer, stored.starts, ends)
        if len(nbytes) and (int(nbytes.max()) > _MAX_RECORD_NBYTES or int(nbytes.min()) < 0):
            raise CorruptionError("has an impossible size")
        sizes[rows] = nbytes
        filled = np.flatnonzero(nbytes)
        frames.append((rows[filled], stored, starts[filled], ends[filled]))
    splits = splits_of(sizes)
    try:
        values = np.empty(int(splits[-1]), np.uint8)
        jobs = partial(_jobs, frames, values, splits, holder)
        quickest(lambda: _all(jobs(1)), jobs, len(values), _GAIN)
    except (zstandard.ZstdError, MemoryError, ValueError) as error:
        raise CorruptionError(f"does not decompress: {error}") from error
    return RecordBuffer.packed(values, sizes)


_Frames = tuple[Ints, RecordBuffer, Ints, Ints]
"""Rows of a batch, the records as they are stored, and where the frame of each begins and ends."""


def _all(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job()


def _jobs(frames: Sequence[_Frames], out: Bytes, splits: Ints, holder: object, count: int) -> list[Job]:
    """Return about ``count`` jobs that decompress all frames into their places in ``out``."""
    jobs: list[Job] = []
    for rows, stored, starts, ends in frames:
        is_long = splits[rows + 1] - splits[rows] >= _LONG
        for decompress, chosen in ((_short, np.flatnonzero(~is_long)), (_long, np.flatnonzero(is_long))):
            bounds = np.linspace(0, len(chosen), count + 1).astype(np.int64).tolist()
            for some in (chosen[start:stop] for start, stop in pairwise(bounds) if start < stop):
                where = (starts[some], ends[some], out, splits, rows[some])
                jobs.append(partial(decompress, stored.memory(), *where, holder))
    return jobs


# The last argument keeps the memory alive in this thread, even if the thread that reads was interrupted.
def _short(memory: memoryview, starts: Ints, ends: Ints, out: Bytes, splits: Ints, rows: Ints, _: object) -> None:
    """Decompress short frames in one call."""
    import zstandard

    found: Any = zstandard.ZstdDecompressor().multi_decompress_to_buffer(
        zstandard.BufferWithSegments(memory, np.column_stack([starts, ends - starts]).astype("<u8").tobytes()),
        decompressed_sizes=(splits[rows + 1] - splits[rows]).astype("<u8").tobytes(),
        threads=0,
    )
    target = memoryview(out)  # type: ignore[arg-type]
    for start, stop, record in zip(splits[rows].tolist(), splits[rows + 1].tolist(), found, strict=True):
        target[start:stop] = record


def _long(memory: memoryview, starts: Ints, ends: Ints, out: Bytes, splits: Ints, rows: Ints, _: object) -> None:
    """Decompress long frames straight into their places."""
    import zstandard

    decompressor, target = zstandard.ZstdDecompressor(), memoryview(out)  # type: ignore[arg-type]
    spans = (starts.tolist(), ends.tolist(), splits[rows].tolist(), splits[rows + 1].tolist())
    for begin, end, start, stop in zip(*spans, strict=True):
        reader = decompressor.stream_reader(memory[begin:end])
        count = reader.readinto(target[start:stop])
        if count != stop - start or reader.read(1):
            raise ValueError(f"{count} bytes came, or more; expected {stop - start}")
