"""Batches from buckets in the frameworks: they are those of the stream, and so is the state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from documents import BUCKETS, OPTIONS, cached_documents, same_batches

import cachelayer
from cachelayer import StateError


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cached_documents(cachelayer.Storage(tmp_path_factory.mktemp("storage")))


@pytest.fixture
def stream(ref: Any) -> Any:
    return ref.stream(8, buckets=BUCKETS, **OPTIONS)


@pytest.fixture(scope="module")
def expected(ref: Any) -> list[Any]:
    found = list(ref.stream(8, buckets=BUCKETS, **OPTIONS))
    assert {batch["tokens"].shape for batch in found} == {(8, 8), (8, 16), (8, 32)}
    return found


@pytest.mark.needs("grain")
@pytest.mark.filterwarnings("ignore:this stream is iterated over again")
def test_grain_reads_them_at_random_and_in_order(ref: Any, stream: Any, expected: list[Any]) -> None:
    import grain

    from cachelayer.adapters.grain import iter_dataset

    same_batches(list(grain.MapDataset.source(stream)), expected)
    iterated = iter_dataset(stream)
    same_batches(list(iterated), expected)
    iterator = iter(iterated)
    next(iterator)
    state = iterator.get_state()
    again = iter(iterated)
    again.set_state(state)
    same_batches(list(again), expected[1:])
    with pytest.raises(StateError, match="global_batch_size"):
        iter(iter_dataset(ref.stream(4, buckets=BUCKETS, **OPTIONS))).set_state(state)
    with pytest.raises(StateError, match="position 3 lies within a step"):
        again.set_state({**state, "position": 3})


@pytest.mark.needs("torch")
@pytest.mark.parametrize("workers", [0, 2])
def test_torch_loads_them(ref: Any, stream: Any, expected: list[Any], workers: int) -> None:
    from cachelayer.adapters.torch import loader

    loading = loader(stream, num_workers=workers, multiprocessing_context="fork" if workers else None)
    iterator = iter(loading)
    first = next(iterator)
    state = loading.state_dict()
    again = loader(ref.stream(8, buckets=BUCKETS, **OPTIONS))
    again.load_state_dict(state)
    same_batches([first, *again], expected)
    same_batches([first, *iterator], expected)
    with pytest.raises(StateError, match="position 3 lies within a step"):
        again.load_state_dict({**state, "position": 3})


@pytest.mark.needs("tensorflow")
def test_tensorflow_gets_tensors_of_the_length_of_the_bucket(ref: Any, stream: Any, expected: list[Any]) -> None:
    import tensorflow as tf

    from cachelayer.adapters.tensorflow import to_tf

    dataset = to_tf(stream, positions=True)
    spec, _ = dataset.element_spec
    assert spec["tokens"] == tf.TensorSpec((8, None), tf.int32)
    assert spec["tokens_mask"] == tf.TensorSpec((8, None), tf.bool)
    assert len(dataset) == len(expected)
    items = list(dataset)
    same_batches([{key: value.numpy() for key, value in batch.items()} for batch, _ in items], expected)
    rest = ref.stream(8, buckets=BUCKETS, **OPTIONS, start=int(items[1][1]))
    same_batches(list(rest), expected[2:])
    kept = to_tf(ref.stream(8, buckets=BUCKETS))
    assert kept.element_spec["tokens"].shape.as_list() == [None, None]
    assert sum(len(batch["tokens"]) for batch in kept) == 120


@pytest.mark.needs("keras", "jax")
def test_keras_gets_them_epoch_by_epoch(ref: Any) -> None:
    from cachelayer.adapters.keras import to_keras

    stream = ref.stream(8, buckets=BUCKETS, **OPTIONS).map_batches(
        lambda batch: (batch["tokens"], batch["tokens_length"])
    )
    dataset = to_keras(stream)
    for epoch in range(2):
        dataset.on_epoch_begin()
        batches = list(stream.epoch(epoch))
        assert len(dataset) == len(batches)
        for number, (tokens, lengths) in enumerate(batches):
            found = dataset[number]
            assert np.array_equal(found[0], tokens)
            assert np.array_equal(found[1], lengths)
