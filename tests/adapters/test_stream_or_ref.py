"""Adapters that are passed a stream instead of records, or the other way round."""

from collections.abc import Callable
from typing import Any

import pytest

import cachelayer
from cachelayer import InvalidTypeError
from cachelayer.adapters import grain, jax, orbax, pandas, polars, torch
from cachelayer.adapters.huggingface import to_datasets

TAKE_STREAMS: dict[str, Callable[[Any], Any]] = {
    "torch.loader": torch.loader,
    "jax.global_batches": lambda given: jax.global_batches(given, sharding()),
    "grain.iter_dataset": grain.iter_dataset,
}
TAKE_REFS: dict[str, Callable[[Any], Any]] = {
    "to_torch": torch.to_torch,
    "torch.Sampler": torch.Sampler,
    "torch.BatchSampler": lambda given: torch.BatchSampler(given, 2),
    "grain.Sampler": grain.Sampler,
    "to_datasets": to_datasets,
    "to_pandas": pandas.to_pandas,
    "to_polars": polars.to_polars,
}


def sharding() -> Any:
    import jax as framework

    # Without devices: once JAX has threads, processes that other tests fork warn.
    mesh = framework.sharding.AbstractMesh((1,), ("data",))
    return framework.sharding.NamedSharding(mesh, framework.sharding.PartitionSpec("data"))


def wrapped() -> Any:
    return cachelayer.wrap([{"n": n} for n in range(4)], identity="four")


NEITHER: dict[str, Callable[[], Any]] = {
    "StreamIterator": lambda: iter(wrapped().stream(2)),
    "NoneType": lambda: None,
    "list": lambda: [1, 2],
    "Mixture": lambda: cachelayer.mix([(wrapped(), 1)]),
    "Sampled": lambda: wrapped().sample("n", seed=4),
}
NO_STREAMS = {**NEITHER, "View": wrapped}
NO_REFS: dict[str, Callable[[], Any]] = {**NEITHER, "BatchStream": lambda: wrapped().stream(2)}


CASES = [
    *((adapter, name, "stream") for adapter in TAKE_STREAMS for name in NO_STREAMS),
    *((adapter, name, "DataRef") for adapter in TAKE_REFS for name in NO_REFS),
]


@pytest.mark.parametrize(("adapter", "name", "wanted"), CASES)
def test_what_takes_a_stream_or_records_says_what_to_pass(adapter: str, name: str, wanted: str) -> None:
    given = (NO_STREAMS if wanted == "stream" else NO_REFS)[name]()
    with pytest.raises(InvalidTypeError, match=rf"a {name} is not a {wanted}"):
        (TAKE_STREAMS | TAKE_REFS)[adapter](given)


@pytest.mark.parametrize("make", [wrapped, lambda: wrapped().stream(2), lambda: None])
@pytest.mark.parametrize("arguments", [orbax.CheckpointSave, orbax.CheckpointRestore])
def test_a_checkpoint_takes_an_iterator(arguments: Any, make: Callable[[], Any]) -> None:
    with pytest.raises(InvalidTypeError, match=r"has no state: pass an iterator, such as iter\(stream\)"):
        arguments(make())
