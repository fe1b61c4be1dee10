"""A child process that makes a version in one of several ways, for tests that kill it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import cachelayer

STEPS = {"open", "os.mkdir", "os.link", "os.rename", "os.remove"}
LEASE_SECONDS = 0.4
RECORDS = 400
OPTIONS: dict[str, Any] = {"shard_bytes": 40_000, "progress": False}


def rows(records: int) -> Iterator[dict[str, Any]]:
    """The records of every build in these tests."""
    for number in range(records):
        yield row(number)


def row(number: int) -> dict[str, Any]:
    return {"number": number, "payload": np.full(500, number % 251, np.uint8), "text": f"row {number}"}


class Rows(Sequence[Any]):
    """The records as a sequence, which can begin at any of them."""

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < RECORDS:
            raise IndexError(number)
        return row(number)


def backwards() -> Iterator[dict[str, Any]]:
    """The records of the other storage, from which a copy is made: it shares no shard with a build here."""
    return map(row, reversed(range(RECORDS)))


def generated() -> Iterator[dict[str, Any]]:
    return rows(RECORDS)


def part(index: int, count: int) -> list[dict[str, Any]]:
    return [row(number) for number in range(RECORDS * index // count, RECORDS * (index + 1) // count)]


def doubled(batch: dict[str, Any]) -> dict[str, Any]:
    return {"double": batch["number"] * 2}


Make = Callable[[cachelayer.Storage, cachelayer.Storage], cachelayer.DataRef[Any]]


def once(make: Callable[[cachelayer.Storage], cachelayer.DataRef[Any]]) -> Make:
    """Make the version unless it is there: a process may be killed right after it has published."""
    return lambda storage, _: storage.fetch("d", "new") if "new" in storage.versions("d") else make(storage)


# Each makes the version "new" in a storage; both storages have the version "base".
WAYS: dict[str, Make] = {
    "generator": lambda storage, _: storage.cache(generated, "d", "new", **OPTIONS),
    "sequence": lambda storage, _: storage.cache(Rows(), "d", "new", **OPTIONS),
    "workers": lambda storage, _: storage.cache(Rows(), "d", "new", workers=2, **OPTIONS),
    "parts": lambda storage, _: storage.cache(cachelayer.sharded(part, 6), "d", "new", **OPTIONS),
    "append": once(lambda storage: storage.append("d", "base", "new", generated, **OPTIONS)),
    "columns": once(lambda storage: storage.add_columns("d", "base", "new", doubled, batched=True, **OPTIONS)),
    "rewrite": lambda storage, _: storage.rewrite("d", "base", "new", shuffle_seed=7, **OPTIONS),
    "copy": lambda storage, other: other.copy("d", "base", storage, new="new", progress=False),
}


def make(url: str, options: dict[str, Any] | None, other: str, way: str, step: int | None) -> None:
    """Make a version in one of the ways; or die before that step in a folder, or that write to a bucket."""
    os.environ["CACHELAYER_LEASE_SECONDS"] = str(LEASE_SECONDS)
    storage = cachelayer.Storage(url, storage_options=options, local_cache_bytes=0)
    if step is not None:
        if options is None:
            die_before(url, step)
        else:
            _die_before_write(storage, step)
    WAYS[way](storage, cachelayer.Storage(other))


def die_before(folder: str, step: int) -> None:
    """Kill this process before it opens, makes, links, renames or removes something in the folder for the n-th time."""
    left = step

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        # How often threads sync a file early and renew a claim depends on the time, and nothing depends on it.
        by_the_clock = threading.current_thread().name.startswith(("cachelayer-sync", "cachelayer-claim"))
        if event in STEPS and str(arguments[0]).startswith(folder) and not by_the_clock:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def _die_before_write(storage: cachelayer.Storage, number: int) -> None:
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


def main(folder: str, version: str, records: int, step: int | None = None) -> None:
    """Build a version, or die before that step in the folder."""
    if step is not None:
        die_before(folder, step)
    cachelayer.Storage(folder).cache(rows(records), "rows", version, shard_bytes=200_000)
