"""Map files into memory.

To read past the end of a mapped file ends the process. So readers read only within files whose sizes were compared
after they were mapped, and every range is compared with that size before it is copied; see :mod:`cachelayer.gather`.
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

from cachelayer.arrayrecord.index import SIGNATURE, buffers_of_ranges
from cachelayer.errors import CacheLayerError, CorruptionError, StorageError
from cachelayer.gather import Buffers
from cachelayer.records.spans import Spans
from cachelayer.support.locks import cached_property
from cachelayer.support.memory import Bytes, Ints
from cachelayer.support.temporary_files import open_regular

_PAGE = mmap.ALLOCATIONGRANULARITY
_FAILED = ctypes.c_void_p(-1).value
_DEFAULT_MAPPING_LIMIT = 65_530
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


class _Mapping:
    """Addresses to which a file is mapped. They are released when no array uses them any more."""

    def __init__(self, path: Path, descriptor: int, nbytes: int) -> None:
        self._nbytes = nbytes
        try:
            self._address = _system_map(descriptor, nbytes)
        except OSError as error:
            if error.errno == errno.ENOMEM:
                raise StorageError(too_many_mapped(path)) from error
            raise StorageError(
                f"{path} cannot be mapped into memory: {error}: copy it to a file system that can map files"
            ) from error
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (nbytes,), "data": (self._address, True)}

    def __del__(self, is_ending: Callable[[], bool] = is_finalizing) -> None:
        # When the process ends, the system unmaps everything; until then, threads may be reading.
        if not is_ending() and hasattr(self, "_address"):
            _libc().munmap(self._address, self._nbytes)


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
        """Open a file and map it; raise a CorruptionError if it is missing or has another size than ``nbytes``."""
        with opened(path) as descriptor:
            return cls.of(path, descriptor, os.fstat(descriptor).st_size if nbytes is None else nbytes)

    @classmethod
    def of(cls, path: Path, descriptor: int, nbytes: int) -> MappedFile:
        """Map an open file, and check its size. Its descriptor may be closed afterwards."""
        buffer = np.asarray(_Mapping(path, descriptor, nbytes)) if nbytes else np.empty(0, np.uint8)
        # If the file was cut since it was written, a read past its end would end the process.
        size = os.fstat(descriptor).st_size
        if size != nbytes:
            raise CorruptionError(f"{path}: expected {nbytes} bytes, found {size}: it was cut or replaced")
        return cls(path, buffer)

    @property
    def nbytes(self) -> int:
        return len(self.buffer)

    def release(self, start: int, stop: int) -> None:
        """Give the memory of a range back to the system, which reads it from the disk again when it is used again."""
        first = -(-start // _PAGE) * _PAGE
        last = stop // _PAGE * _PAGE
        if last > first:
            _libc().madvise(self.buffer.ctypes.data + first, last - first, mmap.MADV_DONTNEED)

    def will_need(self, starts: Ints, stops: Ints) -> None:
        """Ask the system to read these ranges from the disk, and do not wait for it."""
        starts, stops = merged(starts, stops)
        first = starts // _PAGE * _PAGE
        base = self.buffer.ctypes.data
        for start, nbytes in zip((first + base).tolist(), (stops - first).tolist(), strict=True):
            _libc().madvise(start, nbytes, mmap.MADV_WILLNEED)

    @cached_property
    def as_buffer(self) -> Buffers:
        """The file as an ArrayRecord file, in which starts are logical offsets."""
        return buffers_of_ranges([self.buffer], np.zeros(1, np.int64), SIGNATURE)

    def records(self, logical: Ints, lengths: Ints) -> Spans:
        """Return ranges of an ArrayRecord file as records, without a copy."""
        return Spans(self.as_buffer, logical, lengths, name=lambda _: f"{self.path}: a record")


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mmap.restype = ctypes.c_void_p
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def _system_map(descriptor: int, nbytes: int) -> int:
    """Map an open file anywhere, and return its address."""
    mapped = _libc().mmap(0, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if mapped is None or mapped == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(mapped)


@cache
def mapping_limit() -> int:
    """Return how many files may be mapped: what the kernel allows a process, less a share for others."""
    try:
        allowed = int(Path("/proc/sys/vm/max_map_count").read_text(encoding="ascii"))
    except (OSError, ValueError):
        allowed = _DEFAULT_MAPPING_LIMIT
    return allowed - allowed // _SHARE_OF_OTHERS


def too_many_mapped(path: Path) -> str:
    return (
        f"{path} cannot be mapped: this process has as many files mapped as the system allows, about "
        f"{mapping_limit():,}: write larger shards with storage.rewrite(..., shard_bytes=...), or raise the limit: "
        "sysctl -w vm.max_map_count=1000000, and `ulimit -v` for the addresses of a process"
    )
