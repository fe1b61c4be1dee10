"""A process that builds a version and may kill itself on the way, for tests of resuming."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from forks import FORKS

import cachelayer

RECORDS = 8000
SHARD_BYTES = 100_000
LEASE_SECONDS = 0.4


def row(number: int) -> dict[str, Any]:
    text = None if number == 3 else f"row {number}" * (number % 7)
    return {"number": number, "payload": np.full(200, number % 251, np.uint8), "text": text}


class Rows(Sequence[Any]):
    """A sequence that kills its process when it is asked for a certain element."""

    def __init__(self, die_at: int | None = None) -> None:
        self.die_at = die_at

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < RECORDS:
            raise IndexError(number)
        if number == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return row(number)


DIE_AT: list[int] = []
"""No part of what is known of the code of the source, which has to stay the same."""


def generated() -> Iterator[dict[str, Any]]:
    rows = Rows(*DIE_AT)
    for number in range(RECORDS):
        yield rows[number]


def build(url: str, options: dict[str, Any] | None, how: str, die_at: int | None, die_at_put: int | None) -> None:
    os.environ["CACHELAYER_LEASE_SECONDS"] = str(LEASE_SECONDS)
    storage = cachelayer.Storage(url, storage_options=options, local_cache_bytes=0)
    if die_at_put is not None:
        _die_at_put(storage, die_at_put)
    DIE_AT[:] = [] if die_at is None else [die_at]
    source = generated if how == "generator" else Rows(*DIE_AT)
    storage.cache(source, "rows", "v1", shard_bytes=SHARD_BYTES, progress=False)


def _die_at_put(storage: cachelayer.Storage, number: int) -> None:
    """Kill this process before it writes something to the store for the n-th time."""
    store, left = storage._store, number

    def before(write: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return write(*args, **kwargs)

        return wrapped

    for name in ("put", "put_if_absent", "upload"):
        object.__setattr__(store, name, before(getattr(store, name)))


def run(url: str, options: dict[str, Any] | None, how: str, die_at: int | None, die_at_put: int | None = None) -> int:
    """Return the exit status of a process that builds; it is killed at a record, or before a write to the store."""
    process = FORKS.Process(target=build, args=(url, options, how, die_at, die_at_put))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode
