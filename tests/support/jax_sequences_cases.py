"""Tests of global batches of windows, packs, padded records and buckets: test_jax.py runs them in their own process."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from documents import BUCKETS, OPTIONS, cached_documents, same_batches
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import cachelayer
from cachelayer.adapters.jax import global_batches


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cached_documents(cachelayer.Storage(tmp_path_factory.mktemp("storage")))


@pytest.fixture
def sharding() -> NamedSharding:
    return NamedSharding(jax.make_mesh((1,), ("data",)), P("data"))


def same(found: Any, expected: Any) -> None:
    same_batches(found, expected)
    assert all(isinstance(leaf, jax.Array) for batch in found for leaf in batch.values())


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


def test_weighted_samples_become_global_batches(ref: Any, sharding: NamedSharding) -> None:
    view = ref.padded({"tokens": 20}, long="truncate")
    stream = view.sample("tokens_length", seed=1).stream(8)
    expected = [stream[step] for step in range(6)]
    iterator = iter(global_batches(stream, sharding))
    same([next(iterator) for _ in range(2)], expected[:2])
    again = iter(global_batches(view.sample("tokens_length", seed=1).stream(8), sharding))
    again.set_state(iterator.get_state())
    same([next(again) for _ in range(4)], expected[2:])
