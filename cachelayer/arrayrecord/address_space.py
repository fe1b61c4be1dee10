"""One range of reserved addresses that files are mapped into, so that one array sees the bytes of all of them.

Nothing depends on where the range lies: the array begins where it begins, and files are known by their offsets in it.
Nothing outside of it can be reached through the array. Within it, reading an address without a file ends
the process: readers keep to the bytes of files that they hold.
"""

from __future__ import annotations

import ctypes
import errno
import math
import mmap
import os
import resource
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import cache, lru_cache, partial
from pathlib import Path
from sys import is_finalizing
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.buddies import Buddies
from cachelayer.locks import ProcessLock
from cachelayer.records.memory import Bytes, Ints, windows
from cachelayer.user_warnings import warn

_PROT_NONE = 0
_MAP_FIXED = 0x10
_RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANON
_FAILED = ctypes.c_void_p(-1).value
# Blocks begin where a large page may begin, so that the kernel can map large pages.
_UNIT = max(2 << 20, mmap.ALLOCATIONGRANULARITY)
# 32 TiB, which holds as many shards of the default size as Linux maps by default: one takes a block of 512 MiB. Less if
# addresses are scarce; below the least, files are read without mapping them.
_MOST, _LEAST = 45, 28
# The share of the mappings that the kernel allows a process which is left to others.
_OTHERS = 16
_UNKNOWN_MAPPINGS = 65_536
_COUNT_SECONDS = 1.0


class NoRoomError(Exception):
    """A file cannot be mapped now: no addresses are left, or no more mappings are allowed."""


class Residents(Protocol):
    """Files in mapped memory that may be given up if nobody has read them lately."""

    def last_used(self) -> tuple[Ints, Ints]:
        """The numbers of those that are mapped, and when each was read last: nanoseconds of the monotonic clock."""

    def evict(self, numbers: list[int]) -> list[object]:
        """Forget some of them, so that no reader finds them from now on; return what keeps them mapped."""


class Epoch:
    """Keeps files mapped for those who began to read before they were given up: its holder may read on."""

    __slots__ = ("evicted", "following")

    def __init__(self) -> None:
        self.evicted: list[object] = []
        # A later epoch's files may be read by those who hold this one.
        self.following: Epoch | None = None


class Slot:
    """A file's place in an address space. The file stays mapped as long as this is held.

    Attributes:
        space: the address space.
        start: where the file begins in its memory.
    """

    __slots__ = ("__weakref__", "_order", "space", "start")

    def __init__(self, space: AddressSpace, start: int, order: int) -> None:
        self.space = space
        self.start = start
        self._order = order

    def __del__(self, is_ending: Callable[[], bool] = is_finalizing) -> None:
        # The end of the process unmaps everything; threads may be reading until then.
        if not is_ending():
            self.space._give_back(self.start, self._order)


class _Block(NamedTuple):
    start: int
    order: int


# Held for the change of a few numbers and one system call; and during a fork, so that no child finds half a change.
_LOCK = threading.Lock()
_SPACES: WeakSet[AddressSpace] = WeakSet()


def _after_in_child() -> None:
    # Threads that a child does not have would hold their epochs for ever.
    for space in _SPACES:
        space.epoch = Epoch()
    _LOCK.release()


os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_after_in_child)


