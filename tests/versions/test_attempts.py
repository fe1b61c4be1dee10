"""Beats and turns: who is at work in a store, and who is not any more."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

import cachelayer
from cachelayer.errors import InvalidArgumentError, StorageError
from cachelayer.objects import paths
from cachelayer.objects.bucket_store import BucketStore
from cachelayer.versions.attempts import EXPIRY, BeatingAttempts, Heartbeat, expiry

LEASE_SECONDS = 0.3


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", str(LEASE_SECONDS))


@pytest.fixture
def root() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def store(root: str) -> BucketStore:
    return BucketStore("memory", root)


def beat_once(store: BucketStore, attempt: str) -> None:
    """What a process leaves that was killed after its first beat."""
    store.put(paths.build_lease("d", attempt), b'{"who": "process 1 on a", "status": "5 records", "beat": 1}')


def test_of_attempts_those_are_running_that_beat(store: BucketStore) -> None:
    attempts = BeatingAttempts(store, "d")
    beat_once(store, "killed")
    with attempts.running("alive", lambda: "at work"), attempts.running("other", lambda: "at work"):
        with attempts.running("ended", lambda: "at work"):
            pass
        assert attempts.are_running(["alive", "killed", "ended", "never", "other"]) == [True, False, False, False, True]
    assert store.names("d/_running") == ["killed"]
    attempts.forget("killed")
    assert attempts.are_running([]) == []
    assert store.names("d/_running") == []


def test_who_begins_to_watch_between_two_beats_takes_nobody_for_dead(store: BucketStore) -> None:
    beat_once(store, "a")
    watch = BeatingAttempts(store, "d")
    assert watch.look("a") == "unknown"
    assert watch.shown("a") == "process 1 on a, 5 records"
    store.put(paths.build_lease("d", "a"), b"damaged")
    assert watch.look("a") == "running"
    assert watch.shown("a") == "another process"
    assert watch.shown("b") == "another process"
    store.delete(paths.build_lease("d", "a"))
    assert watch.look("a") == "interrupted"


class IsAway(BucketStore):
    """Takes no beats while it is away."""

    away = threading.Event()
    missed = threading.Semaphore(0)

    def put(self, name: str, data: bytes) -> None:
        if self.away.is_set():
            self.missed.release()
            raise StorageError("away")
        super().put(name, data)


def test_beats_go_on_after_a_store_was_away(root: str, store: BucketStore) -> None:
    with BeatingAttempts(IsAway("memory", root), "d").running("a", lambda: "at work"):
        IsAway.away.set()
        for _ in range(3):
            assert IsAway.missed.acquire(timeout=60)
        IsAway.away.clear()
        assert BeatingAttempts(store, "d").are_running(["a"]) == [True]


def test_an_attempt_whose_first_beat_cannot_be_written_does_not_begin(root: str) -> None:
    IsAway.away.set()
    try:
        with pytest.raises(StorageError, match="away"):
            Heartbeat(IsAway("memory", root), "d/_running/a", lambda: "at work")
    finally:
        IsAway.away.clear()
    assert "cachelayer-heartbeat" not in {thread.name for thread in threading.enumerate()}


def test_a_version_has_one_leader_whose_claim_leaves_nothing_behind(store: BucketStore) -> None:
    together = threading.Barrier(8)

    def lead(_: int) -> bool:
        together.wait(60)
        with BeatingAttempts(store, "d").lead("v1", str) as lead:
            together.wait(60)
            return lead.is_ours

    with ThreadPoolExecutor(8) as threads:
        assert sorted(threads.map(lead, range(8))) == [False] * 7 + [True]
    assert store.names("d/_leases/v1") == store.names("d/_running") == []


def test_who_was_taken_for_dead_leaves_the_lead_to_its_successor(store: BucketStore) -> None:
    with ExitStack() as slow:
        first = slow.enter_context(BeatingAttempts(store, "d").lead("v1", str))
        store.delete(paths.build_lease("d", first.attempt))
        with BeatingAttempts(store, "d").lead("v1", str) as second:
            assert (second.is_ours, second.dead) == (True, first.attempt)
            slow.close()
            with BeatingAttempts(store, "d").lead("v1", str) as third:
                assert (third.is_ours, third.attempt) == (False, second.attempt)
    assert store.names("d/_leases/v1") == []


def test_a_damaged_turn_is_one_of_somebody_dead(store: BucketStore) -> None:
    store.put("d/_leases/v1/000001", b"damaged")
    with BeatingAttempts(store, "d").lead("v1", str) as lead:
        assert lead.is_ours
        assert lead.dead is None
    assert store.names("d/_leases/v1") == []


@pytest.mark.parametrize("told", ["", "soon", "0", "-1", "nan", "inf"])
def test_a_lease_of_no_time_is_refused(monkeypatch: pytest.MonkeyPatch, root: str, told: str) -> None:
    monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", told)
    with pytest.raises(InvalidArgumentError, match=f"CACHELAYER_LEASE_SECONDS is '{told}'"):
        cachelayer.Storage(f"memory://{root}", local_cache_bytes=0).submit([1], "d", "v1")
    monkeypatch.delenv("CACHELAYER_LEASE_SECONDS")
    assert expiry() == EXPIRY
