"""Hosts that start at once: requests of each from nothing to its first batch, from a store that turns some down.

Run: ``python benchmarks/many_hosts.py [hosts] [shards]``; 1,000 hosts and 1,000 shards by default, which take some
minutes. The hosts are simulated in one process: each opens the version as one that knows nothing of it. The store is
fake-gcs-server behind the proxy of the tests, which counts requests and answers a tenth of them with 503.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import numpy as np
from faults import answer, fault_proxy
from harness import machine, table
from servers import gcs_server, new_bucket

import cachelayer

BATCH = 8
TURNED_DOWN = 0.1
AT_ONCE = 32
SHARD_NBYTES = 5_000
RECORDS_A_SHARD = 33


def rows(count: int) -> Iterator[dict[str, Any]]:
    """Records of about 100 bytes."""
    for number in range(count):
        yield {"n": np.int64(number), "x": np.zeros(90, np.uint8)}


def kind_of(path: str) -> str:
    """What a request asks for."""
    kinds = {"_log%2Fhead": "log: newest entry", "_log/head": "log: newest entry", "_log": "log: is there a newer one"}
    kinds |= {".indices": "indices", "manifests": "manifest", ".index": "index of a shard", ".array_record": "records"}
    return next((kind for part, kind in kinds.items() if part in path), "other")


def main(hosts: int, shards: int) -> None:
    """Print the table."""
    with gcs_server() as server, fault_proxy(server.endpoint) as proxy:
        url = server.url(new_bucket(server), "caches")
        storage = cachelayer.Storage(url, storage_options=server.storage_options(), local_cache_bytes=0)
        ref = storage.submit(rows(shards * RECORDS_A_SHARD), "d@v1", shard_bytes=SHARD_NBYTES, progress=False)
        written = len(ref._base.version.manifest.shards)
        options = server.storage_options(proxy.endpoint)
        proxy.add(answer(503, probability=TURNED_DOWN, seed=1))

        def start(host: int) -> int:
            mine = cachelayer.open(f"{url}/d@v1", storage_options=options, local_cache_bytes=0)
            return len(mine.read(np.random.default_rng(host).integers(0, len(mine), BATCH))["n"])

        with ThreadPoolExecutor(AT_ONCE) as pool:
            started = sum(1 for records in pool.map(start, range(hosts)) if records == BATCH)
        exchanges = proxy.exchanges()
    answered = Counter(kind_of(each.path) for each in exchanges if not each.fault)
    refused = Counter(kind_of(each.path) for each in exchanges if each.fault)
    lines = [(kind, f"{answered[kind] / hosts:.2f}", f"{refused[kind] / hosts:.2f}") for kind in sorted(answered)]
    beside = sum(count for kind, count in answered.items() if kind != "records")
    lines.append(("all but records", f"{beside / hosts:.2f}", ""))
    title = f"{started:,} of {hosts:,} hosts started, {written:,} shards, batches of {BATCH} ({machine()})"
    print(table(title, ("requests a host", "answered", "turned down"), lines))


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:]]
    main(*(numbers + [1_000, 1_000][len(numbers) :]))
