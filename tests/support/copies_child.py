"""A child process that makes local copies, for tests of what several processes do, or of one that is killed.

Arguments: what to do, the folder, its limit in bytes, and what that takes. It says "ready" first, and what came of it
at the end.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from cachelayer.objects.local_cache import CacheFolder, CopyOutcome


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


if __name__ == "__main__":
    what, path, limit, *arguments = sys.argv[1:]
    jobs: dict[str, Callable[..., None]] = {
        "hold": hold,
        "stop_in_the_middle": stop_in_the_middle,
        "make_all": make_all,
    }
    jobs[what](CacheFolder(Path(path), int(limit)), *arguments)
    sys.stdout.flush()
    os._exit(0)
