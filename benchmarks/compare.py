"""Speeds of this checkout beside those of an earlier commit and of other readers and writers, by turns in one run.

Run: ``python benchmarks/compare.py --base REV [row ...]``. Each row runs in one process of each checkout, which makes
its own data; a stream also beside a process that takes the same batches out of ``np.load(..., mmap_mode="r")``, single
elements and byte strings beside bagz and builds beside array_record's writer, where these are installed. All live at
once and are asked in turn for one short round after another. The table shows medians of the ratios of neighbouring
rounds, of the clock and of processor time: a shared machine has slow phases of seconds, which slow down two neighbours
alike, and the best rounds of each side by different luck.
"""

from __future__ import annotations

import argparse
import atexit
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from harness import machine, table

ROUNDS, MOST_ROUNDS = 7, 41
"""Rounds of each checkout: at least, and at most."""
SECONDS = 12
"""How long the rounds of a row may take together, when there are enough of them."""
SEED = 5
Work = Callable[[], "int | tuple[float, ...]"]
"""Does the work of a round and returns the number of items; or of items, the seconds and the processor seconds that
count."""

_IMAGES = {
    "3 KB": (40_000, (32, 32, 3)),
    "196 KB": (1_500, (256, 256, 3)),
    "520 B": (100_000, (512,)),
    "20 MB": (20, (100, 500, 99)),
}
_DTYPES = {"20 MB": np.float32}


def images(size: str) -> dict[str, Any]:
    records, shape = _IMAGES[size]
    rng = np.random.default_rng(0)
    values = rng.integers(0, 256, (records, *shape), np.uint8).astype(_DTYPES.get(size, np.uint8), copy=False)
    return {"x": values, "label": np.arange(records)}


def stored(folder: Path, source: Any, name: str = "data", **options: Any) -> Any:
    import cachelayer

    return cachelayer.Storage(folder).cache(source, f"{name}@v1", progress=False, **options)


