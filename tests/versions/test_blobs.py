"""Blobs: what is there is neither sent nor fetched again, what is damaged is found, and nobody asks without need."""

import os
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import FaultProxy, fault_proxy
from leftovers import stored_files
from servers import Server, new_place, new_storage

import cachelayer
from cachelayer import Storage
from cachelayer.objects.open_store import open_store
from cachelayer.objects.store import Blob, Store
from cachelayer.testing.stores import blob_of, place_of_file
from cachelayer.versions.blobs import copy, damaged, missing, put_files

RECORDS, RECORD_NBYTES = 120, 100_000
OPTIONS: dict[str, Any] = {"shard_bytes": 500_000}


class Rows:
    """Records that no client compresses."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, number: int) -> dict[str, Any]:
        if not 0 <= number < RECORDS:
            raise IndexError(number)
        random = np.random.default_rng([self.seed, number])
        return {"x": random.integers(0, 256, RECORD_NBYTES, np.uint8)}


def until(stop: int) -> Iterator[dict[str, Any]]:
    """Yield rows; fail at the one with this number."""
    for number, row in enumerate(map(Rows().__getitem__, range(RECORDS))):
        if number == stop:
            raise OSError("the disk is away")
        yield row


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    with fault_proxy(server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def storage(server: Server, proxy: FaultProxy) -> Storage:
    storage: Storage = new_storage(server, proxy.endpoint)
    return storage


def test_a_build_that_begins_anew_neither_fetches_nor_sends_what_is_there(storage: Storage, proxy: FaultProxy) -> None:
    with pytest.raises(cachelayer.SourceError):
        storage.submit(until(100), "d@v1", **OPTIONS)
    stored = sum(name.endswith(".array_record") for name in stored_files(storage))
    assert stored >= 10
    proxy.forget()
    ref = storage.submit(until(-1), "d@v1", **OPTIONS)
    exchanges = proxy.exchanges()
    shards = len(ref._base.version.manifest.shards)
    shard_nbytes = ref.nbytes / shards
    assert sum(each.received for each in exchanges) < 2 * shard_nbytes
    assert sum(each.sent for each in exchanges) < (shards - stored + 2) * shard_nbytes
    assert storage.verify("d@v1", progress=False)


def test_a_copy_neither_fetches_nor_sends_what_is_there(storage: Storage, proxy: FaultProxy, tmp_path: Path) -> None:
    here = Storage(tmp_path)
    nbytes = here.submit(Rows(), "d@v1", **OPTIONS).nbytes
    here.copy("d@v1", to=storage, progress=False)
    here.derive("d@v1", "few", keep=range(10))
    # One with files that are there already, as after a copy that was interrupted, and one that is there as a whole.
    for version in ("few", "v1"):
        proxy.forget()
        here.copy(f"d@{version}", to=storage, progress=False)
        exchanges = proxy.exchanges()
        assert sum(each.received + each.sent for each in exchanges) < nbytes / 10
    proxy.forget()
    # A repair reads what is there, unless the store has computed its checksums.
    storage.repair("d@v1", dry_run=True, progress=False)
    received = sum(each.received for each in proxy.exchanges())
    assert (received > nbytes) == (not storage.url.startswith("gs://"))


def lookups(proxy: FaultProxy) -> set[int]:
    """How often it was asked about a shard, of all shards."""
    names = [each.path.partition("?")[0] for each in proxy.exchanges() if each.method in {"HEAD", "GET"}]
    return set(Counter(name for name in names if name.endswith(".array_record")).values())


def test_a_builder_asks_about_a_file_once_before_it_puts_it(storage: Storage, proxy: FaultProxy) -> None:
    storage.cache(Rows(), "d@v1", **OPTIONS)
    assert lookups(proxy) == {1}


def test_hosts_ask_once_more_about_the_files_that_other_hosts_have_put(storage: Storage, proxy: FaultProxy) -> None:
    begin = threading.Barrier(2)

    def build(host: int) -> None:
        begin.wait()
        storage.cache(Rows(), "d@v1", hosts=(host, 2), progress=False, **OPTIONS)

    with ThreadPoolExecutor(2) as hosts:
        list(hosts.map(build, range(2)))
    # However many hosts there are, one of them publishes.
    assert max(lookups(proxy)) <= 3
    assert storage.verify("d@v1", progress=False)


@pytest.fixture(params=["disk", "memory", "s3", "gcs", "azure"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "memory":
        return open_store(f"memory://{os.urandom(8).hex()}")
    return open_store(*new_place(request.param, request, tmp_path))


DATA = os.urandom(100_000)
OTHER = DATA[:50_000] + bytes([DATA[50_000] ^ 1]) + DATA[50_001:]


def put(store: Store, folder: Path, data: bytes, blob: Blob) -> None:
    path = place_of_file(store, folder)
    path.write_bytes(data)
    put_files(store, {path: blob})


def test_what_is_missing_or_damaged_is_found_and_put_again(store: Store, tmp_path: Path) -> None:
    good, flipped, other, cut, gone = blobs = [blob_of(f"shards/{name}", DATA) for name in "abcde"]
    put(store, tmp_path, DATA, good)
    store.put(flipped.name, OTHER)
    # Its checksum is known, and that of other bytes.
    put(store, tmp_path, OTHER, blob_of(other.name, OTHER))
    store.put(cut.name, DATA[:-1])
    assert missing(store, blobs) == {cut, gone}
    wrong = dict.fromkeys((flipped.name, other.name, cut.name), "damaged") | {gone.name: "missing"}
    assert damaged(store, blobs) == wrong
    for blob in blobs:
        put(store, tmp_path, DATA, blob)
    assert (missing(store, blobs), damaged(store, blobs)) == (set(), {})


def test_what_is_there_and_good_is_not_copied_and_what_fails_its_check_is_not_put(store: Store, tmp_path: Path) -> None:
    source = open_store(tmp_path / "source")
    blobs = [blob_of(f"shards/{name}", DATA) for name in "ab"]
    pairs = {blob: blob_of(f"copies/{blob.name[-1]}", DATA) for blob in blobs}
    for blob in blobs:
        source.put(blob.name, DATA)
    checked: list[list[bytes]] = []

    def check(folder: Path) -> None:
        checked.append([path.read_bytes() for path in sorted(folder.iterdir())])

    def refuse(folder: Path) -> None:
        raise cachelayer.CorruptionError(str(folder))

    with pytest.raises(cachelayer.CorruptionError):
        copy(source, store, pairs, refuse, trusts_sent=False)
    assert damaged(store, pairs.values()) == dict.fromkeys(("copies/a", "copies/b"), "missing")
    assert copy(source, store, pairs, check, trusts_sent=False)
    assert not copy(source, store, pairs, check, trusts_sent=False)
    store.put("copies/b", OTHER)
    assert copy(source, store, pairs, check, trusts_sent=True)
    assert checked == [[DATA, DATA]] * 2
    assert damaged(store, pairs.values()) == {}
