"""What this library costs per record, per shard and per request, as measured here: the ground of `scale.py`."""

from __future__ import annotations

import hashlib
import inspect
import json
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import numpy as np
from faults import FaultProxy, fault_proxy
from format_scale import a_manifest
from servers import Server, gcs_server, new_bucket

import cachelayer
from cachelayer.arrayrecord.ranged import RangedShards, ShardObject
from cachelayer.objects.bucket_store import PIECE
from cachelayer.objects.local_cache import CacheFolder
from cachelayer.streams.order.permutation import permuted
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.snapshot import Snapshot, VersionInfo

KINDS = ("one size", "any size")
RECORD_NBYTES = 10_000
LATENCY_MS = 20.0
_EPOCH_RECORDS = 4_000
_SHARD_NBYTES = 4 << 20
_SPARSE_RECORDS = 200_000
_SPARSE_BATCH = 64


@dataclass(frozen=True)
class ManifestCost:
    """A manifest: its bytes, processor seconds to open it, bytes of memory it takes then."""

    shards: int
    nbytes: int
    opening_s: float
    memory_nbytes: int


@dataclass(frozen=True)
class Traffic:
    """Requests that read and that write, and the bytes that came."""

    reads: int
    writes: int
    received: int


@dataclass(frozen=True)
class KindCost:
    """What records of one kind cost.

    Args:
        build_cpu_s: of making, hashing and writing one record.
        overhead_nbytes: bytes of the shard beside each record.
        index_nbytes: bytes of the index a record.
        sparse_reads: requests for a record of a shard that was hardly touched before, with the index's.
        sparse_trips: round trips of a batch of such records.
        opening_trips: round trips from nothing to the first batch.
        epochs: one shuffled epoch, by how it was read; and its processor seconds a record.
    """

    build_cpu_s: float
    overhead_nbytes: float
    index_nbytes: float
    sparse_reads: float
    sparse_trips: float
    opening_trips: float
    epochs: dict[str, tuple[Traffic, float]]


@dataclass(frozen=True)
class FixedCosts:
    """Of state, order, log, a note of a part, a shard that is built, one in memory, and a local copy beside others."""

    state_nbytes: int
    order_s: dict[int, float]
    entry_nbytes: int
    note_nbytes: int
    writes_a_shard: float
    piece_nbytes: int
    memory_a_shard: float
    copy_s: dict[int, float]


def seconds(work: Callable[[], Any], rounds: int) -> float:
    """The median processor time of some work."""
    times = []
    for _ in range(rounds):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return statistics.median(times)


def manifest_cost(shards: int) -> ManifestCost:
    """Of a manifest of so many shards."""
    raw = a_manifest(shards, shards * 100_000).encode()

    def opened() -> Manifest:
        hashlib.sha256(raw).hexdigest()
        found = Manifest.decode(raw, "m")
        found.digest  # noqa: B018
        return found

    memory, _ = _memory(opened)
    return ManifestCost(shards, len(raw), seconds(opened, 3), memory)


def fixed_costs(batches: tuple[int, ...]) -> FixedCosts:
    """What does not depend on the kind of records."""
    ref = cachelayer.wrap(range(10**6), identity="numbers")
    state = iter(ref.stream(256, shuffle=True, seed=2**63)).get_state()
    info = VersionInfo("v1", "0" * 64, 0, "0" * 64, 10**10, 10**14, "2026-01-01T00:00:00+00:00")
    shard = a_manifest(1, 100_000).shards[0]
    note = {"nullable": [], "elements": 100_000, "left_out": 0, "first_left_out": [], "after": "0" * 64}
    note["shards"] = [{"generation": shard.generation, **vars(shard.stats)}]
    return FixedCosts(
        state_nbytes=len(json.dumps(state)) + len(str(10**12)),
        order_s={batch: seconds(lambda batch=batch: _a_step(batch), 9) for batch in batches},
        entry_nbytes=len(Snapshot(1, {"v1": info}).encode("0" * 32)),
        note_nbytes=len(json.dumps(note)),
        writes_a_shard=writes_a_shard(),
        piece_nbytes=PIECE,
        memory_a_shard=_memory_a_shard(20_000),
        copy_s={files: _copy_s(files) for files in (10, 10_000)},
    )


