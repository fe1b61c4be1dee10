"""Worker processes that read an order in blocks from an object store: a request for a block, not for a record."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from faults import FaultProxy, fault_proxy
from servers import Server, new_bucket

import cachelayer
from cachelayer import Blocks, CacheLayerWarning, Storage

RECORDS, BLOCK, BATCH = 2000, 50, 40
IN_BLOCKS = Blocks(records=BLOCK, window=8, lanes=4)
WORKERS = 2


def rows() -> Iterator[dict[str, Any]]:
    for number in range(RECORDS):
        yield {"number": number, "payload": np.full(400, number % 251, np.uint8)}


@pytest.fixture(scope="module")
def reference(gcs: Server) -> str:
    storage = Storage(gcs.url(new_bucket(gcs), "caches"), storage_options=gcs.storage_options(), local_cache_bytes=0)
    return storage.submit(rows, "d", "v1", shard_bytes=1 << 18).reference


@pytest.fixture(scope="module")
def proxy(gcs: Server) -> Iterator[FaultProxy]:
    with fault_proxy(gcs.endpoint) as proxy:
        yield proxy


@pytest.fixture
def ref(gcs: Server, reference: str, proxy: FaultProxy) -> Any:
    options = gcs.storage_options(proxy.endpoint)
    return cachelayer.open(reference, local_cache_bytes=0, storage_options=options)


def by_torch(stream: Any, workers: int, context: str | None = None) -> Any:
    from cachelayer.adapters.torch import loader

    return loader(stream, num_workers=workers, multiprocessing_context=context)


def by_grain(stream: Any, workers: int) -> Any:
    import grain
    from absl import flags

    from cachelayer.adapters.grain import iter_dataset

    flags.FLAGS.mark_as_parsed()
    return iter_dataset(stream).mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))


def numbers(batches: Any) -> list[list[int]]:
    return [np.asarray(batch["number"]).tolist() for batch in batches]


def doubled(element: dict[str, Any]) -> dict[str, Any]:
    return {**element, "number": 2 * element["number"]}


READERS = pytest.mark.parametrize(
    "read",
    [
        pytest.param(by_torch, marks=pytest.mark.needs("torch"), id="torch"),
        pytest.param(by_grain, marks=pytest.mark.needs("grain"), id="grain"),
    ],
)


@READERS
def test_workers_ask_for_blocks_and_hand_out_the_stream(ref: Any, proxy: FaultProxy, read: Callable[..., Any]) -> None:
    stream = ref.stream(BATCH, shuffle=IN_BLOCKS, seed=1, num_epochs=2).map(doubled)
    expected = numbers(stream)
    proxy.forget()
    found = read(stream, WORKERS)
    assert numbers(found) == expected
    asked = [exchange for exchange in proxy.exchanges() if "shards" in exchange.path and exchange.range]
    blocks = 2 * RECORDS // BLOCK
    # A block may lie in two shards; the rest are parts of the index. Of PyTorch's workers each reads its own blocks.
    assert len(asked) <= 2 * blocks * (1 if read is by_torch else WORKERS)


@READERS
def test_workers_that_read_blocks_go_on_from_a_state(ref: Any, read: Callable[..., Any]) -> None:
    stream = ref.stream(BATCH, shuffle=IN_BLOCKS, seed=1, num_epochs=2)
    expected, stop = numbers(stream), 33
    if read is by_torch:
        batches = read(stream, WORKERS)
        found = numbers(islice(batches, stop))
        again = read(stream, WORKERS - 1, "spawn")
        again.load_state_dict(json.loads(json.dumps(batches.state_dict())))
    else:
        batches = iter(read(stream, WORKERS))
        found = numbers(islice(batches, stop))
        again = iter(read(stream, WORKERS))
        again.set_state(json.loads(json.dumps(batches.get_state())))
        batches.close()
    assert found + numbers(again) == expected


def words(number: int) -> dict[str, Any]:
    """An element with every kind of leaf that a batch may have."""
    return {
        "text": "word " * (number % 7),
        "tokens": np.arange(number % 5, dtype=np.int32),
        "maybe": None if number % 3 else np.full(2, number, np.float32),
        "pair": [np.uint8(number % 200), (np.float64(number),)],
        "sparse": cachelayer.Sparse(np.array([[number % 4]]), np.array([number], np.int64), np.array([4])),
    }


@pytest.fixture(scope="module")
def mixed(gcs: Server) -> Any:
    storage = Storage(gcs.url(new_bucket(gcs), "caches"), storage_options=gcs.storage_options(), local_cache_bytes=0)
    spec = {
        "text": cachelayer.ArraySpec("str"),
        "tokens": cachelayer.ArraySpec("int32", (None,)),
        "maybe": cachelayer.ArraySpec("float32", (2,), nullable=True),
        "pair": [cachelayer.ArraySpec("uint8"), (cachelayer.ArraySpec("float64"),)],
        "sparse": cachelayer.SparseSpec("int64", (4,)),
    }
    return storage.submit(map(words, range(400)), "d", "v1", shard_bytes=1 << 14, element_spec=spec)


def failing(element: Any) -> Any:
    if len(element["tokens"]) == 3 and element["pair"][0] < 60:
        raise ValueError("no such token")
    return element


def uneven(element: Any) -> Any:
    """A number whose dtype depends on the element."""
    return {"x": 1 if element["pair"][0] % 2 else 0.5}


def first_rows(batch: Any) -> Any:
    return {"rows": np.full(len(batch["text"]), len(batch["text"]))}


STREAMS: dict[str, Callable[[Any], Any]] = {
    "whole steps": lambda ref: ref.stream(16, shuffle=IN_BLOCKS, seed=1, num_epochs=2, remainder="drop"),
    "short steps": lambda ref: ref.stream(32, shuffle=IN_BLOCKS, seed=1, num_epochs=2, remainder="keep"),
    "a row left": lambda ref: ref[:33].stream(32, shuffle=IN_BLOCKS, seed=1, remainder="keep"),
    "padded": lambda ref: ref.stream(32, shuffle=IN_BLOCKS, seed=1, remainder="pad", start=7),
    "a shard": lambda ref: ref.stream(32, shuffle=IN_BLOCKS, seed=1, shard=(1, 2), remainder="drop"),
    "failures": lambda ref: ref.stream(16, shuffle=IN_BLOCKS, seed=1).map(failing, on_error="replace"),
}


def same(found: Any, expected: Any) -> bool:
    """Whether two batches of tensors are equal, also in their types."""
    import torch

    if isinstance(expected, cachelayer.Nullable):
        return same(found.values, expected.values) and same(found.valid, expected.valid)
    if isinstance(expected, torch.Tensor):
        both = [each.to_dense() if each.is_sparse else each for each in (found, expected)]
        return found.dtype == expected.dtype and found.layout == expected.layout and torch.equal(*both)
    if isinstance(expected, (list, tuple)):
        return type(found) is type(expected) and len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in expected)
    return bool(found == expected)


@pytest.mark.needs("torch")
@pytest.mark.filterwarnings("ignore:.* stand")
@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.filterwarnings("ignore:worker processes take turns", "ignore:Sparse invariant checks")
def test_parts_that_workers_read_make_the_batches_of_the_stream(mixed: Any, name: str, workers: int) -> None:
    stream = STREAMS[name](mixed)
    expected, found = iter(by_torch(stream, 0)), iter(by_torch(stream, workers))
    for one, other in zip(found, expected, strict=True):
        assert same(one, other)
    assert [(each.position, each.record) for each in found.failures] == [
        (each.position, each.record) for each in expected.failures
    ]


@pytest.mark.needs("torch")
def test_parts_that_differ_are_refused_with_their_leaf_as_the_whole_batch_is(mixed: Any) -> None:
    stream = mixed.stream(2, shuffle=IN_BLOCKS, seed=1).map(uneven)
    alone, read = iter(by_torch(stream, 0)), iter(by_torch(stream, 2))
    for batches in (alone, read):
        with pytest.raises(cachelayer.ElementError, match=r"\['x'\].*float64"):
            list(batches)
    assert read.position == alone.position


@pytest.mark.needs("torch")
def test_functions_of_batches_get_whole_batches_from_workers(mixed: Any) -> None:
    stream = mixed.stream(16, shuffle=IN_BLOCKS, seed=1).map_batches(first_rows)
    with pytest.warns(CacheLayerWarning, match="2 times the requests"):
        batches = by_torch(stream, 2)
    assert {row for batch in batches for row in batch["rows"].tolist()} == {16}


@pytest.mark.needs("grain")
def test_batches_that_are_read_record_by_record_are_warned_of(ref: Any, tmp_path: Any) -> None:
    from cachelayer.adapters.grain import batches

    with pytest.warns(CacheLayerWarning, match=r"iter_dataset\(\)"):
        batches(ref, BATCH, shuffle=IN_BLOCKS, seed=1)
    batches(ref, BATCH, shuffle=True, seed=1)
    batches(Storage(tmp_path).submit(rows, "d", "v1"), BATCH, shuffle=IN_BLOCKS, seed=1)


@pytest.mark.needs("torch")
def test_what_many_workers_cost_is_said_if_blocks_are_fetched(ref: Any, tmp_path: Any) -> None:
    stream = ref.stream(BATCH, shuffle=IN_BLOCKS, seed=1)
    with pytest.warns(CacheLayerWarning, match="3 times the requests, bytes and memory"):
        by_torch(stream, 3)
    by_torch(stream, 2)
    by_torch(ref.stream(BATCH, shuffle=True, seed=1), 3)
    local = Storage(tmp_path).submit(rows, "d", "v1")
    by_torch(local.stream(BATCH, shuffle=IN_BLOCKS, seed=1), 3)
