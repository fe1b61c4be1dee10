"""Documents of any length, cached, and how their batches are compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import cachelayer
from cachelayer import ArraySpec

SPEC = {"tokens": ArraySpec("int32", (None,))}
BUCKETS = ("tokens", [8, 16, 32])
OPTIONS: dict[str, Any] = {"shuffle": True, "seed": 1, "remainder": "drop"}


def cached_documents(storage: cachelayer.Storage, count: int = 120, shard_bytes: int = 2000) -> Any:
    """Documents of 0 to 32 tokens, in several shards."""
    rng = np.random.default_rng(0)
    rows = [{"tokens": rng.integers(1, 99, rng.integers(0, 33)).astype(np.int32)} for _ in range(count)]
    return storage.cache(rows, "d", "v1", element_spec=SPEC, shard_bytes=shard_bytes)


def same_batches(found: Sequence[Any], expected: Sequence[Any]) -> None:
    """Raise unless these are the same batches, and more than one."""
    assert len(found) == len(expected) > 1
    for batch, wanted in zip(found, expected, strict=True):
        assert batch.keys() == wanted.keys()
        for key, values in wanted.items():
            assert np.array_equal(np.asarray(batch[key]), values)