def _a_step(batch: int) -> None:
    start = int(np.random.default_rng().integers(10**10 - batch))
    permuted(10**10, 7, 3, start, start + batch)


def _memory(work: Callable[[], Any]) -> tuple[int, Any]:
    """Bytes that are held by what some work returns."""
    tracemalloc.start()
    found = work()
    nbytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return nbytes, found


def _memory_a_shard(shards: int) -> float:
    """Of what is kept of each shard that was read by ranges, beside the manifest."""
    table = a_manifest(shards, shards * 100_000).shards

    def touched() -> Any:
        return [ShardObject("", shard.name, shard.file, shard.stats) for shard in table]

    return _memory(touched)[0] / shards


def _copy_s(files: int, copies: int = 100) -> float:
    """What a copy takes, beside its bytes, if there are so many files already."""
    with tempfile.TemporaryDirectory() as folder:
        group = CacheFolder(Path(folder), 1 << 30).group("copies")
        for number in range(files):
            group.path(f"{number}").touch()
        group.make("first", 8, lambda _: None)

        def work() -> None:
            for number in range(copies):
                group.make(f"{time.time_ns()}-{number}", 8, lambda _: None)

        return seconds(work, 3) / copies


@contextmanager
def cloud() -> Iterator[tuple[Server, FaultProxy]]:
    """A store with a proxy that counts in front."""
    with gcs_server() as server, fault_proxy(server.endpoint) as proxy:
        yield server, proxy


def _traffic(proxy: FaultProxy) -> Traffic:
    totals = proxy.totals()
    reads = [totals[method] for method in ("GET", "HEAD") if method in totals]
    writes = sum(total.requests for method, total in totals.items() if method in ("POST", "PUT", "PATCH"))
    return Traffic(sum(total.requests for total in reads), writes, sum(total.received for total in reads))


def writes_a_shard() -> float:
    """Requests that write, of a build by hosts, for each further part of one shard of one piece, with all beside it."""
    counts = []
    with cloud() as (server, proxy):
        for shards in (2, 10):
            storage = _storage(server, proxy, 0)
            proxy.forget()
            records = _records("one size", 50 * shards, RECORD_NBYTES)
            parts = cachelayer.sharded(partial(_part, records), shards)
            storage.cache(parts, f"d@v{shards}", hosts=(0, 1))
            counts.append(_traffic(proxy).writes)
    return (counts[1] - counts[0]) / 8


