"""Read files by logical ranges: from mapped memory, or by system calls if a file cannot be mapped."""

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
from cachelayer.arrayrecord.places import Places, UniformRecords, VaryingRecords, check_inside
from cachelayer.errors import CorruptionError, StorageError
from cachelayer.records.memory import Bytes, Ints, gather_rows, splits_of
from cachelayer.records.record_buffers import RecordBuffer, Records
from cachelayer.records.turns import out_of_turn
from cachelayer.user_warnings import warn

_PIECE = 1 << 30
_WARNED: list[Path] = []


def merged(starts: Ints, stops: Ints) -> tuple[Ints, Ints]:
    """Join consecutive ranges that have less than a page between them; keep the order of all others."""
    apart = (starts[1:] < starts[:-1]) | (stops[1:] < stops[:-1]) | (starts[1:] > stops[:-1] + mmap.PAGESIZE)
    edge = np.ones(1, np.bool_)
    return starts[np.concatenate([edge, apart])], stops[np.concatenate([apart, edge])]


@dataclass(frozen=True)
class Identity:
    """What identifies a file, so that a replacement at its path is detected."""

    device: int
    inode: int
    nbytes: int
    modified_ns: int

    @classmethod
    def of(cls, descriptor: int) -> Identity:
        """Return the identity of an open file."""
        stat = os.fstat(descriptor)
        return cls(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)


class _Window:
    """The bytes of a mapped file, as numpy takes them. The file stays mapped as long as an array uses them."""

    def __init__(self, slot: Slot, nbytes: int) -> None:
        self._slot = slot
        memory = slot.space.memory[slot.start : slot.start + nbytes]
        self.__array_interface__ = memory.__array_interface__


