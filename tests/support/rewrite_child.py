"""Processes that write a version again, for tests."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import cachelayer
from cachelayer.temporary_files import working_folder

RECORDS = 900
SHARD_BYTES = 25_000
SEED = 7
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


def main(url: str, options: str, version: str, hosts: tuple[int, int] | None) -> None:
    """Write a version again, and tell its digest in a file of the folder."""
    storage = cachelayer.Storage(url, storage_options=json.loads(options), local_cache_bytes=0)
    ref = storage.rewrite("d", "v1", version, shuffle_seed=SEED, shard_bytes=SHARD_BYTES, hosts=hosts, progress=False)
    if ref.digest != storage.fetch("d", version).digest:
        sys.exit(1)


def killed_at_work(made: str, parent: str) -> None:
    """Make a temporary folder with a file, tell its name, and be killed."""
    tempfile.tempdir = parent
    with working_folder() as folder:
        (folder / "file").touch()
        Path(made).write_text(str(folder))
        os.kill(os.getpid(), signal.SIGKILL)
