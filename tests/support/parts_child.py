"""Sources in parts for tests, and processes that build them together."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import cachelayer

PARTS = 8
RECORDS = 2000
SHARD_BYTES = 30_000
LEASE_SECONDS = 1.5


def row(number: int) -> dict[str, Any]:
    return {"number": number, "payload": np.full(200, number % 251, np.uint8), "text": "t" * (number % 40)}


def rows(index: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of one part; part 2 is empty."""
    if index != 2:
        own = [number for number in range(count) if number != 2]
        begin, end = (RECORDS * each // len(own) for each in (own.index(index), own.index(index) + 1))
        yield from map(row, range(begin, end))


class Rows:
    """Makes the rows of a part; if the folder has a file named like the part, removes it and kills the process.

    Args:
        folder: the folder. If it also has a file ``pauses``, the process stops itself instead.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, index: int, count: int) -> Iterator[dict[str, Any]]:
        for number, element in enumerate(rows(index, count)):
            fatal = self.folder / str(index)
            if number == 100 and fatal.exists():
                fatal.unlink()
                os.kill(os.getpid(), signal.SIGSTOP if (self.folder / "pauses").exists() else signal.SIGKILL)
            yield element


def main() -> None:
    """Cache together with other processes, and tell the digest."""
    url, options, folder, index, count, workers = sys.argv[1:]
    storage = cachelayer.Storage(url, storage_options=json.loads(options), local_cache_bytes=0)
    source = cachelayer.sharded(Rows(Path(folder)), PARTS)
    ref = storage.cache(source, "d@v1", hosts=(int(index), int(count)), workers=int(workers), shard_bytes=SHARD_BYTES)
    sys.stdout.write(ref.digest)
