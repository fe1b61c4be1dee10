"""Reading an order in blocks: from an object store 20 ms away in each direction, and from a hot page cache.

Run: ``python benchmarks/locality.py [row ...]``; rows are remote, hot. The store is fake-gcs-server, behind the
proxy of the tests, on the same cores as what is measured.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import numpy as np
from cloud import LATENCY_MS, Cloud, cloud, spend
from harness import machine, median, medians, table

import cachelayer
from cachelayer.streams.ahead.block_feed import REQUESTS

BATCH = 256
NBYTES = 10_000
REMOTE, LOCAL = 40_000, 60_000
BLOCK_NBYTES = 1 << 20
# All of this version lies in one window of the default size, which comes before much of it can be handed out. Larger
# versions have many windows, as it has if they are so small.
WINDOWS = cachelayer.Blocks(window=128)
# The server, its proxy and the reader share the cores, so that rounds differ by a third.
REMOTE_ROUNDS = 9
# The exact shuffle by ranges is so slow that a part of an epoch is enough.
_EXACT_BATCHES = 20


def records(count: int) -> Iterator[dict[str, Any]]:
    """Records of 10 kB."""
    rows = np.random.default_rng(0).integers(0, 256, (256, NBYTES), np.uint8)
    for number in range(count):
        yield {"x": rows[number % len(rows)], "n": number}


def remote() -> None:
    """An epoch in blocks against a sequential download by gcsfs of the same bytes, as many ranges at once."""
    with cloud() as there:
        ref = there.storage(far=False, local_cache_bytes=0).cache(lambda: records(REMOTE), "d", "v1", progress=False)
        rates: dict[str, list[float]] = {"blocks": [], "windows": [], "bare": [], "exact": []}
        processor: dict[str, list[float]] = {"blocks": [], "windows": [], "bare": []}
        wanted = REMOTE * ref._base.record_nbytes
        for turn in range(REMOTE_ROUNDS):
            far = there.storage(far=True, local_cache_bytes=0).fetch("d@v1")
            there.proxy.forget()
            spent = spend(lambda far=far, turn=turn: read(far, "blocks", turn))
            found = there.proxy.totals()["GET"]
            rates["blocks"].append(wanted / spent.seconds)
            processor["blocks"].append(spent.processor)
            spent = spend(lambda: asyncio.run(download(there, ref)))
            rates["bare"].append(ref.nbytes / spent.seconds)
            processor["bare"].append(spent.processor)
            spent = spend(lambda far=far, turn=turn: read(far, WINDOWS, turn))
            rates["windows"].append(wanted / spent.seconds)
            processor["windows"].append(spent.processor)
            spent = spend(lambda far=far, turn=turn: read(far, True, turn, _EXACT_BATCHES))
            rates["exact"].append(_EXACT_BATCHES * BATCH * ref._base.record_nbytes / spent.seconds)
        middle = {name: median(each) for name, each in rates.items()}
        busy = {name: median(each) / (wanted / 1e9) for name, each in processor.items()}
    lines = [
        (
            f"sequential download by gcsfs, {REQUESTS} ranges of 1 MiB at once",
            f"{middle['blocks'] / 1e6:,.0f} MB/s",
            f"{middle['bare'] / 1e6:,.0f} MB/s",
            f"{middle['blocks'] / middle['bare']:.2f}",
            "0.7",
        ),
        (
            f"that download, in windows of {WINDOWS.window} blocks",
            f"{middle['windows'] / 1e6:,.0f} MB/s",
            f"{middle['bare'] / 1e6:,.0f} MB/s",
            f"{middle['windows'] / middle['bare']:.2f}",
            "",
        ),
        (
            "exact shuffle by ranges",
            f"{middle['blocks'] / 1e6:,.0f} MB/s",
            f"{middle['exact'] / 1e6:,.1f} MB/s",
            f"{middle['blocks'] / middle['exact']:.1f}",
            "10",
        ),
        ("processor seconds a GB, gcsfs", f"{busy['blocks']:.2f}", f"{busy['bare']:.2f}", "", ""),
        ("the same in windows", f"{busy['windows']:.2f}", f"{busy['bare']:.2f}", "", ""),
        ("records a request", f"{REMOTE / found.requests:.0f}", "", "", "80"),
        ("bytes read / bytes wanted", f"{found.received / wanted:.3f}", "", "", "under 1.05"),
    ]
    head = (f"shuffled epoch, {LATENCY_MS:.0f} ms each way, against", "in blocks", "that", "ratio", "aim")
    print(table("In blocks from an object store", head, lines), end="\n\n")


def read(ref: Any, shuffle: Any, seed: int, batches: int | None = None) -> int:
    """Read an epoch or a part of it; the number of its records."""
    stream = ref.stream(BATCH, shuffle=shuffle, seed=seed)
    return sum(len(batch["n"]) for batch in islice(stream, batches))


async def download(there: Cloud, ref: Any) -> None:
    """Read all shards in order, by gcsfs alone."""
    import gcsfs

    fs = gcsfs.GCSFileSystem(**there.far, asynchronous=True, skip_instance_cache=True)
    await fs._set_session()
    limit = asyncio.Semaphore(REQUESTS)

    async def part(name: str, begin: int, end: int) -> None:
        async with limit:
            await fs._cat_file(name, start=begin, end=end)

    for shard in ref._base.version.manifest.shards:
        name = f"{there.url.removeprefix('gs://')}/d/{shard.name}"
        bounds = range(0, shard.stats.nbytes, BLOCK_NBYTES)
        await asyncio.gather(*(part(name, at, min(at + BLOCK_NBYTES, shard.stats.nbytes)) for at in bounds))


def hot() -> None:
    """Batches from a hot page cache, in blocks and in the exact order."""
    with tempfile.TemporaryDirectory() as folder:
        ref = cachelayer.Storage(folder).cache(lambda: records(LOCAL), "d", "v1", progress=False)
        iterators = {name: iter(ref.stream(BATCH, shuffle=name, seed=1, num_epochs=None)) for name in ("blocks", True)}

        def turn(name: Any) -> int:
            return sum(len(batch["n"]) for batch in islice(iterators[name], 200))

        rates = medians({str(name): lambda name=name: turn(name) for name in iterators}, rounds=9)
    ratio = rates["blocks"] / rates["True"]
    line = (f"{rates['blocks']:,.0f}", f"{rates['True']:,.0f}", f"{ratio:.2f}", "0.9")
    print(table("Batches of 256 x 10 kB, hot", ("blocks, records/s", "exact", "ratio", "aim"), [line]), end="\n\n")


if __name__ == "__main__":
    print(f"{machine()}\n")
    for name in sys.argv[1:] or ["remote", "hot"]:
        {"remote": remote, "hot": hot}[name]()
