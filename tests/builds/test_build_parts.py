"""Builds in parts: the same version, whoever builds them."""

import datetime as dt
import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import datasets
import numpy as np
import parts_child
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from faults import FaultProxy, answer, fault_proxy
from forks import Fork, is_stopped
from leftovers import assert_only_versions_are_left, noted_shards
from parts_child import LEASE_SECONDS, PARTS, RECORDS, SHARD_BYTES, row, rows
from rows_for_workers import Listed, Rows, uniform
from servers import Server, new_place, new_storage

import cachelayer
from cachelayer import Storage, sharded
from cachelayer.adapters.pyarrow import from_parquet
from cachelayer.errors import BuildRevokedError, InvalidTypeError, SourceError
from cachelayer.testing.engines import wait_until
from cachelayer.versions.lease import Leases

pytestmark = pytest.mark.slow

NOTE = re.compile(r"/[0-9]{5}[.]json")


@pytest.fixture(autouse=True)
def _short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", str(LEASE_SECONDS))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> cachelayer.DataRef[Any]:
    storage = Storage(tmp_path_factory.mktemp("expected"))
    return storage.submit(sharded(rows, PARTS), "d@v1", shard_bytes=SHARD_BYTES)


def check(storage: Storage, expected: cachelayer.DataRef[Any]) -> None:
    """The version is the expected one, and there is nothing else."""
    ref = storage.fetch("d@v1")
    assert ref.digest == expected.digest
    assert ref.element_spec == expected.element_spec
    assert_only_versions_are_left(storage, "d")


def test_the_records_come_in_the_order_of_the_parts(expected: cachelayer.DataRef[Any]) -> None:
    assert [element["number"] for element in expected] == list(range(RECORDS))
    assert expected[1999]["text"] == row(1999)["text"]
    assert len(expected._base.version.manifest.shards) > 2 * PARTS
    assert expected.provenance["source"] == "sharded"
    assert expected.provenance["function"].endswith("parts_child.rows")


def test_parts_are_whatever_a_storage_caches(storage: Storage) -> None:
    ref = storage.cache(sharded(lambda index, count: np.full((3 + index, 2), index), 3), "arrays@v1")
    assert [int(element[0]) for element in ref] == [0] * 3 + [1] * 4 + [2] * 5
    batches = storage.cache(sharded(lambda index, count: [{"x": np.arange(4) + index}], 2), "b@v1", unbatch=True)
    assert [int(element["x"]) for element in batches] == [0, 1, 2, 3, 1, 2, 3, 4]
    declared = storage.cache(sharded(lambda index, count: [index], 2), "s@v1", element_spec=np.float32)
    assert declared.element_spec == cachelayer.ArraySpec("float32")


def test_none_in_one_part_marks_the_leaf_in_all(storage: Storage) -> None:
    ref = storage.cache(sharded(lambda index, count: ["text", None][index : index + 1], 2), "d@v1")
    assert list(ref) == ["text", None]


