"""Building in and reading from an object store that is 20 ms away in each direction, over loopback.

Run: ``python benchmarks/cloud.py [share] [row ...]``; rows are ranges, copy, upload, first. A share makes the builds
that upload, and their shards, smaller. The store is fake-gcs-server, behind the proxy of the tests, on the cores of
what is measured.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import numpy as np
from faults import fault_proxy
from harness import ROUNDS, machine, median, table
from servers import Server, gcs_server, new_bucket

import cachelayer

LATENCY_MS = 20.0
BATCH = 256
IMAGE = 32 * 32 * 3
COPIED = 500_000_000
RECORDS, SHARD_NBYTES = 600_000, 32 << 20


def images(count: int) -> dict[str, np.ndarray]:
    """Records of 3 KB."""
    values = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    return {"image": values, "label": np.arange(count)}


class Cloud:
    """A store with a proxy in front."""

    def __init__(self, server: Server, proxy: Any) -> None:
        self.proxy = proxy
        self.url = server.url(new_bucket(server), "caches")
        self.near = server.storage_options()
        self.far = server.storage_options(proxy.endpoint)

    def storage(self, *, far: bool, **options: Any) -> cachelayer.Storage:
        """The storage, through the proxy or around it."""
        return cachelayer.Storage(self.url, storage_options=self.far if far else self.near, **options)


@contextmanager
def cloud(latency_ms: float = LATENCY_MS) -> Iterator[Cloud]:
    """A fresh store."""
    with gcs_server() as server, fault_proxy(server.endpoint, latency_ms=latency_ms) as proxy:
        yield Cloud(server, proxy)


def rate(read: Callable[[int], int], batches: int) -> float:
    """Records a second of reading so many batches, after one that opens what has to be opened."""
    read(1)
    started = time.perf_counter()
    return read(batches) / (time.perf_counter() - started)


class Spent(NamedTuple):
    """What something took: seconds, and processor seconds of this process."""

    seconds: float
    processor: float


def spend(work: Callable[[], object]) -> Spent:
    """What it takes."""
    started, busy = time.perf_counter(), time.process_time()
    work()
    return Spent(time.perf_counter() - started, time.process_time() - busy)


STOCK = """
import sys, time
from absl import flags
flags.FLAGS.mark_as_parsed()
import numpy as np
from array_record.python.array_record_data_source import ArrayRecordDataSource
paths, batches, size = sys.argv[3:], int(sys.argv[1]), int(sys.argv[2])
source = ArrayRecordDataSource(paths)
order = np.random.default_rng(0).permutation(len(source))[: (batches + 1) * size].reshape(-1, size)
source.__getitems__(order[0].tolist())
started = time.perf_counter()
for rows in order[1:]:
    source.__getitems__(rows.tolist())
print(batches * size / (time.perf_counter() - started))
"""


def ranges() -> None:
    """Shuffled reads by ranges, against array_record's own reading of ``gs://`` with its 64 threads."""
    with cloud() as there:
        ref = there.storage(far=False, local_cache_bytes=0).cache(
            lambda: images(40_000), "images", "v1", shard_bytes=32 << 20
        )
        far = there.storage(far=True, local_cache_bytes=0).fetch("images@v1")

        def read(batches: int) -> int:
            stream = far.stream(BATCH, shuffle=True, seed=batches, prefetch=4)
            return sum(len(batch["label"]) for batch in islice(stream, batches))

        mine = median(rate(read, 20) for _ in range(ROUNDS))
        trips = []
        for step in range(8):
            stream = far.stream(BATCH, shuffle=True, seed=99, prefetch=0)
            started = time.perf_counter()
            stream[step]
            trips.append((time.perf_counter() - started) / (2 * LATENCY_MS / 1e3))
        paths = [f"{there.url}/images/{shard.name}" for shard in ref._base.version.manifest.shards]
        command = [sys.executable, "-c", STOCK, "4", str(BATCH), *paths]
        environment = {**os.environ, "CLOUD_STORAGE_EMULATOR_ENDPOINT": there.proxy.endpoint}
        stock = median(
            float(subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout)
            for _ in range(ROUNDS)
        )
    head = ("shuffled batches of 256 x 3 KB, 20 ms each way", "records/s", "cachelayer / this", "aim")
    lines = [
        ("cachelayer, ranges", f"{mine:,.0f}", "1", ""),
        ("array_record gs://, 64 threads", f"{stock:,.0f}", f"{mine / stock:.1f}", "5"),
    ]
    print(table("Ranges", head, lines))
    print(f"\nA batch alone: {median(trips):.1f} round trips of {2 * LATENCY_MS:.0f} ms (aim: under 4)\n")


