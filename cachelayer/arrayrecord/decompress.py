"""Decompress records, each stored as a varint of its decompressed size and a zstd frame; an empty record is a zero."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from cachelayer.arrayrecord import varints
from cachelayer.arrayrecord.blocks import pieces
from cachelayer.errors import CorruptionError
from cachelayer.records.memory import Bytes, Ints, gather_ranges, splits_of
from cachelayer.records.record_buffers import RecordBuffer
from cachelayer.records.threads import Gain, Job, quickest
from cachelayer.tally import DECODING, turn_to

# A record is at most this large, so that a damaged size cannot demand all memory.
_MAX_RECORD_NBYTES = 2**32 - 1
_GAIN = Gain()
# From this size on, a call for each record costs less than one more copy.
LONG = 1 << 14
# A frame begins with 4 bytes of magic, a descriptor, and one byte for its window, if the descriptor has no bit but that
# of a checksum at its end. One more bit says that a size of 4 bytes follows.
_HEAD_NBYTES, _SIZE_NBYTES = 6, 4
_CHECKSUM, _HAS_SIZE = 0x04, 0x80


@dataclass(frozen=True, eq=False)
class CutRecords:
    """Stored records in mapped files that block headers cut.

    Args:
        memory: where the files are mapped.
        base: where the file of each record begins in the memory.
        logical, lengths: the logical offset of each record in its file, and its bytes, without block headers.
    """

    memory: Bytes
    base: Ints
    logical: Ints
    lengths: Ints

    def __len__(self) -> int:
        return len(self.logical)

    def __getitem__(self, rows: Ints | slice) -> CutRecords:
        return CutRecords(self.memory, self.base[rows], self.logical[rows], self.lengths[rows])

    def pieces(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Return, in order, the record of each piece, its offset in the record, its place in the memory, its size."""
        owner, inside, position, length = pieces(self.logical, self.lengths)
        return owner, inside, position + self.base[owner], length

    def heads(self) -> RecordBuffer:
        """Return the first bytes of each record, as many as a varint has at most."""
        _, inside, starts, lengths = self.pieces()
        (first,) = (inside < varints.MAX_NBYTES).nonzero()
        shown = np.minimum(lengths[first], varints.MAX_NBYTES - inside[first])
        return RecordBuffer.packed(
            gather_ranges(self.memory, starts[first], shown), np.minimum(self.lengths, varints.MAX_NBYTES)
        )

    def frames(self, rows: Ints, skipped: Ints) -> _Frames:
        """Return the frames of the records, each of which comes after so many bytes.

        Args:
            rows: the rows of the records.
        """
        owner, inside, starts, lengths = self.pieces()
        before = np.clip(skipped[owner] - inside, 0, lengths)
        counts = np.bincount(owner, minlength=len(self))
        return _Frames(rows, self.memory, starts + before, lengths - before, splits_of(counts))


@dataclass(frozen=True, eq=False)
class _Frames:
    """The frames of some rows of a batch.

    Args:
        rows: the rows.
        memory: where the frames are.
        starts, lengths: the place and the size of each piece, frame after frame.
        splits: the number of the first piece of each frame, and that of all pieces.
    """

    rows: Ints
    memory: Bytes
    starts: Ints
    lengths: Ints
    splits: Ints


StoredRows = tuple[Ints, RecordBuffer | CutRecords]
"""Rows of a batch, and their records as they are stored."""


def decompressed(parts: Sequence[StoredRows], name: Callable[[int], str], holder: object = None) -> RecordBuffer:
    """Decompress the records of a batch, in a few calls that release the GIL.

    Args:
        parts: the stored records and the rows of the batch that they belong to; each row is in one part.
        name: returns what errors call the record of a row.
        holder: an object that keeps the memory of the stored records alive while any thread reads it.

    Raises:
        CorruptionError: if a record does not decompress to its size.
        MemoryError: if all do, but not all of them fit into memory.
    """
    turn_to(DECODING)
    try:
        return _at_once(parts, holder)
    except CorruptionError as error:
        if sum(len(rows) for rows, _ in parts) == 1:
            raise CorruptionError(f"{name(int(parts[0][0][0]))} {error}") from error
        cause = error.__cause__
    only = np.zeros(1, np.int64)
    for rows, stored in parts:
        for place, row in enumerate(rows.tolist()):
            decompressed([(only, stored[place : place + 1])], lambda _, row=row: name(row), holder)  # type: ignore[misc]
    if isinstance(cause, MemoryError):
        raise cause
    raise CorruptionError(f"{name(0)} and the others of its batch decompress one by one, but not together")


