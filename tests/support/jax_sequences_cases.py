"""Tests of global batches of windows, packs, padded records and buckets: test_jax.py runs them in their own process."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import cachelayer
from cachelayer import ArraySpec
from cachelayer.adapters.jax import global_batches

OPTIONS: dict[str, Any] = {"shuffle": True, "seed": 1, "remainder": "drop"}
BUCKETS = ("tokens", [8, 16, 32])


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> Any:
    rng = np.random.default_rng(0)
    docs = [{"tokens": rng.integers(1, 99, rng.integers(0, 33)).astype(np.int32)} for _ in range(120)]
    storage = cachelayer.Storage(tmp_path_factory.mktemp("storage"))
    return storage.cache(docs, "d", "v1", element_spec={"tokens": ArraySpec("int32", (None,))}, shard_bytes=2000)


@pytest.fixture
def sharding() -> NamedSharding:
    return NamedSharding(jax.make_mesh((1,), ("data",)), P("data"))


def same(found: Any, expected: Any) -> None:
    assert len(found) == len(expected) > 1
    for batch, wanted in zip(found, expected, strict=True):
        assert batch.keys() == wanted.keys()
        for key, values in wanted.items():
            assert isinstance(batch[key], jax.Array)
            assert np.array_equal(np.asarray(batch[key]), values)


@pytest.mark.parametrize("name", ["windows", "packed", "padded", "joined", "in blocks"])
def test_views_of_documents_become_global_batches(ref: Any, sharding: NamedSharding, name: str) -> None:
    packed = ref.packed("tokens", 32)
    options = dict(OPTIONS)
    if name == "in blocks":
        options["shuffle"] = cachelayer.Blocks(records=4, window=8, lanes=4)
    view = {
        "windows": ref.windows("tokens", 12),
        "packed": packed,
        "padded": ref.padded({"tokens": 20}),
        "joined": cachelayer.concat([packed, ref[::2].packed("tokens", 32)]),
        "in blocks": ref.windows("tokens", 12),
    }[name]
    stream = view.stream(8, **options)
    same(list(global_batches(stream, sharding)), list(stream))


def test_buckets_become_global_batches(ref: Any, sharding: NamedSharding) -> None:
    stream = ref.stream(8, buckets=BUCKETS, **OPTIONS)
    expected = list(stream)
    same(list(global_batches(stream, sharding)), expected)
    iterator = iter(global_batches(stream, sharding))
    next(iterator)
    again = iter(global_batches(ref.stream(8, buckets=BUCKETS, **OPTIONS), sharding))
    again.set_state(iterator.get_state())
    same(list(again), expected[1:])
    short = ref.stream(50, buckets=BUCKETS, shuffle=True, seed=1)
    same(list(global_batches(short, sharding)), list(short))
