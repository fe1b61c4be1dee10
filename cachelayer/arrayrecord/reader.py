"""Reading one shard: a mapped file and its mapped index."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import google_crc32c
import numpy as np

from cachelayer.arrayrecord import index, varints
from cachelayer.arrayrecord.blocks import BLOCK, HEADER, PAYLOAD, to_logical
from cachelayer.arrayrecord.footer import read_postscript
from cachelayer.arrayrecord.mapping import MappedFile, Places
from cachelayer.codec.frames import RecordBuffer, Records
from cachelayer.codec.memory import Bytes, Ints, splits_of
from cachelayer.errors import CorruptionError

Verify = Literal["never", "open", "always"]
_ROW = struct.Struct("<QII")
VERIFY: tuple[Verify, ...] = ("never", "open", "always")


@dataclass(frozen=True, eq=False)
class UniformRecords:
    """Records of one size, read part by part straight from their files.

    Args:
        places: where the records begin.
        nbytes: bytes of each.
    """

    places: Places
    nbytes: int

    @property
    def lengths(self) -> Ints:
        return np.full(len(self.places.logical), self.nbytes)

    @property
    def uniform_nbytes(self) -> int:
        return self.nbytes

    def slab(self, offset: int, nbytes: int) -> Bytes:
        return self.places.slab(offset, nbytes)

    def ranges(self, starts: Ints, lengths: Ints) -> Bytes:
        return self.places.ranges(starts, lengths)

    def stored(self) -> RecordBuffer:
        """The whole records, copied."""
        lengths = self.lengths
        return RecordBuffer(self.places.ranges(0, lengths), splits_of(lengths)[:-1], lengths)


def records_at(places: Places, lengths: Ints | int) -> UniformRecords | RecordBuffer:
    """The records at these places, of these lengths or all of one."""
    if isinstance(lengths, int):
        return UniformRecords(places, lengths)
    return RecordBuffer(places.ranges(0, lengths), splits_of(lengths)[:-1], lengths)


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
        self._always = verify == "always"
        if verify != "never":
            read_postscript(self._mapped)
        if self._always:
            self.check_index(raw_header)

    def __len__(self) -> int:
        return self.header.records

    def check_index(self, raw_header: bytes | None = None) -> None:
        """Check the rows of the index against their checksum.

        Raises:
            CorruptionError: where they differ.
        """
        # The rows are a view of the mapped file, after its header.
        if raw_header is None:
            raw_header = self._rows.base[: index.HEADER_NBYTES].tobytes()
        if google_crc32c.value(self._rows.tobytes()) != index.rows_checksum(raw_header):
            raise CorruptionError(f"{self._mapped.path}: the rows of its index do not match their checksum")

    def record(self, number: int) -> bytearray:
        """One record, the caller's own.

        Raises:
            CorruptionError: where it is not what was written, as far as that is checked.
        """
        if self._always or self.header.compression != "none":
            found = self.records(np.array([number]))
            return bytearray(found.ranges(np.zeros(1, np.int64), found.lengths).data)
        if self._stride is not None:
            logical, length = self._first + number * self._stride, self._length
        else:
            position, length, _ = _ROW.unpack_from(self._index, index.HEADER_NBYTES + number * _ROW.size)
            logical = position - (position // BLOCK + 1) * HEADER
        block, place = divmod(logical, PAYLOAD)
        if place + length <= PAYLOAD:
            start = block * BLOCK + HEADER + place
            return bytearray(self._memory[start : start + length])
        return bytearray(self._mapped.range(logical, length).data)

    @property
    def mapped(self) -> MappedFile:
        """The shard in memory."""
        return self._mapped

    @property
    def is_plain(self) -> bool:
        """Whether records are read as they lie in the file, neither compressed nor checked one by one."""
        return self.header.compression == "none" and not self._always

    def where(self, numbers: Ints) -> tuple[Ints, Ints | int]:
        """The logical offset of each record, and its stored bytes; one number where all have the same."""
        if self._stride is not None:
            return self._first + numbers * self._stride, self._length
        rows = self._rows[numbers]
        return to_logical(rows["position"].astype(np.int64)), rows["length"].astype(np.int64)

    def records(self, numbers: Ints) -> Records:
        """The records of these numbers, each within the shard.

        Raises:
            CorruptionError: where a record is not what was written, as far as that is checked.
        """
        logical, lengths = self.where(numbers)
        found = records_at(self._mapped.places(logical), lengths)
        if self.is_plain:
            return found
        stored = found.stored() if isinstance(found, UniformRecords) else found
        records = self._decompress(stored, numbers) if self.header.compression == "zstd" else stored
        if self._always:
            self._check(records, self._rows[numbers]["crc32c"], numbers)
        return records

    def _decompress(self, stored: RecordBuffer, numbers: Ints) -> RecordBuffer:
        import zstandard

        decompressor = zstandard.ZstdDecompressor()
        memory = stored.memory()
        out: list[bytes] = []
        ends = stored.starts + stored.lengths
        for number, start, end in zip(numbers.tolist(), stored.starts.tolist(), ends.tolist(), strict=True):
            try:
                nbytes, frame = varints.decode_at(stored.buffer, start)
                out.append(decompressor.decompress(memory[frame:end], max_output_size=nbytes) if nbytes else b"")
            except (zstandard.ZstdError, CorruptionError) as error:
                raise CorruptionError(f"{self._mapped.path}: record {number} does not decompress: {error}") from error
            if len(out[-1]) != nbytes:
                raise CorruptionError(f"{self._mapped.path}: record {number} has {len(out[-1])} bytes, not {nbytes}")
        return RecordBuffer.of(out)

    def _check(self, records: RecordBuffer, checksums: Ints, numbers: Ints) -> None:
        memory = records.memory()
        spans = zip(records.starts.tolist(), records.lengths.tolist(), checksums.tolist(), strict=True)
        for row, (start, length, checksum) in enumerate(spans):
            if google_crc32c.value(bytes(memory[start : start + length])) != checksum:
                raise CorruptionError(
                    f"{self._mapped.path}: record {int(numbers[row])} of the shard does not match its checksum"
                )
