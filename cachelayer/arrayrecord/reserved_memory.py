"""Reserved addresses, and the system calls that map files into them."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from sys import is_finalizing
from typing import Any

_PROT_NONE = 0
_MAP_FIXED = 0x10
_RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANON
_FAILED = ctypes.c_void_p(-1).value
# The kernel's default, for systems that do not say how many mappings a process may have.
_DEFAULT_MAPPING_LIMIT = 65_536
# One sixteenth of the mappings that the kernel allows a process is left to other code.
_SHARE_OF_OTHERS = 16


class ReservedMemory:
    """A range of reserved addresses into which files are mapped; it is released when no array uses it any more."""

    def __init__(self, nbytes: int, alignment: int) -> None:
        self._nbytes = nbytes + alignment
        self._address = _system_map(0, self._nbytes, _PROT_NONE, _RESERVED, -1)
        self._start = -(-self._address // alignment) * alignment
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (nbytes,), "data": (self._start, True)}

    def mappings_outside(self) -> int:
        """Return how many mappings this process has elsewhere; 0 if the system does not tell."""
        first, end = self._address, self._address + self._nbytes
        try:
            with Path("/proc/self/maps").open("rb") as lines:
                return sum(not first <= int(line.partition(b"-")[0], 16) < end for line in lines)
        except OSError:
            return 0

    def replace(self, start: int, nbytes: int, descriptor: int) -> None:
        """Map a file from its first byte; the mapping may reach past its end."""
        _system_map(self._start + start, nbytes, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, descriptor)

    def clear(self, start: int, nbytes: int) -> bool:
        """Reserve the addresses of a file again, at no moment free to other code; return whether that worked."""
        try:
            _system_map(self._start + start, nbytes, _PROT_NONE, _RESERVED | _MAP_FIXED, -1)
        except OSError:
            return False
        return True

    def __del__(self, is_ending: Callable[[], bool] = is_finalizing) -> None:
        if not is_ending() and hasattr(self, "_address"):
            _libc().munmap(self._address, self._nbytes)


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mmap.restype = ctypes.c_void_p
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


def _system_map(address: int, nbytes: int, protection: int, flags: int, descriptor: int) -> int:
    mapped = _libc().mmap(address, nbytes, protection, flags, descriptor, 0)
    if mapped is None or mapped == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(mapped)


def mapping_limit() -> int:
    """Return how many mappings the kernel allows a process, less a share for other code."""
    try:
        allowed = int(Path("/proc/sys/vm/max_map_count").read_text(encoding="ascii"))
    except (OSError, ValueError):
        allowed = _DEFAULT_MAPPING_LIMIT
    return allowed - allowed // _SHARE_OF_OTHERS