def _part(records: list[bytes], index: int, count: int) -> list[bytes]:
    return records[len(records) * index // count : len(records) * (index + 1) // count]


def _storage(server: Server, proxy: FaultProxy, copies_nbytes: int, **options: Any) -> cachelayer.Storage:
    url = options.pop("url", None) or server.url(new_bucket(server), "caches")
    endpoint = server.storage_options(proxy.endpoint)
    return cachelayer.Storage(url, storage_options=endpoint, local_cache_bytes=copies_nbytes, **options)


def _records(kind: str, count: int, nbytes: int) -> list[bytes]:
    data = np.random.default_rng(0)
    noise = data.bytes(nbytes * 3)
    sizes = [nbytes] * count if kind == "one size" else data.integers(nbytes // 2, nbytes * 3 // 2, count).tolist()
    places = data.integers(0, nbytes, count).tolist()
    return [noise[place : place + size] for place, size in zip(places, sizes, strict=True)]


def kind_cost(kind: str) -> KindCost:
    """Of records of one kind."""
    records = _records(kind, _EPOCH_RECORDS, RECORD_NBYTES)
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        ref = cachelayer.Storage(folder).submit(records, "d@v1")
        build = (time.process_time() - started) / len(records)
        indices = sum(path.stat().st_size for path in Path(folder).rglob("*.index"))
        stored = ref.nbytes - sum(map(len, records))
    with cloud() as (server, proxy):
        url = server.url(new_bucket(server), "caches")
        near = cachelayer.Storage(url, storage_options=server.storage_options(), local_cache_bytes=0)
        ref = near.submit(records, "d@v1", shard_bytes=_SHARD_NBYTES)
        near.submit(_records(kind, _SPARSE_RECORDS, 64), "sparse@v1", shard_bytes=_SPARSE_RECORDS * 64)
        epochs = {
            "ranges": _epoch(server, proxy, url, 0),
            "ranges, in blocks": _epoch(server, proxy, url, 0, shuffle="blocks"),
            "copies on disk": _epoch(server, proxy, url, 10 * ref.nbytes, mirror=True),
            "copies of a quarter": _epoch(server, proxy, url, ref.nbytes // 4, mirror=True),
        }
        reads, sparse_trips, opening_trips = _sparse(server, proxy, url)
    return KindCost(
        build_cpu_s=build,
        # A shard's padding to whole blocks, and its last one, belong to it, not to its records.
        overhead_nbytes=max(0.0, stored - 131_072) / len(records),
        index_nbytes=indices / len(records),
        sparse_reads=reads,
        sparse_trips=sparse_trips,
        opening_trips=opening_trips,
        epochs=epochs,
    )


def _epoch(
    server: Server,
    proxy: FaultProxy,
    url: str,
    copies_nbytes: int,
    *,
    mirror: bool = False,
    shuffle: bool | Literal["blocks"] = True,
) -> tuple[Traffic, float]:
    """One shuffled epoch, and the processor seconds of a record."""
    with tempfile.TemporaryDirectory() as local:
        proxy.forget()
        ref = _storage(server, proxy, copies_nbytes, url=url, local_cache=local).fetch("d@v1")
        started = time.process_time()
        if mirror:
            ref.mirror()
        read = sum(len(batch) for batch in ref.stream(64, shuffle=shuffle, seed=1))
        return _traffic(proxy), (time.process_time() - started) / read


def _sparse(server: Server, proxy: FaultProxy, url: str) -> tuple[float, float, float]:
    """Of a batch that touches few of many records: requests a record, its round trips, those of opening and it.

    As in versions with more records, whose indices are too large for the memory, rows of one are fetched each time.
    """
    kept = inspect.signature(RangedShards).parameters["kept_nbytes"].default
    RangedShards.__init__.__defaults__ = (*RangedShards.__init__.__defaults__[:-1], 0)
    try:
        return _sparse_without_indices(server, proxy, url)
    finally:
        RangedShards.__init__.__defaults__ = (*RangedShards.__init__.__defaults__[:-1], kept)


def _sparse_without_indices(server: Server, proxy: FaultProxy, url: str) -> tuple[float, float, float]:
    counts, rng = [], np.random.default_rng(0)
    # What loads and connects the client is no part of it.
    _storage(server, proxy, 0, url=url).fetch("sparse@v1")[0]
    proxy.shape(LATENCY_MS)
    openings = []
    for _ in range(3):
        started = time.perf_counter()
        ref = _storage(server, proxy, 0, url=url).fetch("sparse@v1")
        ref.read(np.sort(rng.choice(_SPARSE_RECORDS, _SPARSE_BATCH, replace=False)))
        openings.append((time.perf_counter() - started) / (2 * LATENCY_MS / 1e3))
    trips = []
    for _ in range(3):
        numbers = np.arange(8) * (_SPARSE_RECORDS // 8) + rng.integers(_SPARSE_RECORDS // 8)
        proxy.forget()
        started = time.perf_counter()
        ref.read(numbers)
        trips.append((time.perf_counter() - started) / (2 * LATENCY_MS / 1e3))
        counts.append(_traffic(proxy).reads / len(numbers))
    proxy.shape()
    return counts[0], min(trips), min(openings)
