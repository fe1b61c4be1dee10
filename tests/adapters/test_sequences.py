"""Windows, packs and padded records in the frameworks: their batches are those of the stream."""

from __future__ import annotations

from typing import Any

import pytest
from documents import OPTIONS, cached_documents, same_batches

import cachelayer

NAMES = ["windows", "packed", "padded", "joined"]


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    ref = cached_documents(cachelayer.Storage(tmp_path_factory.mktemp("storage")))
    return {
        "windows": ref.windows("tokens", 12),
        "packed": ref.packed("tokens", 30),
        "padded": ref.padded({"tokens": 20}, long="truncate"),
        "joined": cachelayer.concat([ref.packed("tokens", 30), ref[::2].packed("tokens", 30)]),
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.needs("grain")
@pytest.mark.filterwarnings("ignore:this stream is iterated over again")
def test_grain_reads_them_in_our_order(views: dict[str, Any], name: str) -> None:
    import grain

    from cachelayer.adapters.grain import Sampler, iter_dataset

    view = views[name]
    expected = list(view.stream(8, **OPTIONS))
    same_batches(list(grain.MapDataset.source(view.stream(8, **OPTIONS))), expected)
    dataset = iter_dataset(view.stream(8, **OPTIONS))
    same_batches(list(dataset), expected)
    iterator = iter(dataset)
    next(iterator)
    again = iter(dataset)
    again.set_state(iterator.get_state())
    same_batches(list(again), expected[1:])
    loader = grain.DataLoader(
        data_source=view,
        sampler=Sampler(view, shuffle=True, seed=1),
        operations=[grain.transforms.Batch(8, drop_remainder=True)],
        worker_count=0,
    )
    same_batches(list(loader), expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.needs("torch")
def test_torch_reads_them(views: dict[str, Any], name: str) -> None:
    from torch.utils.data import DataLoader

    from cachelayer.adapters.torch import BatchSampler, loader, to_torch

    view = views[name]
    expected = list(view.stream(8, **OPTIONS))
    same_batches(list(loader(view.stream(8, **OPTIONS))), expected)
    sampler = BatchSampler(view, 8, 1, 0, seed=1, drop_last=True)
    same_batches(list(DataLoader(to_torch(view), batch_size=None, sampler=sampler)), expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.needs("tensorflow")
def test_tensorflow_gets_tensors_of_known_shape(views: dict[str, Any], name: str) -> None:
    from cachelayer.adapters.tensorflow import to_tf

    stream = views[name].stream(8, **OPTIONS)
    dataset = to_tf(stream)
    length = views[name].element_spec["tokens"].shape[0]
    assert dataset.element_spec["tokens"].shape[-1] == length
    same_batches([{key: value.numpy() for key, value in batch.items()} for batch in dataset], list(stream))
