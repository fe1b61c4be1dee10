"""A process that reads a remote version; told what to do, and saying what came of it, as one line of JSON each."""

import json
import multiprocessing
import os
import resource
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

import cachelayer

SIDE = 2000


def rows(count: int) -> dict[str, np.ndarray[Any, Any]]:
    """The records of the tests: each holds its number, and bytes that follow from it."""
    seeds = np.arange(count, dtype=np.int64)
    return {"n": seeds, "x": ((seeds[:, None] * 7919 + np.arange(SIDE) ** 2) % 251).astype(np.uint8)}


def check(batch: dict[str, np.ndarray[Any, Any]]) -> list[int]:
    """Return the record numbers of a batch; raise if a byte of it is wrong."""
    want = (batch["n"][:, None] * 7919 + np.arange(SIDE) ** 2) % 251
    np.testing.assert_array_equal(batch["x"], want.astype(np.uint8))
    return [int(number) for number in batch["n"]]


def epoch(ref: Any, seed: int = 0) -> None:
    """Read every record once, in shuffled batches."""
    assert check_epoch(ref.stream(64, shuffle=True, seed=seed)) == len(ref)


def check_epoch(batches: Any) -> int:
    """Read batches, in which every record must come once; return the number of records."""
    numbers = [number for batch in batches for number in check(batch)]
    assert sorted(numbers) == list(range(len(numbers)))
    return len(numbers)


def wait(ref: Any) -> int:
    """Wait for the copies that reading asked for; how many there are."""
    copies = ref._base.shards.copies
    if copies is None:
        return 0
    copies.wait()
    return int(copies.count)


def in_a_process(method: str, ref: Any) -> list[int]:
    """What another process reads."""
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as process:
        return process.submit(read_some, ref).result()


def read_some(ref: Any) -> list[int]:
    return check(ref.read(range(0, len(ref), 20)))


def main(order: dict[str, Any]) -> dict[str, Any]:
    if "file_limit" in order:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_limit"],) * 2)
    ref = cachelayer.open(order["reference"], **order["options"])
    outcome: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for seed in range(order.get("epochs", 1)):
            epoch(ref, seed)
            if order.get("wait", True):
                outcome["local"] = wait(ref)
        for method in order.get("methods", []):
            outcome[method] = in_a_process(method, ref)
    outcome["warnings"] = [str(each.message) for each in caught if each.category is cachelayer.CacheLayerWarning]
    # Another process of the host makes the part: nothing tells of it but the file.
    while order.get("until_a_part_is_there") and not list(os.scandir(order["options"]["local_cache"])):
        time.sleep(0.01)
    return outcome


if __name__ == "__main__":
    result = main(json.loads(sys.argv[1]))
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
