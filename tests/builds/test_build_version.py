"""Publishing in object stores: one winner, whole, or a clear error and nothing published."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from building_child import RECORDS, SHARD_BYTES, expected_digest, rows
from faults import Fault, FaultProxy, answer, fault_proxy, lose, reset
from leftovers import assert_only_versions_are_left, notes
from servers import Server, new_bucket

import cachelayer
from cachelayer import SourceError, Storage, StorageError, sharded
from cachelayer.objects.local import LocalStore
from cachelayer.objects.open_store import open_store
from cachelayer.objects.store import Store
from cachelayer.versions.log import Log

ENTRY = "_log/0000000001.json"


@dataclass(frozen=True)
class Bucket:
    """An empty prefix of a bucket, behind a proxy that makes faults."""

    server: Server
    proxy: FaultProxy
    url: str

    @property
    def store(self) -> Store:
        """The store itself, past the proxy."""
        return open_store(self.url, self.server.storage_options())

    @property
    def is_gcs(self) -> bool:
        return self.url.startswith("gs://")

    def open(self, local_cache: Path | None = None, limit: int | None = None, timeout: float = 30) -> Storage:
        options = {**self.server.storage_options(self.proxy.endpoint), "timeout": timeout}
        limit = 0 if local_cache is None else limit
        return Storage(self.url, local_cache=local_cache, local_cache_bytes=limit, storage_options=options)

    def check_whole(self) -> None:
        """The version is there, whole, after one entry of the log, and nothing else is."""
        storage = self.open()
        assert storage.fetch("rows@v1").digest == expected_digest()
        assert storage.verify("rows@v1", progress=False)
        assert [event.kind for event in storage.history("rows")] == ["publish"]
        assert notes(storage, "rows") == set()


@pytest.fixture(scope="module", params=["s3", "gcs"])
def proxied(request: pytest.FixtureRequest) -> Iterator[tuple[Server, FaultProxy]]:
    server: Server = request.getfixturevalue(request.param)
    with fault_proxy(server.endpoint) as proxy:
        yield server, proxy


# What a store does with conditions and faults is its own; what is below does not depend on that.
on_gcs = pytest.mark.parametrize("proxied", ["gcs"], indirect=True)


@pytest.fixture
def bucket(proxied: tuple[Server, FaultProxy], monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", "1.5")
    server, proxy = proxied
    yield Bucket(server, proxy, server.url(new_bucket(server), "a/prefix"))
    proxy.clear()
    proxy.accept()
    proxy.forget()


def writes(fault: Callable[..., Fault], containing: str, **aim: Any) -> list[Fault]:
    """The fault, aimed at the writes of an object."""
    return [fault(containing=containing, method=method, **aim) for method in ("PUT", "POST")]


def submit(storage: Storage) -> cachelayer.DataRef[Any]:
    return storage.submit(rows, "rows@v1", shard_bytes=SHARD_BYTES)


FAULTS = {"lost": lose, "reset": reset, "409": partial(answer, 409), "503": partial(answer, 503)}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_whatever_happens_on_the_way_the_version_is_published_once_and_right(
    bucket: Bucket, fault: Callable[..., Fault]
) -> None:
    for name in (ENTRY, "rows/manifests/", ".array_record", "_log/head"):
        bucket.proxy.add(*writes(fault, name, times=2))
    submit(bucket.open())
    assert len([exchange for exchange in bucket.proxy.exchanges() if exchange.fault]) >= 7
    bucket.proxy.clear()
    bucket.check_whole()


@pytest.mark.parametrize("fault", [partial(answer, 503), partial(answer, 403), reset])
def test_an_entry_that_cannot_be_put_is_an_error_and_publishes_nothing(
    bucket: Bucket, fault: Callable[..., Fault]
) -> None:
    bucket.proxy.add(*writes(fault, ENTRY))
    with pytest.raises(StorageError, match=bucket.proxy.endpoint.removeprefix("http://")):
        submit(bucket.open(timeout=1))
    bucket.proxy.clear()
    assert Log(bucket.store.folder("rows")).head().versions == {}
    submit(bucket.open())
    bucket.check_whole()


def test_an_entry_of_which_nothing_is_known_is_published_whole(bucket: Bucket) -> None:
    # Of a GET in GCS the query tells whether it reads the entry or only looks whether it is there.
    reads = f"{ENTRY.rpartition('/')[2]}?alt=media" if bucket.is_gcs else ENTRY
    bucket.proxy.add(*writes(lose, ENTRY), answer(503, containing=reads, method="GET"))
    with pytest.raises(StorageError):
        submit(bucket.open(timeout=3))
    bucket.proxy.clear()
    # The builder did not learn that it had published, and left its notes.
    bucket.open().gc(grace=0)
    bucket.check_whole()


@pytest.mark.parametrize("status", [503, 403])
def test_a_shard_that_cannot_be_uploaded_is_an_error(bucket: Bucket, status: int, tmp_path: Path) -> None:
    bucket.proxy.add(*writes(partial(answer, status), ".array_record"))
    # A 503 is tried again for as long as the timeout, in which a busy machine must answer all else.
    with pytest.raises(StorageError, match="rows/shards/"):
        submit(bucket.open(tmp_path, timeout=30 if status == 403 else 3))
    bucket.proxy.clear()
    assert notes(bucket.open(), "rows") == set()
    assert not list(tmp_path.rglob("*.array_record"))
    submit(bucket.open())
    bucket.check_whole()


def test_who_may_not_list_builds_anew_with_a_warning(bucket: Bucket) -> None:
    lists = "/o?" if bucket.is_gcs else "list-type=2"
    bucket.proxy.add(answer(403, containing=lists, method="GET"))
    warns = partial(pytest.warns, cachelayer.CacheLayerWarning)
    with warns(match="built anew"), warns(match="notes are left"):
        bucket.open().cache(list(rows()), "rows@v1", shard_bytes=SHARD_BYTES)
    bucket.proxy.clear()
    assert_only_versions_are_left(bucket.open(), "rows")


class ArrivesLate(LocalStore):
    """The first entry of the log arrives when its builder has given up, or has looked whether it is there."""

    gives_up = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        # Shared by the stores of its folders.
        self.late: list[tuple[str, bytes]] = []

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if name != ENTRY or self.late:
            return super().put_if_absent(name, data)
        self.late.append((name, data))
        if self.gives_up:
            raise StorageError("no answer; it may be there")
        return False

    def read(self, name: str) -> bytes | None:
        found = super().read(name)
        if self.late and name == ENTRY and found is None:
            super().put_if_absent(*self.late[0])
        return found


@pytest.mark.parametrize("gives_up", [True, False])
def test_an_entry_that_arrives_late_publishes_a_whole_version_once(tmp_path: Path, gives_up: bool) -> None:
    storage = Storage(tmp_path)
    storage._catalog.store = store = ArrivesLate(tmp_path)
    store.gives_up = gives_up
    if gives_up:
        with pytest.raises(StorageError, match="no answer"):
            storage.submit([1, 2], "d@v1")
        assert Storage(tmp_path).datasets() == []
        LocalStore(tmp_path / "d").put_if_absent(*store.late[0])
    else:
        assert storage.submit([1, 2], "d@v1").read([1]).tolist() == [2]
    assert Storage(tmp_path).cache([1, 2], "d@v1").read([1]).tolist() == [2]
    assert [event.kind for event in storage.history("d")] == ["publish"]
    assert_only_versions_are_left(Storage(tmp_path), "d")


@on_gcs
def test_readers_never_list_and_ask_little(bucket: Bucket, tmp_path: Path) -> None:
    submit(bucket.open())
    bucket.proxy.forget()
    ref = bucket.open(tmp_path).fetch("rows@v1")
    assert len(bucket.proxy.exchanges()) <= 6
    assert ref.read(range(RECORDS))["number"].tolist() == list(range(RECORDS))
    asked = [exchange.path for exchange in bucket.proxy.exchanges()]
    assert not [path for path in asked if "list-type" in path or "prefix=" in path or "delimiter" in path]


@on_gcs
def test_what_was_built_is_read_from_the_local_copies(bucket: Bucket, tmp_path: Path) -> None:
    built = submit(bucket.open(tmp_path))
    bucket.proxy.forget()
    for ref in (built, bucket.open(tmp_path).fetch("rows@v1")):
        assert ref.read(range(RECORDS))["number"].tolist() == list(range(RECORDS))
    assert not [exchange for exchange in bucket.proxy.exchanges() if "array_record" in exchange.path]


@on_gcs
def test_copies_of_what_is_built_stay_within_the_limit(bucket: Bucket, tmp_path: Path) -> None:
    limit = 5 * SHARD_BYTES // 2
    ref = submit(bucket.open(tmp_path, limit))
    assert list(tmp_path.rglob("*.array_record"))
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= limit < ref.nbytes
    assert ref.read(range(RECORDS))["number"].tolist() == list(range(RECORDS))


@on_gcs
def test_a_folder_for_copies_that_cannot_be_used_is_a_warning(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    storage = bucket.open(tmp_path / "file" / "folder")
    with pytest.warns(cachelayer.CacheLayerWarning, match="local cop"):
        submit(storage)
    bucket.check_whole()


def never() -> Iterator[int]:
    raise AssertionError("the source was asked")


REFUSALS: dict[str, Callable[[FaultProxy], object]] = {
    "no credentials": lambda proxy: proxy.add(answer(401)),
    "reading only": lambda proxy: proxy.add(*writes(partial(answer, 403), "")),
    "no answer": lambda proxy: proxy.refuse(),
}


@on_gcs
@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_is_an_error_before_anything_is_built(bucket: Bucket, case: str) -> None:
    REFUSALS[case](bucket.proxy)
    for how in ("submit", "cache"):
        with pytest.raises(StorageError):
            getattr(bucket.open(timeout=0.5), how)(never, "rows", "v1")
    assert bucket.store.names("") == []


def test_a_bucket_that_is_not_there_is_an_error_before_anything_is_built(server: Server) -> None:
    storage = Storage(server.url("no-such-bucket", "a"), local_cache_bytes=0, storage_options=server.storage_options())
    with pytest.raises(StorageError, match="'no-such-bucket'"):
        storage.cache(never, "rows@v1")


def test_builds_leave_no_folder_of_their_own(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.cache(lambda: iter([1, 2]), "d@v1")
    storage.cache(list(range(5000)), "d@v2", shard_bytes=10_000)
    storage.cache(list(range(5000)), "d@v3", shard_bytes=10_000, hosts=(0, 1))
    storage.cache(list(range(5000)), "d@v4", shard_bytes=10_000, workers=2)
    storage.append("d@v1", "v5", [3])
    storage.erase("d@v2", records=[7], reason="asked for")

    def fails() -> Iterator[int]:
        yield 1
        raise OSError("the disk went away")

    for source in (fails, sharded(lambda index, _: [index, 7 // (1 - index)], 2)):
        with pytest.raises(SourceError):
            storage.cache(source, "d@v6")
    storage.gc(grace=0)
    assert list((tmp_path / "d/_builds").iterdir()) == []
