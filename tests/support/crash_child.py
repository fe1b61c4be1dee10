"""A child process that makes a version in one of several ways, for tests that kill it."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from operations import OPERATIONS, OPTIONS, Listed, Operation, rows

import cachelayer
from cachelayer import DataRef, Storage

STEPS = {"open", "os.mkdir", "os.link", "os.rename", "os.remove"}
LEASE_SECONDS = 0.4

Make = Callable[[Storage, Storage], DataRef[Any]]


def once(operation: Operation) -> Make:
    """Make the version unless it is there: a process may be killed right after it has published."""
    return lambda storage, _: storage.fetch("d@new") if "new" in storage.versions("d") else operation(storage, "new")


# Each makes the version "new" in a storage; both storages have the version "v1", the other one that of other records.
WAYS: dict[str, Make] = {
    **{name: once(operation) for name, operation in OPERATIONS.items() if name not in ("submit", "derive")},
    "workers": lambda storage, _: storage.cache(Listed(), "d@new", workers=2, **OPTIONS),
    "copy": lambda storage, other: other.copy("d@v1", to=storage, new="new", progress=False),
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
    store, left = type(storage._store), number

    def before(write: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return write(*args, **kwargs)

        return wrapped

    for name in ("put", "put_if_absent", "put_file"):
        setattr(store, name, before(getattr(store, name)))


def main(folder: str, version: str, records: int, step: int | None = None) -> None:
    """Build a version, or die before that step in the folder."""
    if step is not None:
        die_before(folder, step)
    cachelayer.Storage(folder).cache(iter(rows(0, records)), f"rows@{version}", shard_bytes=200_000)
