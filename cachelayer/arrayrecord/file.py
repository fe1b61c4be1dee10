"""Read the records of any ArrayRecord file, mapped or in an object store. The footer of the file is enough: no index.

::

    footer    chunk 0: position, 3 records    chunk 1: position, 1 record    ...
    read      record 3 is the first record of chunk 1, which is read and parsed

Files that this library writes have one record in each chunk; files of others may have many, and compressions that only
array_record's own reader knows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cachelayer.arrayrecord import varints
from cachelayer.arrayrecord.compression import decompress
from cachelayer.arrayrecord.index import BLOCK, check_inside, to_logical
from cachelayer.arrayrecord.mapping import MappedFile
from cachelayer.arrayrecord.ranged import Range, ReadRanges, fetch_ranges
from cachelayer.arrayrecord.riegeli import CHUNK_HEADER, ByteFile, Footer, parse_chunk, read_footer, read_postscript
from cachelayer.errors import CorruptionError, FormatError, StorageError
from cachelayer.records.spans import Records, Spans
from cachelayer.support.memory import Bytes, Ints, distinct, splits_of

_SAMPLED_HEADERS = 256
_TAIL_NBYTES = 4 * BLOCK
_PLAIN = 0
_ZSTD = ord("z")
# Callers read consecutive records: array_record's readahead would read most of them twice.
_STOCK_OPTIONS = "readahead_buffer_size:0,max_parallelism:1"


class RecordFile(Protocol):
    """The records of a file, by number. Thread-safe."""

    def __len__(self) -> int: ...

    def read(self, numbers: Ints) -> list[bytes]:
        """Return the records of these numbers, all in [0, len)."""


def map_file(path: Path) -> MappedFile:
    try:
        return MappedFile.open(path)
    except OSError as error:
        raise StorageError(f"cannot open {path}: {error}") from error


def open_file(path: Path, *, checks: bool) -> RecordFile:
    """Open a local file with our own reader, or with array_record's reader if ours cannot read it.

    Our reader knows no footer that is transposed, or compressed by brotli or snappy. Nor does it know HighwayHash, the
    checksum of chunks.

    With ``checks``, the checksum of each chunk that is read is compared.
    """
    mapped = map_file(path)
    if checks:
        return StockReader(path)
    try:
        return ArrayRecordFile(mapped, read_footer(mapped), path)
    except FormatError:
        return StockReader(path)


def fingerprint(file: ByteFile) -> str:
    """Return a hash of the size, the footer and up to 256 chunk headers, which hold hashes of their chunks."""
    state = hashlib.sha256(file.nbytes.to_bytes(8, "little"))
    footer = int(to_logical(read_postscript(file)))
    state.update(file.records(np.array([footer]), np.array([to_logical(file.nbytes) - footer])).packed_copy().memory())
    try:
        offsets = read_footer(file).chunk_offsets
    except FormatError:
        # The compression of the footer is unknown here. Its header, which is hashed, holds a hash of the offsets.
        return state.hexdigest()
    sampled = offsets[np.linspace(0, len(offsets) - 1, min(len(offsets), _SAMPLED_HEADERS)).astype(np.int64)]
    state.update(file.records(to_logical(sampled), np.full(len(sampled), CHUNK_HEADER)).packed_copy().memory())
    return state.hexdigest()


class StockReader:
    """A local file that is read by array_record's own reader, which checks every chunk."""

    def __init__(self, path: Path) -> None:
        from array_record.python.array_record_module import ArrayRecordReader

        self._path = path
        try:
            self._reader: Any = ArrayRecordReader(str(path), _STOCK_OPTIONS)
            self._records = int(self._reader.num_records())
            is_whole = self._reader.ok()
        except (RuntimeError, ValueError) as error:
            raise CorruptionError(f"{path}: array_record cannot open it: {error}") from error
        if not is_whole:
            raise CorruptionError(f"{path}: not a whole ArrayRecord file")

    def __len__(self) -> int:
        return self._records

    def read(self, numbers: Ints) -> list[bytes]:
        # Of a list of numbers, array_record's reader visits all chunks of the file; of a range it does not.
        return [self.read_range(number, number + 1)[0] for number in numbers.tolist()]

    def read_range(self, start: int, stop: int) -> list[bytes]:
        """Return the records from ``start`` to before ``stop``, all in [0, len)."""
        try:
            return list(self._reader.read(start, stop))
        except (RuntimeError, ValueError, IndexError) as error:
            raise CorruptionError(
                f"{self._path}: array_record cannot read records {start} to {stop - 1}: {error}"
            ) from error


