"""Processes that write a version again, for tests; their runs are so small that there are several."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from crash_child import die_before

import cachelayer
from cachelayer.builds import rewrite_parts
from cachelayer.storage import rewrite
from cachelayer.versions.temporary_folder import temporary_folder

RECORDS = 900
SHARD_BYTES = 25_000
SEED = 7
RUN_NBYTES = 40_000
SPEC = {
    "number": np.int64,
    "meta": {"text": cachelayer.ArraySpec(str, nullable=True), "twice": np.int64},
    "ragged": cachelayer.ArraySpec(np.int64, (None,)),
}


def elements(records: int = RECORDS) -> Iterator[dict[str, Any]]:
    """Elements of different sizes; in some of them a leaf is None."""
    for number in range(records):
        text = None if number % 9 == 4 else "t" * (number % 40)
        yield {"number": number, "meta": {"text": text, "twice": 2 * number}, "ragged": np.arange(number % 5)}


@contextmanager
def small_runs() -> Iterator[None]:
    """Shuffle by way of runs, also on a local disk, and of small ones."""
    before = rewrite._most_gathered, rewrite_parts._LEAST_RUN, rewrite_parts._MOST_RUN
    rewrite._most_gathered, rewrite_parts._LEAST_RUN, rewrite_parts._MOST_RUN = lambda _: 0, RUN_NBYTES, RUN_NBYTES
    try:
        yield
    finally:
        rewrite._most_gathered, rewrite_parts._LEAST_RUN, rewrite_parts._MOST_RUN = before


def main(url: str, options: str, version: str, hosts: tuple[int, int] | None, step: int | None = None) -> None:
    """Write a version again, and tell its digest in a file of the folder; or die before that step in the folder."""
    storage = cachelayer.Storage(url, storage_options=json.loads(options), local_cache_bytes=0)
    if step is not None:
        die_before(url, step)
    with small_runs():
        ref = storage.rewrite(
            "d", "v1", version, shuffle_seed=SEED, shard_bytes=SHARD_BYTES, hosts=hosts, progress=False
        )
    if ref.digest != storage.fetch("d", version).digest:
        sys.exit(1)


def killed_at_work(made: str, parent: str) -> None:
    """Make a temporary folder with a file, tell its name, and be killed."""
    tempfile.tempdir = parent
    with temporary_folder() as folder:
        (folder / "file").touch()
        Path(made).write_text(str(folder))
        os.kill(os.getpid(), signal.SIGKILL)


def cut_off(folder: str, version: str, nbytes: int) -> None:
    """Write a version again where no file may have more bytes; exit with 0 if that is a StorageError."""
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))
    try:
        cachelayer.Storage(folder).rewrite("d", "v1", version, shuffle_seed=SEED, progress=False)
    except cachelayer.StorageError:
        return
    sys.exit(1)


def interrupted(storage: cachelayer.Storage, version: str) -> None:
    """Write a version again, and be interrupted when the second run is there."""

    class Interrupts(threading.Thread):
        def run(self) -> None:
            while len(list(Path(storage.url).glob("d/_unfinished/*/*/0000*.json"))) < 2:
                pass
            os.kill(os.getpid(), signal.SIGINT)

    watch = Interrupts(daemon=True)
    watch.start()
    with small_runs():
        storage.rewrite("d", "v1", version, shuffle_seed=SEED, shard_bytes=SHARD_BYTES, progress=False)
