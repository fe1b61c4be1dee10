"""What becomes of requests to object stores when replies are lost, cut, late or errors: right bytes, or an error."""

import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import samples
from faults import Fault, FaultProxy, answer, cut, fault_proxy, lose, reset, stall
from forks import FORKS
from servers import Server, new_bucket

from cachelayer import CacheLayerWarning, CorruptionError, StorageError
from cachelayer.objects.bucket_store import BucketStore
from cachelayer.objects.open_store import open_store
from cachelayer.testing.stores import blob_of, is_stat_of

TEXT = os.urandom(100_000)
LARGE = os.urandom(1 << 20) * 34  # more than one part to S3 and Google
RANGES = [("a/b", start, start + 3000) for start in range(0, 97_000, 80_000)]
RIGHT = [TEXT[start:stop] for _, start, stop in RANGES]
# What obstore cannot be told keeps it out.
WITHOUT_OBSTORE: dict[str, dict[str, Any]] = {
    "s3": {"config_kwargs": {}},
    "gs": {"session_kwargs": {"trust_env": False}},
    "az": {"max_concurrency": 8},
}
TRANSIENT = [
    pytest.param(fault, id=name)
    for name, fault in {
        "cut at once": partial(cut, 0),
        "cut in the middle": partial(cut, 1000),
        "lost": lose,
        "reset": reset,
        "503": partial(answer, 503),
    }.items()
]


@pytest.fixture(scope="module", params=["s3", "gcs", "azure"])
def proxied(request: pytest.FixtureRequest) -> Iterator[tuple[Server, FaultProxy, dict[str, Any]]]:
    server = request.getfixturevalue(request.param)
    with fault_proxy(server.endpoint) as proxy:
        yield server, proxy, server.storage_options(proxy.endpoint)


@pytest.fixture
def proxy(proxied: tuple[Server, FaultProxy, dict[str, Any]]) -> Iterator[FaultProxy]:
    _, proxy, _ = proxied
    yield proxy
    proxy.clear()
    proxy.accept()


@pytest.fixture
def open_one(proxied: tuple[Server, FaultProxy, dict[str, Any]]) -> Callable[..., BucketStore]:
    server, _, options = proxied
    url = server.url(new_bucket(server), "prefix")

    def open_one(**more: Any) -> BucketStore:
        store = open_store(url, {**options, **more})
        assert isinstance(store, BucketStore)
        return store

    return open_one


@pytest.fixture
def store(open_one: Callable[..., BucketStore], proxy: FaultProxy) -> BucketStore:
    store = open_one()
    store.put("a/b", TEXT)
    proxy.forget()
    return store


def race(open_args: tuple[str, dict[str, Any]], who: int) -> dict[str, bool]:
    url, options = open_args
    store = open_store(url, options)
    names = [f"race/{number}" for number in range(30)]
    random.Random(who).shuffle(names)
    return {name: store.put_if_absent(name, f"{name} of {who}".encode()) for name in names}


def test_each_name_has_one_winner_whose_bytes_are_there_though_replies_are_lost(
    store: BucketStore, proxy: FaultProxy
) -> None:
    writes = {"method": "POST" if store.scheme == "gs" else "PUT"}
    proxy.add(
        lose(probability=0.2, seed=1, **writes),
        reset(probability=0.1, seed=2, **writes),
        answer(503, probability=0.1, seed=3, **writes),
        answer(409, probability=0.1, seed=4, **writes),
        lose(probability=0.1, seed=5, method="GET"),
    )
    with ProcessPoolExecutor(3, FORKS) as pool:
        outcomes = list(pool.map(race, [(store.url, dict(store.options))] * 3, range(3)))
    proxy.clear()
    for name in outcomes[0]:
        winners = [who for who, won in enumerate(outcomes) if won[name]]
        assert len(winners) == 1
        assert store.read(name) == f"{name} of {winners[0]}".encode()


