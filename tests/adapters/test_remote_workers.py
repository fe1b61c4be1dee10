"""Worker processes that read from an object store: every record; in blocks, by a request for a block."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import FaultProxy, fault_proxy
from forks import importing
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
    return storage.submit(rows, "d@v1", shard_bytes=1 << 18).reference


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


pytestmark = pytest.mark.filterwarnings("ignore:worker processes take turns")


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(by_torch, marks=pytest.mark.needs("torch"), id="torch"),
        pytest.param(by_grain, marks=pytest.mark.needs("grain"), id="grain"),
    ],
)
def test_workers_ask_for_blocks_and_hand_out_the_stream(ref: Any, proxy: FaultProxy, read: Callable[..., Any]) -> None:
    stream = ref.stream(BATCH, shuffle=IN_BLOCKS, seed=1, num_epochs=2).map(doubled)
    expected = numbers(stream)
    proxy.forget()
    found = read(stream, WORKERS)
    assert numbers(found) == expected
    asked = [exchange for exchange in proxy.exchanges() if "shards" in exchange.path and exchange.range]
    blocks = 2 * RECORDS // BLOCK
    # A block may lie in two shards; the rest are parts of the index.
    assert len(asked) <= 2 * blocks * WORKERS


@pytest.mark.needs("torch")
def test_what_many_workers_cost_is_said_if_blocks_are_fetched(ref: Any, tmp_path: Any) -> None:
    stream = ref.stream(BATCH, shuffle=IN_BLOCKS, seed=1)
    with pytest.warns(CacheLayerWarning, match="3 times the requests, bytes and memory"):
        by_torch(stream, 3)
    by_torch(stream, 1)
    by_torch(ref.stream(BATCH, shuffle=True, seed=1), 3)
    local = Storage(tmp_path).submit(rows, "d@v1")
    by_torch(local.stream(BATCH, shuffle=IN_BLOCKS, seed=1), 3)


@pytest.mark.needs("torch")
@pytest.mark.parametrize(("context", "limit"), [("fork", 0), ("forkserver", None)])
def test_workers_read_every_record(
    gcs: Server, reference: str, tmp_path: Path, context: str, limit: int | None
) -> None:
    from torch.utils.data import DataLoader

    from cachelayer.adapters.torch import to_torch

    options = gcs.storage_options()
    ref: Any = cachelayer.open(reference, storage_options=options, local_cache=tmp_path, local_cache_bytes=limit)
    assert ref[7]["number"] == 7
    with importing("torch.utils.data", "cachelayer.adapters.torch", "gcsfs"):
        loading = DataLoader(to_torch(ref), batch_size=50, num_workers=2, multiprocessing_context=context)
        assert [n for batch in loading for n in batch["number"].tolist()] == list(range(RECORDS))
