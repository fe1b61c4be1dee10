"""A file in memory, read by logical ranges."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cachelayer.arrayrecord.blocks import BLOCK, HEADER, PAYLOAD, pieces, to_position
from cachelayer.codec.memory import Bytes, Ints, gather_rows, move_ranges, splits_of
from cachelayer.errors import CorruptionError


@dataclass(frozen=True, eq=False)
class MappedFile:
    """A file that is mapped into memory, without its block headers.

    Args:
        path: the file.
        buffer: its bytes, read-only.
    """

    path: Path
    buffer: Bytes

    @classmethod
    def open(cls, path: Path, *, nbytes: int | None = None) -> MappedFile:
        """Map a file.

        Args:
            nbytes: the size that it must have; any where it is None.

        Raises:
            CorruptionError: where it is missing or has another size.
        """
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if nbytes is not None and size != nbytes:
                    raise CorruptionError(f"{path}: expected {nbytes} bytes, found {size}: it was cut or replaced")
                if size == 0:
                    return cls(path, np.empty(0, np.uint8))
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise CorruptionError(f"{path}: the file is missing") from error
        return cls(path, np.frombuffer(mapped, np.uint8))

    def range(self, logical: int, length: int) -> Bytes:
        """A copy of one range.

        Raises:
            CorruptionError: where it reaches past the end of the file.
        """
        return self.ranges(np.array([logical]), np.array([length]))

    def ranges(self, logical: Ints, lengths: Ints) -> Bytes:
        """A copy of ranges of any lengths, one after another."""
        splits = splits_of(lengths)
        out = np.empty(int(splits[-1]), np.uint8)
        owner, within, position, length = pieces(logical, lengths)
        if len(position) and int((position + length).max()) > len(self.buffer):
            raise CorruptionError(f"{self.path}: a record reaches past the end of the file")
        move_ranges(out, splits[owner] + within, self.buffer, position, length)
        return out

    def slab(self, logical: Ints, nbytes: int) -> Bytes:
        """A copy of ranges of one length, as rows."""
        if nbytes == 0 or len(logical) == 0:
            return np.empty((len(logical), nbytes), np.uint8)
        begin = to_position(logical)
        end = to_position(logical + (nbytes - 1)) + 1
        if int(end.max()) > len(self.buffer):
            raise CorruptionError(f"{self.path}: a record reaches past the end of the file")
        if nbytes > PAYLOAD:
            rows, broken = np.empty((len(logical), nbytes), np.uint8), list(range(len(logical)))
        else:
            rows, broken = gather_rows(self.buffer, begin, nbytes), np.flatnonzero(end - begin != nbytes).tolist()
        for row in broken:
            self._copy(rows[row], int(logical[row]))
        return rows

    def _copy(self, out: Bytes, logical: int) -> None:
        """Fill ``out`` with the range that begins at a logical offset."""
        done = 0
        while done < len(out):
            block, place = divmod(logical + done, PAYLOAD)
            length = min(PAYLOAD - place, len(out) - done)
            position = block * BLOCK + HEADER + place
            out[done : done + length] = self.buffer[position : position + length]
            done += length