class AddressSpace:
    """A range of addresses that is reserved as a whole. Safe to use from threads and after a fork.

    Args:
        nbytes: its size: a power of two.
        limit: how many mappings it may take; by default as many as the kernel allows a process, less those that
            others have, and a sixteenth for what they may need.
        unit: files begin at multiples of so many bytes: a power of two, of pages.

    Attributes:
        memory: all of it, read-only: uint8 of shape ``[nbytes]``.
        view: the same, for slices.
        changing: held while files are given up; and by those who enter files among their :class:`Residents`.
        epoch: to be held by who reads files that may be evicted, from before their places are looked up.

    Raises:
        OSError: if the system refuses so many addresses.
    """

    def __init__(self, nbytes: int, limit: int | None = None, unit: int = _UNIT) -> None:
        self._region = _Region(nbytes, unit)
        self.memory: Bytes = np.asarray(self._region)
        self.view = memoryview(self.memory)  # type: ignore[arg-type]
        self.windows: Callable[[int], NDArray[Any]] = lru_cache(maxsize=256)(partial(windows, self.memory))
        self.epoch = Epoch()
        self._unit = unit
        self._limit = 0 if limit is None else limit
        # When it is looked again how many mappings others have.
        self._count_at: float = 0 if limit is None else math.inf
        self._blocks = Buddies((nbytes // unit).bit_length() - 1)
        self._mapped = 0
        self._devices: set[int] = set()
        self._returned: deque[_Block] = deque()
        self._residents: WeakSet[Residents] = WeakSet()
        self.changing = ProcessLock()
        _SPACES.add(self)

    @property
    def mapped(self) -> int:
        """How many files are mapped."""
        return self._mapped

    def add(self, residents: Residents) -> None:
        """Have these files give way to others; they are not kept by this."""
        with self.changing:
            self._residents.add(residents)

    def map(self, descriptor: int, nbytes: int, since: int | None = None) -> Slot:
        """Map a file, which may be closed then.

        Args:
            descriptor: the open file.
            nbytes: its size, not 0.
            since: files that were read at this time or later do not give way; by default all do that may.

        Raises:
            NoRoomError: if there is no room, though all files that may give way did.
            OSError: if the file cannot be mapped.
        """
        self._check_can_be_mapped(descriptor)
        order = max(0, (-(-nbytes // self._unit) - 1).bit_length())
        since = time.monotonic_ns() if since is None else since
        while True:
            mapped = self._mapped
            try:
                return self._map(descriptor, order)
            except NoRoomError:
                # What was given up stays mapped while somebody reads it: then more of it would not help either.
                if not self.evict(since) or self._mapped >= mapped:
                    raise
            finally:
                self._take_back()

    def evict(self, since: int) -> bool:
        """Give up the sixteenth of the files that was not read for the longest time.

        Args:
            since: files that were read at this time or later stay.

        Returns:
            Whether there was one.
        """
        with self.changing:
            found = [(each, *each.last_used()) for each in self._residents]
            times = np.concatenate([used for _, _, used in found] or [np.empty(0, np.int64)])
            wanted = min(len(times) // 16 + 1, int((times < since).sum()))
            if wanted == 0:
                return False
            newest = np.partition(times, wanted - 1)[wanted - 1]
            # First no new reader finds them, then the epoch of those who may have found them ends.
            evicted = [one for each, numbers, used in found for one in each.evict(numbers[used <= newest].tolist())]
            ended, self.epoch = self.epoch, Epoch()
            ended.following, ended.evicted = self.epoch, evicted
            return True

    def _check_can_be_mapped(self, descriptor: int) -> None:
        """Raise if files of this file system cannot be mapped; before one is tried at addresses that are reserved."""
        device = os.fstat(descriptor).st_dev
        if device not in self._devices:
            mmap.mmap(descriptor, 1, mmap.MAP_SHARED, mmap.PROT_READ).close()
            self._devices.add(device)

    def _map(self, descriptor: int, order: int) -> Slot:
        with _LOCK:
            if time.monotonic() >= self._count_at:
                self._limit = mapping_limit() - self._region.mappings_outside()
                self._count_at = time.monotonic() + _COUNT_SECONDS
            # A block that is cut into two, or a gap between files, takes a mapping too.
            if not self._blocks.has(order) and self._mapped + self._blocks.free_blocks >= self._limit:
                raise NoRoomError("no more mappings are allowed")
            block = self._blocks.take(order)
            if block is None:
                raise NoRoomError("no addresses are left")
            try:
                self._region.replace(block * self._unit, self._unit << order, descriptor)
            except OSError as error:
                # What lies at these addresses now is not known, so they are never used again.
                if error.errno != errno.ENOMEM:
                    raise
                self._limit = self._mapped
                raise NoRoomError(str(error)) from error
            self._mapped += 1
        return Slot(self, block * self._unit, order)

    def _give_back(self, start: int, order: int) -> None:
        """Unmap a file. Called at any moment and in any thread, also in one that holds the lock."""
        self._returned.append(_Block(start, order))
        self._take_back()

    def _take_back(self) -> None:
        while self._returned and _LOCK.acquire(blocking=False):
            try:
                while self._returned:
                    block = self._returned.popleft()
                    self._mapped -= 1
                    if self._region.clear(block.start, self._unit << block.order):
                        self._blocks.give(block.start // self._unit, block.order)
            finally:
                _LOCK.release()


class _Region:
    """Reserved addresses, into which files are mapped; they are given back when no array sees them any more."""

    def __init__(self, nbytes: int, alignment: int) -> None:
        self._reserved = nbytes + alignment
        self._address = _system_map(0, self._reserved, _PROT_NONE, _RESERVED, -1)
        self._start = -(-self._address // alignment) * alignment
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (nbytes,), "data": (self._start, True)}

    def mappings_outside(self) -> int:
        """How many mappings this process has elsewhere; 0 if the system does not tell."""
        first, end = self._address, self._address + self._reserved
        try:
            with Path("/proc/self/maps").open("rb") as lines:
                return sum(not first <= int(line.partition(b"-")[0], 16) < end for line in lines)
        except OSError:
            return 0

    def replace(self, start: int, nbytes: int, descriptor: int) -> None:
        """Map a file from its begin; the mapping may reach past its end."""
        _system_map(self._start + start, nbytes, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, descriptor)

    def clear(self, start: int, nbytes: int) -> bool:
        """Reserve addresses again where a file is; return whether that worked. At no moment are they free to others."""
        try:
            _system_map(self._start + start, nbytes, _PROT_NONE, _RESERVED | _MAP_FIXED, -1)
        except OSError:
            return False
        return True

    def __del__(self, is_ending: Callable[[], bool] = is_finalizing) -> None:
        if not is_ending() and hasattr(self, "_address"):
            _libc().munmap(self._address, self._reserved)


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mmap.restype = ctypes.c_void_p
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


def _system_map(address: int, nbytes: int, protection: int, flags: int, descriptor: int) -> int:
    found = _libc().mmap(address, nbytes, protection, flags, descriptor, 0)
    if found is None or found == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(found)


def mapping_limit() -> int:
    """Return how many mappings the kernel allows a process, less what is left to others."""
    try:
        allowed = int(Path("/proc/sys/vm/max_map_count").read_text(encoding="ascii"))
    except (OSError, ValueError):
        allowed = _UNKNOWN_MAPPINGS
    return allowed - allowed // _OTHERS


class _OfProcess:
    """The address space of this process, reserved when it is asked for first."""

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._is_known = False
        self._space: AddressSpace | None = None

    def __call__(self) -> AddressSpace | None:
        if not self._is_known:
            with self._lock:
                if not self._is_known:
                    self._space = _reserved()
                    self._is_known = True
        return self._space


address_space = _OfProcess()
"""Returns the address space of this process; None, after one warning, if the system grants none."""


def _reserved() -> AddressSpace | None:
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    # Of addresses that are limited, three quarters are left to others.
    most = _MOST if allowed == resource.RLIM_INFINITY else min(_MOST, (allowed // 4).bit_length() - 1)
    if ctypes.sizeof(ctypes.c_void_p) == 8:
        for power in range(most, _LEAST - 1, -1):
            try:
                return AddressSpace(1 << power)
            except (OSError, AttributeError):
                continue
    warn(
        "the system does not let this process reserve addresses to map files at (see `ulimit -v`): records are read "
        "by system calls of their own, which is slower"
    )
    return None