def streams(size: str, **options: Any) -> Callable[[Path], Work]:
    def setup(folder: Path) -> Work:
        ref = stored(folder, images(size), **options)
        batch = max(1, min(256, len(ref) // 8))

        def work() -> int:
            for _ in ref.stream(batch, shuffle=True, seed=SEED, remainder="drop"):
                pass
            return len(ref)

        return work

    return setup


def memory_map(size: str) -> Callable[[Path], Work]:
    """The batches of :func:`streams`, gathered from arrays in memory maps."""

    def setup(folder: Path) -> Work:
        for name, values in images(size).items():
            np.save(folder / f"{name}.npy", values)
        maps = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("x", "label")}
        records = len(maps["label"])
        batch = max(1, min(256, records // 8))

        def work() -> int:
            order = np.random.default_rng(SEED).permutation(records)
            for start in range(0, records - batch + 1, batch):
                rows = order[start : start + batch]
                _ = {name: values[rows] for name, values in maps.items()}
            return records

        return work

    return setup


_FIRST_BATCH = """
import time, numpy
started, spent = time.perf_counter(), time.process_time()
import cachelayer
ref = cachelayer.Storage({folder!r}).fetch("data@v1")
next(iter(ref.stream(256, shuffle=True, seed=5)))
print(time.perf_counter() - started, time.process_time() - spent)
"""


def first_batch(folder: Path) -> Work:
    """First batches of fresh processes, from behind their import of numpy."""
    stored(folder, images("3 KB"))
    code = _FIRST_BATCH.format(folder=str(folder))
    # As after `pip install`, which compiles modules.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def work() -> tuple[float, ...]:
        # Python looks for packages where it starts first, and that may be this checkout.
        command = [sys.executable, "-c", code]
        result = subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        return (1, *map(float, result.stdout.split()))

    return work


def hits(folder: Path) -> Work:
    """Calls of ``cache()`` for a version that exists, of a function that holds a list of 300,000 dicts."""
    import cachelayer

    rows = [{"number": number, "text": str(number)} for number in range(300_000)]

    def build() -> Iterator[Any]:
        yield from rows[:100]

    storage = cachelayer.Storage(folder)
    storage.cache(build, "data@v1", progress=False)

    def work() -> int:
        storage.cache(build, "data@v1", progress=False)
        return 1

    return work


def mixture_of_two(folder: Path) -> Work:
    import cachelayer

    parts = [(stored(folder, images("520 B"), name), 1) for name in ("first", "second")]

    def work() -> int:
        stream = cachelayer.mix(parts).stream(256, shuffle=True, seed=SEED)
        steps = 400
        for _ in zip(range(steps), stream):  # noqa: B905 - the stream has no end
            pass
        return steps * 256

    return work


def tiny_batches(folder: Path) -> Work:
    ref = stored(folder, images("520 B"))

    def work() -> int:
        steps = 10_000
        for _ in zip(range(steps), ref.stream(2, shuffle=True, seed=SEED)):  # noqa: B905 - the stream is longer
            pass
        return steps

    return work


def waits(compute: Callable[[], object]) -> Callable[[Path], Work]:
    """Steps for each second that they wait, while every step computes for 5 ms."""

    def setup(folder: Path) -> Work:
        ref = stored(folder, images("196 KB"))

        def work() -> tuple[int, float]:
            steps, waited = 0, 0.0
            iterator = iter(ref.stream(32, shuffle=True, seed=SEED, remainder="drop"))
            next(iterator)
            while True:
                started = time.perf_counter()
                batch = next(iterator, None)
                waited += time.perf_counter() - started
                if batch is None:
                    return steps, waited
                steps += 1
                until = time.perf_counter() + 0.005
                while time.perf_counter() < until:
                    compute()

        return work

    return setup


def multiply() -> Callable[[], object]:
    """Some 1 ms of BLAS, which lets other threads run."""
    matrix = np.ones((256, 256), np.float32)
    return lambda: [matrix @ matrix for _ in range(4)]


def mapped(batch: int | None) -> Callable[[Path], Work]:
    """Streams with a function of elements that does next to nothing."""

    def setup(folder: Path) -> Work:
        ref = stored(folder, images("3 KB"))

        def work() -> int:
            stream = ref[:10_000].stream(batch, shuffle=True, seed=SEED)
            for _ in stream.map(lambda element: {"x": element["x"], "label": element["label"]}):
                pass
            return 10_000

        return work

    return setup


def elements(folder: Path) -> Work:
    ref = stored(folder, images("3 KB"))

    def work() -> int:
        return sum(1 for _ in ref.stream(shuffle=True, seed=SEED))

    return work


def blocks(folder: Path) -> Work:
    ref = stored(folder, images("3 KB"))

    def work() -> int:
        for _ in ref.stream(256, shuffle="blocks", seed=SEED):
            pass
        return len(ref)

    return work


def reads(size: str) -> Callable[[Path], Work]:
    def setup(folder: Path) -> Work:
        ref = stored(folder, images(size))
        order = np.random.default_rng(SEED).permutation(len(ref))
        batches = np.array_split(order, len(order) // 128)

        def work() -> int:
            for numbers in batches:
                ref.read(numbers)
            return len(ref)

        return work

    return setup


def single_numbers() -> list[int]:
    return np.random.default_rng(SEED).permutation(_IMAGES["3 KB"][0])[:20_000].tolist()


def one_by_one(folder: Path) -> Work:
    ref = stored(folder, images("3 KB"))
    order = single_numbers()

    def work() -> int:
        for number in order:
            ref[number]
        return len(order)

    return work


def byte_strings(count: int = 40_000) -> list[bytes]:
    """Byte strings of 0.1 to 4 KB that zstd halves."""
    rng = np.random.default_rng(0)
    return [rng.bytes(int(size) // 2).hex().encode() for size in rng.integers(100, 4_000, count)]


def batches_of_bytes(read: Callable[[np.ndarray], object]) -> Work:
    count = len(byte_strings())
    batches = np.array_split(np.random.default_rng(SEED).permutation(count), count // 256)

    def work() -> int:
        for numbers in batches:
            read(numbers)
        return count

    return work


def bytes_read(compression: str | None) -> Callable[[Path], Work]:
    return lambda folder: batches_of_bytes(stored(folder, byte_strings(), compression=compression).read)


def bagz_reader(path: Path, rows: Iterable[bytes]) -> Any:
    """A reader of these records with its index in memory; the suffix says whether they are compressed."""
    import bagz

    with bagz.Writer(str(path)) as writer:
        for row in rows:
            writer.write(row)
    return bagz.Reader(str(path), bagz.Reader.Options(limits_storage=bagz.LimitsStorage.IN_MEMORY))


def bagz_one_by_one(folder: Path) -> Work:
    """The elements of :func:`one_by_one`, as views of numpy over what bagz gives."""
    data = images("3 KB")
    rows = (picture.tobytes() + label.tobytes() for picture, label in zip(data["x"], data["label"], strict=True))
    reader = bagz_reader(folder / "rows.bag", rows)
    order = single_numbers()

    def work() -> int:
        for number in order:
            record = reader[number]
            _ = {
                "x": np.frombuffer(record, np.uint8, 3_072).reshape(32, 32, 3),
                "label": np.frombuffer(record, np.int64, 1, 3_072)[0],
            }
        return len(order)

    return work


def bagz_bytes(suffix: str) -> Callable[[Path], Work]:
    def setup(folder: Path) -> Work:
        reader = bagz_reader(folder / f"rows.{suffix}", byte_strings())
        return batches_of_bytes(lambda numbers: [reader[number] for number in numbers.tolist()])

    return setup


def documents(count: int = 60_000) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(50, 500, count)
    return {"tokens": [rng.integers(0, 50_000, length).astype(np.int32) for length in lengths]}


def tokens(folder: Path) -> Any:
    import cachelayer

    rows = documents()["tokens"]
    spec = {"tokens": cachelayer.ArraySpec(np.int32, (None,))}
    return stored(folder, [{"tokens": row} for row in rows], element_spec=spec)


def sequences(make: Callable[[Any], Any]) -> Callable[[Path], Work]:
    def setup(folder: Path) -> Work:
        view = make(tokens(folder))

        def work() -> int:
            for _ in view.stream(64, shuffle=True, seed=SEED, remainder="drop"):
                pass
            return len(view)

        return work

    return setup


def mixture(folder: Path) -> Work:
    import cachelayer

    data = images("3 KB")
    refs = [stored(folder, {name: leaf[part::4] for name, leaf in data.items()}, f"data{part}") for part in range(4)]
    mixed = cachelayer.mix([(ref, weight) for ref, weight in zip(refs, (4, 3, 2, 1), strict=True)])

    def work() -> int:
        iterator = iter(mixed.stream(256, shuffle=True, seed=SEED))
        for _ in range(120):
            next(iterator)
        return 120 * 256

    return work


def builds(make: Callable[[], Any], records: int, **options: Any) -> Callable[[Path], Work]:
    def setup(folder: Path) -> Work:
        import cachelayer

        storage, source, count = cachelayer.Storage(folder), make(), iter(range(1_000_000))

        def work() -> int:
            ref = storage.submit(source, f"built@v{next(count)}", progress=False, resume=False, **options)
            assert len(ref) == records
            # What a round writes must not share the files of the round before.
            storage.delete(f"built@{ref.dataset_version}", grace=0)
            return records

        return work

    return setup


class Sequence:
    """A sequence whose elements cost some work to make."""

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, number: int) -> dict[str, Any]:
        if not 0 <= number < len(self):
            raise IndexError(number)
        rng = np.random.default_rng(number)
        return {"x": rng.integers(0, 256, (32, 32, 3), np.uint8), "n": number}


def generator(size: str) -> Callable[[], Callable[[], Iterator[Any]]]:
    records, shape = _IMAGES[size]

    def made() -> Iterator[Any]:
        row = np.resize(np.arange(256, dtype=np.uint8), shape)
        for number in range(records):
            yield {"x": row, "n": number}

    return lambda: made


def bare_writer(size: str) -> Callable[[Path], Work]:
    """The records of :func:`generator`, written by array_record's own writer."""

    def setup(folder: Path) -> Work:
        from array_record.python.array_record_module import ArrayRecordWriter

        path = folder / "rows.array_record"

        def work() -> int:
            writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
            for element in generator(size)()():
                writer.write(element["x"].tobytes() + element["n"].to_bytes(8, "little"))
            writer.close()
            path.unlink()
            return _IMAGES[size][0]

        return work

    return setup


def pipeline() -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(images("3 KB"))


def append(folder: Path) -> Work:
    import cachelayer

    storage, count = cachelayer.Storage(folder), iter(range(1_000_000))
    storage.submit(images("3 KB"), "data@v1", progress=False)
    more = {"x": np.zeros((2_000, 32, 32, 3), np.uint8), "label": np.arange(2_000)}

    def work() -> int:
        new = f"a{next(count)}"
        storage.append("data@v1", new=new, source=more, progress=False, resume=False)
        storage.delete(f"data@{new}", grace=0)
        return 2_000

    return work


def verify(folder: Path) -> Work:
    import cachelayer

    stored(folder, images("3 KB"))
    storage = cachelayer.Storage(folder)

    def work() -> int:
        assert storage.verify("data@v1").ok
        return _IMAGES["3 KB"][0]

    return work


def bucket(kind: str) -> tuple[Any, str]:
    """A server on this machine, which ends with this process, and the URL of an empty place in a bucket of it."""
    import cachelayer

    sys.path.insert(0, str(Path(cachelayer.__file__).resolve().parents[1] / "tests" / "support"))
    import servers

    running = ExitStack()
    atexit.register(running.close)
    server = running.enter_context(getattr(servers, f"{kind}_server")())
    options = server.storage_options()
    if kind == "gcs":
        import gcsfs

        gcsfs.GCSFileSystem(**options, skip_instance_cache=True).mkdir("bench")
    else:
        import s3fs

        os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem(**options, skip_instance_cache=True).mkdir("bench")
    return server, server.url("bench", "data")


def builds_into(kind: str, **options: Any) -> Callable[[Path], Work]:
    """A sequence that is built into a bucket, as 16 parts."""

    def setup(_: Path) -> Work:
        import cachelayer

        server, url = bucket(kind)
        storage = cachelayer.Storage(url, storage_options=server.storage_options(), local_cache_bytes=0)
        count = iter(range(1_000_000))

        def work() -> int:
            # Equal shards of another version of a dataset would not be put again.
            name = f"d{next(count)}"
            return len(storage.cache(Sequence(), f"{name}@v1", progress=False, shard_bytes=3_900_000, **options))

        return work

    return setup


WAITERS = 64


def slow_rows(mark: str) -> Iterator[int]:
    """Rows that come once a file is there."""
    while not Path(mark).exists():
        time.sleep(0.01)
    yield from range(10)


def wait_for_version(url: str, options: Any, version: str, mark: str) -> None:
    import cachelayer

    storage = cachelayer.Storage(url, storage_options=options, local_cache_bytes=0)
    storage.cache(partial(slow_rows, mark), f"d@{version}", progress=False, on_change="ignore")


def waiters(folder: Path) -> Work:
    """Processes that wait for one version: seconds from its end until the last has it; requests as processor time."""
    import multiprocessing

    import cachelayer

    server, url = bucket("gcs")
    from faults import fault_proxy

    proxy = ExitStack()
    atexit.register(proxy.close)
    asked = proxy.enter_context(fault_proxy(server.endpoint))
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["cachelayer", "gcsfs"])
    storage = cachelayer.Storage(url, storage_options=server.storage_options(), local_cache_bytes=0)
    count = iter(range(1_000_000))

    def work() -> tuple[float, ...]:
        version = f"v{next(count)}"
        mark = folder / version
        asked.forget()
        # No process waits for the one that started it: so another one builds.
        builder = forks.Process(target=wait_for_version, args=(url, server.storage_options(), version, str(mark)))
        builder.start()
        while not storage._store.names(f"d/_builds/{version}"):
            time.sleep(0.1)
        through_proxy = url, server.storage_options(asked.endpoint), version, str(mark)
        children = [forks.Process(target=wait_for_version, args=through_proxy) for _ in range(WAITERS)]
        for child in children:
            child.start()
        while sum("claim" in each.path for each in asked.exchanges()) < 2 * WAITERS:
            assert all(child.exitcode is None for child in children)
            time.sleep(0.1)
        mark.touch()
        builder.join()
        ended = time.perf_counter()
        for child in children:
            child.join()
            assert child.exitcode == 0
        return WAITERS, time.perf_counter() - ended, len(asked.exchanges())

    return work


def remote(kind: str, shuffle: Any, batches: int | None = None) -> Callable[[Path], Work]:
    """Blocks, or an exact shuffle by ranges, from a server on this machine; the two checkouts have a server each."""

    def setup(_: Path) -> Work:
        import cachelayer

        server, url = bucket(kind)
        storage = cachelayer.Storage(url, storage_options=server.storage_options(), local_cache_bytes=0)
        rows = np.random.default_rng(0).integers(0, 256, (256, 10_000), np.uint8)

        def records() -> Iterator[Any]:
            for number in range(20_000):
                yield {"x": rows[number % 256], "n": number}

        # For each range, moto copies the object: of one shard of 200 MB, the first round took a minute.
        ref = storage.cache(records, "d@v1", progress=False, shard_bytes=4_000_000)

        def work() -> int:
            done = 0
            for number, batch in enumerate(ref.stream(256, shuffle=shuffle, seed=SEED)):
                done += len(batch["n"])
                if batches is not None and number + 1 == batches:
                    break
            return done

        return work

    return setup


def jax_batches(size: int) -> Callable[[Path], Work]:
    def setup(folder: Path) -> Work:
        import jax
        from jax.sharding import NamedSharding, PartitionSpec

        from cachelayer.adapters import jax as ours

        ref = stored(folder, images("3 KB"))
        sharding = NamedSharding(jax.make_mesh((1,), ("data",)), PartitionSpec("data"))

        def work() -> int:
            done = 0
            for batch in ours.global_batches(ref.stream(size, shuffle=True, seed=SEED, remainder="drop"), sharding):
                done += len(batch["label"])
            return done

        return work

    return setup


def torch_loader(folder: Path) -> Work:
    from cachelayer.adapters import torch as ours

    ref = stored(folder, images("3 KB"))

    def work() -> int:
        return sum(len(batch["label"]) for batch in ours.loader(ref.stream(256, shuffle=True, seed=SEED)))

    return work


def to_tf(folder: Path) -> Work:
    from cachelayer.adapters import tensorflow as ours

    ref = stored(folder, images("3 KB"))

    def work() -> int:
        return sum(len(batch["label"]) for batch in ours.to_tf(ref.stream(256, shuffle=True, seed=SEED)))

    return work


def table_of(kind: str) -> Callable[[], Any]:
    def make() -> Any:
        numbers = {name: np.random.default_rng(3).random(200_000) for name in "abcdef"}
        if kind == "pandas":
            import pandas as pd

            return pd.DataFrame(numbers)
        if kind == "huggingface":
            import datasets

            return datasets.Dataset.from_dict(numbers)
        import pyarrow as pa

        return pa.table(numbers)

    return make


def parquet(folder: Path) -> Work:
    import pyarrow.parquet as pq

    from cachelayer.adapters.pyarrow import from_parquet

    table = table_of("arrow")()
    table = table.append_column("text", [[f"text {number}" * (number % 7) for number in range(len(table))]])
    pq.write_table(table, folder / "rows.parquet", row_group_size=40_000)
    return builds(lambda: from_parquet(folder / "rows.parquet"), len(table))(folder / "built")


def torch_dataset() -> Any:
    import torch.utils.data

    class Rows(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 20_000

        def __getitem__(self, number: int) -> Any:
            return {"x": torch.full((32, 32, 3), number % 251, dtype=torch.uint8), "n": number}

    return Rows()


ROWS: dict[str, Callable[[Path], Work]] = {
    "stream, 3 KB": streams("3 KB"),
    "stream, 196 KB": streams("196 KB"),
    "stream, 520 B": streams("520 B"),
    "stream, 20 MB": streams("20 MB"),
    "tiny batches": tiny_batches,
    "waits, Python steps": waits(lambda: sum(range(100))),
    "waits, BLAS steps": waits(multiply()),
    "stream, 3 KB, zstd": streams("3 KB", compression="zstd"),
    "elements, 3 KB": elements,
    "map": mapped(256),
    "map, elements": mapped(None),
    "blocks, local": blocks,
    "read, 3 KB": reads("3 KB"),
    "read, 196 KB": reads("196 KB"),
    "read, 520 B": reads("520 B"),
    "ref[i]": one_by_one,
    "byte strings": bytes_read(None),
    "byte strings, zstd": bytes_read("zstd"),
    "windows": sequences(lambda ref: ref.windows("tokens", 1024)),
    "packs": sequences(lambda ref: ref.packed("tokens", length=1024)),
    "mixture of four": mixture,
    "mixture of two, 520 B": mixture_of_two,
    "first batch": first_batch,
    "hit, a list of 300,000": hits,
    "build, 3 KB": builds(generator("3 KB"), 40_000),
    "build, 196 KB": builds(generator("196 KB"), 1_500),
    "build, 520 B": builds(generator("520 B"), 100_000),
    "build, arrays": builds(lambda: images("3 KB"), 40_000),
    "build, workers=2": builds(Sequence, 20_000, workers=2),
    "build, tf.data": builds(pipeline, 40_000),
    "build, Arrow table": builds(table_of("arrow"), 200_000),
    "build, Parquet": parquet,
    "build, pandas": builds(table_of("pandas"), 200_000),
    "build, Hugging Face": builds(table_of("huggingface"), 200_000),
    "build into GCS": builds_into("gcs"),
    "build into GCS, hosts=(0, 1)": builds_into("gcs", hosts=(0, 1)),
    "build into S3": builds_into("s3"),
    "build into S3, hosts=(0, 1)": builds_into("s3", hosts=(0, 1)),
    "64 processes that wait": waiters,
    "append of one shard": append,
    "verify": verify,
    "blocks, GCS": remote("gcs", "blocks"),
    "blocks, S3": remote("s3", "blocks"),
    "exact by ranges, GCS": remote("gcs", shuffle=True, batches=8),
    "JAX, batches of 128": jax_batches(128),
    "JAX, batches of 1,024": jax_batches(1024),
    "build, torch": builds(torch_dataset, 20_000),
    "PyTorch loader": torch_loader,
    "to_tf": to_tf,
}
RIVALS = {f"stream, {size}": ("memory map", memory_map(size)) for size in ("3 KB", "196 KB", "520 B")}
"""What rows are compared with besides the other checkout: its name, and how it does the same work."""
for place in ("gcs", "s3"):
    RIVALS[f"build into {place.upper()}, hosts=(0, 1)"] = "without hosts", builds_into(place)
if find_spec("bagz"):
    RIVALS["ref[i]"] = "bagz", bagz_one_by_one
    RIVALS["byte strings"] = "bagz", bagz_bytes("bag")
    RIVALS["byte strings, zstd"] = "bagz", bagz_bytes("bagz")
if find_spec("array_record"):
    RIVALS |= {f"build, {size}": ("array_record", bare_writer(size)) for size in ("3 KB", "196 KB", "520 B")}


def serve(setup: Callable[[Path], Work]) -> None:
    """Make the data of a row; then do a round for each line that comes, and say what it took."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as folder:
        work = setup(Path(folder))
        work()
        print("ready", file=out, flush=True)
        for _ in sys.stdin:
            started, spent = time.perf_counter(), time.process_time()
            done = work()
            elapsed, spent = time.perf_counter() - started, time.process_time() - spent
            items, *counted = done if isinstance(done, tuple) else (done,)
            seconds, processor_seconds = [*counted, *(elapsed, spent)[len(counted) :]]
            print(items / max(seconds, 1e-9), items / max(processor_seconds, 1e-9), file=out, flush=True)


class Contender:
    """A process that does the work of a row, with the library of one checkout or without it."""

    def __init__(self, root: Path, kind: str, row: str) -> None:
        path = filter(None, (str(root), os.environ.get("PYTHONPATH")))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
        command = [sys.executable, __file__, kind, row]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the process
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.errors}
        # Processes that it starts look for modules in the working folder first, so that must not be another checkout.
        self.process = subprocess.Popen(command, env=environment, cwd=root, text=True, **pipes)

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            raise RuntimeError(self.errors.read().strip().rpartition("\n")[2] or "the process ended")
        return line

    def round(self) -> tuple[float, ...]:
        assert self.process.stdin is not None
        print("go", file=self.process.stdin, flush=True)
        return tuple(map(float, self.line().split()))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compared(row: str, ours: Path, base: Path) -> tuple[str, ...]:
    """The row of the table."""
    contenders = [Contender(ours, "--serve", row), Contender(base, "--serve", row)]
    rival = RIVALS[row][0] if row in RIVALS else ""
    if rival:
        contenders.append(Contender(ours, "--rival", row))
    turns: list[list[tuple[float, ...]]] = []
    try:
        for one in contenders:
            one.line()
        until = time.perf_counter() + SECONDS
        while len(turns) < ROUNDS or (len(turns) < MOST_ROUNDS and time.perf_counter() < until):
            # Who begins changes, so that a machine that slows down or speeds up favours none.
            order = contenders if len(turns) % 2 else contenders[::-1]
            rates = {id(one): one.round() for one in order}
            turns.append([rates[id(one)] for one in contenders])
    except RuntimeError as error:
        return row, "", "", str(error)[:120], "", "", "", "", ""
    finally:
        for one in contenders:
            one.close()

    def ratio(side: int, kind: int) -> str:
        return f"{median(turn[0][kind] / turn[side][kind] for turn in turns):.2f}" if side < len(contenders) else ""

    rates_shown = [f"{median(turn[side][0] for turn in turns):,.0f}" for side in range(2)]
    # Of processor time, the inverse: how much of it a record takes beside the rival.
    beside = f"{median(turn[2][1] / turn[0][1] for turn in turns):.2f}" if rival else ""
    return row, *rates_shown, ratio(1, 0), ratio(1, 1), rival, ratio(2, 0), beside, str(len(turns))


def compile_gather(tree: Path, scratch: Path) -> None:
    """Compile what copies records, as ``pip install`` does, if the checkout has it."""
    from setuptools import Distribution, Extension

    source = tree / "cachelayer" / "_gather.c"
    if not source.exists():
        return
    extension = Extension("cachelayer._gather", [str(source)], py_limited_api=True)
    command: Any = Distribution({"ext_modules": [extension]}).get_command_obj("build_ext")
    command.build_lib = str(tree)
    command.build_temp = str(scratch)
    command.ensure_finalized()
    command.run()


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """Yield the root of a worktree of a revision, or of a checkout that there is already."""
    if Path(revision).is_dir():
        yield Path(revision).resolve()
        return
    root = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "base"
        git = ["git", "-C", str(root), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), revision], check=True)
        try:
            compile_gather(tree, Path(folder))
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def main() -> None:
    if sys.argv[1:2] in (["--serve"], ["--rival"]):
        serve(ROWS[sys.argv[2]] if sys.argv[1] == "--serve" else RIVALS[sys.argv[2]][1])
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base", required=True, help="a revision, or the folder of a checkout")
    parser.add_argument("rows", nargs="*", help="the first letters of rows; all rows if none are named")
    arguments = parser.parse_args()
    rows = []
    with checkout(arguments.base) as base:
        for name in ROWS:
            if not arguments.rows or any(name.startswith(each) for each in arguments.rows):
                rows.append(compared(name, Path(__file__).resolve().parents[1], base))
                print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    head = (
        "records a second", "this", "base", "ratio", "ratio a processor second", "rival",
        "ratio to it", "processor time beside it", "rounds",
    )  # fmt: skip
    print(table(f"This checkout and {arguments.base} by turns, medians of ratios ({machine()})", head, rows))


if __name__ == "__main__":
    main()
