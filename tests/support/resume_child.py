"""A source of several shards, and a process that is killed while it builds from it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
from forks import FORKS

import cachelayer

RECORDS = 8000
SHARD_BYTES = 100_000
LEASE_SECONDS = 0.4
DIE_AT: list[int] = []
"""No part of what is known of the code of the source, which has to stay the same."""


def row(number: int) -> dict[str, Any]:
    text = None if number == 3 else f"row {number}" * (number % 7)
    return {"number": number, "payload": np.full(200, number % 251, np.uint8), "text": text}


def generated() -> Iterator[dict[str, Any]]:
    for number in range(RECORDS):
        if number in DIE_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        yield row(number)


def build(url: str, options: dict[str, Any] | None, die_at: int) -> None:
    os.environ["CACHELAYER_LEASE_SECONDS"] = str(LEASE_SECONDS)
    DIE_AT[:] = [die_at]
    storage = cachelayer.Storage(url, storage_options=options, local_cache_bytes=0)
    storage.cache(generated, "rows", "v1", shard_bytes=SHARD_BYTES, progress=False)


def build_and_die(url: str, options: dict[str, Any] | None, record: int) -> None:
    """Have a process build that is killed at a record."""
    process = FORKS.Process(target=build, args=(url, options, record))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