def copy() -> None:
    """Copying to the local cache, against the bare client with the same concurrency; and reading what was copied.

    Memory that the machine has just got is slower than memory that was used before, so the two take turns.
    """
    count = COPIED // (IMAGE + 8)
    with cloud() as there, tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as local:
        there.storage(far=False, local_cache_bytes=0).cache(lambda: images(count), "images", "v1")
        spent: dict[str, list[Spent]] = {"mine": [], "bare": []}
        for _ in range(ROUNDS):
            shutil.rmtree(cache)
            ref = there.storage(far=True, local_cache=cache).fetch("images@v1")
            spent["mine"].append(spend(lambda ref=ref: mirror(ref)))
            spent["bare"].append(spend(lambda ref=ref: bare_copy(there, ref)))
        mine, bare = (Spent(*map(median, zip(*turns, strict=True))) for turns in spent.values())
        nbytes = ref.nbytes
        near = cachelayer.Storage(local).cache(lambda: images(count), "images", "v1")
        again = there.storage(far=True, local_cache=cache).fetch("images@v1")
        rates: dict[str, list[float]] = {"copied": [], "local": []}
        # What was just written is read slower until it has been written back.
        os.sync()
        held_in = [("copied", again), ("local", near)]
        for seed in range(12):
            for name, held in held_in[:: 1 if seed % 2 else -1]:
                started = time.perf_counter()
                read = sum(len(b["label"]) for b in islice(held.stream(1024, shuffle=True, seed=seed), 200))
                rates[name].append(read / (time.perf_counter() - started))
        medians = {name: median(each[4:]) for name, each in rates.items()}
    lines = [
        (
            f"copying {COPIED / 1e6:,.0f} MB, against gcsfs ranges with as many at once",
            f"{nbytes / mine.seconds / 1e6:,.0f} MB/s",
            f"{nbytes / bare.seconds / 1e6:,.0f} MB/s",
            f"{bare.seconds / mine.seconds:.2f}",
            "0.7",
        ),
        (
            "processor time of that, seconds a GB",
            f"{mine.processor / nbytes * 1e9:.2f}",
            f"{bare.processor / nbytes * 1e9:.2f}",
            f"{bare.processor / mine.processor:.2f}",
            "",
        ),
        (
            "reading the copies, against a local storage",
            f"{medians['copied']:,.0f}/s",
            f"{medians['local']:,.0f}/s",
            f"{medians['copied'] / medians['local']:.2f}",
            "1",
        ),
    ]
    print(table("Local copies", ("", "cachelayer", "other", "ratio", "aim"), lines), end="\n\n")


def mirror(ref: Any) -> None:
    """Copy all shards."""
    found = ref.mirror()
    if found.local_shards < found.shards:
        raise RuntimeError("not every shard was copied")


def bare_copy(there: Cloud, ref: Any) -> None:
    """Copy the same bytes by gcsfs alone, in parts of the same size, as many at once."""
    import gcsfs

    from cachelayer.objects.bucket_store import _PIECES_AHEAD, PIECE

    async def all_parts() -> None:
        fs = gcsfs.GCSFileSystem(**there.far, asynchronous=True, skip_instance_cache=True)
        await fs._set_session()
        limit = asyncio.Semaphore(_PIECES_AHEAD)

        async def part(name: str, begin: int, end: int) -> None:
            async with limit:
                raw = await fs._cat_file(name, start=begin, end=end)
                os.pwrite(out, raw, begin)

        for shard in ref._base.version.manifest.shards:
            name = f"{there.url.removeprefix('gs://')}/images/{shard.name}"
            bounds = range(0, shard.stats.nbytes, PIECE)
            await asyncio.gather(*(part(name, at, min(at + PIECE, shard.stats.nbytes)) for at in bounds))

    with tempfile.TemporaryFile() as file:
        out = file.fileno()
        asyncio.run(all_parts())


def upload(share: float = 1.0) -> None:
    """Builds whose upload is capped to take as long as their writing: they overlap as far as cores allow.

    How far that is, is what two processes tell that do the same beside each other, and know nothing of each other.
    """
    lines = []
    for name, source in (("waits for its records", waiting), ("computes its records", computing)):
        turns = [_overlap(partial(source, int(RECORDS * share)), int(SHARD_NBYTES * share)) for _ in range(ROUNDS)]
        writing, uploading, both, apart, processor = map(median, zip(*turns, strict=True))
        ratio = median(turn.both / max(turn.writing, turn.uploading) for turn in turns)
        floor = median(turn.apart / max(turn.writing, turn.uploading) for turn in turns)
        seconds = [f"{each:.2f} s" for each in (writing, uploading, both)]
        lines.append((name, *seconds, f"{ratio:.2f}", "1.2", f"{apart:.2f} s", f"{floor:.2f}", f"{processor:.2f}"))
    head = (
        "a source that",
        "writing alone",
        "uploading alone",
        "both",
        "both / the slower",
        "aim",
        "by two processes at once",
        "that / the slower",
        "uploading alone, processor seconds a GB",
    )
    print(table(f"A build of {RECORDS * share * IMAGE / 1e6:,.0f} MB", head, lines), end="\n\n")


