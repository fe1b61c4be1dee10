"""Read any ArrayRecord file in an object store: fetch its footer once, then the range of each chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cachelayer.arrayrecord.blocks import BLOCK, pieces, to_logical, to_position
from cachelayer.arrayrecord.footer import read_footer, read_postscript, simple_chunk
from cachelayer.errors import CorruptionError
from cachelayer.records.memory import Bytes, Ints, distinct, move_ranges, splits_of

Range = tuple[str, int, int]
ReadRanges = Callable[[Sequence[Range]], Sequence[bytes]]

_TAIL_NBYTES = 4 * BLOCK


@dataclass(eq=False)
class RangedFile:
    """A file in an object store, read by ranges. Its end is kept in memory.

    Args:
        path: the name of the file in error messages.
        name: the object.
        nbytes: its size.
        read_ranges: reads ranges of objects.
    """

    path: str
    name: str
    nbytes: int
    read_ranges: ReadRanges

    def __post_init__(self) -> None:
        self._begin = self.nbytes
        self._end = np.empty(0, np.uint8)
        self._keep(max(0, self.nbytes - _TAIL_NBYTES))
        self._keep(min(self._begin, read_postscript(self)))

    def _keep(self, begin: int) -> None:
        """Make sure that all bytes from a position to the end are in memory."""
        if begin < self._begin:
            raw = self.read_ranges([(self.name, begin, self._begin)])[0]
            self._end = np.concatenate([np.frombuffer(raw, np.uint8), self._end])
            self._begin = begin

    def range(self, logical: int, length: int) -> Bytes:
        return self.ranges(np.array([logical]), np.array([length]))[0]

    def slab(self, logical: Ints, nbytes: int) -> Bytes:
        return np.stack(self.ranges(logical, np.full(len(logical), nbytes)))

    def tail(self, position: int) -> Bytes:
        self._keep(position)
        return self._end[position - self._begin :]

    def ranges(self, logical: Ints, lengths: Ints) -> list[Bytes]:
        """Return copies of ranges; fetch those that are not in memory, all at once.

        Raises:
            CorruptionError: if a range reaches past the end of the file.
        """
        begins = to_position(logical)
        ends = np.where(lengths > 0, to_position(logical + np.maximum(lengths, 1) - 1) + 1, begins)
        if len(logical) and (int(logical.min()) < 0 or int(ends.max()) > self.nbytes):
            raise CorruptionError(f"{self.path}: a record reaches past the end of the file")
        away = np.flatnonzero(begins < self._begin)
        spans = zip(begins[away].tolist(), ends[away].tolist(), strict=True)
        fetched = iter(self.read_ranges([(self.name, begin, end) for begin, end in spans]) if len(away) else [])
        ranges = []
        for begin, end, start, length in zip(begins.tolist(), ends.tolist(), logical, lengths, strict=True):
            if begin < self._begin:
                raw = np.frombuffer(next(fetched), np.uint8)
            else:
                raw = self._end[begin - self._begin : end - self._begin]
            ranges.append(_without_headers(raw, begin, start, length))
        return ranges


def _without_headers(raw: Bytes, begin: int, logical: int, length: int) -> Bytes:
    """Return a logical range, from the bytes of its file from position ``begin`` on."""
    if len(raw) == length:
        return raw
    out = np.empty(length, np.uint8)
    _, within, position, lengths = pieces(np.array([logical]), np.array([length]))
    move_ranges(out, within, raw, position - begin, lengths)
    return out


@dataclass(frozen=True, eq=False)
class _Chunk:
    """A chunk in memory, which is read like a file."""

    path: str
    nbytes: int
    memory: Bytes

    def range(self, logical: int, length: int) -> Bytes:
        if logical + length > len(self.memory):
            raise CorruptionError(f"{self.path}: a chunk reaches into the next")
        return self.memory[logical : logical + length]

    def slab(self, logical: Ints, nbytes: int) -> Bytes:
        return np.stack([self.range(start, nbytes) for start in logical.tolist()])

    def tail(self, position: int) -> Bytes:
        return self.memory[position:]


class RangedRecordFile:
    """The records of a file in an object store. Safe to use from threads.

    The structure of the file is checked, but not its bytes: the checksums of a foreign file are HighwayHashes.

    Args:
        file: the file.

    Raises:
        CorruptionError: if it is not a whole ArrayRecord file.
        FormatError: if its footer is transposed, or compressed by brotli or snappy.
    """

    def __init__(self, file: RangedFile) -> None:
        self._file = file
        footer = read_footer(file)
        self._chunks = to_logical(np.append(footer.chunk_offsets, footer.footer_offset))
        self._splits = splits_of(footer.chunk_records)

    def __len__(self) -> int:
        return int(self._splits[-1])

    def read(self, numbers: Ints) -> list[bytes]:
        chunk_of = np.searchsorted(self._splits, numbers, side="right") - 1
        chunks = distinct(chunk_of)
        raw = self._file.ranges(self._chunks[chunks], self._chunks[chunks + 1] - self._chunks[chunks])
        records = {chunk: self._records(chunk, memory) for chunk, memory in zip(chunks.tolist(), raw, strict=True)}
        places = (numbers - self._splits[chunk_of]).tolist()
        return [records[chunk][place] for chunk, place in zip(chunk_of.tolist(), places, strict=True)]

    def _records(self, chunk: int, memory: Bytes) -> list[bytes]:
        values, sizes = simple_chunk(_Chunk(self._file.path, self._file.nbytes, memory), 0)
        splits = splits_of(sizes).tolist()
        expected = int(self._splits[chunk + 1] - self._splits[chunk])
        if len(sizes) != expected or splits[-1] != len(values):
            raise CorruptionError(f"{self._file.path}: chunk {chunk} does not hold {expected} records")
        whole = values.tobytes()
        return [whole[start:stop] for start, stop in pairwise(splits)]
