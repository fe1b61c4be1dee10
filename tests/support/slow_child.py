"""A process that builds from a slow source and may be killed on the way, for tests of what is kept of open shards."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from forks import FORKS

import cachelayer
from cachelayer.builds import iterable_source, slow_records

RECORDS = 240
SHARD_BYTES = 6_000
TOGETHER = 7
LEASE_SECONDS = 0.4


def answer(number: int) -> dict[str, Any]:
    return {"number": number, "text": None if number == 90 else f"answer {number} " * (number % 9)}


class Answers(Sequence[Any]):
    """Answers that would take long.

    Args:
        log: the file that each number is added to when it is asked for.
        at: what happens before an answer.
        order: the number of the answer in each place.
    """

    def __init__(
        self, log: Path, at: Callable[[int], object] = lambda number: None, order: Callable[[int], int] = int
    ) -> None:
        self.log = log
        self.at = at
        self.order = order

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < RECORDS:
            raise IndexError(number)
        self.at(number)
        with self.log.open("a") as file:
            file.write(f"{number}\n")
        return answer(self.order(number))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def be_slow() -> None:
    """Have this process take each batch of a source for slow."""
    slow_records.KEEP_SECONDS = 0.0
    iterable_source.MAX_BATCH_RECORDS = TOGETHER


def cache(storage: cachelayer.Storage, source: Any, **options: Any) -> cachelayer.DataRef[Any]:
    return storage.cache(source, "rows", "v1", **{"shard_bytes": SHARD_BYTES, "progress": False, **options})


def build(url: str, options: dict[str, Any] | None, log: Path, die_at: int | None, die_at_write: int | None) -> None:
    os.environ["CACHELAYER_LEASE_SECONDS"] = str(LEASE_SECONDS)
    be_slow()
    storage = cachelayer.Storage(url, storage_options=options, local_cache_bytes=0)
    if die_at_write is not None:
        _die_at_write(storage, die_at_write)
    cache(storage, Answers(log, lambda number: die() if number == die_at else None))


def _die_at_write(storage: cachelayer.Storage, number: int) -> None:
    """Kill this process before it writes or deletes something in the store for the n-th time."""
    store, left = storage._store, number

    def before(write: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                die()
            return write(*args, **kwargs)

        return wrapped

    for name in ("put", "put_if_absent", "upload", "delete", "delete_folder"):
        object.__setattr__(store, name, before(getattr(store, name)))


def run(
    url: str, options: dict[str, Any] | None, log: Path, die_at: int | None, die_at_write: int | None = None
) -> int:
    """Return the exit status of a process that builds; it is killed at a record, or before a write to the store."""
    process = FORKS.Process(target=build, args=(url, options, log, die_at, die_at_write))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode
