"""The first epoch of a version in a bucket, with room for it on this host: what is asked for, and in which order.

Bytes and requests are counted, between a real server and processes that read.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import FaultProxy, fault_proxy, stall
from remote_child import check, check_epoch, epoch, rows, wait
from repository import SUPPORT
from servers import Server, new_bucket

import cachelayer
from cachelayer import Storage
from cachelayer.datasets import local_copies
from cachelayer.testing.engines import wait_until

CHILD = SUPPORT.joinpath("remote_child.py")
COUNT, SHARDS, SHARD_BYTES = 1568, 32, 102_000
MOST = 1.2
"""The bytes that a first epoch may ask for, beside those of the version."""
FEW_REQUESTS = 16


@pytest.fixture
def proxy(gcs: Server) -> Iterator[FaultProxy]:
    with fault_proxy(gcs.endpoint) as proxy:
        yield proxy


def publish(gcs: Server, records: Any, **options: Any) -> Any:
    storage = Storage(gcs.url(new_bucket(gcs), "caches"), storage_options=gcs.storage_options(), local_cache_bytes=0)
    return storage.submit(records, "d@v1", **options)


@pytest.fixture(scope="module")
def published(gcs: Server) -> Any:
    """A version of records of 2 KB in small shards."""
    ref = publish(gcs, rows(COUNT), shard_bytes=SHARD_BYTES)
    assert len(ref._base.version.manifest.shards) == SHARDS
    return ref


def opened(gcs: Server, proxy: FaultProxy, ref: Any, folder: Path, **options: Any) -> Any:
    options = {"local_cache": folder, "storage_options": gcs.storage_options(proxy.endpoint), **options}
    return cachelayer.open(ref.reference, **options)


def received(proxy: FaultProxy) -> int:
    return sum(exchange.received for exchange in proxy.exchanges())


def shards_copied(proxy: FaultProxy) -> list[str]:
    """The shards that were downloaded, in the order in which the downloads ended; no record begins with a shard."""
    found = (each for each in proxy.exchanges() if "array_record" in each.path and each.range.startswith("bytes=0-"))
    return [match[0] for each in found if (match := re.search(r"[0-9a-f]{32}-\d+", each.path))]


def names(ref: Any) -> list[str]:
    return [Path(shard.file).name.removesuffix(".array_record") for shard in ref._base.version.manifest.shards]


VERSIONS = {
    "few-large-shards": (4000, 3000, {"shard_bytes": 4 << 20}),
    "many-small-shards": (2000, 3000, {"shard_bytes": 100_000}),
    "small-records": (20_000, 500, {"shard_bytes": 1 << 20}),
    "large-records": (200, 100_000, {"shard_bytes": 3 << 20}),
    "zstd": (4000, 3000, {"shard_bytes": 1 << 19, "compression": "zstd"}),
}


@pytest.fixture(scope="module", params=VERSIONS.values(), ids=VERSIONS)
def any_version(request: pytest.FixtureRequest, gcs: Server) -> Any:
    count, nbytes, options = request.param
    numbers = np.arange(count)[:, None]
    values = np.random.default_rng(0).integers(0, 16, (count, nbytes), np.uint8) + (numbers % 200).astype(np.uint8)
    return publish(gcs, {"n": np.arange(count), "x": values}, **options)


@pytest.mark.parametrize("shuffle", [True, False, "blocks"], ids=["shuffled", "in-order", "in-blocks"])
@pytest.mark.parametrize("batch", [64, None], ids=["batches", "elements"])
def test_a_first_epoch_asks_for_little_more_than_the_version_and_a_second_for_nothing(
    gcs: Server, proxy: FaultProxy, any_version: Any, tmp_path: Path, shuffle: bool | str, batch: int | None
) -> None:
    ref = opened(gcs, proxy, any_version, tmp_path)
    stream = ref.stream(batch, shuffle=shuffle, seed=0, num_epochs=None)
    for number in range(2):
        proxy.forget()
        found = [item["n"] for item in stream.epoch(number)]
        assert sorted(np.concatenate(found) if batch else found) == list(range(len(ref)))
        if number == 0:
            assert received(proxy) <= MOST * ref.nbytes
            # The last copies may come after the last step; a copy counts once its file is in its place.
            wait_until(lambda: wait(ref) == len(names(ref)))
            assert sorted(shards_copied(proxy)) == sorted(names(ref))
            # One request for each file of a shard, one for all indices, and a few for the first records.
            assert len(proxy.exchanges()) <= 3 * len(names(ref)) + FEW_REQUESTS
        else:
            assert proxy.exchanges() == []


def test_a_first_batch_of_a_large_version_comes_before_a_copy(
    gcs: Server, proxy: FaultProxy, published: Any, tmp_path: Path
) -> None:
    ref = opened(gcs, proxy, published, tmp_path)
    proxy.add(stall(containing="bytes=0-1"))
    assert len(check(next(iter(ref.stream(8, prefetch=0))))) == 8
    assert ref._base.shards.copies.count == 0


def test_streams_wait_no_longer_for_copies_that_do_not_come(
    gcs: Server, proxy: FaultProxy, published: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_copies, "_PATIENCE_SECONDS", 0.1)
    ref = opened(gcs, proxy, published, tmp_path)
    proxy.add(stall(containing="bytes=0-1"))
    epoch(ref)
    assert ref._base.shards.copies.count == 0


def test_an_order_that_begins_in_the_middle_copies_nothing_of_what_comes_before(
    gcs: Server, proxy: FaultProxy, published: Any, tmp_path: Path
) -> None:
    ref = opened(gcs, proxy, published, tmp_path)
    iterator = iter(ref.stream(32, shuffle=False))
    whole = iter(published.stream(32))
    for _ in range(25):
        next(whole)
    iterator.set_state(whole.get_state())
    found = [number for batch in iterator for number in check(batch)]
    assert found == list(range(800, COUNT))
    wait(ref)
    # 49 records lie in a shard.
    in_order = names(ref)[800 // 49 :]
    copied = shards_copied(proxy)
    assert sorted(copied) == sorted(in_order)
    # Threads end in any order, but the next shards come before the last ones.
    assert set(copied[:4]) <= set(in_order[:20])
    assert received(proxy) <= MOST * ref.nbytes * len(in_order) / SHARDS


def test_a_part_of_a_version_copies_the_shards_of_the_part(
    gcs: Server, proxy: FaultProxy, published: Any, tmp_path: Path
) -> None:
    ref = opened(gcs, proxy, published, tmp_path)
    check_epoch(ref[: 49 * 4].stream(32, shuffle=True, seed=1))
    assert wait(ref) == 4
    assert sorted(shards_copied(proxy)) == sorted(names(ref)[:4])


def test_hosts_that_share_an_epoch_ask_by_ranges_for_their_records_at_most_once(
    gcs: Server, proxy: FaultProxy, published: Any, tmp_path: Path
) -> None:
    proxy.add(stall(containing="bytes=0-1"))
    for host in range(2):
        ref = opened(gcs, proxy, published, tmp_path / str(host))
        stream = ref.stream(32, shuffle=True, seed=2, shard=(host, 2))
        before = cachelayer.counters()["copies_missed"]
        assert sum(len(check(batch)) for batch in stream) == COUNT // 2
        assert cachelayer.counters()["copies_missed"] - before == COUNT // 2


@pytest.mark.needs("torch")
def test_workers_share_the_copies(gcs: Server, proxy: FaultProxy, published: Any, tmp_path: Path) -> None:
    from cachelayer.adapters.torch import loader

    ref = opened(gcs, proxy, published, tmp_path)
    batches = loader(ref.stream(32, shuffle=True, seed=0), num_workers=2, multiprocessing_context="spawn")
    proxy.forget()
    assert sorted(number for batch in batches for number in batch["n"].tolist()) == list(range(COUNT))
    assert sorted(shards_copied(proxy)) == sorted(names(ref))
    assert received(proxy) <= MOST * ref.nbytes


def order(gcs: Server, proxy: FaultProxy, ref: Any, folder: Path, **more: Any) -> list[str]:
    options = {"local_cache": str(folder), "storage_options": gcs.storage_options(proxy.endpoint)}
    text = json.dumps({"reference": ref.reference, "options": options, **more})
    return [sys.executable, str(CHILD), text]


def test_processes_of_a_host_download_each_shard_once(
    gcs: Server, proxy: FaultProxy, published: Any, tmp_path: Path
) -> None:
    command = order(gcs, proxy, published, tmp_path)
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for child in children:
        text, _ = child.communicate(timeout=200)
        assert json.loads(text) == {"local": SHARDS, "warnings": []}
    assert sorted(shards_copied(proxy)) == sorted(names(published))


def test_after_a_kill_the_next_process_goes_on_with_the_copies(
    gcs: Server, proxy: FaultProxy, published: Any, tmp_path: Path
) -> None:
    command = order(gcs, proxy, published, tmp_path)
    last = names(published)[-1]
    # All but one of the shards come, so the child never ends by itself.
    proxy.add(stall(containing=f"{last}.array_record"))
    with subprocess.Popen(command) as child:
        while len(list(tmp_path.rglob("*.array_record"))) < SHARDS - 1:
            assert child.poll() is None
        child.kill()
    proxy.clear()
    proxy.forget()
    ref = opened(gcs, proxy, published, tmp_path)
    epoch(ref)
    assert wait(ref) == SHARDS
    assert shards_copied(proxy) == [last]
    assert not list(tmp_path.rglob("*.part"))