def test_who_is_told_that_its_own_object_is_in_the_way_has_won(store: BucketStore, proxy: FaultProxy) -> None:
    proxy.add(lose(containing="my token", times=1))
    assert store.put_if_absent("lost", b"my token")
    # It was carried out.
    assert [exchange.status // 100 for exchange in proxy.exchanges() if exchange.fault == "lose"] == [2]
    proxy.add(answer(412, containing="another token", times=1))
    assert store.put_if_absent("never came", b"another token")
    assert store.read("never came") == b"another token"


@pytest.mark.parametrize("fault", TRANSIENT)
def test_whatever_happens_to_a_read_its_bytes_are_right(
    open_one: Callable[..., BucketStore],
    store: BucketStore,
    proxy: FaultProxy,
    fault: Callable[..., Fault],
    tmp_path: Path,
) -> None:
    def faulted(operation: Callable[[], Any], **aim: Any) -> Any:
        proxy.add(fault(**aim))
        result = operation()
        proxy.clear()
        return result

    assert faulted(lambda: store.read_ranges(RANGES), method="GET", times=2) == RIGHT
    assert [exchange for exchange in proxy.exchanges() if exchange.fault]
    without_obstore = open_one(**WITHOUT_OBSTORE[store.scheme])
    proxy.add(answer(500, containing="object_store"))
    assert faulted(lambda: without_obstore.read_ranges(RANGES), method="GET", times=2) == RIGHT
    assert faulted(lambda: store.read("a/b"), method="GET", times=2) == TEXT
    faulted(lambda: store.download("a/b", tmp_path / "b", len(TEXT)), times=3)
    assert (tmp_path / "b").read_bytes() == TEXT
    assert is_stat_of(TEXT, faulted(lambda: store.stat("a/b"), times=2))
    assert faulted(lambda: store.names("a"), times=2) == ["b"]
    faulted(lambda: store.delete_folder("a"), times=2)
    assert store.stat("a/b") is None


def test_where_obstore_is_refused_the_file_system_reads_and_says_so_once(store: BucketStore, proxy: FaultProxy) -> None:
    proxy.add(answer(403, containing="object_store"))
    places = range(0, 8000, 2000)
    with pytest.warns(CacheLayerWarning, match="obstore") as caught:
        assert [store.read_ranges([("a/b", at, at + 99)])[0] for at in places] == [TEXT[at : at + 99] for at in places]
    assert len(caught) == 1
    assert store.read_ranges(RANGES) == RIGHT
    assert [exchange.status for exchange in proxy.exchanges()].count(403) == 3


@pytest.mark.parametrize("fault", TRANSIENT)
def test_whatever_happens_to_an_upload_its_bytes_are_right(
    store: BucketStore,
    proxy: FaultProxy,
    fault: Callable[..., Fault],
    tmp_path: Path,
) -> None:
    source = tmp_path / "source"
    for data in (TEXT, LARGE):
        source.write_bytes(data)
        proxy.add(fault(every=2, times=4))
        store.put_file(source, blob_of("a/c", data))
        proxy.clear()
        assert is_stat_of(data, store.stat("a/c"))
        assert store.read_ranges([("a/c", 0, len(data))]) == [data]


def test_a_server_that_says_nothing_is_asked_again(
    open_one: Callable[..., BucketStore], proxy: FaultProxy, tmp_path: Path
) -> None:
    store = open_one(timeout=12)
    store.put("a/b", TEXT)
    proxy.add(stall(times=1))
    assert store.read_ranges(RANGES) == RIGHT
    proxy.add(stall(times=1))
    assert store.put_if_absent("a/c", b"token")


OPERATIONS: dict[str, Callable[[BucketStore, Path], object]] = {
    "read": lambda store, path: store.read("a/b"),
    "stat": lambda store, path: store.stat("a/b"),
    "put": lambda store, path: store.put("a/d", b"1"),
    "put_if_absent": lambda store, path: store.put_if_absent("a/d", b"1"),
    "delete": lambda store, path: store.delete("a/b"),
    "delete_folder": lambda store, path: store.delete_folder("a"),
    "names": lambda store, path: store.names("a"),
    "put_file": lambda store, path: store.put_file(path, blob_of("a/d", b"1")),
    "download": lambda store, path: store.download("a/b", path, len(TEXT)),
    "read_ranges": lambda store, path: store.read_ranges(RANGES),
}


# Each operation is refused in one way, and in all of them in the soak suite.
REFUSALS = [
    (name, status)
    for number, name in enumerate(OPERATIONS)
    for status in ([400, 401, 403] if samples.IN_FULL else [(400, 401, 403)[number % 3]])
]
DIFFERENT = ["read", "put_if_absent", "put_file", "download", "read_ranges"]


@pytest.fixture(params=OPERATIONS)
def operation(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[BucketStore], object]:
    (tmp_path / "file").write_bytes(b"1")
    return lambda store: OPERATIONS[request.param](store, tmp_path / "file")


@pytest.mark.sampled
@pytest.mark.parametrize(("operation", "status"), REFUSALS, indirect=["operation"])
def test_a_refusal_is_an_error_at_once_and_never_absence(
    store: BucketStore, proxy: FaultProxy, operation: Callable[[BucketStore], object], status: int
) -> None:
    proxy.add(answer(status))
    with pytest.raises(StorageError, match=r"127\.0\.0\.1:\d+: refused.*credentials"):
        operation(store)
    # Ranges are asked for again by another client, and what failed is looked up.
    assert len(proxy.exchanges()) <= 4 * len(RANGES)


def test_a_bucket_that_is_not_there_is_an_error_that_says_so(
    store: BucketStore, operation: Callable[[BucketStore], object]
) -> None:
    other = open_store(f"{store.scheme}://no-such-bucket/prefix", store.options)
    assert isinstance(other, BucketStore)
    with pytest.raises(StorageError, match="'no-such-bucket'"):
        operation(other)


@pytest.mark.parametrize("operation", DIFFERENT, indirect=True)
@pytest.mark.parametrize("fault", [answer(503), stall(), None], ids=["503", "no answer", "nobody listens"])
def test_a_server_that_never_answers_is_an_error_that_names_it(
    open_one: Callable[..., BucketStore],
    proxy: FaultProxy,
    operation: Callable[[BucketStore], object],
    fault: Fault | None,
) -> None:
    if fault is None:
        proxy.refuse()
    else:
        proxy.add(fault)
    host = proxy.endpoint.removeprefix("http://")
    with pytest.raises(StorageError, match=rf"{host}: .*is the host reachable and healthy\?"):
        operation(open_one(timeout=0.3))


@pytest.mark.parametrize("seconds", [0.3, pytest.param(60, marks=pytest.mark.soak)])
def test_an_endpoint_where_nobody_listens_for_a_while_is_asked_again(
    open_one: Callable[..., BucketStore], proxy: FaultProxy, tmp_path: Path, seconds: float
) -> None:
    store = open_one(timeout=120)
    store.put("a/b", TEXT)
    for name in DIFFERENT:
        (tmp_path / name).write_bytes(b"1")
    proxy.refuse()
    listening = threading.Timer(seconds, proxy.accept)
    listening.start()
    with ThreadPoolExecutor(len(DIFFERENT)) as pool:
        waiting = [pool.submit(OPERATIONS[name], store, tmp_path / name) for name in DIFFERENT]
        read, _, _, _, ranges = [operation.result() for operation in waiting]
    listening.join()
    assert (read, ranges) == (TEXT, RIGHT)
    assert (tmp_path / "download").read_bytes() == TEXT
    assert store.read("a/d") == b"1"


def test_reading_never_lists_and_asks_once(store: BucketStore, proxy: FaultProxy, tmp_path: Path) -> None:
    store.read("a/b")
    store.stat("a/b")
    store.read_ranges(RANGES)
    store.download("a/b", tmp_path / "b", len(TEXT))
    # Requests of an earlier test, which had a bucket of its own, may end here.
    bucket = store.root.partition("/")[0]
    asked = [each.path for each in proxy.exchanges() if bucket in each.path and not each.fault]
    assert len(asked) == 1 + 1 + len(RANGES) + 1
    assert not [path for path in asked if "list-type" in path or "prefix=" in path]


@pytest.mark.parametrize("status", [404, 416])
def test_a_range_that_is_not_found_of_an_object_that_is_there_is_asked_for_again(
    open_one: Callable[..., BucketStore], store: BucketStore, proxy: FaultProxy, status: int
) -> None:
    proxy.add(answer(status, containing="bytes=", times=2))
    assert store.read_ranges(RANGES) == RIGHT
    proxy.clear()
    proxy.add(answer(status, containing="bytes="))
    hasty = open_one(timeout=1)
    hasty.put("a/b", TEXT)
    with pytest.raises(StorageError, match="though the object is there"):
        hasty.read_ranges(RANGES)


def test_connections_are_kept_for_further_requests(store: BucketStore, proxy: FaultProxy, tmp_path: Path) -> None:
    for number in range(20):
        assert store.read("a/b") == TEXT
        assert is_stat_of(TEXT, store.stat("a/b"))
        assert store.read_ranges(RANGES[:1]) == [TEXT[:3000]]
        store.download("a/b", tmp_path / f"{number}", len(TEXT))
        # Errors too leave a connection as it was.
        assert store.read("nothing") is None
        with pytest.raises(CorruptionError):
            store.read_ranges([("a/b", len(TEXT) + 10, len(TEXT) + 20)])
        assert store.put_if_absent(f"c/{number}", b"here")
        assert not store.put_if_absent(f"c/{number}", b"there")
        store.delete(f"c/{number}")
    assert len(proxy.exchanges()) > 200
    # A connection of each of two clients: one reads ranges, one does all else. The store's first put proves conditions.
    assert proxy.connections() <= 3
