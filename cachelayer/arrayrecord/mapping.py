"""Map files into memory: one file, or all files of a version into one range of addresses, which is one array.

::

    addresses    | shard 0 | pad | shard 1 | pad |  (not mapped yet)  | index 0 | pad | ...
                 0               2 MiB           4 MiB

To read an address to which no file is mapped ends the process, and so does reading past the end of a file. So readers
read only within files whose sizes were compared after they were mapped.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from sys import is_finalizing
from typing import Any

import numpy as np

from cachelayer.arrayrecord.riegeli import HEADER, PAYLOAD, check_inside, split_at_headers, to_logical, to_position
from cachelayer.errors import CacheLayerError, CorruptionError, StorageError
from cachelayer.records.memory import Bytes, Ints, gather_ranges, gather_rows, memory_of, range_nbytes
from cachelayer.records.record_buffers import PackedRecords, Records, names_of_rows
from cachelayer.temporary_files import open_regular

_PAGE = mmap.ALLOCATIONGRANULARITY
UNIT = max(2 << 20, _PAGE)
"""Files begin at multiples of this in a range, so that the kernel can use large pages."""
_PROT_NONE = 0
_MAP_FIXED = 0x10
_RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANON
_FAILED = ctypes.c_void_p(-1).value
_DEFAULT_MAPPING_LIMIT = 65_530
_LONG = 1 << 14
# One sixteenth of the mappings that the kernel allows a process is left to other code.
_SHARE_OF_OTHERS = 16


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open a file within the context, and yield its descriptor."""
    try:
        descriptor = open_regular(path)
    except FileNotFoundError as error:
        raise CorruptionError(f"{path}: the file is missing") from error
    except CorruptionError:
        raise
    except OSError as error:
        hint = ""
        if error.errno in (errno.EMFILE, errno.ENFILE):
            hint = ": this process has too many open files, none of them shards: raise the limit with `ulimit -n`"
        raise StorageError(f"cannot open {path}: {error}{hint}") from error
    try:
        yield descriptor
    except CacheLayerError:
        raise
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error}") from error
    finally:
        os.close(descriptor)


class MappedRange:
    """A range of addresses into which files are mapped. It is released when no array uses it any more.

    Args:
        nbytes: the size of the range.
        unit: files begin at multiples of this, and the addresses of a file are a multiple of it.
    """

    def __init__(self, nbytes: int, unit: int = UNIT) -> None:
        self._unit = unit
        self._nbytes = nbytes + unit - _PAGE
        self._mappings = 0
        try:
            self._address = _system_map(0, self._nbytes, _PROT_NONE, -1)
        except (OSError, OverflowError) as error:
            raise StorageError(
                f"the system does not let this process reserve {nbytes:,} bytes of addresses to map files to: {error}: "
                "raise the limit of `ulimit -v`"
            ) from error
        self._start = padded(self._address, unit)
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (nbytes,), "data": (self._start, True)}

    @property
    def memory(self) -> Bytes:
        """The whole range, read-only: uint8 of shape ``[nbytes]``. An array that is made of it keeps files mapped."""
        return np.asarray(self)

    def map(self, path: Path, descriptor: int, start: int, nbytes: int) -> None:
        """Map an open file, and check its size. Its descriptor may be closed afterwards.

        Args:
            start: where the file begins in the range: a multiple of the unit.
            nbytes: the size that the file must have.
        """
        if self._mappings >= _mapping_limit():
            raise StorageError(_too_many(path))
        try:
            # The mapping reaches to the next file, because a gap between two files would be a mapping too.
            _system_map(self._start + start, padded(nbytes, self._unit), mmap.PROT_READ, descriptor)
        except OSError as error:
            if error.errno == errno.ENOMEM:
                raise StorageError(_too_many(path)) from error
            raise StorageError(
                f"{path} cannot be mapped into memory: {error}: copy it to a file system that can map files"
            ) from error
        self._mappings += 1
        # If the file was cut since it was written, a read past its end would end the process.
        size = os.fstat(descriptor).st_size
        if size != nbytes:
            raise CorruptionError(f"{path}: expected {nbytes} bytes, found {size}: it was cut or replaced")

    def will_need(self, starts: Ints, stops: Ints) -> None:
        """Ask the system to read these ranges from the disk, and do not wait for it."""
        starts, stops = merged(starts, stops)
        first = starts // _PAGE * _PAGE
        for start, nbytes in zip((first + self._start).tolist(), (stops - first).tolist(), strict=True):
            _libc().madvise(start, nbytes, mmap.MADV_WILLNEED)

    def __del__(self, is_ending: Callable[[], bool] = is_finalizing) -> None:
        # When the process ends, the system unmaps everything; until then, threads may be reading.
        if not is_ending() and hasattr(self, "_address"):
            _libc().munmap(self._address, self._nbytes)


