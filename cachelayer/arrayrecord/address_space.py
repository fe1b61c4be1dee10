"""One reserved range of addresses into which files are mapped, so that one array sees the bytes of all of them.

The range may lie anywhere: files are known by their offsets in it. The array reaches nothing outside the range.
Reading an address in the range to which no file is mapped ends the process, so readers read only the bytes of files
that they hold.
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
from functools import lru_cache, partial
from sys import is_finalizing
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.buddies import Buddies
from cachelayer.arrayrecord.reserved_memory import ReservedMemory, mapping_limit
from cachelayer.locks import ProcessLock, hold_in_forks
from cachelayer.records.memory import Bytes, Ints, windows
from cachelayer.user_warnings import warn

# Blocks are aligned for large pages, so that the kernel can use them.
_UNIT = max(2 << 20, mmap.ALLOCATIONGRANULARITY)
# The range has 2**45 bytes (32 TiB): as many shards of the default size, each in a block of 512 MiB, as Linux lets a
# process map by default. If addresses are scarce it is smaller; without even 2**28 bytes, files are not mapped.
_LARGEST_POWER, _SMALLEST_POWER = 45, 28
_COUNT_AGAIN_SECONDS = 1.0


class NoRoomError(Exception):
    """No file can be mapped now: no addresses are left, or the kernel allows no more mappings."""


class Residents(Protocol):
    """Mapped files that may be evicted if nobody has read them lately."""

    def last_used(self) -> tuple[Ints, Ints]:
        """Return the numbers of the mapped files, and when each was last read, in ns of the monotonic clock."""

    def evict(self, numbers: list[int], evicted: list[object]) -> None:
        """Forget these files, so that no new reader finds them.

        Args:
            numbers: the files.
            evicted: gets the objects that keep the files mapped, each before the file is forgotten: if this is
                interrupted, others may be reading them.
        """


class Epoch:
    """Keeps files mapped that were evicted while it lasted: a reader that holds the epoch may go on reading them."""

    __slots__ = ("__weakref__", "evicted", "following")

    def __init__(self) -> None:
        self.evicted: list[object] = []
        # A reader may also read files that are evicted later, so each epoch keeps the next one.
        self.following: Epoch | None = None


class Slot:
    """A file's place in an address space. The file stays mapped as long as its slot lives.

    Attributes:
        space: the address space.
        start: the offset of the file in the memory of the space.
    """

    __slots__ = ("__weakref__", "_order", "space", "start")

    def __init__(self, space: AddressSpace, start: int, order: int) -> None:
        self.start = start
        self._order = order
        # Last: if a signal handler raises before, there is nothing to give back.
        self.space = space

    def __del__(self, is_ending: Callable[[], bool] = is_finalizing) -> None:
        # When the process ends, the system unmaps everything; until then, threads may be reading.
        if not is_ending() and hasattr(self, "space"):
            self.space._give_back(self.start, self._order)


class _Block(NamedTuple):
    start: int
    order: int


# Held while a few numbers change and for one system call, and during a fork, so that no child sees half a change.
_LOCK = threading.Lock()
_SPACES: WeakSet[AddressSpace] = WeakSet()


def _after_in_child() -> None:
    # The child does not have the parent's threads, whose epochs would never end.
    for space in _SPACES:
        space.epoch = Epoch()


hold_in_forks(_LOCK, _after_in_child)


class AddressSpace:
    """One reserved range of addresses. Safe to use from threads and after a fork.

    Args:
        nbytes: its size: a power of two.
        limit: the number of mappings that it may use; by default as many as the kernel allows a process, less those
            that other code has, and less a sixteenth for those that other code may need.
        unit: files begin at multiples of this number of bytes: a power of two, and a multiple of the page size.

    Attributes:
        memory: the whole range, read-only: uint8 of shape ``[nbytes]``.
        view: the whole range as a memoryview, which is quicker to slice.
        changing: a lock to hold while files are evicted, and while files are added to :class:`Residents`.
        epoch: the current epoch. A reader of files that may be evicted takes it before it looks up their places, and
            holds it while it reads.

    Raises:
        OSError: if the system does not grant so many addresses.
    """

    def __init__(self, nbytes: int, limit: int | None = None, unit: int = _UNIT) -> None:
        self._reserved = ReservedMemory(nbytes, unit)
        self.memory: Bytes = np.asarray(self._reserved)
        self.view = memoryview(self.memory)  # type: ignore[arg-type]
        self.windows: Callable[[int], NDArray[Any]] = lru_cache(maxsize=256)(partial(windows, self.memory))
        self.epoch = Epoch()
        self._unit = unit
        self._limit = 0 if limit is None else limit
        # When to count again how many mappings other code has.
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
        """The number of mapped files."""
        return self._mapped

    def add(self, residents: Residents) -> None:
        """Let these files be evicted for others. The address space does not keep ``residents`` alive."""
        with self.changing:
            self._residents.add(residents)

    def map(self, descriptor: int, nbytes: int, since: int | None = None) -> Slot:
        """Map a file. Its descriptor may be closed afterwards.

        Args:
            descriptor: the open file.
            nbytes: its size, not 0.
            since: do not evict files that were read at this time or later; by default, any resident file.

        Raises:
            NoRoomError: if there is no room, even without the files that may be evicted.
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
                # Evicted files stay mapped while somebody reads them: if none was unmapped, more evictions do not help.
                if not self.evict(since) or self._mapped >= mapped:
                    raise
            finally:
                self._take_back()

    def evict(self, since: int) -> bool:
        """Evict the sixteenth of the files that has not been read for the longest time.

        Args:
            since: keep files that were read at this time or later.

        Returns:
            True if a file was evicted.
        """
        with self.changing:
            residents = [(each, *each.last_used()) for each in self._residents]
            times = np.concatenate([used for _, _, used in residents] or [np.empty(0, np.int64)])
            wanted = min(len(times) // 16 + 1, int((times < since).sum()))
            if wanted == 0:
                return False
            newest = np.partition(times, wanted - 1)[wanted - 1]
            # First hide them from new readers, then end the epoch of the readers that may have found them. If this is
            # interrupted, the epoch goes on and keeps what is hidden by then.
            for each, numbers, used in residents:
                each.evict(numbers[used <= newest].tolist(), self.epoch.evicted)
            self.epoch.following = following = Epoch()
            self.epoch = following
            return True

    def _check_can_be_mapped(self, descriptor: int) -> None:
        """Raise if files of this file system cannot be mapped, before a reserved address is used for one."""
        device = os.fstat(descriptor).st_dev
        if device not in self._devices:
            mmap.mmap(descriptor, 1, mmap.MAP_SHARED, mmap.PROT_READ).close()
            self._devices.add(device)

    def _map(self, descriptor: int, order: int) -> Slot:
        with _LOCK:
            if time.monotonic() >= self._count_at:
                self._limit = mapping_limit() - self._reserved.mappings_outside()
                self._count_at = time.monotonic() + _COUNT_AGAIN_SECONDS
            # Splitting a block leaves a gap between files, which is a mapping too.
            if not self._blocks.has(order) and self._mapped + self._blocks.free_blocks >= self._limit:
                raise NoRoomError("no more mappings are allowed")
            block = self._blocks.take(order)
            if block is None:
                raise NoRoomError("no addresses are left")
            try:
                self._reserved.replace(block * self._unit, self._unit << order, descriptor)
            except OSError as error:
                # It is unknown what is mapped at these addresses now, so they are never used again.
                if error.errno != errno.ENOMEM:
                    raise
                self._limit = self._mapped
                raise NoRoomError(str(error)) from error
            self._mapped += 1
        return Slot(self, block * self._unit, order)

    def _give_back(self, start: int, order: int) -> None:
        """Unmap a file. A destructor calls this: at any moment, in any thread, even in one that holds the lock."""
        self._returned.append(_Block(start, order))
        self._take_back()

    def _take_back(self) -> None:
        while self._returned and _LOCK.acquire(blocking=False):
            try:
                while self._returned:
                    block = self._returned.popleft()
                    self._mapped -= 1
                    if self._reserved.clear(block.start, self._unit << block.order):
                        self._blocks.give(block.start // self._unit, block.order)
            finally:
                _LOCK.release()


class _ProcessSpace:
    """Returns the address space of this process, which the first call reserves."""

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._is_known = False
        self._space: AddressSpace | None = None

    def __call__(self) -> AddressSpace | None:
        if not self._is_known:
            with self._lock:
                if not self._is_known:
                    self._space = _reserve()
                    self._is_known = True
        return self._space


address_space = _ProcessSpace()
"""Return the address space of this process; None, with one warning, if the system grants no addresses."""


def _reserve() -> AddressSpace | None:
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    # If addresses are limited, leave three quarters of them to other code.
    most = _LARGEST_POWER
    if allowed != resource.RLIM_INFINITY:
        most = min(most, (allowed // 4).bit_length() - 1)
    if ctypes.sizeof(ctypes.c_void_p) == 8:
        for power in range(most, _SMALLEST_POWER - 1, -1):
            try:
                return AddressSpace(1 << power)
            except (OSError, AttributeError):
                continue
    warn(
        "the system does not let this process reserve the addresses that files are mapped to (see `ulimit -v`): each "
        "record is read by a system call of its own, which is slower"
    )
    return None
