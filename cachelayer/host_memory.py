"""How much memory this process may use."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")


@cache
def memory_nbytes(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes of memory of this host, or of the container that this process runs in, if that has fewer.

    Args:
        groups: the folder in which Linux shows the limits of the container; see cgroups(7).
    """
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in _LIMITS:
        # Without a limit, the file is not there, or holds "max" or a number larger than any memory.
        with suppress(OSError, ValueError):
            found.append(int((groups / name).read_text()))
    return min(found)
