"""Files in memory, read by logical ranges; ranges of many files in one go."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.blocks import HEADER, PAYLOAD, pieces, to_position
from cachelayer.codec.frames import RecordBuffer
from cachelayer.codec.memory import Bytes, Ints, move_ranges, splits_of, windows
from cachelayer.errors import CorruptionError, StorageError

# The memory of this process as one buffer, so that ranges of many mapped files are one gather. It is read only at
# places that were checked against a mapped file, which the reader holds meanwhile.
_ORIGIN = mmap.PAGESIZE


class _Memory:
    __array_interface__ = {"version": 3, "typestr": "|u1", "shape": ((1 << 47) - 2 * _ORIGIN,), "data": (_ORIGIN, True)}  # noqa: RUF012


_MEMORY: Bytes = np.asarray(_Memory())
_MEMORY_VIEW = memoryview(_MEMORY)  # type: ignore[arg-type]
_memory_windows = lru_cache(maxsize=256)(partial(windows, _MEMORY))


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

    def ranges(self, lengths: Ints) -> Bytes:
        """A copy of ranges of these lengths, one after another.

        Raises:
            CorruptionError: where one reaches past the end of its file.
        """
        return self._copied(np.arange(len(lengths)), lengths)

    @contextmanager
    def unbroken(self, lengths: Ints) -> Iterator[RecordBuffer]:
        """Ranges of these lengths where they lie; only those that a header cuts are copied. Valid within the context.

        Raises:
            CorruptionError: where one reaches past the end of its file.
        """
        places = self.logical % PAYLOAD
        starts = to_position(self.logical)
        if ((starts < 0) | (starts + lengths > self.size)).any():
            raise self._past_the_end()
        starts += self.base
        cut = (places > PAYLOAD - lengths).nonzero()[0]
        copies = self._copied(cut, lengths[cut])
        starts[cut] = splits_of(lengths[cut])[:-1] + (copies.__array_interface__["data"][0] - _ORIGIN)
        yield RecordBuffer(_MEMORY, starts, lengths)
        del copies

    def _past_the_end(self) -> CorruptionError:
        names = ", ".join(str(file.path) for file in self.files[:3])
        return CorruptionError(f"a record reaches past the end of its file, one of {names}")

    def _copied(self, rows: Ints, lengths: Ints) -> Bytes:
        """A copy of some of the ranges, one after another."""
        splits = splits_of(lengths)
        out = np.empty(int(splits[-1]), np.uint8)
        owner, within, position, length = pieces(self.logical[rows], lengths)
        base, size = (
            np.broadcast_to(np.asarray(each), len(self.logical))[rows][owner] for each in (self.base, self.size)
        )
        if len(owner) and ((position < 0) | (position + length > size)).any():
            raise self._past_the_end()
        move_ranges(out, splits[owner] + within, _MEMORY, position + base, length)
        return out


def _mend(found: NDArray[Any], rows: Ints, starts: Ints, room: Ints) -> None:
    """Take once more, without it, what lies behind the one header in some rows; ``room`` bytes lie before it."""
    nbytes = found.dtype.itemsize
    target = memoryview(found.view(np.uint8))  # type: ignore[arg-type]
    splits = zip((rows * nbytes).tolist(), starts.tolist(), room.tolist(), strict=True)
    for row, start, left in splits:
        target[row + left : row + nbytes] = _MEMORY_VIEW[start + left + HEADER : start + nbytes + HEADER]


@dataclass(frozen=True, eq=False)
class UniformRecords:
    """Records of one size in mapped files, read part by part straight from them.

    Args:
        holder: keeps the files mapped.
        starts: where each record begins in memory.
        places: where it begins in its block, without the header.
        nbytes: bytes of each.
        crossing: the rows of those that do not end in the block where they begin.
        room: for each of these the bytes that are left in it.
    """

    holder: object
    starts: Ints
    places: Ints
    nbytes: int
    crossing: Ints
    room: Ints

    @classmethod
    def at(cls, holder: object, base: Ints | int, logical: Ints, nbytes: int) -> UniformRecords:
        """Records at logical offsets of files that begin at ``base``; they lie within their files."""
        blocks, places = np.divmod(logical, PAYLOAD)
        blocks *= HEADER
        blocks += logical
        blocks += base + HEADER
        crossing = (places > PAYLOAD - nbytes).nonzero()[0]
        return cls(holder, blocks, places, nbytes, crossing, PAYLOAD - places[crossing])

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> Ints:
        return np.full(len(self.starts), self.nbytes)

    @property
    def uniform_nbytes(self) -> int:
        return self.nbytes

    def slab(self, offset: int, nbytes: int) -> Bytes:
        if nbytes == 0 or len(self.starts) == 0:
            return np.empty((len(self.starts), nbytes), np.uint8)
        begin = self.starts + offset
        if self.nbytes > PAYLOAD:
            return self._pieced(begin, self.places + offset, nbytes)
        # What a header cuts is gathered with it, and then mended: so few rows are not worth a second gather.
        found = _memory_windows(nbytes)[begin]
        crossing = self.crossing
        if len(crossing):
            room = self.room - offset
            cut = (room < nbytes).nonzero()[0]
            if len(cut):
                rows = crossing[cut]
                _mend(found, rows, begin[rows], np.maximum(room[cut], 0))
        return np.ndarray((len(begin), nbytes), np.uint8, found)

    @staticmethod
    def _pieced(starts: Ints, places: Ints, nbytes: int) -> Bytes:
        """Ranges of records that may cross several headers, piece by piece.

        Args:
            starts: for each where it would begin in memory, had its record not crossed a header.
            places: its place in the block where its record begins; past the end where it begins in a later one.
        """
        out = np.empty((len(starts), nbytes), np.uint8)
        target = memoryview(out.reshape(-1))  # type: ignore[arg-type]
        done = 0
        for start, place in zip(starts.tolist(), places.tolist(), strict=True):
            position, end = start + place // PAYLOAD * HEADER, done + nbytes
            stop = min(done + PAYLOAD - place % PAYLOAD, end)
            while done < end:
                after = position + stop - done
                target[done:stop] = _MEMORY_VIEW[position:after]
                done, stop, position = stop, min(stop + PAYLOAD, end), after + HEADER
        return out

    def ranges(self, starts: Ints, lengths: Ints) -> Bytes:
        splits = splits_of(lengths)
        out = np.empty(int(splits[-1]), np.uint8)
        within = self.places + starts
        owner, inside, position, length = pieces(within, lengths)
        move_ranges(
            out, splits[owner] + inside, _MEMORY, (self.starts - self.places - HEADER)[owner] + position, length
        )
        return out

    def stored(self) -> RecordBuffer:
        """The whole records, copied."""
        return RecordBuffer.packed(self.slab(0, self.nbytes).reshape(-1), self.lengths)


def merged(starts: Ints, stops: Ints) -> tuple[Ints, Ints]:
    """Ranges in the order in which they are given, those as one that follow each other without a page between them."""
    apart = (starts[1:] < starts[:-1]) | (stops[1:] < stops[:-1]) | (starts[1:] > stops[:-1] + mmap.PAGESIZE)
    edge = np.ones(1, np.bool_)
    return starts[np.concatenate([edge, apart])], stops[np.concatenate([apart, edge])]


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
    def nbytes(self) -> int:
        """Its size."""
        return len(self.buffer)

    def tail(self, position: int) -> Bytes:
        """All from a position on, block headers and all."""
        return self.buffer[position:]

    @property
    def base(self) -> int:
        """Where it begins in memory."""
        address: int = self.buffer.__array_interface__["data"][0]
        return address - _ORIGIN

    def are_resident(self, positions: Ints) -> bool:
        """Whether bytes are in the page cache; True where the system does not tell, or has no such file any more."""
        if not hasattr(os, "RWF_NOWAIT"):
            return True
        byte = [bytearray(1)]
        with self._descriptor() as descriptor:
            try:
                for position in positions.tolist():
                    os.preadv(descriptor, byte, position, os.RWF_NOWAIT)
            except BlockingIOError:
                return False
            except OSError:
                return True
        return True

    def will_need(self, starts: Ints, stops: Ints) -> None:
        """Have the system fetch these ranges; returns before they are there. Does nothing where it cannot."""
        if not hasattr(os, "posix_fadvise") or len(starts) == 0:
            return
        starts, stops = merged(starts, stops)
        with self._descriptor() as descriptor:
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
                try:
                    os.posix_fadvise(descriptor, start, stop - start, os.POSIX_FADV_WILLNEED)
                except OSError:
                    return

    @contextmanager
    def _descriptor(self) -> Iterator[int]:
        """The file opened for a moment, or -1: descriptors that stay open would be half of those that shards need."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            yield -1
            return
        try:
            yield descriptor
        finally:
            os.close(descriptor)

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
        return self.places(logical).ranges(lengths)

    def slab(self, logical: Ints, nbytes: int) -> Bytes:
        """A copy of ranges of one length, as rows."""
        last = to_position(logical + max(0, nbytes - 1))
        if len(logical) and (int(logical.min()) < 0 or int(last.max()) >= len(self.buffer)):
            raise CorruptionError(f"{self.path}: a record reaches past the end of the file")
        return UniformRecords.at(self, self.base, logical, nbytes).slab(0, nbytes)
