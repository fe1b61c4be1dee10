"""The costs of a dataset: build rates, opening and planning by the number of records, an epoch of 10 TB.

Run: ``python benchmarks/costs.py``; it takes a minute, and prints the tables of docs/howto-costs.md. What is
multiplied says so, the rest is measured. `many_hosts.py 512 400` counts the requests of hosts
that start at once; `scale.py` goes further, with 100 TB on 1,000 hosts.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from blocks_walk import Dataset, walk
from harness import images, machine, table
from scale import READ_PRICE, WRITE_PRICE, count, size
from scale_costs import PIECE, cloud, kind_cost, manifest_cost, seconds, writes_a_shard
from servers import new_bucket

import cachelayer
from cachelayer.sequences.pack_planner import Packing, plan
from cachelayer.streams.order.blocks import Blocks, block_order
from cachelayer.streams.order.permutation import permuted

RECORD_NBYTES = 10_000
NUMBERS = (10**6, 10**7, 10**8, 10**9)
BATCH = 1_024
DOCUMENTS = 1 << 18
HOSTS = (8, 64, 512)
BATCH_A_HOST = 256
WALKED_HOSTS = 4
TEN_TB = Dataset(10**9, RECORD_NBYTES)
PACKING = Packing(2_048, 2_048)


def build_rates() -> str:
    """Build some sources into a folder of this machine, by one process, and return the table of their rates."""
    noise, arrays = np.random.default_rng(0).bytes(2 * RECORD_NBYTES), images(40_000)
    sources: dict[str, Callable[[], Any]] = {
        "arrays, 3 kB a record": lambda: arrays,
        "a generator of dicts of arrays, 3 kB": lambda: (
            {"image": image, "label": label} for image, label in zip(arrays["image"], arrays["label"], strict=True)
        ),
        "a generator of byte strings, 10 kB": lambda: (
            noise[number % RECORD_NBYTES :][:RECORD_NBYTES] for number in range(20_000)
        ),
    }
    rows = []
    for name, source in sources.items():
        best, nbytes, records = np.inf, 0, 0
        for number in range(3):
            with tempfile.TemporaryDirectory() as folder:
                started = time.perf_counter()
                ref = cachelayer.Storage(folder).submit(source(), f"d@v{number}", progress=False)
                best, nbytes, records = min(best, time.perf_counter() - started), ref.nbytes, len(ref)
        rows.append((name, f"{records / best:,.0f}", size(nbytes / best)))
    return table(f"Built by one process, the best of 3 ({machine()})", ("source", "records/s", "bytes/s"), rows)


def planning() -> str:
    """Return the table of what grows with the number of records: manifest, opening, memory, order, packs."""
    lengths = np.random.default_rng(0).lognormal(6, 1, DOCUMENTS).astype(np.int64)
    pack_s = seconds(lambda: list(plan([lengths], PACKING)), 3) / DOCUMENTS
    plan_nbytes = sum(part.nbytes for part in plan([lengths], PACKING)) / DOCUMENTS
    rows = []
    for records in NUMBERS:
        dataset = Dataset(records, RECORD_NBYTES)
        cost = manifest_cost(dataset.shards)
        starts = iter(np.random.default_rng(0).integers(records - BATCH, size=9).tolist())

        def order_a_step(records: int = records, starts: Any = starts) -> None:
            start = next(starts)
            permuted(records, 7, 3, start, start + BATCH)

        rows.append(
            (
                f"{records:,}",
                f"{dataset.shards:,}",
                size(cost.nbytes),
                f"{cost.opening_s * 1e3:,.1f} ms",
                size(cost.memory_nbytes),
                size(dataset.shards * dataset.index_nbytes),
                f"{seconds(order_a_step, 9) * 1e3:.2f} ms",
                f"{pack_s * records:,.1f} s",
                size(plan_nbytes * records),
            )
        )
    head = (
        "records",
        "shards",
        "manifest",
        "open it",
        "its memory",
        "all indices",
        f"order of {BATCH:,} records",
        "plan packs, once",
        "the plan",
    )
    packed = f"packs of {PACKING.length:,} tokens multiplied from {DOCUMENTS:,} documents"
    title = f"Records of {size(RECORD_NBYTES)}, processor time; {packed} ({machine()})"
    return table(title, head, rows)


def reads_of_a_copy() -> float:
    """Requests that copy a shard of one piece and its index, to one host."""
    with cloud() as (server, proxy), tempfile.TemporaryDirectory() as copies:
        url = server.url(new_bucket(server), "caches")
        rows = {"x": np.random.default_rng(0).integers(0, 256, (2_000, RECORD_NBYTES), np.uint8)}
        cachelayer.Storage(url, storage_options=server.storage_options(), local_cache_bytes=0).submit(
            rows, "d@v1", shard_bytes=4 << 20, progress=False
        )
        options = server.storage_options(proxy.endpoint)
        copied = cachelayer.Storage(url, storage_options=options, local_cache=copies).fetch("d@v1").mirror()
        return sum("shards" in exchange.path for exchange in proxy.exchanges()) / copied.shards


def ten_tb() -> str:
    """Return the table of requests and dollars of one epoch; those in blocks are walked, the others multiplied."""
    pieces, exact = -(-TEN_TB.shard_nbytes // PIECE), TEN_TB.records * kind_cost("one size").sparse_reads
    beside = reads_of_a_copy() - 1
    order = block_order(Blocks(), TEN_TB.records, RECORD_NBYTES, seed=1)
    blocks = [walk(order, TEN_TB, hosts, BATCH_A_HOST, WALKED_HOSTS).requests for hosts in HOSTS]
    ways = {
        "exact, by ranges": [exact for _ in HOSTS],
        "blocks": blocks,
        "mirror, once": [hosts * TEN_TB.shards * (pieces + beside) for hosts in HOSTS],
    }
    rows = [
        (way, *(f"{count(requests)}, {requests * READ_PRICE:,.2f} $" for requests in of_hosts))
        for way, of_hosts in ways.items()
    ]
    built = TEN_TB.shards * (writes_a_shard() + pieces)
    title = (
        f"Requests and dollars of an epoch of 10 TB, {TEN_TB.shards:,} shards of {size(RECORD_NBYTES)} a record, all "
        f"hosts together; building takes {count(built)} requests that write, {built * WRITE_PRICE:,.2f} $"
    )
    return table(title, ("order", *(f"{hosts} hosts" for hosts in HOSTS)), rows)


def main() -> None:
    """Print the tables."""
    print(build_rates(), planning(), ten_tb(), sep="\n\n")


if __name__ == "__main__":
    main()
