"""Read the records of any ArrayRecord file: its footer is enough, no index or manifest is needed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cachelayer.arrayrecord import varints
from cachelayer.arrayrecord.blocks import to_logical
from cachelayer.arrayrecord.footer import CHUNK_HEADER, ByteFile, Footer, read_footer, read_postscript, simple_chunk
from cachelayer.arrayrecord.mapping import MappedFile
from cachelayer.arrayrecord.reader import Verify
from cachelayer.errors import CorruptionError, FormatError, StorageError
from cachelayer.locks import cached_property
from cachelayer.records.memory import Bytes, Ints, splits_of

# The chunk header, and enough of the chunk for its compression, the size of one record and the varints before it.
_HEAD = CHUNK_HEADER + 64
_SAMPLED_HEADERS = 256
_SIMPLE = ord("r")
_ONE_RECORD = {0: "none", ord("z"): "zstd"}


class RecordFile(Protocol):
    """The records of a file, by number. Safe to use from threads."""

    def __len__(self) -> int: ...

    def read(self, numbers: Ints) -> list[bytes]:
        """Return the records of these numbers, all within the file."""


def open_file(path: Path, verify: Verify) -> RecordFile:
    """Open a file with our own reader, or with array_record's if ours cannot read it.

    Our reader cannot read a footer that is transposed, or compressed by brotli or snappy. ``verify="always"`` needs
    array_record's reader too: the checksums of a foreign file are HighwayHashes, which only it can check quickly.

    Raises:
        StorageError: if the file cannot be opened.
        CorruptionError: if it is not a whole ArrayRecord file.
    """
    mapped = map_file(path)
    if verify == "always":
        return StockFile(path)
    try:
        return ArrayRecordFile(mapped, read_footer(mapped))
    except FormatError:
        return StockFile(path)


def map_file(path: Path) -> MappedFile:
    """Map a file.

    Raises:
        StorageError: if it cannot be opened.
    """
    try:
        return MappedFile.open(path)
    except OSError as error:
        raise StorageError(f"cannot open {path}: {error}") from error


def fingerprint(file: ByteFile) -> str:
    """Return a hash of the size, the footer and up to 256 chunk headers, which hold hashes of their chunks."""
    state = hashlib.sha256(file.nbytes.to_bytes(8, "little"))
    footer_offset = read_postscript(file)
    state.update(memoryview(file.tail(footer_offset).data))
    try:
        offsets = read_footer(file).chunk_offsets
    except FormatError:
        # We cannot read its compression. The header of the footer chunk, which is hashed, holds a hash of the offsets.
        return state.hexdigest()
    sampled = offsets[np.linspace(0, len(offsets) - 1, min(len(offsets), _SAMPLED_HEADERS)).astype(np.int64)]
    state.update(file.slab(to_logical(sampled), CHUNK_HEADER).tobytes())
    return state.hexdigest()


class StockFile:
    """A file that is read by array_record's own reader, which checks every chunk."""

    def __init__(self, path: Path) -> None:
        from array_record.python.array_record_module import ArrayRecordReader

        self._path = path
        self._reader: Any = ArrayRecordReader(str(path), options="readahead_buffer_size:0")
        if not self._reader.ok():
            raise CorruptionError(f"{path}: not a whole ArrayRecord file")

    def __len__(self) -> int:
        return int(self._reader.num_records())

    def read(self, numbers: Ints) -> list[bytes]:
        try:
            # read([i]) visits all chunks of the file; read(i, i + 1) does not.
            return [self._reader.read(number, number + 1)[0] for number in numbers.tolist()]
        except RuntimeError as error:
            raise CorruptionError(f"{self._path}: {error}") from error


class ArrayRecordFile:
    """A file that our own reader reads.

    Args:
        mapped: the file.
        footer: its footer.
    """

    def __init__(self, mapped: MappedFile, footer: Footer) -> None:
        self._mapped = mapped
        self._chunks = to_logical(footer.chunk_offsets)
        self._splits = splits_of(footer.chunk_records)
        self._singles = len(footer.chunk_records) == int(self._splits[-1]) and bool((footer.chunk_records == 1).all())

    def __len__(self) -> int:
        return int(self._splits[-1])

    @cached_property
    def _stock(self) -> StockFile:
        return StockFile(self._mapped.path)

    def read(self, numbers: Ints) -> list[bytes]:
        chunks = numbers if self._singles else np.searchsorted(self._splits, numbers, side="right") - 1
        heads = self._mapped.slab(self._chunks[chunks], _HEAD)
        single = heads[:, 25:32].copy()
        simple = heads[:, 24] == _SIMPLE
        alone = simple & (single[:, 0] == 1) & ~single[:, 1:].any(axis=1)
        out: list[bytes] = [b""] * len(numbers)
        rest = np.ones(len(numbers), np.bool_)
        for code, name in _ONE_RECORD.items():
            rows = np.flatnonzero(alone & (heads[:, CHUNK_HEADER] == code))
            rest[rows] = False
            if len(rows):
                values = self._values(heads[rows], self._chunks[chunks[rows]], numbers[rows], name)
                for row, value in zip(rows.tolist(), values, strict=True):
                    out[row] = value
        decoded: dict[int, Sequence[bytes]] = {}
        for row in np.flatnonzero(rest).tolist():
            chunk = int(chunks[row])
            if chunk not in decoded:
                decoded[chunk] = self._chunk(chunk)
            out[row] = decoded[chunk][int(numbers[row] - self._splits[chunk])]
        return out

    def _values(self, heads: Bytes, chunks: Ints, numbers: Ints, compression: str) -> list[bytes]:
        """Return the records of chunks that hold one record each."""
        sizes_nbytes, sizes = varints.decode_rows(heads, CHUNK_HEADER + 1)
        data_nbytes = heads[:, 8:16].copy().view("<i8")[:, 0]
        begin = sizes + sizes_nbytes
        lengths = data_nbytes - (begin - CHUNK_HEADER)
        if (lengths < 0).any() or (begin > _HEAD - 10).any():
            raise CorruptionError(f"{self._mapped.path}: a chunk is damaged")
        name = f"{self._mapped.path}: record"
        records = self._mapped.records(chunks + begin, lengths, compression, lambda row: f"{name} {numbers[row]}")
        return records.to_list()

    def _chunk(self, chunk: int) -> Sequence[bytes]:
        """Return all records of a chunk."""
        first, last = int(self._splits[chunk]), int(self._splits[chunk + 1])
        try:
            values, sizes = simple_chunk(self._mapped, int(self._chunks[chunk]))
        except FormatError:
            return self._stock.read(np.arange(first, last))
        splits = splits_of(sizes).tolist()
        if len(sizes) != last - first or splits[-1] != len(values):
            raise CorruptionError(f"{self._mapped.path}: chunk {chunk} does not hold {last - first} records")
        raw = values.tobytes()
        return [raw[start:stop] for start, stop in pairwise(splits)]
