"""A source that builders stop at until they may go on, and programs that train while it is cached."""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import cachelayer

RECORDS = 600
SHARD_BYTES = 5_000
BATCH = 20
PAUSE = 12
"""The step before which a trainer waits for the file "open" too."""


def rows(number: int) -> dict[str, Any]:
    return {
        "x": np.full(8, number, np.int32),
        "tokens": np.arange(number % 7, dtype=np.uint16),
        "text": f"text {number}",
        "raw": b"%d" % number,
        "maybe": None if number % 3 else float(number),
    }


class Gated:
    """Rows by number. In a process other than the trainer's, no row from ``GATE`` on is read before the file "open".

    What it needs for that is in the environment, so that the plan of a build is the same anywhere. A build looks at a
    few rows first, one here and one there: these are read.
    """

    before = -2

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, number: int) -> dict[str, Any]:
        if not 0 <= number < RECORDS:
            raise IndexError(number)
        if str(os.getpid()) != os.environ["TRAINER"]:
            Path(os.environ["FOLDER"], f"reader-{os.getpid()}").touch()
            is_next, Gated.before = number == Gated.before + 1, number
            while is_next and number >= int(os.environ["GATE"]) and not Path(os.environ["FOLDER"], "open").exists():
                time.sleep(0.01)
        return rows(number)


class FailsAt(Gated):
    def __getitem__(self, number: int) -> dict[str, Any]:
        if number == 403:
            raise ValueError("no such row")
        return super().__getitem__(number)


def readers(folder: Path) -> set[int]:
    """The processes that have read from a gated source of this folder."""
    return {int(path.name.partition("-")[2]) for path in folder.glob("reader-*")}


def train() -> None:
    """Train some steps while the version is cached, and save the state after each.

    It prints the numbers of each batch, and in the end the digest.
    """
    os.environ["TRAINER"] = str(os.getpid())
    storage, folder, steps, end = sys.argv[1:]
    source = FailsAt() if end == "failing" else Gated()
    ref = cachelayer.Storage(storage).cache(source, "d@v1", wait=False, shard_bytes=SHARD_BYTES)
    iterator = iter(ref.stream(BATCH, shuffle=True, seed=5, num_epochs=2))
    if Path(folder, "state.json").exists():
        iterator.load(folder)
    for step, batch in zip(range(int(steps)), iterator, strict=False):
        while step == PAUSE and not Path(os.environ["FOLDER"], "open").exists():
            time.sleep(0.01)
        sys.stdout.write(json.dumps(batch["x"][:, 0].tolist()) + "\n")
        sys.stdout.flush()
        iterator.save(folder)
    if int(steps) > len(ref):
        sys.stdout.write(json.dumps(ref.digest) + "\n")
    if end == "exit":
        sys.exit(3)
    if end == "error":
        raise LookupError("no such batch")
    if end == "interrupted":
        raise KeyboardInterrupt


if __name__ == "__main__":
    if sys.argv[-1] == "thread":
        trainer = threading.Thread(target=train)
        trainer.start()
        trainer.join()
    else:
        train()