@dataclass(frozen=True, eq=False)
class MappedFile:
    """A file that is read without its block headers. It keeps no file descriptor open.

    Args:
        path: the file.
        identity: identifies the file that was opened.
        slot: where it is mapped; None if system calls read it from its path.
    """

    path: Path
    identity: Identity
    slot: Slot | None

    @classmethod
    def open(cls, path: Path, *, nbytes: int | None = None, since: int | None = None) -> MappedFile:
        """Open a file, and map it if the system allows that.

        Args:
            nbytes: the size that it must have; None for any size.
            since: when the current read began; files that were read after that stay mapped.

        Raises:
            CorruptionError: if it is missing or has another size.
            StorageError: if it cannot be read.
        """
        with _opened(path) as descriptor:
            identity = _identity(path, descriptor, nbytes)
            slot = _map(path, descriptor, identity.nbytes, since) if identity.nbytes else None
            # If the file was cut after we asked for its size, reading the mapping would end the process.
            if os.fstat(descriptor).st_size < identity.nbytes:
                raise CorruptionError(f"{path}: it was cut while it was opened")
        return cls(path, identity, slot)

    @classmethod
    def unmapped(cls, path: Path, *, nbytes: int | None = None) -> MappedFile:
        """Open a file that is read by system calls; see :meth:`open`."""
        with _opened(path) as descriptor:
            return cls(path, _identity(path, descriptor, nbytes), None)

    def mapped(self, since: int | None = None) -> MappedFile:
        """Return the file, mapped if the system allows that.

        Raises:
            CorruptionError: if the file was replaced or cut.
        """
        mapped = MappedFile.open(self.path, since=since)
        if mapped.identity != self.identity:
            raise self._replaced()
        return mapped

    def without_mapping(self) -> MappedFile:
        """Return the file, to be read by system calls."""
        return replace(self, slot=None)

    @property
    def nbytes(self) -> int:
        """The size of the file."""
        return self.identity.nbytes

    @property
    def room(self) -> int:
        """The size of the file without block headers."""
        blocks, rest = divmod(self.identity.nbytes, BLOCK)
        return blocks * PAYLOAD + max(0, rest - HEADER)

    @property
    def buffer(self) -> Bytes:
        """The bytes of the file, with block headers, read-only; a copy if it is not mapped."""
        return self.tail(0)

    def tail(self, position: int) -> Bytes:
        """Return all bytes from a position to the end, with block headers."""
        if self.slot is None:
            with self._reading() as read:
                out = np.empty(max(0, self.nbytes - position), np.uint8)
                read(memoryview(out), position)  # type: ignore[arg-type]
                return out
        return np.asarray(_Window(self.slot, self.nbytes))[position:]

    def rows(self, positions: Ints, nbytes: int) -> Bytes:
        """Return a copy of ``nbytes`` bytes from each position on, with block headers, as rows.

        Raises:
            CorruptionError: if a row does not lie in the file.
        """
        if len(positions) and (int(positions.min()) < 0 or int(positions.max()) > self.nbytes - nbytes):
            raise CorruptionError(f"{self.path}: a range to read lies outside of its {self.nbytes} bytes")
        if self.slot is not None:
            return gather_rows(self.slot.space.memory, positions + self.slot.start, nbytes)
        out = np.empty((len(positions), nbytes), np.uint8)
        with self._reading() as read:
            for row, position in zip(out, positions.tolist(), strict=True):
                read(row.data, position)
        return out

    def _replaced(self) -> CorruptionError:
        return CorruptionError(f"{self.path}: it was replaced after it was opened: fetch the version again")

    def are_resident(self, positions: Ints) -> bool | None:
        """Return whether the bytes at these positions are in the page cache.

        Return None if the system cannot tell, or the file is gone.
        """
        if not hasattr(os, "RWF_NOWAIT"):
            return None
        byte = [bytearray(1)]
        with self._descriptor() as descriptor:
            try:
                for position in positions.tolist():
                    os.preadv(descriptor, byte, position, os.RWF_NOWAIT)
            except BlockingIOError:
                return False
            except OSError:
                return None
        return True

    def will_need(self, starts: Ints, stops: Ints) -> None:
        """Ask the system to fetch these ranges, without waiting. Do nothing if the system does not support that."""
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
        """Open the file within the context; yield -1 if that fails."""
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
        """Return a copy of one range.

        Raises:
            CorruptionError: if it reaches past the end of the file.
        """
        return self.ranges(np.array([logical]), np.array([length]))

    def ranges(self, logical: Ints, lengths: Ints, name: Callable[[int], str] | None = None) -> Bytes:
        """Return a copy of ranges of any lengths, joined one after another.

        Args:
            name: returns the name of a range in error messages, given its number; by default they name the file.

        Raises:
            CorruptionError: if a range reaches past the end of the file.
        """
        name = name or (lambda _: f"{self.path}: a record")
        if self.slot is not None:
            return Places(self.slot.space, self.slot, self.slot.start, self.room, logical, lengths, name).ranges()
        check_inside(logical, lengths, self.room, name)
        return self._read(logical, lengths)

    def slab(self, logical: Ints, nbytes: int) -> Bytes:
        """Return copies of ranges of one length, as rows."""
        return self.ranges(logical, np.full(len(logical), nbytes)).reshape(len(logical), nbytes)

    def uniform(self, logical: Ints, nbytes: int, name: Callable[[int], str]) -> Records:
        """Return records of one size; if the file is mapped, they are read only when they are used.

        Raises:
            CorruptionError: if a record reaches past the end of the file.
        """
        slot = self.slot
        if slot is None:
            lengths = np.full(len(logical), nbytes)
            records = RecordBuffer.packed(self.ranges(logical, lengths, name), lengths)
            return replace(records, uniform_nbytes=nbytes)
        return UniformRecords.at(slot.space, slot, slot.start, self.room, logical, nbytes, name)

    def records(self, logical: Ints, lengths: Ints, compression: str, name: Callable[[int], str]) -> RecordBuffer:
        """Return the records that are stored in these ranges.

        Raises:
            CorruptionError: if a record reaches past the end of the file, or does not decompress.
        """
        if self.slot is not None:
            slot = self.slot
            return Places(slot.space, slot, slot.start, self.room, logical, lengths, name).records(compression)
        stored = RecordBuffer.packed(self.ranges(logical, lengths, name), lengths)
        return stored if compression == "none" else decompressed([(np.arange(len(stored)), stored)], name)

    def parts(self, logical: Ints, lengths: Ints, compression: str, name: Callable[[int], str]) -> Records:
        """Return the records of :meth:`records`; if that is possible, read only those of their bytes that are used.

        Raises:
            CorruptionError: as :meth:`records` does.
        """
        slot = self.slot
        if slot is None or compression != "none":
            return self.records(logical, lengths, compression, name)
        return VaryingRecords(Places(slot.space, slot, slot.start, self.room, logical, lengths, name))

    def _read(self, logical: Ints, lengths: Ints) -> Bytes:
        """Return a copy of ranges that lie in the file, read by system calls."""
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
        """Yield a function that fills memory with the bytes of the file, from a position on.

        Raises:
            CorruptionError: if the file was replaced or cut.
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
                with out_of_turn():
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
            hint = ": this process has too many open files, none of them shards: raise the limit with `ulimit -n`"
        raise StorageError(f"cannot open {path}: {error}{hint}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _identity(path: Path, descriptor: int, nbytes: int | None) -> Identity:
    """Return the identity of an open file; raise unless it has the expected size."""
    identity = Identity.of(descriptor)
    if nbytes is not None and identity.nbytes != nbytes:
        raise CorruptionError(f"{path}: expected {nbytes} bytes, found {identity.nbytes}: it was cut or replaced")
    return identity


def _map(path: Path, descriptor: int, nbytes: int, since: int | None) -> Slot | None:
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
    warn(f"{path} cannot be mapped into memory, so it and files like it are read by slower system calls: {error}")