class Overlap(NamedTuple):
    """Seconds of writing alone, uploading alone, a build, both by two processes; processor seconds a GB uploaded."""

    writing: float
    uploading: float
    both: float
    apart: float
    processor: float


def _overlap(source: Callable[[], Iterator[dict[str, Any]]], shard_nbytes: int) -> Overlap:
    with tempfile.TemporaryDirectory() as folder, cloud() as there, tempfile.TemporaryDirectory() as cache:

        def write(name: str) -> cachelayer.DataRef[Any]:
            return cachelayer.Storage(f"{folder}/{name}").cache(source, "images", "v1", shard_bytes=shard_nbytes)

        writing = spend(lambda: write("alone")).seconds
        files = sorted(Path(folder).rglob("shards/*"))
        nbytes = sum(file.stat().st_size for file in files)
        there.proxy.shape(latency_ms=LATENCY_MS, bandwidth=nbytes / writing)
        storage = there.storage(far=True, local_cache=cache)
        # The client is loaded and connected once in a process.
        storage.cache([0], "first", "v1")
        uploading = spend(lambda: bare_upload(storage, files))
        both = spend(lambda: storage.cache(source, "images", "v1", shard_bytes=shard_nbytes)).seconds
        begin = multiprocessing.get_context("spawn").Barrier(2)
        other = multiprocessing.get_context("spawn").Process(target=_upload_beside, args=(begin, storage, files))
        other.start()
        begin.wait()
        started = time.perf_counter()
        write("beside")
        other.join()
        apart = time.perf_counter() - started
        return Overlap(writing, uploading.seconds, both, apart, uploading.processor / nbytes * 1e9)


def _upload_beside(begin: Any, storage: cachelayer.Storage, files: list[Path]) -> None:
    storage._store.exists("nothing")
    begin.wait()
    bare_upload(storage, files)


def bare_upload(storage: cachelayer.Storage, files: list[Path]) -> None:
    """Upload files that are there already, as many at once as a build does."""
    from cachelayer.builds.shard_pipeline import _UPLOADS

    with ThreadPoolExecutor(_UPLOADS) as threads:
        list(threads.map(lambda file: storage._store.upload(file, f"alone/{file.name}"), files))


def computing(records: int) -> Iterator[dict[str, Any]]:
    """Records that keep a core busy, which the proxy and the server want too."""
    noise = np.random.default_rng(0)
    for number in range(records):
        yield {"image": noise.integers(0, 256, (32, 32, 3), dtype=np.uint8), "label": number}


def waiting(records: int) -> Iterator[dict[str, Any]]:
    """Records that come from elsewhere, 100 MB of them a second."""
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    began = time.perf_counter()
    for number in range(records):
        if number % 256 == 0:
            time.sleep(max(0.0, began + number * IMAGE / 100e6 - time.perf_counter()))
        yield {"image": image, "label": number}


def first() -> None:
    """Time from opening to the first shuffled batch, for a small and a large dataset, with nothing copied before."""
    lines = []
    with cloud() as there:
        for name, nbytes in (("100 MB", 1e8), ("2 GB", 2e9)):
            count = int(nbytes // (IMAGE + 8))
            there.storage(far=False, local_cache_bytes=0).cache(
                lambda count=count: images(count), name.replace(" ", ""), "v1"
            )
        times: dict[str, list[float]] = {"100 MB": [], "2 GB": []}
        for turn in range(7):
            for name in times:
                cache = tempfile.mkdtemp()
                started = time.perf_counter()
                ref = there.storage(far=True, local_cache=cache).fetch(f"{name.replace(' ', '')}@v1")
                next(iter(ref.stream(BATCH, shuffle=True, seed=turn)))
                times[name].append(time.perf_counter() - started)
                del ref
                shutil.rmtree(cache, ignore_errors=True)
        base = median(times["100 MB"])
        for name, each in times.items():
            lines.append((name, f"{median(each) * 1e3:.0f} ms", f"{median(each) / base:.2f}"))
    print(
        table("Opening, and the first shuffled batch", ("dataset", "time", "ratio (aim: within 1.3)"), lines),
        end="\n\n",
    )


ROWS: dict[str, Callable[[], None]] = {"ranges": ranges, "copy": copy, "upload": upload, "first": first}

if __name__ == "__main__":
    print(machine(), end="\n\n")
    wanted = sys.argv[1:]
    if wanted and wanted[0] not in ROWS:
        ROWS["upload"] = partial(upload, float(wanted.pop(0)))
    for row in wanted or ROWS:
        ROWS[row]()
