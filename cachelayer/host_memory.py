"""The memory that this process may use."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")


@cache
def memory_nbytes(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes of memory of this host, or of the container of this process, if it has fewer.

    Args:
        groups: the folder in which Linux shows the limits of the container; see cgroups(7).
    """
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in _LIMITS:
        # Without a limit, the file does not exist, or holds "max" or a very large number.
        with suppress(OSError, ValueError):
            found.append(int((groups / name).read_text()))
    return min(found)
