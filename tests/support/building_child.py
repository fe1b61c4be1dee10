"""A process that builds in an object store, and its parent's side of the talk with it.

The child says "building" when its source is asked for a first record, stops in the middle until it is told to go on,
and ends with what became of its call.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from forks import FORKS

import cachelayer
from cachelayer.versions.snapshot import manifest_name

RECORDS = 1400
PAUSE = 1200
SHARD_BYTES = 200_000
LEASE_SECONDS = 1.5


def rows(records: int = RECORDS) -> Iterator[dict[str, Any]]:
    """The records of every build in these tests: two shards and a part of one before the pause."""
    for number in range(records):
        yield {"number": number, "payload": np.full(500, number % 251, np.uint8)}


def expected_digest() -> str:
    """The digest of every version in these tests."""
    return (
        cachelayer.Storage("memory://expected", local_cache_bytes=0)
        .cache(rows, "rows@v1", shard_bytes=SHARD_BYTES)
        .digest
    )


class Child:
    """A process that calls ``storage.cache`` or ``storage.submit``, as its parent sees it."""

    def __init__(self, how: str, url: str, options: dict[str, Any], folder: Path) -> None:
        self._talk, talk = FORKS.Pipe()
        self._shown, shown = FORKS.Pipe()
        self.process = FORKS.Process(target=main, args=(talk, shown, how, url, options, folder))
        self.process.start()
        for end in (talk, shown):
            end.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def hears(self) -> Any:
        """What it says next; its last words are what became of its call."""
        return self._talk.recv()

    def shown(self, text: str) -> str:
        """What it writes first on its standard error that holds the text."""
        while text not in (line := self._shown.recv()):
            pass
        return str(line)

    def go_on(self) -> None:
        self._talk.send("go on")

    def outcome(self) -> dict[str, Any]:
        """Digest, manifest and records of its version, or the name of the error."""
        while not isinstance(found := self.hears(), dict):
            pass
        return found


@contextmanager
def child(how: str, url: str, options: dict[str, Any], folder: Path) -> Iterator[Child]:
    """A child at work, which is killed at the end."""
    started = Child(how, url, options, folder)
    try:
        yield started
    finally:
        started.kill()


class Shown:
    """A standard error that a parent reads."""

    def __init__(self, shown: Connection) -> None:
        self._shown = shown

    def write(self, text: str) -> None:
        self._shown.send(text)

    def flush(self) -> None:
        """Nothing is kept back."""


def main(talk: Connection, shown: Connection, how: str, url: str, options: dict[str, Any], folder: Path) -> None:
    os.environ["CACHELAYER_LEASE_SECONDS"] = str(LEASE_SECONDS)
    sys.stderr = Shown(shown)  # type: ignore[assignment]
    storage = cachelayer.Storage(url, local_cache=folder, storage_options=options)

    def paused_rows() -> Iterator[dict[str, Any]]:
        talk.send("building")
        for row in rows():
            if row["number"] == PAUSE:
                talk.recv()
            yield row

    try:
        ref = getattr(storage, how)(paused_rows, "rows", "v1", shard_bytes=SHARD_BYTES, progress=True)
    except cachelayer.CacheLayerError as error:
        talk.send({"error": type(error).__name__, "message": str(error)})
    else:
        manifest = manifest_name(storage.versions("rows")["v1"])
        talk.send({"digest": ref.digest, "manifest": manifest, "numbers": ref.read([0, -1])["number"].tolist()})
