"""Training input for JAX on one process: global batches against the bare stream, and states.

Run: ``python benchmarks/train_jax.py [folder]``. Contenders of a row take turns; every batch is waited for.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import jax
import numpy as np
from harness import machine, medians, table
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import cachelayer
from cachelayer.adapters.jax import global_batches
from cachelayer.streams.state import write_state

RECORDS = 50_000
AIMS = {128: 0.7, 1024: 0.9}


def images() -> dict[str, np.ndarray]:
    """Records of 3 KB."""
    image = np.random.default_rng(0).integers(0, 256, (RECORDS, 32, 32, 3), dtype=np.uint8)
    return {"image": image, "label": np.arange(RECORDS, dtype=np.int32)}


def counted(batches: Any, size: int) -> Callable[[], int]:
    """Iterates, waits for each batch, and counts records."""
    return lambda: sum(size for batch in batches if jax.block_until_ready(batch) is not None)


def rates(ref: Any, size: int) -> tuple[str, ...]:
    """What a batch of this size gives; with what JAX alone takes for batches that lie ready, which nobody can beat."""
    sharding = NamedSharding(jax.make_mesh((1,), ("data",)), P("data"))
    stream = ref.stream(size, shuffle=True, seed=5, remainder="drop")
    batches = global_batches(stream, sharding)
    ready = [stream[step] for step in range(min(8, len(stream)))]

    def put() -> int:
        for step in range(len(stream)):
            jax.block_until_ready(jax.device_put(ready[step % len(ready)], sharding))
        return len(stream) * size

    contenders = {"stream": counted(stream, size), "global": counted(batches, size), "put": put}
    found = medians(contenders, rounds=9)
    bound = 1 / (1 + found["stream"] / found["put"])
    cells = (f"{found[name]:,.0f}" for name in contenders)
    return f"batches of {size:,}", *cells, f"{found['global'] / found['stream']:.2f}", f"{bound:.2f}", f"{AIMS[size]}"


def state_row(ref: Any, folder: Path) -> tuple[str, ...]:
    mesh = jax.make_mesh((1,), ("data",))
    iterator = iter(global_batches(ref.stream(128, shuffle=True, seed=5), NamedSharding(mesh, P())))
    next(iterator)
    times = []
    for _ in range(200):
        started = time.perf_counter()
        write_state(json.dumps(iterator.get_state()), folder)
        times.append(time.perf_counter() - started)
    size = (folder / "state.json").stat().st_size
    return f"{median(times) * 1e3:.2f} ms", "1 ms", f"{size} bytes", "2,048 bytes"


def main(folder: Path) -> None:
    ref = cachelayer.Storage(folder).cache(images, "images", "v1")
    print(machine(), f"jax {jax.__version__}, {jax.devices()}", sep=", ", end="\n\n")
    head = (
        "3 KB records",
        "stream, records/s",
        "global_batches, records/s",
        "device_put of ready batches, records/s",
        "global_batches / stream",
        "device_put after the stream / stream",
        "aim",
    )
    print(table("Global batches on one process", head, [rates(ref, size) for size in AIMS]), end="\n\n")
    print(table("State", ("saved in", "aim", "size", "aim"), [state_row(ref, folder)]))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
