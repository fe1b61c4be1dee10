"""Read one shard: a mapped file and its mapped index."""

from __future__ import annotations

import struct
from copy import copy
from pathlib import Path
from typing import Any, Literal

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord import index
from cachelayer.arrayrecord.blocks import BLOCK, HEADER, PAYLOAD, SIGNATURE, to_logical, to_position
from cachelayer.arrayrecord.checksums import checked, whole
from cachelayer.arrayrecord.footer import read_postscript
from cachelayer.arrayrecord.mapping import MappedFile
from cachelayer.arrayrecord.writer import ShardStats
from cachelayer.errors import CorruptionError
from cachelayer.records.memory import Ints, distinct
from cachelayer.records.record_buffers import RecordBuffer, Records

Verify = Literal["never", "open", "always"]
_ROW = struct.Struct("<QII")
# Longer records are left out of the sample, because checking them takes too long.
_SAMPLED_NBYTES = 1 << 20
VERIFY: tuple[Verify, ...] = ("never", "open", "always")


class ShardReader:
    """Random access to the records of one shard. Safe to use from threads, and after a fork.

    Args:
        path, index_path: the shard and its index.
        stats: the facts about them in the manifest.
        verify: ``"never"`` checks the sizes, and the header of the index; ``"open"`` also checks the end of the shard
            and a few records now; ``"always"`` also checks the rows of the index now, and each record when it is read.
        since: when the read that needs the shard began; see :meth:`MappedFile.open`.

    Raises:
        CorruptionError: if a file is missing or is not what was written.
    """

    def __init__(
        self, path: Path, index_path: Path, stats: ShardStats, verify: Verify, since: int | None = None
    ) -> None:
        self._mapped = MappedFile.open(path, nbytes=stats.nbytes, since=since)
        self._index = MappedFile.unmapped(index_path, nbytes=stats.index_nbytes)
        self._announce_checks(stats.records, verify)
        raw_header = self._index.rows(np.zeros(1, np.int64), min(index.HEADER_NBYTES, self._index.nbytes)).tobytes()
        self.header = index.decode_published(
            raw_header, self._index.nbytes, stats.index_crc32c, stats.records, str(index_path)
        )
        self._length = self.header.record_nbytes or 0
        self._stride: int | None = None
        self._first = 0
        if self.header.record_nbytes is not None and len(self):
            self._stride, self._first = self._arithmetic(path)
            if verify != "never":
                self.will_need(_sampled(len(self)))
        self._always = verify == "always"
        self._plain = self.header.compression == "none" and not self._always
        if self._needs_index:
            self._index = self._index.mapped(since)
        if self._always:
            self._check_rows(raw_header)
        if verify != "never":
            read_postscript(self._mapped)
            self._check_sample()

    def __len__(self) -> int:
        return self.header.records

    @property
    def _needs_index(self) -> bool:
        """True if each read needs rows of the index."""
        return self._stride is None or self._always

    @property
    def is_mapped(self) -> bool:
        """True if reading needs no system call."""
        return self._mapped.slot is not None and (self._index.slot is not None or not self._needs_index)

    def remapped(self, since: int) -> ShardReader:
        """Return a reader of these files that has them mapped, if the system allows that.

        Raises:
            CorruptionError: if the files were replaced.
        """
        return self._with(self._mapped.mapped(since), self._index.mapped(since) if self._needs_index else self._index)

    def without_mapping(self) -> ShardReader:
        """Return a reader of these files that keeps nothing mapped and reads by system calls."""
        return self._with(self._mapped.without_mapping(), self._index.without_mapping())

    def _with(self, mapped: MappedFile, mapped_index: MappedFile) -> ShardReader:
        other = copy(self)
        other._mapped, other._index = mapped, mapped_index
        return other

    def _arithmetic(self, path: Path) -> tuple[int, int]:
        """Return the logical bytes from one record to the next, all of one size, and the logical offset of the first.

        Raises:
            CorruptionError: if the first or the last record does not lie in the file.
        """
        stride, nbytes = self.header.stride(), self._mapped.nbytes
        first = int(to_logical(min(self.header.first_position, nbytes)))
        if first < SIGNATURE:
            raise CorruptionError(f"{path}: its index says that records begin in the signature of the file")
        last = first + (len(self) - 1) * stride + max(0, self._length - 1)
        if to_position(last) >= nbytes:
            raise CorruptionError(f"{path}: too short for {len(self)} records of {self._length} bytes")
        return stride, first

    def _check_rows(self, raw_header: bytes) -> None:
        """Raise unless the rows of the index match the checksum in its header."""
        if google_crc32c.value(self._index.tail(index.HEADER_NBYTES).tobytes()) != index.rows_checksum(raw_header):
            raise CorruptionError(f"{self._mapped.path}: the rows of its index do not match their checksum")

    def _announce_checks(self, records: int, verify: Verify) -> None:
        """Have the system fetch at once what the checks read one after another, if it is not in memory."""
        if verify == "never":
            return
        rows = index.HEADER_NBYTES + _sampled(records) * index.ROW.itemsize
        starts = np.concatenate([np.zeros(1, np.int64), rows])
        self._index.will_need(starts, starts + index.HEADER_NBYTES)
        postscript = np.array([max(0, self._mapped.nbytes - BLOCK)])
        self._mapped.will_need(postscript, postscript + 1)

    def _check_sample(self) -> None:
        """Check a few records against the index, so that another file of the same size is detected."""
        numbers = _sampled(len(self))
        numbers = numbers[self._rows(numbers)["length"] <= _SAMPLED_NBYTES]
        if len(numbers):
            self._check(self._read(numbers), numbers)

    def record(self, number: int) -> bytearray:
        """Return a copy of one record.

        Raises:
            CorruptionError: if it is not what was written, and ``verify`` detects that.
        """
        mapped = self._mapped.slot
        if not self._plain or mapped is None or not 0 <= number < self.header.records:
            return bytearray(whole(self.records(np.array([number]))).memory())
        memory = mapped.space.view
        if self._stride is not None:
            logical, length = self._first + number * self._stride, self._length
        elif (rows := self._index.slot) is not None:
            position, length, _ = _ROW.unpack_from(memory, rows.start + index.HEADER_NBYTES + number * _ROW.size)
            logical = position - (position // BLOCK + 1) * HEADER
            if logical < 0 or logical + length + HEADER * ((logical + length) // PAYLOAD + 1) > self._mapped.nbytes:
                raise CorruptionError(f"{self._name(number)} reaches past the end of the file")
        else:
            return bytearray(whole(self.records(np.array([number]))).memory())
        block, place = divmod(logical, PAYLOAD)
        start = mapped.start + block * BLOCK + HEADER + place
        room = PAYLOAD - place
        if length <= room:
            return bytearray(memory[start : start + length])
        pieces = [memory[start : start + room]]
        left = length - room
        while left:
            start += room + HEADER
            room = min(PAYLOAD, left)
            pieces.append(memory[start : start + room])
            left -= room
        return bytearray().join(pieces)

    @property
    def mapped(self) -> MappedFile:
        """The file of the shard."""
        return self._mapped

    @property
    def mapped_index(self) -> MappedFile:
        """The file of its index."""
        return self._index

    @property
    def stride(self) -> tuple[int, int] | None:
        """The logical offset of record 0 and the logical bytes from one record to the next; None if sizes differ."""
        return None if self._stride is None else (self._first, self._stride)

    @property
    def is_checked(self) -> bool:
        """True if each record is compared with its checksum."""
        return self._always

    def are_resident(self, numbers: Ints) -> bool | None:
        """Return whether records are in the page cache; None if the system does not tell."""
        logical, _ = self._ranges(numbers)
        return self._mapped.are_resident(to_position(logical))

    def will_need(self, numbers: Ints) -> None:
        """Ask the system to fetch records that will be read soon, and do not wait for them."""
        logical, lengths = self._ranges(numbers)
        begin = to_position(logical)
        self._mapped.will_need(begin, to_position(logical + np.maximum(lengths, 1) - 1) + 1)

    def _ranges(self, numbers: Ints) -> tuple[Ints, Ints]:
        if self._stride is None:
            return self.where(numbers)
        return self._first + numbers * self._stride, np.full(len(numbers), self._length)

    def _rows(self, numbers: Ints) -> Any:
        """Return the index rows of these records."""
        wrong = (numbers < 0) | (numbers >= len(self))
        if wrong.any():
            raise CorruptionError(f"{self._name(numbers[wrong][0])} does not exist: the shard has {len(self)} records")
        mapped = self._index.slot
        if mapped is not None:
            return index.mapped_rows(mapped.space.memory, mapped.start, numbers)
        places = index.HEADER_NBYTES + numbers * index.ROW.itemsize
        return self._index.rows(places, index.ROW.itemsize).view(index.ROW)[:, 0]

    def where(self, numbers: Ints) -> tuple[Ints, Ints]:
        """Return the logical offset of each record, and the number of its stored bytes."""
        rows = self._rows(numbers)
        return to_logical(rows["position"].astype(np.int64)), rows["length"].astype(np.int64)

    def checksums(self, start: int, stop: int) -> NDArray[np.uint32]:
        """Return the CRC32C of each record from ``start`` to before ``stop``, from the index."""
        checksums: NDArray[np.uint32] = self._rows(np.arange(start, stop))["crc32c"]
        return checksums

    def records(self, numbers: Ints) -> Records:
        """Return the records of these numbers, each within the shard.

        Raises:
            CorruptionError: if a record is not what was written, and ``verify`` detects that.
        """
        records = self._read(numbers)
        return self._check(records, numbers) if self._always else records

    def parts(self, numbers: Ints) -> Records:
        """Return the records of :meth:`records`; if that is possible, read only those of their bytes that are used.

        Raises:
            CorruptionError: as :meth:`records` does.
        """
        return self.records(numbers) if self._always else self._read(numbers, in_part=True)

    def _read(self, numbers: Ints, *, in_part: bool = False) -> Records:
        def name(row: int) -> str:
            return self._name(int(numbers[row]))

        if self._stride is not None:
            return self._mapped.uniform(self._first + numbers * self._stride, self._length, name)
        read = self._mapped.parts if in_part else self._mapped.records
        return read(*self.where(numbers), self.header.compression, name)

    def _name(self, number: int) -> str:
        return f"{self._mapped.path}: record {number} of the shard"

    def _check(self, unchecked: Records, numbers: Ints) -> RecordBuffer:
        """Return the records; raise unless they match their checksums."""
        return checked(unchecked, self._rows(numbers)["crc32c"], lambda row: self._name(int(numbers[row])))


def _sampled(records: int) -> Ints:
    """Return the numbers of the records that are checked when a shard is opened."""
    return distinct(np.array([0, records // 2, records - 1])) if records else np.empty(0, np.int64)
