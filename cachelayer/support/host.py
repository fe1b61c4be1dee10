"""This host: its memory, and the names of its processes, by which other processes tell whether they still run.

The name of a process is ``<host>.<numbering>-<number>``. The numbering is a hash of what Linux says of the numbers of
processes: since when the machine runs, because several machines may be called ``localhost``, and the namespace, because
containers with ``--network=host`` share a host name, and number their processes separately. Other systems say neither.
"""

from __future__ import annotations

import hashlib
import os
import platform
from contextlib import suppress
from functools import cache
from pathlib import Path

_NUMBERING_LETTERS = 12
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")


@cache
def memory_nbytes(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes of memory of this host, or of the container of this process, if it has fewer.

    Linux shows the limits of the container in the folder ``groups``; see cgroups(7).
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in _LIMITS:
        # Without a limit, the file does not exist, or holds "max" or a very large number.
        with suppress(OSError, ValueError):
            limits.append(int((groups / name).read_text()))
    return min(limits)


@cache
def _host() -> str:
    facts = []
    with suppress(OSError):
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    with suppress(OSError):
        facts.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    return f"{platform.node()}.{hashlib.sha256(''.join(facts).encode()).hexdigest()[:_NUMBERING_LETTERS]}"


def process_name(pid: int | None = None) -> str:
    """Return the name of this process, or of the process of this host that has a number."""
    return f"{_host()}-{os.getpid() if pid is None else pid}"


def is_running(process: str) -> bool | None:
    """Return whether a process of this host runs; None for a process of another host."""
    host, _, number = process.rpartition("-")
    if host != _host() or not (number.isascii() and number.isdigit()):
        return None
    # A process of another user runs too.
    with suppress(PermissionError, OverflowError):
        try:
            os.kill(int(number), 0)
        except ProcessLookupError:
            return False
    return True
