"""Reading an order in blocks from object stores: few requests, few bytes, bounded memory, and every record right."""

import gc
import json
import subprocess
import sys
import threading
import uuid
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from document_views import plain
from faults import FaultProxy, answer, fault_proxy, stall
from forks import in_a_fork
from remote_child import wait
from samples import some
from servers import Server, new_bucket

import cachelayer
from cachelayer import (
    ArraySpec,
    Blocks,
    CacheLayerError,
    CacheLayerWarning,
    CorruptionError,
    Storage,
    StorageError,
    VersionNotFoundError,
)
from cachelayer.arrayrecord.index import ROW
from cachelayer.arrayrecord.ranged import RangedShards
from cachelayer.datasets.held_blocks import HeldBlock
from cachelayer.datasets.version_records import VersionRecords
from cachelayer.objects.bucket_store import GAP, PIECE, BucketStore
from cachelayer.objects.ranges import coalesce
from cachelayer.streams.ahead import block_feed
from cachelayer.streams.ahead.block_feed import WorkerSteps

RECORDS, BLOCK = 600, 20
NBYTES = 1000
# More than are read ahead.
MANY = 2400


def in_blocks(ref: Any, batch: int | None = None, **options: Any) -> Any:
    """A stream of a dataset in blocks."""
    return ref.stream(batch, shuffle=Blocks(records=BLOCK, window=8, lanes=4), seed=1, **options)


def uniform(count: int, nbytes: int = NBYTES) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [{"n": number, "x": rng.integers(0, 256, nbytes, np.uint8)} for number in range(count)]


