"""Compressed records of a shard: a varint of the decompressed size, then a zstd frame. An empty record is a zero.

::

    e8 07 | 28 b5 2f fd ...        a record of 1,000 bytes
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from cachelayer.arrayrecord import varints
from cachelayer.errors import CorruptionError, InvalidArgumentError
from cachelayer.records.spans import Spans, joined_spans
from cachelayer.support.memory import Bytes, Ints, buffers_of

_LEVELS = range(-7, 23)
_DEFAULT_LEVEL = 3
# A record is at most this large, so that a damaged size cannot demand all memory.
_MAX_RECORD_NBYTES = 2**32 - 1
# For fewer bytes, another thread begins too late to help.
_NBYTES_A_THREAD = 1 << 20
_MOST_THREADS = min(8, os.cpu_count() or 1)


@dataclass(frozen=True)
class Compression:
    """How records are compressed: each record by itself."""

    zstd_level: int | None = None
    """The level of zstd; None for no compression."""
    is_chosen: bool = True
    """Whether a user named it. If not, a version that is made from another has that of the other."""

    @property
    def is_compressed(self) -> bool:
        return self.zstd_level is not None

    @property
    def writer_option(self) -> str:
        """The option that ``ArrayRecordWriter`` takes."""
        return "uncompressed" if self.zstd_level is None else f"zstd:{self.zstd_level},window_log:20"

    @property
    def name(self) -> str | None:
        """The name by which users choose it."""
        return None if self.zstd_level is None else f"zstd:{self.zstd_level}"

    @classmethod
    def parse(cls, text: str | None) -> Compression:
        """Return the compression that a user names: ``"none"``, ``"zstd"`` or ``"zstd:<level>"``; None names none."""
        if text is None:
            return cls(is_chosen=False)
        if text == "none":
            return cls()
        name, _, level = str(text).partition(":")
        if name == "zstd":
            if not level:
                return cls(_DEFAULT_LEVEL)
            if level.lstrip("-").isdecimal() and int(level) in _LEVELS:
                return cls(int(level))
        raise InvalidArgumentError(
            f"compression {text!r}: it must be 'none', 'zstd' or 'zstd:<level>', level {_LEVELS[0]} to {_LEVELS[-1]}"
        )

    def or_that_of(self, shards: Sequence[str]) -> Compression:
        """Return this compression if it was chosen, else that of the first of some shards, by its name."""
        return self if self.is_chosen or not shards else Compression.parse(shards[0])


def decompress_some(stored: Spans, is_compressed: NDArray[np.bool_], broken: set[int] | None = None) -> Spans:
    """Return records, of which those that are stored compressed are decompressed, as by :func:`decompress`."""
    if not is_compressed.any():
        return stored
    if is_compressed.all():
        return decompress(stored, broken)
    compressed = np.flatnonzero(is_compressed)
    plain = np.flatnonzero(~is_compressed)
    failed = set[int]()
    decompressed = decompress(stored[compressed], None if broken is None else failed)
    if broken is not None:
        broken.update(compressed[sorted(failed)].tolist())
    groups = [(compressed, decompressed), (plain, stored[plain])]
    return joined_spans(len(stored), [group for group in groups if len(group[0])])


def decompress(stored: Spans, broken: set[int] | None = None) -> Spans:
    """Return records decompressed, all in one call that releases the interpreter lock.

    ``broken`` receives the rows that do not decompress, which are empty then; without it, the first is an error.
    """
    try:
        return _decompress_at_once(stored)
    except CorruptionError as error:
        cause = error.__cause__
    errors: dict[int, CorruptionError] = {}
    for row in range(len(stored)):
        try:
            _decompress_at_once(stored[row : row + 1])
        except CorruptionError as error:
            if broken is None:
                raise CorruptionError(f"{stored.name(row)} {error}") from error
            errors[row] = error
    if isinstance(cause, MemoryError):
        raise cause
    if not errors:
        raise CorruptionError(f"{stored.name(0)} and the others of its batch decompress one by one, but not together")
    if broken is not None:
        broken.update(errors)
    whole = np.setdiff1d(np.arange(len(stored)), [*errors])
    nothing = Spans.of_bytes([b""] * len(errors))
    groups = [(whole, _decompress_at_once(stored[whole])), (np.array([*errors]), nothing)]
    return replace(joined_spans(len(stored), groups), name=stored.name)


def _decompress_at_once(stored: Spans) -> Spans:
    # The frames are copied to one buffer: they lie in many files, and block headers cut some.
    frames = stored.packed()
    ends = frames.starts + frames.lengths
    nbytes, begins = varints.decode_each(frames.buffer, frames.starts, ends)
    if len(nbytes) and (int(nbytes.max()) > _MAX_RECORD_NBYTES or int(nbytes.min()) < 0):
        raise CorruptionError("has an impossible size")
    # An empty record has no frame.
    filled = np.flatnonzero(nbytes)
    starts = np.zeros(len(nbytes), np.int64)
    buffer_of = np.zeros(len(nbytes), np.int64)
    arrays = [np.empty(0, np.uint8)]
    if len(filled):
        sizes = nbytes[filled]
        decompressed = _decompressed(frames.memory(), begins[filled], (ends - begins)[filled], sizes)
        starts[filled], buffer_of[filled], arrays = _places_in(decompressed, sizes)
    return Spans(buffers_of(arrays), starts, nbytes, buffer_of, stored.name)


def _decompressed(memory: memoryview, begins: Ints, lengths: Ints, nbytes: Ints) -> Any:
    """Return the decompressed frames that lie in memory."""
    import zstandard

    threads = min(_MOST_THREADS, int(nbytes.sum()) // _NBYTES_A_THREAD)
    places = np.column_stack([begins, lengths]).astype("<u8")
    try:
        return zstandard.ZstdDecompressor().multi_decompress_to_buffer(
            zstandard.BufferWithSegments(memory, places.tobytes()),
            decompressed_sizes=nbytes.astype("<u8").tobytes(),
            threads=threads,
        )
    except (zstandard.ZstdError, MemoryError, ValueError) as error:
        raise CorruptionError(f"does not decompress: {error}") from error


def _places_in(decompressed: Any, nbytes: Ints) -> tuple[Ints, Ints, list[Bytes]]:
    """Return the start of each decompressed record in its buffer, its buffer, and the buffers, filled in turn."""
    starts = np.fromiter((record.offset for record in decompressed), np.int64, len(nbytes))
    is_first = starts == 0
    firsts = np.flatnonzero(is_first).tolist()
    lasts = [*(first - 1 for first in firsts[1:]), len(nbytes) - 1]
    arrays = []
    for first, last in zip(firsts, lasts, strict=True):
        size = int(starts[last] + nbytes[last])
        arrays.append(as_strided(np.frombuffer(decompressed[first], np.uint8), (size,), (1,)))
    return starts, np.cumsum(is_first) - 1, arrays
