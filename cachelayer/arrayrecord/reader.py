"""Reading one shard: a mapped file and its mapped index."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import google_crc32c
import numpy as np

from cachelayer.arrayrecord import index
from cachelayer.arrayrecord.blocks import BLOCK, HEADER, PAYLOAD, to_logical, to_position
from cachelayer.arrayrecord.decompress import decompressed
from cachelayer.arrayrecord.footer import read_postscript
from cachelayer.arrayrecord.mapping import MappedFile, Places, UniformRecords
from cachelayer.codec.frames import RecordBuffer, Records
from cachelayer.codec.memory import Ints
from cachelayer.errors import CorruptionError

Verify = Literal["never", "open", "always"]
_ROW = struct.Struct("<QII")
VERIFY: tuple[Verify, ...] = ("never", "open", "always")


def read_places(places: Places, lengths: Ints, compression: str, name: Callable[[int], str]) -> RecordBuffer:
    """The records that are stored at places of these lengths.

    Args:
        name: what an error calls the record of a row.

    Raises:
        CorruptionError: where one reaches past the end of its file, or does not decompress.
    """
    if compression == "none":
        return RecordBuffer.packed(places.ranges(lengths), lengths)
    with places.unbroken(lengths) as stored:
        return decompressed(stored, name)


class ShardReader:
    """Random access to the records of one shard. Safe to use from threads, and after a fork.

    Args:
        path, index_path: the shard and its index.
        nbytes, index_nbytes: the sizes that the manifest gives.
        verify: ``"open"`` checks sizes, the index header and the end of the shard now; ``"always"`` also the rows of
            the index now and each record's checksum when it is read; ``"never"`` only the sizes.

    Raises:
        CorruptionError: where a file is missing or is not what was written.
    """

    def __init__(self, path: Path, index_path: Path, *, nbytes: int, index_nbytes: int, verify: Verify) -> None:
        self._mapped = MappedFile.open(path, nbytes=nbytes)
        mapped_index = MappedFile.open(index_path, nbytes=index_nbytes).buffer
        raw_header = mapped_index[: index.HEADER_NBYTES].tobytes()
        self.header = index.decode_header(raw_header, len(mapped_index), str(index_path))
        if self.header.shard_nbytes != nbytes:
            raise CorruptionError(f"{index_path}: belongs to a shard of {self.header.shard_nbytes} bytes, not {nbytes}")
        self._rows: Any = mapped_index[index.HEADER_NBYTES :].view(index.ROW)
        self._index = memoryview(mapped_index.data)
        self._memory = memoryview(self._mapped.buffer.data)
        self._length = self.header.record_nbytes or 0
        uniform = self.header.record_nbytes is not None
        self._stride = self.header.stride() if uniform else None
        self._first = int(to_logical(self.header.first_position)) if uniform else 0
        if uniform and len(self):
            self._check_uniform(path)
        self._always = verify == "always"
        if verify != "never":
            read_postscript(self._mapped)
        self._plain = self.header.compression == "none" and not self._always
        if self._always:
            self._check_rows(raw_header)

    def __len__(self) -> int:
        return self.header.records

    def _check_uniform(self, path: Path) -> None:
        """Whether the last record, whose place follows by arithmetic, lies in the file; then all of them do."""
        last = self._first + (len(self) - 1) * (self._stride or 0) + max(0, self._length - 1)
        if int(to_position(last)) >= len(self._mapped.buffer):
            raise CorruptionError(f"{path}: too short for {len(self)} records of {self._length} bytes")

    def _check_rows(self, raw_header: bytes) -> None:
        """Whether the rows of the index match the checksum in its header."""
        if google_crc32c.value(self._rows.tobytes()) != index.rows_checksum(raw_header):
            raise CorruptionError(f"{self._mapped.path}: the rows of its index do not match their checksum")

    def record(self, number: int) -> bytearray:
        """One record, the caller's own.

        Raises:
            CorruptionError: where it is not what was written, as far as that is checked.
        """
        if not self._plain:
            found = self.records(np.array([number]))
            return bytearray(found.ranges(np.zeros(1, np.int64), found.lengths).data)
        if self._stride is not None:
            logical, length = self._first + number * self._stride, self._length
        else:
            position, length, _ = _ROW.unpack_from(self._index, index.HEADER_NBYTES + number * _ROW.size)
            logical = position - (position // BLOCK + 1) * HEADER
            if logical < 0 or logical + length + HEADER * ((logical + length) // PAYLOAD + 1) > len(self._memory):
                raise CorruptionError(f"{self._mapped.path}: record {number} reaches past the end of the file")
        block, place = divmod(logical, PAYLOAD)
        start = block * BLOCK + HEADER + place
        room = PAYLOAD - place
        if length <= room:
            return bytearray(self._memory[start : start + length])
        record = bytearray(self._memory[start : start + room])
        while len(record) < length:
            start += room + HEADER
            room = min(PAYLOAD, length - len(record))
            record += self._memory[start : start + room]
        return record

    @property
    def mapped(self) -> MappedFile:
        """The shard in memory."""
        return self._mapped

    @property
    def stride(self) -> tuple[int, int] | None:
        """The logical offset of record 0 and the logical bytes from one to the next, where all have one size."""
        return None if self._stride is None else (self._first, self._stride)

    @property
    def is_checked(self) -> bool:
        """Whether each record is compared with its checksum."""
        return self._always

    def where(self, numbers: Ints) -> tuple[Ints, Ints]:
        """The logical offset of each record, and its stored bytes."""
        rows = self._rows[numbers]
        return to_logical(rows["position"].astype(np.int64)), rows["length"].astype(np.int64)

    def records(self, numbers: Ints) -> Records:
        """The records of these numbers, each within the shard.

        Raises:
            CorruptionError: where a record is not what was written, as far as that is checked.
        """
        if self._stride is not None:
            found = UniformRecords.at(
                self._mapped, self._mapped.base, self._first + numbers * self._stride, self._length
            )
            if not self._always:
                return found
            records = found.stored()
        else:
            logical, lengths = self.where(numbers)
            records = read_places(
                self._mapped.places(logical),
                lengths,
                self.header.compression,
                lambda row: f"{self._mapped.path}: record {numbers[row]} of the shard",
            )
        if self._always:
            self._check(records, self._rows[numbers]["crc32c"], numbers)
        return records

    def _check(self, records: RecordBuffer, checksums: Ints, numbers: Ints) -> None:
        memory = records.memory()
        spans = zip(records.starts.tolist(), records.lengths.tolist(), checksums.tolist(), strict=True)
        for row, (start, length, checksum) in enumerate(spans):
            if google_crc32c.value(bytes(memory[start : start + length])) != checksum:
                raise CorruptionError(
                    f"{self._mapped.path}: record {int(numbers[row])} of the shard does not match its checksum"
                )
