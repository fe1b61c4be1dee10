"""Compare many records with their CRC32Cs, in few calls.

A checksum of records that follow one another in memory is also a sum over their own checksums, each multiplied by a
power of x for the bytes behind it. So one pass over the memory of many records checks all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.places import UniformRecords
from cachelayer.errors import CorruptionError
from cachelayer.records.memory import Bytes
from cachelayer.records.record_buffers import RecordBuffer, Records

Checksums = NDArray[np.uint32]

# How many records are checked at once. A call takes as long as this many short records, or one long one, need.
_TOGETHER = 64
_LONG = 1 << 14
# How many sizes of records have their tables in memory, of 256 KiB each.
_SIZES = 8
# Where the table of each byte of a run begins.
_TABLES = np.arange(0, 4 * _TOGETHER * 256, 256)
_SHIFTS = 8 * np.arange(4, dtype=np.uint32)


def checked(records: Records, checksums: Checksums, name: Callable[[int], str]) -> RecordBuffer:
    """Return the records, in memory of their own, if each matches its checksum.

    Args:
        checksums: the CRC32C of each record.
        name: returns what errors call a record, given its row.

    Raises:
        CorruptionError: with the first record that does not match.
    """
    copies = whole(records)
    row = first_damaged(copies, checksums)
    if row is not None:
        raise CorruptionError(f"{name(row)} does not match its checksum")
    return copies


def whole(records: Records) -> RecordBuffer:
    """Return records in memory of their own, one after another."""
    if isinstance(records, UniformRecords):
        return records.stored()
    if isinstance(records, RecordBuffer):
        return records
    return RecordBuffer.packed(records.ranges(np.zeros(len(records), np.int64), records.lengths), records.lengths)


def first_damaged(records: RecordBuffer, checksums: Checksums) -> int | None:
    """Return the row of the first record that does not match its CRC32C; None if all do."""
    # google_crc32c takes read-only memory alone.
    memory = records.buffer.view()
    memory.setflags(write=False)
    count, nbytes = len(records), records.packed_nbytes
    if count < _TOGETHER or nbytes is None or not 0 < nbytes < _LONG:
        return _first_of_each(memory, records, checksums, 0, count)
    begin = int(records.starts[0])
    stop = count % _TOGETHER or _TOGETHER
    start = 0
    for expected in _joined(checksums, nbytes).tolist():
        if google_crc32c.value(memory[begin + start * nbytes : begin + stop * nbytes]) != expected:
            return _first_of_each(memory, records, checksums, start, stop)
        start, stop = stop, stop + _TOGETHER
    return None


def _first_of_each(memory: Bytes, records: RecordBuffer, checksums: Checksums, first: int, last: int) -> int | None:
    here = slice(first, last)
    starts, ends = records.starts[here], records.starts[here] + records.lengths[here]
    spans = zip(starts.tolist(), ends.tolist(), checksums[here].tolist(), strict=True)
    for row, (start, end, checksum) in enumerate(spans, first):
        if google_crc32c.value(memory[start:end]) != checksum:
            return row
    return None


def _joined(checksums: Checksums, nbytes: int) -> Checksums:
    """Return the CRC32C of each run of records of one size; only the first run may be shorter than the others."""
    runs = -(-len(checksums) // _TOGETHER)
    # The checksum of no bytes is zero, so zeros before the first record change nothing.
    padded = np.zeros(runs * _TOGETHER, "<u4")
    padded[len(padded) - len(checksums) :] = checksums
    places = padded.view(np.uint8).reshape(runs, -1) + _TABLES
    joined: Checksums = np.bitwise_xor.reduce(_tables(nbytes)[places], axis=1)
    return joined


@lru_cache(_SIZES)
def _tables(nbytes: int) -> Checksums:
    """Return what each byte of each checksum of a run adds to the checksum of the run, for records of ``nbytes`` bytes.

    Item ``(i * 4 + k) * 256 + b`` is for value b of byte k, lowest first, of the checksum of record i.
    """
    values = np.arange(256, dtype=np.uint32)
    tables = np.empty((_TOGETHER, 4, 256), np.uint32)
    tables[-1] = values << _SHIFTS[:, None]
    # What zeros behind a record make of each bit of its checksum.
    zeros = bytes(nbytes)
    neutral = google_crc32c.value(zeros)
    bits = np.array([google_crc32c.extend(1 << bit, zeros) ^ neutral for bit in range(32)], np.uint32)
    is_set = (values[:, None] >> np.arange(8, dtype=np.uint32) & 1).astype(np.bool_)
    once = np.bitwise_xor.reduce(np.where(is_set, bits.reshape(4, 1, 8), np.uint32(0)), axis=2)
    for row in range(_TOGETHER - 2, -1, -1):
        digits = tables[row + 1][..., None] >> _SHIFTS & 0xFF
        tables[row] = np.bitwise_xor.reduce(once[np.arange(4), digits], axis=-1)
    return tables.reshape(-1)
