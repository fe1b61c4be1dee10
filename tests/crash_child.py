"""A child process that builds a version, for tests that kill it. Arguments: folder, version, records."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import cachelayer


def rows(records: int) -> Iterator[dict[str, Any]]:
    """The records of every build in these tests."""
    for number in range(records):
        yield {"number": number, "payload": np.full(500, number % 251, np.uint8), "text": f"row {number}"}


def main(folder: str, version: str, records: str) -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    cachelayer.Storage(folder).cache(rows(int(records)), "rows", version, shard_bytes=200_000)
    Path(folder, f"done-{version}").touch()


if __name__ == "__main__":
    main(*sys.argv[1:])
