"""The count of what local copies take, kept in a file, so that nobody lists the copies before each new one.

Only the process that holds the lock on the file changes copies, in this order:

- before a file grows, its new bytes are added to the count;
- after a file is gone, its bytes are taken off.

So a process that is killed in between leaves a count that is too high, never one that is too low. The count does not
see that a user deletes files, or that older releases make copies. Therefore all files are listed again now and then,
and before anything is refused or removed for lack of room.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

# To list a file takes some microseconds. Of the time that passes, at most a hundredth goes into that, or a tenth while
# copies are refused or removed. A few files are listed before each refusal: the last listing may have seen files of a
# build that are counted once more when they become copies.
_SECONDS_A_FILE = 1e-5
_ROOMY, _FULL = 100, 10
_FEW = 100
_LONGEST_SECONDS = 600.0
_MOST = 1 << 63
GROUP = re.compile("[0-9a-f]{32}")
"""The names of groups; any other folder belongs to the user."""


@dataclass(frozen=True)
class Count:
    """What the local copies of a folder take.

    Args:
        nbytes: the bytes of each group.
        files: the number of files when they were listed.
        listed: when that was, in seconds since 1970.
    """

    nbytes: Mapping[str, int] = field(default_factory=dict)
    files: int = 0
    listed: float = 0.0

    @property
    def total(self) -> int:
        """Bytes of all groups."""
        return sum(self.nbytes.values())

    def plus(self, group: str, nbytes: int) -> Count:
        """Return the count after a group grew by some bytes, or shrank if they are negative."""
        return replace(self, nbytes={**self.nbytes, group: max(0, self.nbytes.get(group, 0) + nbytes)})

    def is_due(self, now: float, *, full: bool) -> bool:
        """Return whether the files should be listed again.

        Args:
            now: the time, in seconds since 1970.
            full: whether there would be no room otherwise.
        """
        if full and self.files <= _FEW:
            return True
        seconds = self.files * _SECONDS_A_FILE * (_FULL if full else _ROOMY)
        # Neither a clock that was set back nor a time that is no number keeps an old count alive.
        return not abs(now - self.listed) < min(seconds, _LONGEST_SECONDS)

    def encode(self) -> bytes:
        """Return the content of the file."""
        return json.dumps({"files": self.files, "listed": self.listed, "nbytes": dict(self.nbytes)}).encode()

    @classmethod
    def decode(cls, raw: bytes) -> Count | None:
        """Return the count that a file holds; None if it holds none."""
        try:
            found = json.loads(raw)
            nbytes = {str(group): int(size) for group, size in found["nbytes"].items()}
            count = cls(nbytes, int(found["files"]), float(found["listed"]))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None
        numbers = (count.files, *nbytes.values())
        return count if all(map(GROUP.fullmatch, nbytes)) and all(0 <= each < _MOST for each in numbers) else None


class CountFile:
    """The count of a folder, for the process that holds the lock on its file.

    Args:
        descriptor: the file.
        list_copies: lists the copies and counts them.
    """

    def __init__(self, descriptor: int, list_copies: Callable[[], Count]) -> None:
        self._descriptor = descriptor
        self._list_copies = list_copies
        # It is read before anything changes: a removal must not be seen by a listing and taken off, too.
        found = Count.decode(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
        self._is_new = found is None or found.is_due(time.time(), full=False)
        self._count = self.renew() if found is None or self._is_new else found

    def now(self) -> Count:
        """Return the count."""
        return self._count

    def checked(self) -> Count:
        """Return the count before it is believed that there is no room."""
        return self.renew() if self._count.is_due(time.time(), full=True) else self._count

    def renew(self) -> Count:
        """List the copies and return their count."""
        return self._write(self._list_copies())

    def add(self, group: str, nbytes: int) -> None:
        """Note that a group is about to grow by some bytes, or has shrunk if they are negative."""
        if nbytes:
            self._write(self._count.plus(group, nbytes))

    def include(self, group: str, nbytes: int) -> None:
        """Note bytes of a group that were written before the lock was taken."""
        if not self._is_new:
            self.add(group, nbytes)

    def _write(self, count: Count) -> Count:
        # Half a count must not look like a whole one.
        os.ftruncate(self._descriptor, 0)
        # If the disk is full, the next process lists the copies.
        with suppress(OSError):
            os.pwrite(self._descriptor, count.encode(), 0)
        self._count = count
        return count