class RangedFile:
    """A file in an object store, read by ranges. Its end is kept in memory, because the footer is there."""

    def __init__(self, path: str, name: str, nbytes: int, read_ranges: ReadRanges) -> None:
        self.path = path
        self.nbytes = nbytes
        self._name = name
        self._read_ranges = read_ranges
        self._begin = nbytes
        self._end = b""
        self._keep(max(0, nbytes - _TAIL_NBYTES))
        self._keep(min(self._begin, read_postscript(self)))

    def _keep(self, begin: int) -> None:
        """Make sure that all bytes from a position to the end are in memory."""
        if begin < self._begin:
            (raw,) = self._read_ranges([(self._name, begin, self._begin)])
            self._begin = begin
            self._end = bytes(raw) + self._end

    def records(self, logical: Ints, lengths: Ints) -> Records:
        """Return ranges as records. Ranges that are not in memory are fetched, all at once."""
        check_inside(logical, lengths, int(to_logical(self.nbytes)), lambda _: f"{self.path}: a record")
        return fetch_ranges(self._read, [self._name], np.zeros_like(logical), logical, lengths, str)

    def _read(self, ranges: Sequence[Range]) -> list[bytes | memoryview]:
        remote = [wanted for wanted in ranges if wanted[1] < self._begin]
        fetched = iter(self._read_ranges(remote) if remote else [])
        return [
            next(fetched) if begin < self._begin else self._end[begin - self._begin : end - self._begin]
            for _, begin, end in ranges
        ]


class ArrayRecordFile:
    """The records of a file. Thread-safe.

    The structure of the file is checked, but not its bytes: the checksums of chunks are HighwayHashes.

    ``stock`` is the path at which array_record's reader reads chunks that ours cannot; None refuses such chunks.
    """

    def __init__(self, file: ByteFile, footer: Footer, stock: Path | None = None) -> None:
        self._file = file
        self._stock = stock
        self._bounds = to_logical(np.append(footer.chunk_offsets, footer.footer_offset))
        self._splits = splits_of(footer.chunk_records)

    def __len__(self) -> int:
        return int(self._splits[-1])

    def read(self, numbers: Ints) -> list[bytes]:
        chunk_of = self._splits[1:].searchsorted(numbers, side="right")
        chunks = distinct(chunk_of)
        records_of_chunks = self._read_chunks(chunks) if len(chunks) else []
        places = zip(chunks.searchsorted(chunk_of).tolist(), (numbers - self._splits[chunk_of]).tolist(), strict=True)
        return [records_of_chunks[chunk][place] for chunk, place in places]

    def _read_chunks(self, chunks: Ints) -> list[Sequence[bytes]]:
        """Return the records of chunks: those of one record, plain or of zstd, at once; all others one by one."""
        stored = self._file.records(self._bounds[chunks], self._bounds[chunks + 1] - self._bounds[chunks]).packed()
        if (stored.lengths <= CHUNK_HEADER).any():
            raise CorruptionError(f"{self._file.path}: a chunk is too short")
        heads = stored.take(0, CHUNK_HEADER + 1)
        nbytes = heads[:, 8:16].copy().view("<i8")[:, 0]
        if ((nbytes < 0) | (nbytes > stored.lengths - CHUNK_HEADER)).any():
            raise CorruptionError(f"{self._file.path}: a chunk reaches into the next")
        data = Spans.in_buffer(stored.buffer, stored.starts + CHUNK_HEADER, nbytes)
        is_single = (heads[:, 24] == ord("r")) & (heads[:, 25] == 1) & ~heads[:, 26:32].any(axis=1) & (nbytes > 0)
        is_single &= self._splits[chunks + 1] - self._splits[chunks] == 1
        codes = np.where(is_single, heads[:, CHUNK_HEADER].astype(np.int64), -1)
        records: list[Sequence[bytes]] = [()] * len(chunks)
        for code in (_PLAIN, _ZSTD):
            rows = np.flatnonzero(codes == code)
            for row, record in zip(rows.tolist(), self._single_records(data[rows], chunks[rows], code), strict=True):
                records[row] = (record,)
        for row in np.flatnonzero((codes != _PLAIN) & (codes != _ZSTD)).tolist():
            records[row] = self._parsed_records(int(chunks[row]), heads[row], data, row)
        return records

    def _single_records(self, data: Spans, chunks: Ints, compression: int) -> list[bytes]:
        """Return the records of chunks that hold one record each, from the data of the chunks."""
        if len(data) == 0:
            return []
        ends = data.starts + data.lengths
        sizes_nbytes, after = varints.decode_each(data.buffer, data.starts + 1, ends)
        begins = after + sizes_nbytes
        if ((sizes_nbytes < 0) | (sizes_nbytes > ends - after)).any():
            raise CorruptionError(f"{self._file.path}: a chunk is damaged")
        values = Spans.in_buffer(data.buffer, begins, ends - begins)
        if compression == _ZSTD:
            numbers = self._splits[chunks]
            values = decompress(replace(values, name=lambda row: f"{self._file.path}: record {numbers[row]}")).packed()
        return values.to_list()

    def _parsed_records(self, chunk: int, header: Bytes, data: Spans, row: int) -> Sequence[bytes]:
        """Return the records of a chunk of any kind, from its header and its data."""
        first = int(self._splits[chunk])
        last = int(self._splits[chunk + 1])
        begin = data.starts.item(row)
        end = begin + data.lengths.item(row)
        try:
            values, sizes = parse_chunk(header, data.buffer[begin:end], f"{self._file.path}: chunk {chunk}")
        except FormatError:
            if self._stock is None:
                raise
            return StockReader(self._stock).read_range(first, last)
        splits = splits_of(sizes).tolist()
        if len(sizes) != last - first or splits[-1] != len(values):
            raise CorruptionError(f"{self._file.path}: chunk {chunk} does not hold {last - first} records")
        raw = values.tobytes()
        return [raw[start:stop] for start, stop in pairwise(splits)]
