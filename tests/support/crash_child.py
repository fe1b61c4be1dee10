"""A child process that builds a version, for tests that kill it; as a program, with folder, version and records."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import cachelayer

REVOKED = 3
"""Exit status of a child whose attempt was revoked."""
STEPS = {"open", "os.mkdir", "os.link", "os.rename", "os.remove"}


def rows(records: int) -> Iterator[dict[str, Any]]:
    """The records of every build in these tests."""
    for number in range(records):
        yield {"number": number, "payload": np.full(500, number % 251, np.uint8), "text": f"row {number}"}


def die_before(folder: str, step: int) -> None:
    """Kill this process before it opens, makes, links, renames or removes something in the folder for the n-th time."""
    left = step

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event in STEPS and str(arguments[0]).startswith(folder):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def main(folder: str, version: str, records: int, step: int | None = None) -> None:
    """Build a version, or die before that step in the folder."""
    if step is not None:
        die_before(folder, step)
    try:
        cachelayer.Storage(folder).cache(rows(records), "rows", version, shard_bytes=200_000)
    except cachelayer.BuildRevokedError:
        sys.exit(REVOKED)
    Path(folder, f"done-{version}").touch()


if __name__ == "__main__":
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