def padded(nbytes: Any, unit: int = UNIT) -> Any:
    """Return how many addresses files of these sizes take in a range."""
    return -(-nbytes // unit) * unit


def merged(starts: Ints, stops: Ints) -> tuple[Ints, Ints]:
    """Return ranges, of which neighbours with less than a page between them are joined."""
    are_apart = (starts[1:] < starts[:-1]) | (stops[1:] < stops[:-1]) | (starts[1:] > stops[:-1] + _PAGE)
    edge = np.ones(1, np.bool_)
    return starts[np.concatenate([edge, are_apart])], stops[np.concatenate([are_apart, edge])]


def is_in_memory(path: Path, position: int) -> bool | None:
    """Return whether a byte of a file is in the page cache; None if the system does not tell, or the file is gone."""
    if not hasattr(os, "RWF_NOWAIT"):
        return None
    try:
        descriptor = open_regular(path)
    except OSError:
        return None
    try:
        os.preadv(descriptor, [bytearray(1)], position, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return True


@dataclass(frozen=True, eq=False)
class MappedFile:
    """A file in memory. It keeps no file descriptor open."""

    path: Path
    buffer: Bytes
    """The bytes of the file, with block headers, read-only. The file stays mapped as long as an array uses them."""

    @classmethod
    def open(cls, path: Path, *, nbytes: int | None = None) -> MappedFile:
        """Open a file and map it.

        Args:
            nbytes: the size that the file must have; None for any size.

        Raises:
            CorruptionError: if the file is missing or has another size.
            StorageError: if the file cannot be read or mapped.
        """
        with opened(path) as descriptor:
            size = os.fstat(descriptor).st_size if nbytes is None else nbytes
            if size == 0:
                return cls(path, np.empty(0, np.uint8))
            files = MappedRange(padded(size, _PAGE), _PAGE)
            files.map(path, descriptor, 0, size)
        return cls(path, files.memory[:size])

    @property
    def nbytes(self) -> int:
        return len(self.buffer)

    def release(self, start: int, stop: int) -> None:
        """Give the memory of a range back to the system, which reads it from the disk again when it is used again."""
        first = -(-start // _PAGE) * _PAGE
        last = stop // _PAGE * _PAGE
        if last > first:
            _libc().madvise(self.buffer.ctypes.data + first, last - first, mmap.MADV_DONTNEED)

    def records(self, logical: Ints, lengths: Ints) -> MappedRecords:
        """Return ranges as records, without a copy."""

        def name(_: int) -> str:
            return f"{self.path}: a record"

        check_inside(logical, lengths, to_logical(self.nbytes), name)
        return MappedRecords(self.buffer, logical, lengths, None, name)


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mmap.restype = ctypes.c_void_p
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def _system_map(address: int, nbytes: int, protection: int, descriptor: int) -> int:
    """Reserve addresses anywhere, or map an open file to an address."""
    flags = _RESERVED if descriptor < 0 else mmap.MAP_SHARED | _MAP_FIXED
    mapped = _libc().mmap(address, nbytes, protection, flags, descriptor, 0)
    if mapped is None or mapped == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(mapped)


@cache
def _mapping_limit() -> int:
    """Return how many files may be mapped into a range: what the kernel allows a process, less a share for others."""
    try:
        allowed = int(Path("/proc/sys/vm/max_map_count").read_text(encoding="ascii"))
    except (OSError, ValueError):
        allowed = _DEFAULT_MAPPING_LIMIT
    return allowed - allowed // _SHARE_OF_OTHERS


def _too_many(path: Path) -> str:
    return (
        f"{path} cannot be mapped: this process has as many files mapped as the system allows, about "
        f"{_mapping_limit():,}: write larger shards with storage.rewrite(..., shard_bytes=...), or raise the limit: "
        "sysctl -w vm.max_map_count=1000000"
    )


@dataclass(frozen=True, eq=False)
class MappedRecords(Records):
    """Records in mapped files, which block headers may cut. All must lie in their files, as the module says."""

    buffer: Bytes
    """The memory of the files, each of which begins at a multiple of 64 KiB."""
    logical: Ints
    """Where each record begins in the buffer, if block headers are not counted."""
    lengths: Ints
    uniform_nbytes: int | None
    name: Callable[[int], str]

    def __getitem__(self, rows: Ints | slice) -> MappedRecords:
        name = names_of_rows(self, rows)
        return MappedRecords(self.buffer, self.logical[rows], self.lengths[rows], self.uniform_nbytes, name)

    def single(self, row: int) -> MappedRecords:
        return self[row : row + 1]

    def contiguous_groups(self) -> list[tuple[Ints, PackedRecords]]:
        """Return the records in two groups, with the rows of each group.

        In the first, records lie in one piece where they are mapped. The second has copies of the records that a block
        header cuts.
        """
        is_cut = self.logical % PAYLOAD > PAYLOAD - self.lengths
        whole = np.flatnonzero(~is_cut)
        cut = np.flatnonzero(is_cut)
        records = self[whole]
        in_place = PackedRecords(self.buffer, to_position(records.logical), records.lengths, name=records.name)
        return [(whole, in_place), (cut, self[cut].packed_copy())]

    def _ranges(self, starts: Ints, lengths: Ints) -> Bytes:
        _, _, begins, counts = split_at_headers(self.logical + starts, lengths)
        return gather_ranges(self.buffer, begins, counts)

    def _same_range(self, offset: int, nbytes: int) -> Bytes:
        logical = self.logical + offset
        width = range_nbytes(nbytes, len(self))
        if width < nbytes:
            begins = (logical[:, None] + np.arange(0, nbytes, width)).reshape(-1)
            return self._gathered(begins, width).reshape(len(self), nbytes)
        if nbytes < _LONG:
            return self._gathered(logical, nbytes)
        # Several block headers may cut a row.
        out = np.empty((len(self), nbytes), np.uint8)
        row_of, inside, begins, counts = split_at_headers(logical, np.full(len(self), nbytes))
        bounds = (bound.tolist() for bound in (row_of, inside, inside + counts, begins, begins + counts))
        for row, to, to_end, start, end in zip(*bounds, strict=True):
            out[row, to:to_end] = self.buffer[start:end]
        return out

    def _gathered(self, logical: Ints, nbytes: int) -> Bytes:
        """Return copies of ranges of one length as rows. At most one block header cuts a range.

        All rows are gathered as if no block header cut them. Then the few rows that a header does cut are repaired.
        """
        blocks = logical // PAYLOAD
        places = logical - blocks * PAYLOAD
        starts = logical + HEADER * (blocks + 1)
        out = gather_rows(self.buffer, starts, nbytes)
        (cut,) = (places > PAYLOAD - nbytes).nonzero()
        if len(cut) == 0:
            return out
        before = PAYLOAD - places[cut]
        # Slices of memoryviews take half as long to make as those of arrays.
        into = memory_of(out.reshape(-1))
        out_of = memory_of(self.buffer)
        for row, done, start in zip(cut.tolist(), before.tolist(), starts[cut].tolist(), strict=True):
            into[row * nbytes + done : (row + 1) * nbytes] = out_of[start + done + HEADER : start + nbytes + HEADER]
        return out
