"""A child process that makes local copies, for tests of what several processes do, or of those that are killed.

Arguments: what to do, the folder, its limit in bytes, and what that takes. It says "ready" first, and what came of it
at the end.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cachelayer.objects.local_cache import CacheFolder, CopyGroup, CopyOutcome

WRITES = {"chmod", "flock", "ftruncate", "mkdir", "open", "rename", "replace", "truncate", "unlink", "utime"}


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def total(folder: Path) -> int:
    """Bytes of all copies of all groups of a folder."""
    sizes = []
    for path in folder.glob("*/*"):
        try:
            sizes.append(path.stat().st_size if path.is_file() and path.name != "in-use" else 0)
        except FileNotFoundError:
            continue
    return sum(sizes)


def hold(folder: CacheFolder, url: str) -> None:
    """Use a group until standard input ends."""
    group = folder.group(url)
    say("ready")
    sys.stdin.read()
    del group


def stop_in_the_middle(folder: CacheFolder, url: str, name: str, nbytes: str) -> None:
    """Begin to make a copy, and wait in the middle of it."""

    def fill(path: Path) -> None:
        with path.open("rb+") as file:
            file.write(b"x" * (int(nbytes) // 2))
        say("ready")
        sys.stdin.read()

    folder.group(url).make(name, int(nbytes), fill)


def make_all(folder: CacheFolder, url: str, count: str, nbytes: str) -> None:
    """Make copies; say which were made here, and the most bytes that were in the folder."""
    group = folder.group(url)
    made: list[str] = []
    most = 0
    say("ready")
    sys.stdin.readline()
    wanted = [f"copy-{number}" for number in range(int(count))]
    while wanted:
        name = wanted.pop(0)

        def fill(path: Path, name: str = name) -> None:
            made.append(name)
            # In place: a file that is emptied first would count as nothing for a moment.
            with path.open("rb+") as file:
                file.write(name.encode().ljust(int(nbytes), b"."))

        if group.make(name, int(nbytes), fill) is CopyOutcome.BUSY:
            wanted.append(name)
        most = max(most, total(folder.path))
    say(json.dumps({"made": made, "most": most}))
    sys.stdin.readline()


def fill_nothing(path: Path) -> None:
    path.open("rb+").close()


def refuse(path: Path) -> None:
    raise KeyError(path)


def failed(group: CopyGroup) -> None:
    with suppress(KeyError):
        group.make("new", 20, refuse)


def adopted(group: CopyGroup, nbytes: int) -> None:
    built = group.path("").parent.with_suffix(".built")
    built.write_bytes(bytes(nbytes))
    group.move_in({built: "built"})


CHANGES: dict[str, Callable[[CopyGroup], object]] = {
    "new": lambda group: group.make("new", 20, fill_nothing),
    "others have to go": lambda group: group.make("new", 60, fill_nothing),
    "too large": lambda group: group.make("new", 90, fill_nothing),
    "cut before": lambda group: group.make("cut", 20, fill_nothing),
    "part of a killed process": lambda group: group.make("left", 20, fill_nothing),
    "failed": failed,
    "dropped": lambda group: group.drop("cut"),
    "adopted": lambda group: adopted(group, 10),
    "adopted, too large": lambda group: adopted(group, 90),
}


def prepare(folder: CacheFolder) -> None:
    """Put 40 bytes of an unused group there, a cut copy of 15 and a left part of 20."""
    for name in ("one", "two"):
        folder.group("gs://other").make(name, 20, fill_nothing)
    group = folder.group("gs://a")
    group.make("cut", 15, fill_nothing)
    group.make("left", 20, fill_nothing)
    group.path("left").rename(group.path("left.part"))


def killed_before(call: int, change: Callable[[CopyGroup], object], group: CopyGroup) -> bool:
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


def kills(root: Path, limit: int, change: Callable[[CopyGroup], object]) -> list[tuple[int, bool]]:
    """Kill a process before each call that changes a file or locks one.

    Returns:
        What each left, the last of which was not killed: the bytes that are there, and whether a copy that needs all
        the room was made afterwards.
    """
    left: list[tuple[int, bool]] = []
    killed = True
    while killed:
        folder = CacheFolder(root / str(len(left)), limit)
        prepare(folder)
        group = folder.group("gs://a")
        killed = killed_before(len(left) + 1, change, group)
        there = total(folder.path)
        del group
        outcome = folder.group("gs://all").make("all", limit, fill_nothing)
        left.append((there, outcome is CopyOutcome.HERE))
    return left


def kill_everywhere(folder: CacheFolder) -> None:
    # What is killed here loses nothing that only a disk would keep.
    os.fsync = lambda fd: None
    assert folder.limit is not None
    say(json.dumps({name: kills(folder.path / name, folder.limit, change) for name, change in CHANGES.items()}))


if __name__ == "__main__":
    what, path, most_bytes, *arguments = sys.argv[1:]
    globals()[what](CacheFolder(Path(path), int(most_bytes)), *arguments)
    sys.stdout.flush()
    os._exit(0)
