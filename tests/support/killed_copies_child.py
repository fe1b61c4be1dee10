"""Kill a process before every call that changes a file or locks one while local copies change, one after another.

Argument: an empty folder. Prints, for each change, a list of what each killed process left, as JSON: the bytes that
are there, and whether a copy that needs all the room was made afterwards.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from copies_child import total

from cachelayer.objects.local_cache import CacheFolder, CopyGroup, CopyOutcome

LIMIT = 100
WRITES = {"chmod", "flock", "ftruncate", "mkdir", "open", "rename", "replace", "truncate", "unlink", "utime"}
COPY, OTHER = "gs://a", "gs://other"


def fill(path: Path) -> None:
    path.open("rb+").close()


def refuse(path: Path) -> None:
    raise KeyError(path)


def new(group: CopyGroup) -> None:
    group.make("new", 20, fill)


def large(group: CopyGroup) -> None:
    """A copy for which others have to go."""
    group.make("new", 60, fill)


def too_large(group: CopyGroup) -> None:
    group.make("new", 90, fill)


def again(group: CopyGroup) -> None:
    """A copy that was cut before."""
    group.make("cut", 20, fill)


def taken_over(group: CopyGroup) -> None:
    """A copy of which a killed process left a part."""
    group.make("left", 20, fill)


def failed(group: CopyGroup) -> None:
    with suppress(KeyError):
        group.make("new", 20, refuse)


def dropped(group: CopyGroup) -> None:
    group.drop("cut")


def adopted(group: CopyGroup, nbytes: int = 10) -> None:
    built = group.path("").parent.with_suffix(".built")
    built.write_bytes(bytes(nbytes))
    group.adopt({built: "built"})


def adopted_too_large(group: CopyGroup) -> None:
    adopted(group, 90)


CHANGES: dict[str, Callable[[CopyGroup], None]] = {
    change.__name__: change
    for change in (new, large, too_large, again, taken_over, failed, dropped, adopted, adopted_too_large)
}


def prepare(folder: CacheFolder) -> None:
    """Put 40 bytes of an unused group there, a cut copy of 15 and a left part of 20."""
    for name in ("one", "two"):
        folder.group(OTHER).make(name, 20, fill)
    group = folder.group(COPY)
    group.make("cut", 15, fill)
    group.make("left", 20, fill)
    group.path("left").rename(group.path("left.part"))


def killed_before(call: int, change: Callable[[CopyGroup], None], group: CopyGroup) -> bool:
    """Do a change in a child that is killed before its ``call``-th call; return whether it came so far."""
    pid = os.fork()
    if pid:
        return os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    calls = 0

    def count(frame: object, event: str, function: Any) -> None:
        nonlocal calls
        if event == "c_call" and function.__name__ in WRITES:
            calls += 1
            if calls == call:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
    change(group)
    sys.setprofile(None)
    os._exit(0)


def kills(root: Path, change: Callable[[CopyGroup], None]) -> list[tuple[int, bool]]:
    """Return what each killed process left; the last one was not killed."""
    left: list[tuple[int, bool]] = []
    killed = True
    while killed:
        folder = CacheFolder(root / str(len(left)), LIMIT)
        prepare(folder)
        group = folder.group(COPY)
        killed = killed_before(len(left) + 1, change, group)
        there = total(folder.path)
        del group
        outcome = folder.group("gs://all").make("all", LIMIT, fill)
        left.append((there, outcome is CopyOutcome.HERE))
    return left


if __name__ == "__main__":
    # What is killed here loses nothing that only a disk would keep.
    os.fsync = lambda fd: None
    sys.stdout.write(json.dumps({name: kills(Path(sys.argv[1]) / name, change) for name, change in CHANGES.items()}))
