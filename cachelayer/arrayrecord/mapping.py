"""Files that are read by logical ranges: mapped into memory, or by system calls where that cannot be."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cachelayer.arrayrecord.address_space import NoRoomError, Slot, address_space
from cachelayer.arrayrecord.blocks import BLOCK, HEADER, PAYLOAD, pieces
from cachelayer.arrayrecord.decompress import decompressed
from cachelayer.arrayrecord.places import Places, UniformRecords, check_inside
from cachelayer.errors import CorruptionError, StorageError
from cachelayer.records.memory import Bytes, Ints, gather_rows, splits_of
from cachelayer.records.record_buffers import RecordBuffer, Records
from cachelayer.user_warnings import warn

_PIECE = 1 << 30
_WARNED: list[Path] = []


def merged(starts: Ints, stops: Ints) -> tuple[Ints, Ints]:
    """Ranges in the order in which they are given, those as one that follow each other without a page between them."""
    apart = (starts[1:] < starts[:-1]) | (stops[1:] < stops[:-1]) | (starts[1:] > stops[:-1] + mmap.PAGESIZE)
    edge = np.ones(1, np.bool_)
    return starts[np.concatenate([edge, apart])], stops[np.concatenate([apart, edge])]


@dataclass(frozen=True)
class Identity:
    """What a file is known by, so that another one at its path is found out."""

    device: int
    inode: int
    nbytes: int
    modified_ns: int

    @classmethod
    def of(cls, descriptor: int) -> Identity:
        """The identity of an open file."""
        stat = os.fstat(descriptor)
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)


class _Window:
    """The bytes of a mapped file as numpy takes them; holds the file mapped as long as an array of them lives."""

    def __init__(self, slot: Slot, nbytes: int) -> None:
        self._slot = slot
        memory = slot.space.memory[slot.start : slot.start + nbytes]
        self.__array_interface__ = memory.__array_interface__


@dataclass(frozen=True, eq=False)
class MappedFile:
    """A file that is read without its block headers. It takes no file descriptor.

    Args:
        path: the file.
        identity: which file that was when it was opened.
        slot: where it is mapped; None if it is read by system calls, from its path.
    """

    path: Path
    identity: Identity
    slot: Slot | None

    @classmethod
    def open(cls, path: Path, *, nbytes: int | None = None, since: int | None = None) -> MappedFile:
        """Map a file, if it can be mapped.

        Args:
            nbytes: the size that it must have; any if it is None.
            since: when the read began that it is mapped for: what is read since then stays mapped.

        Raises:
            CorruptionError: if it is missing or has another size.
            StorageError: if it cannot be read.
        """
        with _opened(path) as descriptor:
            found = Identity.of(descriptor)
            if nbytes is not None and found.nbytes != nbytes:
                raise CorruptionError(f"{path}: expected {nbytes} bytes, found {found.nbytes}: it was cut or replaced")
            slot = _mapped(path, descriptor, found.nbytes, since) if found.nbytes else None
            # What is cut after its size was asked for would end the process.
            if os.fstat(descriptor).st_size < found.nbytes:
                raise CorruptionError(f"{path}: it was cut while it was opened")
        return cls(path, found, slot)

    @classmethod
    def unmapped(cls, path: Path, *, nbytes: int | None = None) -> MappedFile:
        """A file that is read by system calls; see :meth:`open`."""
        with _opened(path) as descriptor:
            found = Identity.of(descriptor)
            if nbytes is not None and found.nbytes != nbytes:
                raise CorruptionError(f"{path}: expected {nbytes} bytes, found {found.nbytes}: it was cut or replaced")
        return cls(path, found, None)

    def mapped(self, since: int | None = None) -> MappedFile:
        """The file, mapped if it can be.

        Raises:
            CorruptionError: if there is another file now, or it was cut.
        """
        found = MappedFile.open(self.path, since=since)
        if found.identity != self.identity:
            raise self._replaced()
        return found

    def without_mapping(self) -> MappedFile:
        """The file, read by system calls."""
        return replace(self, slot=None)

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self.identity.nbytes

    @property
    def room(self) -> int:
        """Its bytes without block headers."""
        blocks, rest = divmod(self.identity.nbytes, BLOCK)
        return blocks * PAYLOAD + max(0, rest - HEADER)

    @property
    def buffer(self) -> Bytes:
        """Its bytes, read-only, block headers and all; a copy if it is not mapped."""
        return self.tail(0)

    def tail(self, position: int) -> Bytes:
        """All from a position on, block headers and all."""
        if self.slot is None:
            with self._reading() as read:
                out = np.empty(max(0, self.nbytes - position), np.uint8)
                read(memoryview(out), position)  # type: ignore[arg-type]
                return out
        return np.asarray(_Window(self.slot, self.nbytes))[position:]

    def rows(self, positions: Ints, nbytes: int) -> Bytes:
        """A copy of what lies at positions, block headers and all, as rows of ``nbytes``.

        Raises:
            CorruptionError: if a row reaches past the end of the file.
        """
        if len(positions) and (int(positions.min()) < 0 or int(positions.max()) > self.nbytes - nbytes):
            raise CorruptionError(f"{self.path}: what is read lies outside of its {self.nbytes} bytes")
        if self.slot is not None:
            return gather_rows(self.slot.space.memory, positions + self.slot.start, nbytes)
        out = np.empty((len(positions), nbytes), np.uint8)
        with self._reading() as read:
            for row, position in zip(out, positions.tolist(), strict=True):
                read(row.data, position)
        return out

    def _replaced(self) -> CorruptionError:
        return CorruptionError(f"{self.path}: it was replaced after it was opened: fetch the version again")

    def are_resident(self, positions: Ints) -> bool:
        """Whether bytes are in the page cache; True if the system does not tell, or has no such file any more."""
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
        """The file opened for a moment, or -1."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            yield -1
            return
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def range(self, logical: int, length: int) -> Bytes:
        """A copy of one range.

        Raises:
            CorruptionError: if it reaches past the end of the file.
        """
        return self.ranges(np.array([logical]), np.array([length]))

    def ranges(self, logical: Ints, lengths: Ints, name: Callable[[int], str] | None = None) -> Bytes:
        """A copy of ranges of any lengths, one after another.

        Args:
            name: what an error calls a range; its file if it is None.

        Raises:
            CorruptionError: if one reaches past the end of the file.
        """
        call = name or (lambda _: f"{self.path}: a record")
        if self.slot is not None:
            return Places(self.slot.space, self.slot, self.slot.start, self.room, logical, lengths, call).ranges()
        check_inside(logical, lengths, self.room, call)
        return self._read(logical, lengths)

    def slab(self, logical: Ints, nbytes: int) -> Bytes:
        """A copy of ranges of one length, as rows."""
        return self.ranges(logical, np.full(len(logical), nbytes)).reshape(len(logical), nbytes)

    def uniform(self, logical: Ints, nbytes: int, name: Callable[[int], str]) -> Records:
        """Records of one size; of a mapped file they are read part by part.

        Raises:
            CorruptionError: if one reaches past the end of the file.
        """
        slot = self.slot
        if slot is None:
            lengths = np.full(len(logical), nbytes)
            found = RecordBuffer.packed(self.ranges(logical, lengths, name), lengths)
            return replace(found, uniform_nbytes=nbytes)
        return UniformRecords.at(slot.space, slot, slot.start, self.room, logical, nbytes, name)

    def records(self, logical: Ints, lengths: Ints, compression: str, name: Callable[[int], str]) -> RecordBuffer:
        """Records that are stored in ranges of these lengths.

        Raises:
            CorruptionError: if one reaches past the end of its file, or does not decompress.
        """
        if self.slot is not None:
            slot = self.slot
            return Places(slot.space, slot, slot.start, self.room, logical, lengths, name).records(compression)
        found = RecordBuffer.packed(self.ranges(logical, lengths, name), lengths)
        return found if compression == "none" else decompressed([(np.arange(len(found)), found)], name)

    def _read(self, logical: Ints, lengths: Ints) -> Bytes:
        """A copy of ranges that lie in the file, by system calls."""
        splits = splits_of(lengths)
        out = np.empty(int(splits[-1]), np.uint8)
        target = memoryview(out)  # type: ignore[arg-type]
        owner, within, positions, counts = pieces(logical, lengths)
        begins = splits[owner] + within
        with self._reading() as read:
            for begin, position, count in zip(begins.tolist(), positions.tolist(), counts.tolist(), strict=True):
                read(target[begin : begin + count], position)
        return out

    @contextmanager
    def _reading(self) -> Iterator[Callable[[memoryview, int], None]]:
        """Fills memory from a position of the file on.

        Raises:
            CorruptionError: if there is another file now, or it was cut.
        """
        with _opened(self.path) as descriptor:
            if Identity.of(descriptor) != self.identity:
                raise self._replaced()

            def read(target: memoryview, position: int) -> None:
                done = 0
                while done < len(target):
                    count = os.preadv(descriptor, [target[done : done + _PIECE]], position + done)
                    if count == 0:
                        raise CorruptionError(f"{self.path}: it was cut after it was opened")
                    done += count

            try:
                yield read
            except OSError as error:
                if isinstance(error, CorruptionError):
                    raise
                raise StorageError(f"cannot read {self.path}: {error}") from error


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise CorruptionError(f"{path}: the file is missing") from error
    except OSError as error:
        hint = ""
        if error.errno in (errno.EMFILE, errno.ENFILE):
            hint = ": too many files are open at this moment, none of them a shard; see `ulimit -n`"
        raise StorageError(f"cannot open {path}: {error}{hint}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _mapped(path: Path, descriptor: int, nbytes: int, since: int | None) -> Slot | None:
    space = address_space()
    if space is None:
        return None
    try:
        return space.map(descriptor, nbytes, since)
    except (NoRoomError, OSError) as error:
        _warn_once(path, error)
        return None


def _warn_once(path: Path, error: Exception) -> None:
    if _WARNED:
        return
    _WARNED.append(path)
    warn(f"{path}, and others after it, cannot be mapped and are read by system calls, which is slower: {error}")
