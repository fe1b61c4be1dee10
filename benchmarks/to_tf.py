"""What a stream, `to_tf` and `to_keras` cost a record: processor time. Run `python benchmarks/to_tf.py --epochs 4`."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from harness import arguments, machine, table

import cachelayer

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

from cachelayer.adapters.keras import to_keras
from cachelayer.adapters.tensorflow import to_tf


def rows(count: int) -> dict[str, dict[str, np.ndarray]]:
    """Records of a table and of pictures."""
    rng = np.random.default_rng(0)
    columns = {"a": rng.random((count, 16), np.float32), "b": np.arange(count), "c": rng.random(count)}
    return {
        "76 B": columns | {"label": np.arange(count) % 3},
        "3 KB": {"image": rng.integers(0, 255, (count, 3072), np.uint8), "label": np.arange(count)},
    }


def microseconds(make: Callable[[], Iterable[Any]], records: int, epochs: int) -> float:
    """Return the processor time of a record, of the best epoch; the first, in which graphs are traced, not counted."""
    times = []
    batches = make()
    for _ in range(epochs + 1):
        began = time.process_time()
        for _batch in batches:
            pass
        times.append((time.process_time() - began) / records * 1e6)
    return min(times[1:])


def main() -> None:
    given = arguments(__doc__, records=60_000, epochs=4)
    shown = []
    with tempfile.TemporaryDirectory() as folder:
        storage = cachelayer.Storage(folder)
        for name, arrays in rows(given.records).items():
            ref = storage.cache(arrays, f"records@{name.replace(' ', '-')}", progress=False)
            for size in (32, 256):
                batches = ref.stream(size, shuffle=True, seed=1)
                single = ref.stream(shuffle=True, seed=1)
                pairs = batches.map_batches(lambda batch: (next(iter(batch.values())), batch["label"]))
                ways: dict[str, Callable[[], Iterable[Any]]] = {
                    "the stream": lambda batches=batches: batches,
                    "to_tf(batches)": lambda batches=batches: to_tf(batches),
                    "to_tf(elements).batch()": lambda single=single, size=size: to_tf(single).batch(size),
                    "to_keras(pairs)": lambda pairs=pairs: to_keras(pairs),
                }
                costs = {way: microseconds(make, given.records, given.epochs) for way, make in ways.items()}
                shown.append((name, str(size), *(f"{cost:.2f}" for cost in costs.values())))
    title = f"Microseconds of processor time a record ({machine('tensorflow', 'keras')})"
    print(table(title, ("record", "batch", *ways), shown))


if __name__ == "__main__":
    main()
