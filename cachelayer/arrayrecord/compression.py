"""Compressed records of a shard: a varint of the decompressed size, then a zstd frame. An empty record is a zero.

::

    e8 07 | 28 b5 2f fd ...        a record of 1,000 bytes
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord import varints
from cachelayer.arrayrecord.mapping import MappedRecords
from cachelayer.errors import CorruptionError, InvalidArgumentError
from cachelayer.records.memory import memory_of, splits_of
from cachelayer.records.record_buffers import PackedRecords, Records, join_records

_LEVELS = range(-7, 23)
_DEFAULT_LEVEL = 3
# A record is at most this large, so that a damaged size cannot demand all memory.
_MAX_RECORD_NBYTES = 2**32 - 1
# For fewer bytes, another thread begins too late to help.
_NBYTES_A_THREAD = 1 << 20
_MOST_THREADS = 8


@dataclass(frozen=True)
class Compression:
    """How records are compressed: each record by itself."""

    zstd_level: int | None = None
    """The level of zstd; None for no compression."""

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
        """Return the compression that a user names: None or ``"none"``, ``"zstd"``, or ``"zstd:<level>"``."""
        if text is None or text == "none":
            return cls()
        name, _, level = str(text).partition(":")
        if name == "zstd":
            if not level:
                return cls(_DEFAULT_LEVEL)
            if level.lstrip("-").isdecimal() and int(level) in _LEVELS:
                return cls(int(level))
        raise InvalidArgumentError(
            f"compression {text!r}: it must be None, 'zstd' or 'zstd:<level>', level {_LEVELS[0]} to {_LEVELS[-1]}"
        )


def decompress_some(
    stored: PackedRecords | MappedRecords, is_compressed: NDArray[np.bool_], broken: set[int] | None = None
) -> Records:
    """Return records, some of which are stored compressed and are decompressed.

    Args:
        is_compressed: whether each record is compressed.
        broken: as in :func:`decompress`.
    """
    if not is_compressed.any():
        return stored
    compressed = np.flatnonzero(is_compressed)
    plain = np.flatnonzero(~is_compressed)
    failed = set[int]()
    decompressed = decompress(stored[compressed], None if broken is None else failed)
    if broken is not None:
        broken.update(compressed[sorted(failed)].tolist())
    groups = [(compressed, decompressed), (plain, stored[plain])]
    return join_records(len(stored), [group for group in groups if len(group[0])])


def decompress(stored: PackedRecords | MappedRecords, broken: set[int] | None = None) -> PackedRecords:
    """Return records decompressed, all in one call that releases the interpreter lock.

    Args:
        broken: receives the rows of records that do not decompress, which are empty in the result; None to raise an
            error that names the first of them.
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
    values = _decompress_at_once(stored[whole])
    lengths = np.zeros(len(stored), np.int64)
    lengths[whole] = values.lengths
    return PackedRecords(values.buffer, splits_of(lengths)[:-1], lengths, name=stored.name)


def _decompress_at_once(stored: PackedRecords | MappedRecords) -> PackedRecords:
    import zstandard

    nbytes = np.zeros(len(stored), np.int64)
    frames = []
    for rows, records in stored.contiguous_groups():
        ends = records.starts + records.lengths
        sizes, begins = varints.decode_each(records.buffer, records.starts, ends)
        if len(sizes) and (int(sizes.max()) > _MAX_RECORD_NBYTES or int(sizes.min()) < 0):
            raise CorruptionError("has an impossible size")
        nbytes[rows] = sizes
        filled = np.flatnonzero(sizes)
        frames.append((rows[filled], records, np.column_stack([begins[filled], (ends - begins)[filled]])))
    splits = splits_of(nbytes)
    threads = min(_MOST_THREADS, os.cpu_count() or 1, int(splits[-1]) // _NBYTES_A_THREAD)
    try:
        values = np.empty(int(splits[-1]), np.uint8)
        target = memory_of(values)
        for rows, records, places in frames:
            if len(rows) == 0:
                continue
            decompressed: Any = zstandard.ZstdDecompressor().multi_decompress_to_buffer(
                zstandard.BufferWithSegments(records.memory(), places.astype("<u8").tobytes()),
                decompressed_sizes=nbytes[rows].astype("<u8").tobytes(),
                threads=threads,
            )
            for start, stop, record in zip(splits[rows].tolist(), splits[rows + 1].tolist(), decompressed, strict=True):
                target[start:stop] = record
    except (zstandard.ZstdError, MemoryError, ValueError) as error:
        raise CorruptionError(f"does not decompress: {error}") from error
    return PackedRecords(values, splits[:-1], nbytes, name=stored.name)
