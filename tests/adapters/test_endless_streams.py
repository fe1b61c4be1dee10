"""Endless streams in the frameworks: each iteration goes on where the consumer stopped, however far others read."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import InvalidArgumentError, InvalidTypeError

RECORDS = 90


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> Any:
    storage = cachelayer.Storage(tmp_path_factory.mktemp("storage"))
    made = [{"n": number, "weight": number % 3} for number in range(RECORDS)]
    return storage.cache(made, "d", "v1")


ENDLESS: dict[str, Callable[[Any], Any]] = {
    "epochs": lambda ref: lambda *batch: ref.stream(*batch, shuffle=True, seed=4, num_epochs=None, remainder="drop"),
    "from a start": lambda ref: lambda *batch: ref.stream(*batch, num_epochs=None, start=12),
    "mixture": lambda ref: lambda *batch: cachelayer.mix([(ref, 3), (ref[:7], 1)]).stream(*batch, shuffle=True, seed=4),
    "sample": lambda ref: lambda *batch: ref.sample("weight", seed=4).stream(*batch),
}
endless = pytest.mark.parametrize("make", ENDLESS.values(), ids=ENDLESS)


def shown(batches: Any, count: int) -> list[list[int]]:
    return [np.asarray(batch["n"]).tolist() for batch in islice(batches, count)]


def assert_goes_on(dataset: Any, stream: Any) -> None:
    """Raise unless a loop that ends early, a look at one item and a further loop see each item of a stream once."""
    assert [*shown(dataset, 5), *shown(dataset, 1), *shown(dataset, 40)] == shown(stream, 46)


@pytest.mark.needs("torch")
@endless
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_goes_on(ref: Any, make: Any, workers: int) -> None:
    from cachelayer.adapters.torch import loader

    options = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    stream = make(ref)(6)
    loading = loader(stream, **options)
    assert_goes_on(loading, stream)
    again = loader(stream, **options)
    again.load_state_dict(loading.state_dict())
    expected = shown(stream, 60)
    # A look at the first batch does not send a restored run back to the start.
    assert [*shown(again, 1), *shown(again, 6)] == expected[46:53]
    assert again.state_dict()["position"] == stream.state(53)["position"]
    again.load_state_dict(loading.state_dict())
    assert shown(again, 2) == expected[46:48]
    with pytest.raises(InvalidTypeError, match=r"no length|no end"):
        len(loading)


@pytest.mark.needs("tensorflow")
@endless
@pytest.mark.parametrize("batch", [(6,), ()], ids=["batches", "elements"])
def test_tensorflow_goes_on(ref: Any, make: Any, batch: tuple[int, ...]) -> None:
    from cachelayer.adapters.tensorflow import to_tf

    stream = make(ref)(*batch)
    dataset = to_tf(stream)
    assert_goes_on(dataset, stream)
    assert int(dataset.cardinality()) < 0
    with_positions = to_tf(stream, positions=True)
    for count in (3, 4):
        *_, (_, position) = with_positions.take(count)
    # What the dataset has read ahead for these does not count.
    assert int(position) == stream.state(7)["position"]


@pytest.mark.needs("keras")
def test_keras_goes_on_with_the_next_epoch(ref: Any) -> None:
    from cachelayer.adapters.keras import to_keras

    stream = ref.stream(30, shuffle=True, seed=4, num_epochs=None, reshuffle=True)
    dataset = to_keras(stream)
    read = list[list[int]]()

    def fit(epochs: range) -> None:
        callback = dataset.callback
        callback.set_params({"steps": len(dataset)})
        callback.on_train_begin()
        for epoch in epochs:
            callback.on_epoch_begin(epoch)
            read.extend(dataset[number]["n"].tolist() for number in range(len(dataset)))

    for epochs in (range(2), range(1), range(5, 6)):
        fit(epochs)
    expected = shown(stream, 18)
    assert read == [*expected[:9], *expected[15:]]


@pytest.mark.needs("keras")
@pytest.mark.parametrize("make", [ENDLESS["mixture"], ENDLESS["sample"]], ids=["mixture", "sample"])
def test_keras_which_has_epochs_refuses_what_has_none(ref: Any, make: Any) -> None:
    from cachelayer.adapters.keras import to_keras

    with pytest.raises(InvalidArgumentError, match="to_tf"):
        to_keras(make(ref)(6))


@pytest.mark.needs("grain")
@endless
def test_grain_reads_them_in_order(ref: Any, make: Any) -> None:
    from cachelayer.adapters.grain import iter_dataset

    stream = make(ref)(6)
    iterator = iter(iter_dataset(stream))
    expected = shown(stream, 7)
    assert shown(iterator, 3) == expected[:3]
    again = iter(iter_dataset(stream))
    again.set_state(iterator.get_state())
    assert shown(again, 4) == expected[3:]
