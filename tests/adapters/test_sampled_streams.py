"""Weighted samples in the frameworks: they are those of the stream, and so is the state; what has no end is refused."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import InvalidArgumentError, InvalidTypeError


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Any:
    storage = cachelayer.Storage(tmp_path_factory.mktemp("storage"))
    made = [{"n": number, "weight": number % 3} for number in range(90)]
    return storage.cache(made, "d", "v1").sample("weight", seed=4)


@pytest.fixture(scope="module")
def expected(sample: Any) -> list[list[int]]:
    found = sample.stream(60).records(0).reshape(10, 6).tolist()
    assert all(number % 3 for batch in found for number in batch)
    return found  # type: ignore[no-any-return]


def shown(batches: Any, count: int) -> list[list[int]]:
    return [np.asarray(batch["n"]).tolist() for batch in islice(batches, count)]


@pytest.mark.needs("torch")
@pytest.mark.parametrize("workers", [0, 2])
def test_torch_loads_them(sample: Any, expected: list[Any], workers: int) -> None:
    from cachelayer.adapters.torch import loader

    loading = loader(sample.stream(6), num_workers=workers, multiprocessing_context="fork" if workers else None)
    iterator = iter(loading)
    assert shown(iterator, 3) == expected[:3]
    again = loader(sample.stream(6))
    again.load_state_dict(loading.state_dict())
    assert shown(again, 4) == expected[3:7]
    with pytest.raises(TypeError, match="a weighted sample has no end"):
        len(loading)


@pytest.mark.needs("grain")
def test_grain_reads_them_in_order(sample: Any, expected: list[Any]) -> None:
    from cachelayer.adapters.grain import Sampler, batches, iter_dataset

    dataset = iter_dataset(sample.stream(6))
    iterator = iter(dataset)
    assert shown(iterator, 3) == expected[:3]
    again = iter(iter_dataset(sample.stream(6)))
    again.set_state(iterator.get_state())
    assert shown(again, 4) == expected[3:7]
    for refused in (lambda: batches(sample, 6), lambda: Sampler(sample)):
        with pytest.raises(InvalidTypeError, match=r"a Sampled has no length: pass its stream\(\.\.\.\)"):
            refused()


@pytest.mark.needs("tensorflow")
def test_tensorflow_gets_tensors(sample: Any, expected: list[Any]) -> None:
    from cachelayer.adapters.tensorflow import to_tf

    dataset = to_tf(sample.stream(6), positions=True)
    items = list(dataset.take(3))
    assert [batch["n"].numpy().tolist() for batch, _ in items] == expected[:3]
    assert shown(sample.stream(6, start=int(items[2][1])), 2) == expected[3:5]
    assert int(dataset.cardinality()) < 0


@pytest.mark.needs("datasets")
def test_hugging_face_iterates_over_them(sample: Any, expected: list[Any]) -> None:
    from cachelayer.adapters.huggingface import to_iterable_dataset

    rows = [row["n"] for row in islice(to_iterable_dataset(sample.stream()), 12)]
    assert rows == [*expected[0], *expected[1]]


@pytest.mark.needs("keras")
def test_keras_which_has_epochs_is_refused(sample: Any) -> None:
    from cachelayer.adapters.keras import to_keras

    with pytest.raises(InvalidArgumentError, match="a weighted sample has no end, and Keras asks for epochs"):
        to_keras(sample.stream(6))


@pytest.mark.needs("torch")
def test_what_takes_records_or_a_stream_refuses_the_sample_itself(sample: Any) -> None:
    from cachelayer.adapters import torch

    for takes_records in (torch.to_torch, torch.Sampler, lambda given: torch.BatchSampler(given, 2)):
        with pytest.raises(InvalidTypeError, match="a Sampled has no length"):
            takes_records(sample)
    with pytest.raises(InvalidTypeError, match=r"a Sampled is not a stream: pass its stream\(\.\.\.\)"):
        torch.loader(sample)
