"""Leases: who is at work, on a file system and in an object store, and who is not any more."""

import math
import os
import platform
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from forks import FORKS, beside_threads

import cachelayer
from cachelayer.errors import InvalidArgumentError, StorageError
from cachelayer.objects import paths
from cachelayer.objects.bucket_store import BucketStore
from cachelayer.objects.local import LocalStore
from cachelayer.objects.store import Store
from cachelayer.support.host import process_name
from cachelayer.versions.lease import CLAIM, EXPIRY, Leases, expiry, has_running_build, leases_in

FOLDER = paths.builds("v1")
NAME = f"{FOLDER}/{CLAIM}"
HOST = process_name().rpartition("-")[0]
TELL = "from cachelayer.support.host import process_name; print(process_name())"
DEAD = b"other-host-1 token 1"
"""What a process leaves that was killed after its first beat."""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", "0.3")


@pytest.fixture
def bucket() -> BucketStore:
    return BucketStore("memory", uuid.uuid4().hex)


@pytest.fixture(params=["local", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return LocalStore(tmp_path) if request.param == "local" else request.getfixturevalue("bucket")


def state(store: Store, idle: float = 0.0) -> str:
    """The state of the one lease, as one look shows it."""
    return leases_in(store.folder(FOLDER))[CLAIM].state(idle)


def test_a_lease_has_one_holder_and_leaves_nothing_behind(store: Store) -> None:
    together = threading.Barrier(8)

    def hold(_: int) -> bool:
        leases = Leases(store.folder(FOLDER))
        together.wait(60)
        with leases.hold(CLAIM) as lease:
            assert leases.holder(CLAIM) is not None
            assert state(store) == "running"
            together.wait(60)
        return lease is not None

    with ThreadPoolExecutor(8) as threads:
        assert sorted(threads.map(hold, range(8))) == [False] * 7 + [True]
    leases = Leases(store.folder(FOLDER))
    assert leases.holder(CLAIM) is None
    assert not leases.is_alive(CLAIM)
    assert store.names(FOLDER) == []
    assert store.names(paths.BUILDS) == []


def test_the_lease_of_a_dead_process_is_free(store: Store) -> None:
    store.put(NAME, DEAD)
    leases = Leases(store.folder(FOLDER))
    while leases.holder(CLAIM) is not None:
        leases.pause()
    with leases.hold(CLAIM) as lease:
        assert lease is not None


def test_a_lease_tells_who_does_what_and_nothing_that_a_terminal_obeys(bucket: BucketStore) -> None:
    leases = Leases(bucket.folder(FOLDER))
    with leases.hold(CLAIM) as lease:
        assert lease is not None
        lease.work_on({12, 3}, at_once=True)
        told = leases.holder(CLAIM)
        assert told is not None
        assert (told.holder, set(told.parts)) == (process_name(), {3, 12})
        assert [state(bucket, idle) for idle in (0.1, 0.4)] == ["running", "unknown"]
    for raw in (b"", b"\xff\x00\x1b[2J\n", b"a" * 1000, f"{HOST}-{'9' * 100} t 1 x - 1,,y,{'9' * 5000}".encode()):
        bucket.put(NAME, raw)
        assert state(bucket) == "running"
        found = leases.holder(CLAIM)
        assert found is not None
        assert found.holder.isprintable() or not found.holder
        assert len(found.holder) <= 200
        assert (found.done, set(found.parts) - {1}) == (None, set())


def test_what_a_builder_takes_up_is_told_soon(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", "6")
    leases = Leases(store.folder(FOLDER))
    with leases.hold(CLAIM) as lease:
        assert lease is not None
        lease.work_on({7})
        until = time.monotonic() + 60
        while (told := leases.holder(CLAIM)) is None or set(told.parts) != {7}:
            assert time.monotonic() < until


@pytest.mark.parametrize("is_this_one", [False, True])
def test_a_process_of_this_host_that_is_gone_or_was_interrupted_is_not_waited_for(
    store: Store, monkeypatch: pytest.MonkeyPatch, is_this_one: bool
) -> None:
    monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", "3000")
    child = FORKS.Process(target=str)
    child.start()
    child.join()
    store.put(NAME, f"{HOST}-{os.getpid() if is_this_one else child.pid} token 1".encode())
    assert not has_running_build(store, lambda _: 0.0)
    assert state(store) == "interrupted"
    with Leases(store.folder(FOLDER)).hold(CLAIM) as lease:
        assert lease is None
    assert Leases(store.folder(FOLDER)).holder(CLAIM) is None
    with Leases(store.folder(FOLDER)).hold(CLAIM) as lease:
        assert lease is not None


@pytest.fixture
def elsewhere(tmp_path: Path) -> str:
    """The name of a process that has ended on a machine that is called like this one, as many are ``localhost``."""
    boot = tmp_path / "boot_id"
    boot.write_text(str(uuid.uuid4()))
    shown = f"mount --bind {boot} /proc/sys/kernel/random/boot_id && {sys.executable} -c '{TELL}'"
    told = subprocess.run(["unshare", "--mount", "sh", "-c", shown], capture_output=True, text=True)
    if told.returncode:
        pytest.skip(f"this user may not show a process another machine: {told.stderr}")
    return told.stdout.strip()


def test_a_process_of_another_machine_of_the_same_name_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: str
) -> None:
    monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", "3000")
    assert elsewhere.startswith(f"{platform.node()}.")
    storage = cachelayer.Storage(tmp_path)
    storage.submit([1], "d@v1")
    (tmp_path / "d" / FOLDER).mkdir(exist_ok=True)
    (tmp_path / "d" / NAME).write_bytes(f"{elsewhere} token 1".encode())
    working = tmp_path / "d" / paths.WORKING / f"cachelayer-build-0123456789ab-{elsewhere}"
    working.mkdir()
    storage.submit([2], "d@v2")
    assert storage.gc(grace=0) == []
    assert Leases(LocalStore(tmp_path / "d").folder(FOLDER)).holder(CLAIM) is not None
    assert working.exists()


def test_a_forked_child_leaves_the_lease_to_its_parent(store: Store) -> None:
    leases = Leases(store.folder(FOLDER))
    with leases.hold(CLAIM):
        with beside_threads():
            child = os.fork()
        if child:
            os.waitpid(child, 0)
            assert leases.is_alive(CLAIM)
    if child == 0:
        os._exit(0)
    assert leases.holder(CLAIM) is None


class IsAway(BucketStore):
    """Takes no beats while it is away."""

    away = threading.Event()
    missed = threading.Semaphore(0)

    def put(self, name: str, data: bytes) -> None:
        if self.away.is_set():
            self.missed.release()
            raise StorageError("away")
        super().put(name, data)


def test_beats_go_on_after_a_store_was_away(bucket: BucketStore) -> None:
    with Leases(IsAway("memory", bucket.root).folder(FOLDER)).hold(CLAIM):
        IsAway.away.set()
        assert IsAway.missed.acquire(timeout=60)
        IsAway.away.clear()
        assert Leases(bucket.folder(FOLDER)).is_alive(CLAIM)


def test_who_was_taken_for_dead_leaves_the_lease_to_its_successor(bucket: BucketStore) -> None:
    with Leases(IsAway("memory", bucket.root).folder(FOLDER)).hold(CLAIM):
        IsAway.away.set()
        assert IsAway.missed.acquire(timeout=60)
        bucket.delete(NAME)
        assert bucket.put_if_absent(NAME, DEAD)
    IsAway.away.clear()
    assert bucket.read(NAME) == DEAD


@pytest.mark.parametrize(
    ("lease", "seconds", "expected"),
    [
        ("v1/claim", 0.0, True),
        ("v1/claim", 0.4, False),
        (f"v1/host-00003-{'ab' * 16}.claim", 0.0, True),
        (f"v1/{'ab' * 16}.claim", 0.0, True),
        (f"v1/{'ab' * 16}/00003.json", 0.0, False),
        ("v1/claim", math.inf, False),
    ],
)
def test_somebody_is_at_work_while_a_lease_beats(
    bucket: BucketStore, lease: str, seconds: float, expected: bool
) -> None:
    bucket.put(f"d/_builds/{lease}", DEAD)
    assert has_running_build(bucket.folder("d"), lambda _: seconds) is expected
    assert not has_running_build(bucket.folder("e"), lambda _: 0.0)


@pytest.mark.parametrize("told", ["", "soon", "0", "nan", "inf"])
def test_a_lease_of_no_time_is_refused(monkeypatch: pytest.MonkeyPatch, bucket: BucketStore, told: str) -> None:
    monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", told)
    with pytest.raises(InvalidArgumentError, match=f"CACHELAYER_LEASE_SECONDS is '{told}'"):
        cachelayer.Storage(bucket.url, local_cache_bytes=0).submit([1], "d@v1")
    monkeypatch.delenv("CACHELAYER_LEASE_SECONDS")
    assert expiry() == EXPIRY
