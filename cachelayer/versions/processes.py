"""Which process is at work, told so exactly that others on its host know at once when it has ended.

A process is known by its host, the boot of that host, its pid namespace (each container of a host has its own, in which
the same numbers mean other processes), its pid, and when it started (a pid is given away again). If the system does not
tell all of this, as on macOS, nothing is known, and others wait for the lease to expire.

What stands in a lease was written by others. At worst it makes two builders do the same work: what is published is
decided by the log alone.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
_LARGEST_PID = 2**31 - 1


@dataclass(frozen=True)
class Process:
    """A process.

    Args:
        host: the name of its host.
        boot: the id of the boot of that host.
        namespace: the inode of its pid namespace.
        pid: its number in that namespace.
        start: when it started, in ticks since the boot.
    """

    host: str
    boot: str
    namespace: int
    pid: int
    start: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: object) -> Process | None:
        """Return what :meth:`to_json` gave; None for anything else."""
        if not isinstance(document, Mapping):
            return None
        host, boot = document.get("host"), document.get("boot")
        if not (isinstance(host, str) and host and isinstance(boot, str) and boot):
            return None
        numbers: dict[str, Any] = {name: document.get(name) for name in ("namespace", "pid", "start")}
        if not all(type(number) is int and number > 0 for number in numbers.values()):
            return None
        return cls(host, boot, **numbers) if numbers["pid"] <= _LARGEST_PID else None

    def has_ended(self) -> bool:
        """Return whether the process is known to have ended; False if it runs, or nothing is known of it here."""
        here = this_process()
        if here is None or (self.host, self.boot, self.namespace) != (here.host, here.boot, here.namespace):
            return False
        try:
            # Also where /proc hides the processes of other users.
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        found = _stat(str(self.pid))
        return found is not None and (found.start != self.start or found.is_dead)


def this_process() -> Process | None:
    """Return this process; None if the system does not tell all that is needed."""
    pid, stat = os.getpid(), _stat("self")
    try:
        # Another namespace's /proc counts processes otherwise.
        if stat is None or (_PROC / "self").readlink().name != str(pid):
            return None
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = (_PROC / "self/ns/pid").stat().st_ino
    except OSError:
        return None
    return Process(platform.node(), boot, namespace, pid, stat.start) if platform.node() and boot else None


@dataclass(frozen=True)
class _Stat:
    """What /proc tells of a process.

    Args:
        start: when it started, in ticks since the boot.
        is_dead: whether it has ended, and only its parent has not asked for it.
    """

    start: int
    is_dead: bool


def _stat(pid: str) -> _Stat | None:
    try:
        # The second field is the name of the program, in brackets, and may hold anything.
        fields = (_PROC / pid / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return _Stat(int(fields[19]), fields[0] in ("Z", "X"))
    except (OSError, ValueError, IndexError):
        return None
