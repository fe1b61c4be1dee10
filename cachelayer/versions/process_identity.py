"""Identify a process so exactly that other processes on its host see at once when it has ended.

A process is identified by its host, the boot of that host, its pid namespace (each container has its own, in which the
same pids are other processes), its pid, and its start time (pids are reused). If the system does not tell all of this,
as on macOS, a process has no identity, and others wait for its lease to expire.

Other processes write the identities in leases, and may write anything. At worst, two builders do the same work: the log
alone decides what is published.
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
    """The identity of a process.

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
        """Return the process that :meth:`to_json` wrote; None for anything else."""
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
        """Return whether the process is known to have ended; False if it runs, or if that is not known here."""
        here = this_process()
        if here is None or (self.host, self.boot, self.namespace) != (here.host, here.boot, here.namespace):
            return False
        try:
            # This works even if /proc hides the processes of other users.
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        found = _stat(str(self.pid))
        return found is not None and (found.start != self.start or found.is_dead)


def this_process() -> Process | None:
    """Return this process; None if the system does not tell enough to identify it."""
    pid, stat = os.getpid(), _stat("self")
    try:
        # The /proc of another pid namespace shows this process under another pid.
        if stat is None or (_PROC / "self").readlink().name != str(pid):
            return None
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = (_PROC / "self/ns/pid").stat().st_ino
    except OSError:
        return None
    return Process(platform.node(), boot, namespace, pid, stat.start) if platform.node() and boot else None


@dataclass(frozen=True)
class _Stat:
    """What /proc tells about a process.

    Args:
        start: when it started, in ticks since the boot.
        is_dead: whether it has ended, though its parent has not collected its exit status yet.
    """

    start: int
    is_dead: bool


def _stat(pid: str) -> _Stat | None:
    try:
        # The second field is the name of the program, in brackets. It may hold brackets and spaces itself.
        fields = (_PROC / pid / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return _Stat(int(fields[19]), fields[0] in ("Z", "X"))
    except (OSError, ValueError, IndexError):
        return None
