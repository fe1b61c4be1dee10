"""Reading one shard: a mapped file and its mapped index."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord import index
from cachelayer.arrayrecord.blocks import BLOCK, HEADER, PAYLOAD, to_logical, to_position
from cachelayer.arrayrecord.decompress import decompressed
from cachelayer.arrayrecord.footer import read_postscript
from cachelayer.arrayrecord.mapping import MappedFile, Places, UniformRecords
from cachelayer.arrayrecord.writer import ShardStats
from cachelayer.codec.frames import RecordBuffer, Records
from cachelayer.codec.memory import Ints
from cachelayer.errors import CorruptionError

Verify = Literal["never", "open", "always"]
_ROW = struct.Struct("<QII")
# Longer records are no part of the sample: checking them would take as long as reading them.
_SAMPLED_NBYTES = 1 << 20
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
        stats: what the manifest says of them.
        verify: ``"never"`` compares sizes, and the header of the index with the manifest; ``"open"`` also looks at the
            end of the shard and at a few records now; ``"always"`` also at the rows of the index now, and at each
            record when it is read.

    Raises:
        CorruptionError: where a file is missing or is not what was written.
    """

    def __init__(self, path: Path, index_path: Path, stats: ShardStats, verify: Verify) -> None:
        self._mapped = MappedFile.open(path, nbytes=stats.nbytes)
        mapped_index = MappedFile.open(index_path, nbytes=stats.index_nbytes).buffer
        raw_header = mapped_index[: index.HEADER_NBYTES].tobytes()
        self.header = index.decode_header(raw_header, len(mapped_index), str(index_path))
        if index.header_checksum(raw_header) != stats.index_crc32c or self.header.records != stats.records:
            raise CorruptionError(f"{index_path}: not the index that was published: it was replaced")
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
        self._plain = self.header.compression == "none" and not self._always
        if self._always:
            self._check_rows(raw_header)
        if verify != "never":
            read_postscript(self._mapped)
            self._check_sample()

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

    def _check_sample(self) -> None:
        """Whether a few records are those of the index, so that another file of the same size is found out."""
        numbers = np.unique(np.array([0, len(self) // 2, len(self) - 1])) if len(self) else np.empty(0, np.int64)
        numbers = numbers[self._rows["length"][numbers] <= _SAMPLED_NBYTES]
        if len(numbers):
            self._check(self._found(numbers), numbers)

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

    def are_resident(self, numbers: Ints) -> bool:
        """Whether records are in the page cache, as far as the system tells."""
        logical, _ = self._ranges(numbers)
        return self._mapped.are_resident(to_position(logical))

    def will_need(self, numbers: Ints) -> None:
        """Have the system fetch records that are read soon; returns before they are there."""
        logical, lengths = self._ranges(numbers)
        begin = to_position(logical)
        self._mapped.will_need(begin, to_position(logical + np.maximum(lengths, 1) - 1) + 1)

    def _ranges(self, numbers: Ints) -> tuple[Ints, Ints]:
        if self._stride is None:
            return self.where(numbers)
        return self._first + numbers * self._stride, np.full(len(numbers), self._length)

    def where(self, numbers: Ints) -> tuple[Ints, Ints]:
        """The logical offset of each record, and its stored bytes."""
        rows = self._rows[numbers]
        return to_logical(rows["position"].astype(np.int64)), rows["length"].astype(np.int64)

    def checksums(self, start: int, stop: int) -> NDArray[np.uint32]:
        """The CRC32C of each record from one number up to another, as the index has it."""
        found: NDArray[np.uint32] = self._rows["crc32c"][start:stop]
        return found

    def records(self, numbers: Ints) -> Records:
        """The records of these numbers, each within the shard.

        Raises:
            CorruptionError: where a record is not what was written, as far as that is checked.
        """
        found = self._found(numbers)
        if self._always:
            return self._check(found, numbers)
        return found

    def _found(self, numbers: Ints) -> RecordBuffer | UniformRecords:
        if self._stride is not None:
            logical = self._first + numbers * self._stride
            return UniformRecords.at(self._mapped, self._mapped.base, logical, self._length)
        logical, lengths = self.where(numbers)
        return read_places(
            self._mapped.places(logical),
            lengths,
            self.header.compression,
            lambda row: f"{self._mapped.path}: record {numbers[row]} of the shard",
        )

    def _check(self, found: RecordBuffer | UniformRecords, numbers: Ints) -> RecordBuffer:
        """The records, which match their checksums."""
        records = found.stored() if isinstance(found, UniformRecords) else found
        checksums = self._rows[numbers]["crc32c"]
        memory = records.memory()
        spans = zip(records.starts.tolist(), records.lengths.tolist(), checksums.tolist(), strict=True)
        for row, (start, length, checksum) in enumerate(spans):
            if google_crc32c.value(bytes(memory[start : start + length])) != checksum:
                raise CorruptionError(
                    f"{self._mapped.path}: record {int(numbers[row])} of the shard does not match its checksum"
                )
        return records