FIRST = {"n": [1, 2], "x": [0.5, 1.5]}


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"x": [2.5], "n": [3]}, ""),
        ({"n": pa.array([3], pa.int8()), "x": pa.array([2.5], pa.float32())}, ""),
        ({"n": [3]}, r"part 1 of 2: .*lacks \['x'\]"),
        ({"n": [3], "x": [2.5], "z": [1]}, r"part 1 of 2: .*has \['z'\] too"),
        ({"n": [[3]], "x": [2.5]}, "part 1 of 2: .*'n'"),
        ({"n": [3.5], "x": [2.5]}, r"part 1 of 2, .*record 0, leaf \['n'\]"),
        ({"n": ["a"], "x": [2.5]}, r"part 1 of 2, .*record 0, leaf \['n'\]"),
        ({"n": [3], "x": [dt.date(2026, 1, 1)]}, "part 1 of 2.*'x'"),
    ],
)
@pytest.mark.parametrize("library", ["pyarrow", "pandas", "polars", "datasets", "parquet"])
def test_a_table_with_other_columns_than_the_first_part_is_cast_or_refused(
    storage: Storage, tmp_path: Path, second: Any, message: str, library: str
) -> None:
    def part(number: int, _: int) -> Any:
        table = pa.table((FIRST, second)[number])
        if library == "parquet":
            pq.write_table(table, tmp_path / f"{number}.parquet")
            return from_parquet(tmp_path / f"{number}.parquet")
        frames = {"pandas": lambda: table.to_pandas(), "polars": lambda: pl.from_arrow(table)}
        return frames.get(library, lambda: table if library == "pyarrow" else datasets.Dataset(table))()

    if message:
        with pytest.raises(cachelayer.CacheLayerError, match=message):
            storage.cache(sharded(part, 2), "d@v1")
    else:
        rows = storage.cache(sharded(part, 2), "d@v1")
        assert list(rows) == [{"n": 1, "x": 0.5}, {"n": 2, "x": 1.5}, {"n": 3, "x": 2.5}]


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (lambda index, count: 7 // (index - 1) and [1], cachelayer.SourceError, "part 1 of 4.*ZeroDiv"),
        (lambda index, count: 5 if index == 1 else [index], cachelayer.InvalidTypeError, "part 1 of 4"),
        (lambda index, count: [1, "a" if index == 2 else 2], cachelayer.ElementError, "part 2 of 4, record 1"),
        (lambda index, count: ({"x": 7 // (3 - n - index)} for n in range(2)), cachelayer.SourceError, "part 2 of 4"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_what_fails_names_the_part(
    storage: Storage, source: Any, error: type[Exception], message: str, workers: int
) -> None:
    with pytest.raises(error, match=message):
        storage.submit(sharded(source, 4), "d@v1", workers=workers, element_spec=None)
    assert storage.datasets() == []


def test_calls_that_cannot_be_are_refused(storage: Storage) -> None:
    for count, error in ((0, ValueError), (2.5, TypeError)):
        with pytest.raises(error, match="count"):
            sharded(rows, count)  # type: ignore[arg-type]
    with pytest.raises(cachelayer.InvalidTypeError, match="expected a function"):
        sharded([1, 2], 2)  # type: ignore[arg-type]
    with pytest.raises(cachelayer.InvalidArgumentError, match="max_records"):
        storage.submit(sharded(rows, 2), "d@v1", max_records=5)
    with pytest.raises(cachelayer.InvalidArgumentError, match="engine: Processes"):
        storage.submit((n for n in range(3)), "d@v1", engine="processes")
    with pytest.raises(cachelayer.InvalidTypeError, match="hosts"):
        storage.cache(sharded(rows, 2), "d@v1", hosts=3)  # type: ignore[arg-type]
    with pytest.raises(cachelayer.InvalidArgumentError, match="hosts"):
        storage.cache(sharded(rows, 2), "d@v1", hosts=(2, 2))
    for engine in ("processes", Returns(iter)):
        for wait in (True, False):
            with pytest.raises(cachelayer.InvalidArgumentError, match="hosts= and engine="):
                storage.cache(sharded(rows, 2), "d@v1", hosts=(0, 2), engine=engine, wait=wait)


@pytest.mark.filterwarnings("ignore:.*go unnoticed")
def test_a_host_beside_a_build_of_one_process_has_the_same_version(storage: Storage) -> None:
    # What a queue holds is not compared, so both builds have the same source.
    others: SimpleQueue[Future[cachelayer.DataRef[Any]]] = SimpleQueue()
    pools: SimpleQueue[ThreadPoolExecutor] = SimpleQueue()

    def make(number: int) -> dict[str, Any]:
        # The host reads the record too: by then the pool is taken.
        if number == 500 and not pools.empty():
            others.put(pools.get().submit(storage.cache, source, "d@v1", hosts=(1, 2), shard_bytes=20_000))
        return uniform(number)

    source = Listed(1000, make)
    with ThreadPoolExecutor(1) as threads:
        pools.put(threads)
        ref = storage.cache(source, "d@v1", shard_bytes=20_000)
        assert others.get().result().reference == ref.reference


@pytest.mark.parametrize("again", [iter, lambda rows: map(int, rows), lambda rows: (row for row in rows)])
def test_a_function_that_returns_one_iterator_for_two_parts_is_refused(
    storage: Storage, again: Callable[[Any], Iterator[int]]
) -> None:
    """Else the second part would lack what the first has taken, and the first what its spec was learned from."""
    elements = again(range(100_000))
    with pytest.raises(SourceError, match=r"part [01] of 5.*iterator|map|generator"):
        storage.cache(sharded(lambda index, count: elements, 5), "d@v1")
    assert storage.datasets() == []


@pytest.mark.parametrize("workers", [1, 2])
def test_parts_with_the_same_records_are_warned_of(storage: Storage, workers: int) -> None:
    with pytest.warns(cachelayer.CacheLayerWarning, match="part 0 of 3 and part 1 of 3") as caught:
        same = storage.submit(sharded(lambda index, count: range(10), 3), "d@v0", workers=workers)
    assert (len(same), len(caught)) == (30, 1)


def test_empty_parts_are_none(storage: Storage) -> None:
    assert len(storage.cache(sharded(lambda index, count: [], 3), "d@v1", allow_empty=True)) == 0
    assert list(storage.cache(sharded(lambda index, count: [7] * (index == 2), 3), "d@v2")) == [7]


@pytest.mark.parametrize("options", [{"workers": 2}, {"hosts": (0, 1)}])
def test_samples_that_do_not_fit_are_left_out_or_named(storage: Storage, options: dict[str, Any]) -> None:
    source = Rows(3210, "misfit")
    with pytest.raises(cachelayer.ElementError, match="record 3210"):
        storage.cache(source, "d@v0", **options)
    with pytest.warns(cachelayer.CacheLayerWarning, match="record 3210"):
        assert len(storage.cache(source, "d@v1", on_error="skip", **options)) == len(source) - 1


def test_records_that_are_appended_may_come_in_parts(storage: Storage) -> None:
    storage.submit([{"x": 1}], "d@v1")
    ref = storage.append("d@v1", "v2", sharded(lambda index, count: [{"x": index}], 3), workers=2)
    assert [int(element["x"]) for element in ref] == [1, 0, 1, 2]
    with pytest.raises(cachelayer.InvalidArgumentError, match=r"leaf \['y'\]"):
        storage.append("d@v1", "v3", sharded(lambda index, count: {"y": np.arange(2)}, 3))


def begin(
    url: str, folder: Path, index: int, count: int, options: dict[str, Any] | None = None, workers: int = 1
) -> Fork:
    arguments = [url, json.dumps(options), str(folder), str(index), str(count), str(workers)]
    return Fork(parts_child.main, ["parts_child", *arguments], folder, os.environ)


def outcomes(hosts: list[Fork]) -> list[tuple[int, str]]:
    """Status and output of processes when they have ended, in order."""
    ended = [host.ended() for host in hosts]
    assert [done.stderr for done in ended if done.returncode > 0] == []
    return sorted((done.returncode, done.stdout) for done in ended)


def test_hosts_build_together_and_all_have_the_version(
    storage: Storage, tmp_path: Path, expected: cachelayer.DataRef[Any]
) -> None:
    hosts = [begin(storage.url, tmp_path, index, 3, workers=2) for index in range(3)]
    assert outcomes(hosts) == [(0, expected.digest)] * 3
    check(storage, expected)
    assert [event.kind for event in storage.history("d")].count("publish") == 1


RANK = 0


@pytest.mark.filterwarnings("ignore:.*go unnoticed")
def test_a_global_that_holds_the_rank_is_named_whichever_host_comes_first(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(index: int, count: int) -> Iterator[int]:
        if index == 1 and first == RANK:
            with pytest.MonkeyPatch.context() as other:
                other.setitem(globals(), "RANK", 1 - first)
                with ThreadPoolExecutor(1) as other_host, pytest.raises(cachelayer.InvalidArgumentError, match="RANK"):
                    other_host.submit(build, 1).result()
        yield index

    def build(host: int) -> cachelayer.DataRef[Any]:
        return storage.cache(sharded(rows, 2), f"d@v{first}", hosts=(host, 2), element_spec=np.int64)

    for first in (0, 1):
        monkeypatch.setitem(globals(), "RANK", first)
        assert list(build(0)) == [0, 1]


@pytest.mark.parametrize(("store", "died"), [("disk", 0), ("s3", 5)])
def test_what_a_dead_host_leaves_is_built_by_the_others(
    store: str, died: int, request: pytest.FixtureRequest, tmp_path: Path, expected: cachelayer.DataRef[Any]
) -> None:
    url, options = new_place(store, request, tmp_path)
    (tmp_path / str(died)).touch()
    hosts = [begin(url, tmp_path, index, 3, options) for index in range(3)]
    assert outcomes(hosts) == [(-signal.SIGKILL, ""), *[(0, expected.digest)] * 2]
    check(Storage(url, storage_options=options, local_cache_bytes=0), expected)


def noted_by(proxy: FaultProxy) -> list[str]:
    """The notes of parts that were put, each as often as it was."""
    return [each.path for each in proxy.exchanges() if each.method == "PUT" and NOTE.search(each.path)]


def test_hosts_ask_for_as_much_as_there_are_hosts_and_parts(s3: Server) -> None:
    hosts, parts = 3, 24
    storage = new_storage(s3)
    begun = threading.Barrier(hosts)

    def part(index: int, count: int) -> Iterator[int]:
        if index % (parts // hosts) == 0:
            begun.wait(60)
        yield index

    with fault_proxy(s3.endpoint) as proxy, ThreadPoolExecutor(hosts) as threads:

        def build(host: int) -> list[int]:
            here = Storage(storage.url, storage_options=s3.storage_options(proxy.endpoint), local_cache_bytes=0)
            return list(here.cache(sharded(part, parts), "d@v1", hosts=(host, hosts), element_spec=np.int64))

        assert list(threads.map(build, range(hosts))) == [list(range(parts))] * hosts
        # Two hosts may come to the same part when little is left.
        assert parts <= len(noted_by(proxy)) <= parts + 2 * hosts
        # One host reads the notes of the others.
        read = [each.path for each in proxy.exchanges() if each.method == "GET" and NOTE.search(each.path)]
        assert len(read) <= parts


def test_hosts_that_wait_for_the_last_part_list_notes_and_leases_alone(
    s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", "15")
    hosts, parts = 12, 24
    storage = new_storage(s3)
    begun, built = set[int](), set[int]()
    all_begun, all_others_built, have_waited = threading.Event(), threading.Event(), threading.Event()

    def part(index: int, count: int) -> Iterator[int]:
        begun.add(index)
        if len(begun) == hosts:
            all_begun.set()
        assert all_begun.wait(60)
        if index == 1:
            assert have_waited.wait(60)
        yield index
        built.add(index)
        if len(built) == parts - 1:
            all_others_built.set()

    with fault_proxy(s3.endpoint) as proxy, ThreadPoolExecutor(hosts) as threads:

        def build(host: int) -> list[int]:
            here = Storage(storage.url, storage_options=s3.storage_options(proxy.endpoint), local_cache_bytes=0)
            return list(here.cache(sharded(part, parts), "d", "v1", hosts=(host, hosts), element_spec=np.int64))

        def asked(what: str) -> int:
            return sum(what in each.path for each in proxy.exchanges())

        built_by_hosts = threads.map(build, range(hosts))
        assert all_others_built.wait(60)
        lists, of_log = asked("list-type"), asked("_log")
        # Each host lists the notes and the leases a few times more.
        wait_until(lambda: asked("list-type") >= lists + 6 * hosts)
        asked_of_log = asked("_log") - of_log
        have_waited.set()
        assert asked_of_log <= hosts
        assert list(built_by_hosts) == [list(range(parts))] * hosts
        read = [each.path for each in proxy.exchanges() if each.method == "GET" and "/host-" in each.path]
        assert len(read) <= 2 * (hosts + parts)


@pytest.mark.filterwarnings("ignore:.*go unnoticed")
@pytest.mark.parametrize("options", [{}, {"hosts": (0, 1)}], ids=str)
def test_parts_are_read_while_the_shards_of_others_are_put(s3: Server, options: dict[str, Any]) -> None:
    with fault_proxy(s3.endpoint) as proxy:

        def part(index: int, count: int) -> Iterator[int]:
            if index == 3:
                proxy.clear()
            yield index

        storage = new_storage(s3, proxy.endpoint)
        # Until the fourth part is read, no shard can be put.
        proxy.add(answer(503, method="PUT", containing="array_record"))
        assert list(storage.cache(sharded(part, 5), "d@v1", element_spec=np.int64, **options)) == list(range(5))


class Silent:
    """An engine that returns no results."""

    def run(self, task: Callable[[int], Any], numbers: Iterable[int]) -> Iterator[Any]:
        for number in numbers:
            task(number)
        yield from ()


@pytest.mark.filterwarnings("ignore:.*go unnoticed")
@pytest.mark.parametrize("options", [{}, {"hosts": (0, 1)}, {"engine": Silent()}], ids=["alone", "hosts", "engine"])
def test_a_build_whose_shards_were_collected_meanwhile_says_so(storage: Storage, options: dict[str, Any]) -> None:
    collected: list[Any] = []

    def part(index: int, count: int) -> Iterator[int]:
        if index == 3 and not collected:
            wait_until(lambda: noted_shards(storage, "d", "v1"))
            # As if this process had been stopped until its lease was dead; a beat may come between.
            while not collected:
                for lease in (Path(storage.url) / "d/_builds/v1").glob("*claim"):
                    lease.unlink()
                collected.extend(storage.gc(grace=0))
        yield index

    with pytest.raises(BuildRevokedError, match="d@v1"):
        storage.cache(sharded(part, 6), "d@v1", element_spec=np.int64, **options)
    assert storage.datasets() == []
    assert list(storage.cache(sharded(part, 6), "d@v1", element_spec=np.int64, **options)) == list(range(6))


@pytest.mark.filterwarnings("ignore:.*go unnoticed")
def test_garbage_collection_spares_the_notes_of_a_host_that_began_while_its_first_process_ran(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_may_end: SimpleQueue[bool] = SimpleQueue()
    built: list[int] = []
    collected: list[list[Any]] = []

    def rows(index: int, count: int) -> Iterator[int]:
        if threading.current_thread() is not threading.main_thread():
            second_may_begin.put(True)
            first_may_end.get()
            raise ValueError("the first process ends")
        built.append(index)
        yield index

    second_may_begin: SimpleQueue[bool] = SimpleQueue()

    def build() -> cachelayer.DataRef[Any]:
        return storage.cache(sharded(rows, 3), "d@v1", hosts=(0, 1), element_spec=np.int64)

    def wait_for_parts(_: Leases) -> None:
        # All parts but that of the first process have notes.
        if not collected:
            first_may_end.put(True)
            assert isinstance(first.exception(), SourceError)
            collected.append(storage.gc(grace=0))

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(build)
        second_may_begin.get()
        monkeypatch.setattr(Leases, "pause", wait_for_parts)
        assert list(build()) == [0, 1, 2]
    assert collected == [[]]
    assert sorted(built) == [0, 1, 2]


def test_a_host_that_was_taken_for_dead_publishes_nothing_and_has_the_version(
    request: pytest.FixtureRequest, tmp_path: Path, expected: cachelayer.DataRef[Any]
) -> None:
    url, options = new_place("gcs", request, tmp_path)
    (tmp_path / "pauses").touch()
    (tmp_path / "0").touch()
    paused = begin(url, tmp_path, 0, 2, options)
    wait_until(lambda: is_stopped(paused.pid))
    assert outcomes([begin(url, tmp_path, 1, 2, options)]) == [(0, expected.digest)]
    os.kill(paused.pid, signal.SIGCONT)
    assert outcomes([paused]) == [(0, expected.digest)]
    storage = Storage(url, storage_options=options, local_cache_bytes=0)
    assert [event.kind for event in storage.history("d")].count("publish") == 1
    check(storage, expected)


class Returns:
    """An engine that returns what a function makes of its results."""

    def __init__(self, made: Callable[[list[Any]], Any]) -> None:
        self.made = made

    def run(self, task: Callable[[int], Any], numbers: Iterable[int]) -> Any:
        return self.made([task(number) for number in numbers])


@pytest.mark.parametrize(
    ("made", "wrong"), [(len, "returned a int"), (lambda results: ["done" for _ in results], "yielded a str")]
)
def test_an_engine_that_returns_something_else_is_told_what_to_return(storage: Storage, made: Any, wrong: str) -> None:
    with pytest.raises(InvalidTypeError, match=rf"Returns.*{wrong}"):
        storage.cache(sharded(rows, PARTS), "d@v1", engine=Returns(made))


def test_an_engine_that_leaves_a_part_out_is_found_out(storage: Storage) -> None:
    class Lazy:
        def run(self, task: Callable[[int], Any], numbers: Any) -> Iterator[Any]:
            return map(task, [number for number in numbers if number != 5])

    with pytest.raises(cachelayer.SourceError, match="part 5"):
        storage.cache(sharded(rows, PARTS), "d@v1", engine=Lazy())
