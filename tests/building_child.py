"""A child process that builds in an object store, and its parent's side of the talk with it.

The child says "building" when its source is asked for a first record, stops in the middle until it is told to go on,
and ends with what became of its call. Arguments: how, url, storage options, folder of local copies.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

import cachelayer

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
        .cache(rows, "rows", "v1", shard_bytes=SHARD_BYTES)
        .digest
    )


class Child:
    """A process that calls ``storage.cache`` or ``storage.submit``, as its parent sees it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self._stdin: IO[str] = process.stdin
        self._stdout: IO[str] = process.stdout
        self._stderr: IO[str] = process.stderr

    def hears(self) -> str:
        """The next line that it says."""
        return self._stdout.readline().strip()

    def shown(self, text: str) -> str:
        """The first line on its standard error that holds the text."""
        for line in self._stderr:
            if text in line:
                return line.strip()
        raise AssertionError(f"the child ended without {text!r}")

    def go_on(self) -> None:
        self._stdin.write("go on\n")
        self._stdin.flush()

    def outcome(self) -> dict[str, Any]:
        """What became of its call: digest and attempt of the version, or the name of the error."""
        for line in self._stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise AssertionError(f"the child ended with {self.process.wait()}: {self._stderr.read()}")


@contextmanager
def child(how: str, url: str, options: dict[str, Any], folder: Path) -> Iterator[Child]:
    """A child at work, which is killed at the end."""
    command = [sys.executable, __file__, how, url, json.dumps(options), str(folder)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    environment = {**os.environ, "CACHELAYER_LEASE_SECONDS": str(LEASE_SECONDS)}
    with ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen(command, text=True, env=environment, **pipes))  # type: ignore[call-overload]
        stack.callback(process.kill)
        yield Child(process)


def paused_rows() -> Iterator[dict[str, Any]]:
    say("building")
    for row in rows():
        if row["number"] == PAUSE:
            sys.stdin.readline()
        yield row


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(how: str, url: str, options: str, folder: str) -> None:
    storage = cachelayer.Storage(url, local_cache=folder, storage_options=json.loads(options))
    try:
        ref = getattr(storage, how)(paused_rows, "rows", "v1", shard_bytes=SHARD_BYTES, progress=True)
    except cachelayer.CacheLayerError as error:
        say(json.dumps({"error": type(error).__name__, "message": str(error)}))
    else:
        manifest = storage.versions("rows")["v1"].manifest
        numbers = ref.read([0, RECORDS - 1])["number"].tolist()
        say(json.dumps({"digest": ref.digest, "manifest": manifest, "numbers": numbers}))


if __name__ == "__main__":
    main(*sys.argv[1:])
