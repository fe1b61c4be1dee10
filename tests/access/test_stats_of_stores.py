"""The bytes and requests that iterators over an object store count, and whose they are."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import FaultProxy, answer, fault_proxy
from remote_child import rows, wait
from servers import Server, new_bucket

import cachelayer
from cachelayer import Blocks, Storage

COUNT = 392


@pytest.fixture(scope="module")
def reference(gcs: Server) -> str:
    storage = Storage(gcs.url(new_bucket(gcs), "caches"), storage_options=gcs.storage_options(), local_cache_bytes=0)
    return storage.submit(rows(COUNT), "d", "v1", shard_bytes=102_000).reference


@pytest.fixture(scope="module")
def running(gcs: Server) -> Iterator[FaultProxy]:
    with fault_proxy(gcs.endpoint) as proxy:
        yield proxy


@pytest.fixture
def proxy(running: FaultProxy) -> FaultProxy:
    running.clear()
    running.forget()
    return running


def opened(reference: str, server: Server, proxy: FaultProxy, **options: Any) -> Any:
    options = {"local_cache_bytes": 0, "storage_options": server.storage_options(proxy.endpoint), **options}
    return cachelayer.open(reference, **options)


def asked_nbytes(proxy: FaultProxy) -> int:
    """The bytes of all ranges that were asked for."""
    ends = [exchange.range.removeprefix("bytes=").split("-") for exchange in proxy.exchanges()]
    return sum(int(last) - int(first) + 1 for first, last in ends)


ORDERS = pytest.mark.parametrize("shuffle", [True, Blocks(records=16, window=64)], ids=["exact", "blocks"])


@ORDERS
def test_an_iterator_counts_each_request_that_it_causes(
    gcs: Server, proxy: FaultProxy, reference: str, shuffle: Any
) -> None:
    ref = opened(reference, gcs, proxy)
    proxy.forget()
    iterator = iter(ref.stream(32, shuffle=shuffle, seed=1))
    assert len(list(iterator)) == 13
    stats = iterator.stats()
    assert stats.requests == len(proxy.exchanges()) > 0
    assert stats.retries == 0
    assert stats.nbytes == {"memory_map": 0, "disk": 0, "range": asked_nbytes(proxy), "copy": 0}
    assert stats.bottleneck == "reading"


@ORDERS
def test_iterators_at_once_count_each_their_own_requests(
    gcs: Server, proxy: FaultProxy, reference: str, shuffle: Any
) -> None:
    ref = opened(reference, gcs, proxy)
    proxy.forget()
    iterators = [iter(ref[:size].stream(32, shuffle=shuffle, seed=1)) for size in (COUNT, 64)]
    threads = [threading.Thread(target=list, args=(iterator,)) for iterator in iterators]
    for thread in threads:
        thread.start()
    # This is nobody's.
    ref.read(range(5))
    for thread in threads:
        thread.join()
    whole, part = (iterator.stats() for iterator in iterators)
    assert whole.requests > part.requests > 0
    assert whole.requests + part.requests < len(proxy.exchanges())
    assert whole.nbytes["range"] > 4 * part.nbytes["range"] > 0
    assert whole.nbytes["range"] + part.nbytes["range"] < asked_nbytes(proxy)


def test_requests_that_are_repeated_count_as_retries(gcs: Server, proxy: FaultProxy, reference: str) -> None:
    iterator = iter(opened(reference, gcs, proxy).stream(32))
    proxy.forget()
    proxy.add(answer(503, containing="array_record", times=2))
    list(iterator)
    stats = iterator.stats()
    assert stats.retries == 2
    assert stats.requests == len(proxy.exchanges())


@ORDERS
def test_bytes_of_local_copies_are_told_apart(
    gcs: Server, proxy: FaultProxy, reference: str, shuffle: Any, tmp_path: Path
) -> None:
    ref = opened(reference, gcs, proxy, local_cache_bytes=None, local_cache=tmp_path)
    ref.read(range(COUNT))
    ref.read(range(COUNT))
    wait(ref)
    proxy.forget()
    iterator = iter(ref.stream(32, shuffle=shuffle, seed=1))
    list(iterator)
    stored = int(ref._base.records(np.arange(COUNT)).lengths.sum())
    assert iterator.stats().nbytes == {"memory_map": 0, "disk": 0, "range": 0, "copy": stored}
    assert iterator.stats().requests == len(proxy.exchanges()) == 0
