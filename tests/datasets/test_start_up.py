"""Many hosts that start at once: each opens a version and reads its first batch with few requests."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from faults import FaultProxy, answer, fault_proxy
from leftovers import named_files, stored_files
from servers import Server, new_bucket

import cachelayer
from cachelayer import Storage

COUNT, SHARDS, HOSTS = 800, 16, 10


@pytest.fixture(scope="module", params=["gs", "s3"])
def published(request: pytest.FixtureRequest, s3: Server, gcs: Server) -> tuple[Server, Any]:
    server = gcs if request.param == "gs" else s3
    storage = Storage(server.url(new_bucket(server), "caches"), storage_options=server.storage_options())
    rows = ({"n": np.int64(number), "x": np.zeros(100, np.uint8)} for number in range(COUNT))
    ref = storage.submit(rows, "d@v1", shard_bytes=9_000)
    assert len(ref._base.version.manifest.shards) >= SHARDS  # type: ignore[attr-defined]
    return server, ref


@pytest.fixture
def proxy(published: tuple[Server, Any]) -> Iterator[FaultProxy]:
    with fault_proxy(published[0].endpoint) as proxy:
        yield proxy


def start(published: tuple[Server, Any], proxy: FaultProxy, host: int) -> list[int]:
    """Open the version as a host does that knows nothing of it, and read its first batch."""
    server, ref = published
    options = server.storage_options(proxy.endpoint)
    mine = cachelayer.open(f"{ref._base.version.folder.url}@v1", storage_options=options, local_cache_bytes=0)
    batch = next(iter(mine.stream(16 * HOSTS, shuffle=True, seed=1, shard=(host, HOSTS), prefetch=0)))
    return [int(number) for number in batch["n"]]


def test_all_hosts_start_with_five_requests_beside_those_of_records_though_the_store_turns_down_a_tenth(
    published: tuple[Server, Any], proxy: FaultProxy
) -> None:
    proxy.add(answer(503, probability=0.1, seed=3))
    with ThreadPoolExecutor(8) as hosts:
        found = list(hosts.map(lambda host: start(published, proxy, host), range(HOSTS)))
    stream = published[1].stream(16 * HOSTS, shuffle=True, seed=1)
    assert [number for numbers in found for number in numbers] == stream.record_numbers(0).tolist()
    answered = [exchange.path for exchange in proxy.exchanges() if not exchange.fault]
    assert len([path for path in answered if ".array_record" not in path]) <= 5 * HOSTS
    assert any(exchange.status == 503 for exchange in proxy.exchanges())


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_without_the_indices_beside_the_manifest_each_shard_has_its_own(damage: str) -> None:
    storage = Storage("memory://start-up", local_cache_bytes=0)
    ref = storage.submit([b"%d" % number for number in range(100)], f"{damage}@v1", shard_bytes=1000)
    store, name = ref._base.version.folder, ref._base.version.indices  # type: ignore[attr-defined]
    raw = store.read(name)
    assert raw is not None
    if damage == "missing":
        store.delete(name)
    else:
        store.put(name, raw[:100] + bytes([raw[100] ^ 1]) + raw[101:])
    again = storage.fetch(f"{damage}@v1")
    assert again.__getitems__([99, 5, 50]) == [b"99", b"5", b"50"]
    storage.delete(f"{damage}@v1", grace=0)
    assert stored_files(storage, damage) == named_files(storage, damage) == set()
