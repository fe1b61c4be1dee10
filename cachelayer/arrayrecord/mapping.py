"""Files in memory, read by logical ranges; ranges of many files in one go."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cachelayer.arrayrecord.blocks import BLOCK, HEADER, PAYLOAD, pieces, to_position
from cachelayer.codec.memory import Bytes, Ints, gather_rows, move_ranges, splits_of
from cachelayer.errors import CorruptionError, StorageError

# The memory of this process as one buffer, so that ranges of many mapped files are one gather. It is read only at
# places that were checked against a mapped file, which the reader holds meanwhile.
_ORIGIN = mmap.PAGESIZE


class _Memory:
    __array_interface__ = {"version": 3, "typestr": "|u1", "shape": ((1 << 47) - 2 * _ORIGIN,), "data": (_ORIGIN, True)}  # noqa: RUF012


_MEMORY: Bytes = np.asarray(_Memory())


@dataclass(frozen=True, eq=False)
class Places:
    """Ranges in mapped files.

    Args:
        files: the files, held while their memory is read.
        base: where the file of each range begins in memory; one number for one file.
        size: bytes of the file of each range.
        logical: logical offset of each range in its file.
    """

    files: tuple[MappedFile, ...]
    base: Ints | int
    size: Ints | int
    logical: Ints

    def slab(self, offset: int, nbytes: int) -> Bytes:
        """A copy of ``nbytes`` from ``offset`` bytes after the beginning of each range, as rows.

        Raises:
            CorruptionError: where one reaches past the end of its file.
        """
        logical = self.logical + offset
        if nbytes == 0 or len(logical) == 0:
            return np.empty((len(logical), nbytes), np.uint8)
        begin = to_position(logical)
        end = to_position(logical + (nbytes - 1)) + 1
        self._check(end)
        if nbytes > PAYLOAD:
            rows, broken = np.empty((len(logical), nbytes), np.uint8), list(range(len(logical)))
        else:
            rows, broken = (
                gather_rows(_MEMORY, begin + self.base, nbytes),
                np.flatnonzero(end - begin != nbytes).tolist(),
            )
        base = np.broadcast_to(np.asarray(self.base), len(logical))
        for row in broken:
            _copy(rows[row], int(base[row]), int(logical[row]))
        return rows

    def ranges(self, starts: Ints | int, lengths: Ints) -> Bytes:
        """A copy of a range of each: ``lengths`` bytes from ``starts`` bytes after its beginning, one after another.

        Raises:
            CorruptionError: where one reaches past the end of its file.
        """
        splits = splits_of(lengths)
        out = np.empty(int(splits[-1]), np.uint8)
        owner, within, position, length = pieces(self.logical + starts, lengths)
        base, size = (np.broadcast_to(np.asarray(each), len(lengths))[owner] for each in (self.base, self.size))
        Places(self.files, base, size, position)._check(position + length)
        move_ranges(out, splits[owner] + within, _MEMORY, position + base, length)
        return out

    def _check(self, end: Ints) -> None:
        if len(end) and (end > self.size).any():
            names = ", ".join(str(file.path) for file in self.files[:3])
            raise CorruptionError(f"a record reaches past the end of its file, one of {names}")


def _copy(out: Bytes, base: int, logical: int) -> None:
    """Fill ``out`` with the range that begins at a logical offset of the file at ``base``."""
    done = 0
    while done < len(out):
        block, place = divmod(logical + done, PAYLOAD)
        length = min(PAYLOAD - place, len(out) - done)
        position = base + block * BLOCK + HEADER + place
        out[done : done + length] = _MEMORY[position : position + length]
        done += length


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
        except CorruptionError:
            raise
        except OSError as error:
            raise StorageError(f"cannot map {path}: {error}") from error
        return cls(path, np.frombuffer(mapped, np.uint8))

    @property
    def base(self) -> int:
        """Where it begins in memory."""
        address: int = self.buffer.__array_interface__["data"][0]
        return address - _ORIGIN

    def places(self, logical: Ints) -> Places:
        """Ranges that begin at these logical offsets."""
        return Places((self,), self.base, len(self.buffer), logical)

    def range(self, logical: int, length: int) -> Bytes:
        """A copy of one range.

        Raises:
            CorruptionError: where it reaches past the end of the file.
        """
        return self.ranges(np.array([logical]), np.array([length]))

    def ranges(self, logical: Ints, lengths: Ints) -> Bytes:
        """A copy of ranges of any lengths, one after another."""
        return self.places(logical).ranges(0, lengths)

    def slab(self, logical: Ints, nbytes: int) -> Bytes:
        """A copy of ranges of one length, as rows."""
        return self.places(logical).slab(0, nbytes)
