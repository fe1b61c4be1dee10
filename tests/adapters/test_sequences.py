"""Windows, packs and padded records in the frameworks: their batches are those of the stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import ArraySpec

NAMES = ["windows", "packed", "padded", "joined"]


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    docs = [{"tokens": rng.integers(1, 99, rng.integers(0, 30)).astype(np.int32)} for _ in range(60)]
    storage = cachelayer.Storage(tmp_path_factory.mktemp("storage"))
    ref = storage.cache(docs, "d", "v1", element_spec={"tokens": ArraySpec("int32", (None,))}, shard_bytes=2000)
    return {
        "windows": ref.windows("tokens", 12),
        "packed": ref.packed("tokens", 30),
        "padded": ref.padded({"tokens": 20}),
        "joined": cachelayer.concat([ref.packed("tokens", 30), ref[::2].packed("tokens", 30)]),
    }


OPTIONS = {"shuffle": True, "seed": 1, "remainder": "drop"}


def same(found: Any, expected: Any) -> None:
    assert len(found) == len(expected) > 1
    for batch, wanted in zip(found, expected, strict=True):
        assert batch.keys() == wanted.keys()
        for key, values in wanted.items():
            assert np.array_equal(np.asarray(batch[key]), values)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.needs("grain")
@pytest.mark.filterwarnings("ignore:this stream is iterated over again")
def test_grain_reads_them_in_our_order(views: dict[str, Any], name: str) -> None:
    import grain

    from cachelayer.adapters.grain import Sampler, batches, iter_dataset

    view = views[name]
    expected = list(view.stream(8, **OPTIONS))
    same(list(batches(view, 8, **OPTIONS)), expected)
    dataset = iter_dataset(view.stream(8, **OPTIONS))
    same(list(dataset), expected)
    iterator = iter(dataset)
    next(iterator)
    again = iter(dataset)
    again.set_state(iterator.get_state())
    same(list(again), expected[1:])
    loader = grain.DataLoader(
        data_source=view,
        sampler=Sampler(view, shuffle=True, seed=1),
        operations=[grain.transforms.Batch(8, drop_remainder=True)],
        worker_count=0,
    )
    same(list(loader), expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.needs("torch")
def test_torch_reads_them(views: dict[str, Any], name: str) -> None:
    from torch.utils.data import DataLoader

    from cachelayer.adapters.torch import BatchSampler, loader, to_torch

    view = views[name]
    expected = list(view.stream(8, **OPTIONS))
    same(list(loader(view.stream(8, **OPTIONS))), expected)
    sampler = BatchSampler(view, 8, 1, 0, seed=1, drop_last=True)
    same(list(DataLoader(to_torch(view), batch_size=None, sampler=sampler)), expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.needs("tensorflow")
def test_tensorflow_gets_tensors_of_known_shape(views: dict[str, Any], name: str) -> None:
    from cachelayer.adapters.tensorflow import to_tf

    stream = views[name].stream(8, **OPTIONS)
    dataset = to_tf(stream)
    length = views[name].element_spec["tokens"].shape[0]
    assert dataset.element_spec["tokens"].shape[-1] == length
    same([{key: value.numpy() for key, value in batch.items()} for batch in dataset], list(stream))