def _at_once(parts: Sequence[StoredRows], holder: object) -> RecordBuffer:
    import zstandard

    sizes = np.zeros(sum(len(rows) for rows, _ in parts), np.int64)
    frames = []
    for rows, stored in parts:
        heads = stored.heads() if isinstance(stored, CutRecords) else stored
        nbytes, after = varints.decode_each(heads.buffer, heads.starts, heads.starts + heads.lengths)
        if len(nbytes) and (int(nbytes.max()) > _MAX_RECORD_NBYTES or int(nbytes.min()) < 0):
            raise CorruptionError("has an impossible size")
        sizes[rows] = nbytes
        filled = np.flatnonzero(nbytes)
        skipped = (after - heads.starts)[filled]
        if isinstance(stored, CutRecords):
            frames.append(stored[filled].frames(rows[filled], skipped))
        else:
            lengths, whole = stored.lengths[filled] - skipped, np.arange(len(filled) + 1)
            frames.append(_Frames(rows[filled], stored.buffer, after[filled], lengths, whole))
    splits = splits_of(sizes)
    try:
        values = np.empty(int(splits[-1]), np.uint8)
        jobs = partial(_jobs, frames, values, splits, holder)
        quickest(lambda: _all(jobs(1)), jobs, len(values), _GAIN)
    except (zstandard.ZstdError, MemoryError, ValueError) as error:
        raise CorruptionError(f"does not decompress: {error}") from error
    return RecordBuffer.packed(values, sizes)


def _all(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job()


def _jobs(parts: Sequence[_Frames], out: Bytes, splits: Ints, holder: object, count: int) -> list[Job]:
    """Return about ``count`` jobs that decompress all frames into their places in ``out``."""
    jobs: list[Job] = []
    for frames in parts:
        rows = frames.rows
        is_long = (splits[rows + 1] - splits[rows] >= LONG) | (np.diff(frames.splits) != 1)
        for decompress, chosen in ((_short, np.flatnonzero(~is_long)), (_long, np.flatnonzero(is_long))):
            bounds = np.linspace(0, len(chosen), count + 1).astype(np.int64).tolist()
            some = [chosen[start:stop] for start, stop in pairwise(bounds) if start < stop]
            jobs += [partial(decompress, frames, each, out, splits, holder) for each in some]
    return jobs


# The last argument keeps the memory alive in this thread, even if the thread that reads was interrupted.
def _short(frames: _Frames, chosen: Ints, out: Bytes, splits: Ints, _: object) -> None:
    """Decompress short frames, each in one piece, in one call."""
    import zstandard

    rows, places = frames.rows[chosen], frames.splits[chosen]
    found: Any = zstandard.ZstdDecompressor().multi_decompress_to_buffer(
        zstandard.BufferWithSegments(
            memoryview(frames.memory),  # type: ignore[arg-type]
            np.column_stack([frames.starts[places], frames.lengths[places]]).astype("<u8").tobytes(),
        ),
        decompressed_sizes=(splits[rows + 1] - splits[rows]).astype("<u8").tobytes(),
        threads=0,
    )
    target = memoryview(out)  # type: ignore[arg-type]
    for start, stop, record in zip(splits[rows].tolist(), splits[rows + 1].tolist(), found, strict=True):
        target[start:stop] = record


def _long(frames: _Frames, chosen: Ints, out: Bytes, splits: Ints, _: object) -> None:
    """Decompress long frames straight into their places."""
    import zstandard

    decompressor, target = zstandard.ZstdDecompressor(), memoryview(out)  # type: ignore[arg-type]
    totals = splits_of(frames.lengths)[frames.splits]
    scratch = np.empty(_SIZE_NBYTES + int(np.diff(totals)[chosen].max()), np.uint8)
    spans = list(zip(frames.starts.tolist(), frames.lengths.tolist(), strict=True))
    rows, begins, ends = frames.rows[chosen], frames.splits[chosen].tolist(), frames.splits[chosen + 1].tolist()
    for begin, end, start, stop in zip(begins, ends, splits[rows].tolist(), splits[rows + 1].tolist(), strict=True):
        reader = decompressor.stream_reader(_with_size(frames.memory, spans[begin:end], stop - start, scratch))
        count = reader.readinto(target[start:stop])
        if count != stop - start or reader.read(1):
            raise ValueError(f"{count} bytes came, or more; expected {stop - start}")


def _with_size(memory: Bytes, spans: Iterable[tuple[int, int]], nbytes: int, scratch: Bytes) -> memoryview:
    """Return a frame in one piece that says that it holds so many bytes.

    The writer of ArrayRecord leaves that out. Then zstd decompresses into a buffer of its own first, which takes longer
    than to copy the frame here. Source: RFC 8878, 3.1.1.1.

    Args:
        spans: the place and the size of each of its pieces.
        scratch: memory for the frame and a size, which the next call overwrites.
    """
    end = _SIZE_NBYTES
    for start, length in spans:
        # Assigning slices of arrays releases the GIL.
        scratch[end : end + length] = memory[start : start + length]
        end += length
    frame = scratch[_SIZE_NBYTES:end]
    if len(frame) > _HEAD_NBYTES and not int(frame[4]) & ~_CHECKSUM:
        head = frame[:_HEAD_NBYTES].tobytes() + nbytes.to_bytes(_SIZE_NBYTES, "little")
        frame = scratch[:end]
        frame[: len(head)] = np.frombuffer(head, np.uint8)
        frame[4] |= _HAS_SIZE
    return memoryview(frame)  # type: ignore[arg-type]