def varying(count: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [{"n": number, "x": rng.bytes(int(rng.integers(0, 3000)))} for number in range(count)]


def published(records: Sequence[Any], **options: Any) -> Any:
    """A version in the memory of this process, which is read as from a bucket."""
    storage = Storage(f"memory://{uuid.uuid4().hex}", local_cache_bytes=0)
    return storage.submit(records, "d@v1", **{"shard_bytes": 1 << 18, **options})


class Requests:
    """Counts the ranges that are read from stores.

    Attributes:
        ranges: the ranges of each call.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ranges: list[list[tuple[str, int, int]]] = []
        self._lock = threading.Lock()
        read = BucketStore.read_ranges

        def counted(store: BucketStore, ranges: Sequence[tuple[str, int, int]]) -> list[Any]:
            with self._lock:
                self.ranges.append(list(ranges))
            return read(store, ranges)

        monkeypatch.setattr(BucketStore, "read_ranges", counted)

    def of_records(self, *, coalesced: bool = False) -> list[Any]:
        """The ranges of records; or what is asked for, of which one request may have several ranges."""
        of_calls = [[each for each in ranges if each[0].endswith(".array_record")] for ranges in self.ranges]
        return [
            each for ranges in of_calls for each in (coalesce(ranges, gap=GAP, limit=PIECE) if coalesced else ranges)
        ]


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    return Requests(monkeypatch)


KINDS = {
    "uniform": (uniform, None),
    "varying": (varying, None),
    "uniform compressed": (uniform, "zstd"),
    "varying compressed": (varying, "zstd"),
}


@pytest.mark.parametrize("workers", [3, 60])
def test_a_worker_fetches_each_block_of_its_own_steps_once(requests: Requests, workers: int) -> None:
    ref = published(uniform(MANY))
    stream = in_blocks(ref, 8, remainder="drop")
    steps = WorkerSteps(stream._reader, workers)
    turns = range(2, len(stream), workers)
    for number in turns:
        steps.item(stream._reader.schedule.step(number))
    asked = requests.of_records()
    assert len(set(asked)) == len(asked) <= min(1.1 * MANY / BLOCK, 8 * len(turns))


DOCUMENTS = [
    {"n": number, "x": np.arange(number % 90, dtype=np.int32), "y": bytes(number % 200)} for number in range(RECORDS)
]
BASES: dict[str, Callable[[Any, Any], Any]] = {
    "version": lambda ref, _: ref,
    "columns": lambda _, wide: wide,
    "joined": lambda ref, wide: cachelayer.concat([ref[:400], wide.fields("n", "x", "y")]),
}
VIEWS: dict[str, Callable[[Any], Any]] = {
    "all": lambda ref: ref,
    "slice": lambda ref: ref[50:],
    "step": lambda ref: ref[::-2],
    "chosen": lambda ref: ref.select(np.r_[0:150, 240:160:-1]),
    "where": lambda ref: ref.where("n > 100"),
    "fields": lambda ref: ref.fields("x"),
    "padded": lambda ref: ref.padded("x", 90),
    "packed": lambda ref: ref.packed("x", 64),
    "windows": lambda ref: ref.windows("x", 32, separator=1, remainder="pad"),
    "beside tokens": lambda ref: ref.packed("x", 64, beside="n"),
    "rolling": lambda ref: ref.rolling(4, order="n"),
    "joined": lambda ref: cachelayer.concat([ref, ref[:100]]),
}
OUTER = {**VIEWS, "mixture": lambda ref: cachelayer.mix([(ref, 3), (ref[:100], 2)])}


@pytest.fixture(scope="module")
def documents() -> tuple[Any, Any]:
    """A version of documents, and one with a column of texts more."""
    storage = Storage(f"memory://{uuid.uuid4().hex}", local_cache_bytes=0)
    spec = {"n": ArraySpec(np.int64), "x": ArraySpec(np.int32, (None,)), "y": ArraySpec(bytes)}
    ref = storage.submit(DOCUMENTS, "d@v1", element_spec=spec, shard_bytes=1 << 18)
    return ref, storage.add_columns("d@v1", "v2", lambda each: {"c": str(each["n"])})


@pytest.mark.sampled
@pytest.mark.parametrize("inner", VIEWS)
def test_views_of_views_are_read_in_blocks(requests: Requests, documents: tuple[Any, Any], inner: str) -> None:
    cases = list(product(OUTER, BASES, [Blocks(records=BLOCK, window=8, lanes=4), "blocks"]))
    tried = 0
    for outer, base, sizes in some(cases, start=[*VIEWS].index(inner)):
        try:
            view = OUTER[outer](VIEWS[inner](BASES[base](*documents)))
        except CacheLayerError:
            # Windows have no fields, for example.
            continue
        tried += 1
        stream = view.stream(8, shuffle=sizes, seed=1)
        assert plain(list(islice(stream, 3))) == [plain(stream[step]) for step in range(3)]
        requests.ranges.clear()
        records = sum(1 for _ in islice(stream, 60)) * 8
        asked = len(requests.of_records(coalesced=True))
        # Requests that the iterators before have begun may come late, and count here.
        assert asked < (60 if sizes == "blocks" else max(records / 3, 60)), (outer, base)
    assert tried >= 4


@pytest.mark.parametrize(("start", "prefetch"), [(0, 2), (237, 0)])
def test_a_block_is_one_range_and_is_fetched_once_in_an_epoch(requests: Requests, start: int, prefetch: int) -> None:
    ref = published(uniform(RECORDS), shard_bytes=1 << 30)
    stream = in_blocks(ref, 32, start=start, prefetch=prefetch)
    order: Any = stream._reader.schedule.order
    ref.read([0])
    requests.ranges.clear()
    assert sum(len(batch["n"]) for batch in stream) == RECORDS - start
    ranges = [each for ranges in requests.ranges for each in ranges]
    assert len(ranges) == len(set(ranges)) == len(np.unique(order.blocks(0, np.arange(start, RECORDS)).begin)) > 1


def test_states_go_back_and_forth() -> None:
    ref = published(uniform(RECORDS))
    stream = in_blocks(ref, 32, num_epochs=3)
    iterator = iter(stream)
    states, found = [iterator.get_state()], []
    for batch in iterator:
        found.append(batch["n"])
        states.append(iterator.get_state())
    for step in (50, 3, 4, 20, 0, 56):
        iterator.set_state(states[step])
        for ahead in range(step, min(step + 3, len(found))):
            np.testing.assert_array_equal(next(iterator)["n"], found[ahead])


def test_an_abandoned_iterator_ends_its_threads() -> None:
    ref = published(uniform(RECORDS))
    stream = in_blocks(ref, 32, num_epochs=None)
    iterators = [iter(stream), iter(stream)]
    for iterator in iterators:
        next(iterator)
    threads = [thread for thread in threading.enumerate() if thread.name == "cachelayer-blocks"]
    assert threads
    del iterator, iterators
    gc.collect()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.usefixtures("little_ahead")
def test_a_forked_child_goes_on_by_itself() -> None:
    ref = published(uniform(MANY))
    stream = in_blocks(ref, 32)
    iterator = iter(stream)
    first = [next(iterator)["n"].tolist() for _ in range(3)]
    rest = in_a_fork(lambda: [batch["n"].tolist() for batch in iterator])
    assert first + rest == [batch["n"].tolist() for batch in stream]
    assert [batch["n"].tolist() for batch in iterator] == rest


@pytest.mark.parametrize("kind", ["uniform", "varying compressed"])
def test_a_damaged_record_is_an_error_at_its_step_and_a_new_iterator_reads_a_mended_one(kind: str) -> None:
    make, compression = KINDS[kind]
    ref = published(make(RECORDS), compression=compression, shard_bytes=1 << 30)
    stream = in_blocks(ref, 8)
    bad_step = next(step for step in range(13, len(stream)) if len(ref[int(stream.record_numbers(step)[3])]["x"]) > 100)
    bad = int(stream.record_numbers(bad_step)[3])
    store, name = ref._base.version.folder, ref._base.version.manifest.shards[0].name
    index = np.frombuffer(store.read(name.replace(".array_record", ".index")), np.uint8)
    place = int(index.view(ROW)[1:]["position"][bad]) + 90
    good = store.read(name)
    store.put(name, good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
    iterator = iter(stream)
    for step in range(bad_step):
        np.testing.assert_array_equal(next(iterator)["n"], stream.record_numbers(step))
    for _ in range(2):
        with pytest.raises(CorruptionError, match=f"record {bad} "):
            next(iterator)
    store.put(name, good)
    again = iter(stream)
    again.set_state(iterator.get_state())
    for step in range(bad_step, len(stream)):
        np.testing.assert_array_equal(next(again)["n"], stream.record_numbers(step))


def damage(monkeypatch: pytest.MonkeyPatch, name: str, times: int) -> dict[tuple[str, int, int], int]:
    """Have ranges of objects with this in their names come damaged so often; how often each has."""
    came: dict[tuple[str, int, int], int] = defaultdict(int)
    read = BucketStore.read_ranges

    def damaging(store: BucketStore, ranges: Sequence[tuple[str, int, int]]) -> list[Any]:
        bodies = [bytearray(body) for body in read(store, ranges)]
        for each, body in zip(ranges, bodies, strict=True):
            if name in each[0] and came[each] < times:
                came[each] += 1
                body[len(body) // 2] ^= 1
        return [bytes(body) for body in bodies]

    monkeypatch.setattr(BucketStore, "read_ranges", damaging)
    return came


def without_all_indices(kind: str) -> Any:
    """A version each of whose shards has an index that is read by itself."""
    make, compression = KINDS[kind]
    ref = published(make(200), compression=compression, shard_bytes=1 << 16)
    ref._base.version.folder.delete(ref._base.version.indices)
    return cachelayer.open(ref.reference, local_cache_bytes=0)


@pytest.mark.parametrize("name", ["array_record", "index", "lengths"])
@pytest.mark.parametrize("kind", KINDS)
def test_records_index_rows_and_lengths_that_come_damaged_are_asked_for_once_more(
    monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    ref, rows = without_all_indices(kind), KINDS[kind][0](200)
    came = damage(monkeypatch, name, 1)
    assert plain(ref[7]) == plain(rows[7])
    assert ref.read([150, 3, 3, 120])["n"].tolist() == [150, 3, 3, 120]
    joined = cachelayer.concat([ref[:100], ref[50:]])
    mixture = cachelayer.mix([(ref[:100], 3), (ref[100:], 2)])
    for view in (ref, ref[30:-25], joined, mixture, ref.windows("x", 640) if "varying" in kind else ref):
        stream = view.stream(8, shuffle=Blocks(records=BLOCK, window=8, lanes=4), seed=1)
        for step, batch in enumerate(islice(stream, 10)):
            assert plain(batch) == plain(stream[step])
    assert came or (name, kind) == ("index", "uniform") or (name == "lengths" and "uniform" in kind)


@pytest.mark.parametrize("name", ["array_record", "index"])
def test_records_that_stay_damaged_are_an_error(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    ref = without_all_indices("varying")
    came = damage(monkeypatch, name, 100)
    with pytest.raises(CorruptionError) as raised:
        ref.read([150, 3])
    # The error of the first attempt is no context.
    assert raised.value.__cause__ is not None
    assert raised.value.__cause__.__context__ is None
    assert set(came.values()) == {2}


@pytest.fixture
def little_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are fetched shortly before they are needed."""
    monkeypatch.setattr(block_feed, "AHEAD_NBYTES", BLOCK * NBYTES)


@pytest.mark.usefixtures("little_ahead")
def test_a_version_that_is_deleted_in_the_midst_is_said_to_be() -> None:
    storage = Storage(f"memory://{uuid.uuid4().hex}", local_cache_bytes=0)
    ref = storage.submit(uniform(MANY), "d@v1")
    iterator = iter(in_blocks(ref, 32))
    next(iterator)
    storage.delete("d@v1", grace=0)
    storage.gc(grace=0)
    with pytest.raises(VersionNotFoundError, match="d@v1"):
        list(iterator)


@pytest.fixture(scope="module")
def on_gcs(gcs: Server) -> Any:
    storage = Storage(gcs.url(new_bucket(gcs), "caches"), storage_options=gcs.storage_options(), local_cache_bytes=0)
    return storage.submit(uniform(MANY), "d@v1", shard_bytes=1 << 18)


@pytest.fixture
def proxy(gcs: Server) -> Iterator[FaultProxy]:
    with fault_proxy(gcs.endpoint) as proxy:
        yield proxy


def through(server: Server, proxy: FaultProxy, ref: Any, **options: Any) -> Any:
    """The version as a host sees it whose requests are counted."""
    told = server.storage_options(proxy.endpoint)
    return cachelayer.open(ref.reference, storage_options=told, **{"local_cache_bytes": 0, **options})


@pytest.mark.usefixtures("little_ahead")
def test_an_error_of_the_store_comes_at_its_step_and_the_next_call_goes_on(
    gcs: Server, proxy: FaultProxy, on_gcs: Any
) -> None:
    ref = through(gcs, proxy, on_gcs)
    iterator = iter(in_blocks(ref, 32))
    found = [next(iterator)["n"]]
    proxy.add(answer(403, containing="shards", every=3))
    errors = 0
    while len(found) < MANY // 32:
        position = iterator.position
        assert position == 32 * len(found)
        try:
            found.append(next(iterator)["n"])
        except StorageError:
            errors += 1
            proxy.clear()
            assert iterator.position == position
    assert errors
    assert np.concatenate(found).tolist() == np.concatenate([b["n"] for b in in_blocks(on_gcs, 32)]).tolist()


def test_copied_shards_are_read_from_their_copies_and_a_host_that_reads_few_blocks_copies_none(
    gcs: Server, proxy: FaultProxy, on_gcs: Any, tmp_path: Path
) -> None:
    ref = through(gcs, proxy, on_gcs, local_cache_bytes=None, local_cache=tmp_path)
    proxy.forget()
    for _ in in_blocks(ref, 32, shard=(0, 4)):
        pass
    assert proxy.totals()["GET"].received < 1.05 * ref.nbytes / 4
    assert not list(tmp_path.rglob("*.array_record"))
    without = through(gcs, proxy, on_gcs)
    proxy.forget()
    expected = [batch["n"].tolist() for batch in in_blocks(without, 32)]
    wanted = proxy.totals()["GET"].received
    assert wanted < 1.05 * ref.nbytes
    one = through(gcs, proxy, on_gcs, local_cache_bytes=None, local_cache=tmp_path)
    one[: len(one) // 3].read(range(len(one) // 3))
    there = wait(one)
    assert 0 < there < len(one._base.version.manifest.shards)
    again = through(gcs, proxy, on_gcs, local_cache_bytes=None, local_cache=tmp_path)
    proxy.forget()
    assert [batch["n"].tolist() for batch in in_blocks(again, 32)] == expected
    assert proxy.totals()["GET"].received < 0.9 * wanted
    again.mirror()
    proxy.forget()
    assert [batch["n"].tolist() for batch in in_blocks(again, 32)] == expected
    assert proxy.exchanges() == []


def test_an_epoch_takes_a_request_a_block_and_few_bytes_more_than_its_records_on_any_number_of_hosts(
    gcs: Server, proxy: FaultProxy
) -> None:
    nbytes, records = 10_000, 6656
    storage = Storage(gcs.url(new_bucket(gcs), "caches"), storage_options=gcs.storage_options(), local_cache_bytes=0)
    rows = np.random.default_rng(0).integers(0, 256, (64, nbytes), np.uint8)
    ref = storage.submit((rows[number % 64] for number in range(records)), "d@v1")
    for host, hosts in ((0, 1), (0, 8), (5, 8)):
        # Each host knows nothing of what the others have fetched.
        mine = through(gcs, proxy, ref)
        proxy.forget()
        stream = mine.stream(256, shuffle="blocks", seed=3, shard=(host, hosts))
        assert sum(len(batch) for batch in stream) == records / hosts
        found = proxy.totals()["GET"]
        assert records / hosts / found.requests >= 80
        assert found.received <= 1.05 * records * nbytes / hosts


@pytest.mark.parametrize("kind", KINDS)
def test_records_whose_index_rows_came_alone_are_those_that_were_written(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    # As if all indices together were too large to be kept.
    monkeypatch.setattr(RangedShards.__init__, "__defaults__", (None, 0))
    make, compression = KINDS[kind]
    ref = published(make(3 * RECORDS), compression=compression, shard_bytes=1 << 30)
    # A host that is one of eight reads about six blocks of each shard.
    stream = ref.stream(64, shuffle=Blocks(records=BLOCK, window=32, lanes=32), seed=3, shard=(1, 8))
    for step, batch in enumerate(stream):
        assert plain(batch) == plain(ref.read(stream.record_numbers(step)))


def test_what_is_held_is_bounded_by_the_windows_and_what_is_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = 40 * BLOCK * NBYTES
    monkeypatch.setattr(block_feed, "AHEAD_NBYTES", ahead)
    alive, most = [0], [0]
    fetch_block = VersionRecords.fetch_block

    def counted(records: VersionRecords, numbers: Any) -> HeldBlock:
        block = fetch_block(records, numbers)
        nbytes = block.records.buffer.nbytes
        alive[0] += nbytes
        most[0] = max(most[0], alive[0])
        weakref.finalize(block, lambda nbytes=nbytes: alive.__setitem__(0, alive[0] - nbytes))
        return block

    monkeypatch.setattr(VersionRecords, "fetch_block", counted)
    ref = published(uniform(8000), shard_bytes=1 << 30)
    window, batch = 16, 256
    sizes = Blocks(records=BLOCK, window=window, lanes=8)
    iterator = iter(ref.stream(batch, shuffle=sizes, seed=0, prefetch=1))
    assert sum(len(found["n"]) for found in iterator) == 8000
    # A block takes a little more in memory than its records.
    assert ahead < most[0] <= 1.1 * (window * BLOCK * NBYTES + ahead + 3 * batch * NBYTES)
    del iterator
    gc.collect()
    assert alive[0] == 0


def test_windows_that_take_most_of_the_memory_are_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ref = published(uniform(MANY))
    monkeypatch.setattr(block_feed, "memory_nbytes", lambda: 8 * BLOCK * NBYTES)
    with pytest.warns(CacheLayerWarning, match="shuffle=") as warned:
        assert len(list(in_blocks(ref, 32))) == MANY // 32
    assert len(warned) == 1
    monkeypatch.setattr(block_feed, "memory_nbytes", lambda: 40 * BLOCK * NBYTES)
    assert len(list(in_blocks(ref, 32))) == MANY // 32


ENDING = """
import json, signal, sys
import cachelayer

def end(*_):
    sys.exit()

order = json.loads(sys.argv[1])
ref = cachelayer.open(order["reference"], storage_options=order["options"], local_cache_bytes=0)
print(len(ref), flush=True)
sys.stdin.readline()
signal.signal(signal.SIGALRM, end)
signal.alarm(1)
next(iter(ref.stream(8, shuffle=order["shuffle"], seed=1)))
"""


def test_a_program_ends_in_silence_while_requests_are_on_their_way(gcs: Server, proxy: FaultProxy, on_gcs: Any) -> None:
    order = {"reference": on_gcs.reference, "options": {**gcs.storage_options(proxy.endpoint), "timeout": 5}}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with ExitStack() as started:
        children = []
        for shuffle in (True, "blocks"):
            command = [sys.executable, "-c", ENDING, json.dumps({**order, "shuffle": shuffle})]
            children.append(started.enter_context(subprocess.Popen(command, text=True, **pipes)))
            started.callback(children[-1].kill)
        for child in children:
            assert child.stdout is not None
            assert int(child.stdout.readline()) == MANY
        proxy.add(stall(containing="shards"))
        for child in children:
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
        for child in children:
            assert (*child.communicate(timeout=40), child.returncode) == ("", "", 0)
