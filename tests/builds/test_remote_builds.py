"""Building in object stores by many processes, some of which die or stop on the way."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from building_child import LEASE_SECONDS, RECORDS, Child, child, expected_digest
from servers import Server, new_bucket

import cachelayer
from cachelayer.objects import paths
from cachelayer.objects.open_store import open_store
from cachelayer.objects.store import ObjectStore
from cachelayer.versions.log import Log
from cachelayer.versions.snapshot import Snapshot


@dataclass(frozen=True)
class Place:
    """An empty prefix of a bucket, and what children need to build there."""

    server: Server
    url: str
    folder: Path

    @property
    def options(self) -> dict[str, Any]:
        return self.server.storage_options()

    @property
    def store(self) -> ObjectStore:
        return open_store(self.url, self.options)

    @property
    def storage(self) -> cachelayer.Storage:
        return cachelayer.Storage(self.url, local_cache=self.folder / "own", storage_options=self.options)

    def child(self, how: str, name: str, endpoint: str | None = None) -> AbstractContextManager[Child]:
        return child(how, self.url, self.server.storage_options(endpoint), self.folder / name)

    def head(self) -> Snapshot:
        return Log(self.store, "rows").head()

    def attempts(self) -> list[str]:
        return self.store.names("rows/_builds")


@pytest.fixture
def place(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", str(LEASE_SECONDS))
    return Place(server, server.url(new_bucket(server), "a/prefix"), tmp_path)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def wait_until(true: Callable[[], object], every: float = 0.1) -> None:
    """Ask again after so many seconds: what is waited for happens in a store, which tells nobody."""
    deadline, pause = time.monotonic() + 60, threading.Event()
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        pause.wait(every)


def running(place: Place, builder: Child) -> str:
    """The attempt of the one builder, once a shard of it is in the store."""
    assert builder.hears() == "building"
    wait_until(lambda: place.attempts() and place.store.names(paths.build("rows", place.attempts()[0])))
    return place.attempts()[0]


def check_whole(place: Place) -> None:
    """Whether the version is there and whole, and nothing else is."""
    ref = place.storage.fetch("rows", "v1")
    assert ref.digest == expected_digest()
    assert place.storage.verify("rows", "v1", progress=False)
    assert place.attempts() == [paths.attempt_of(place.head().versions["v1"].manifest)]
    assert place.store.names("rows/_leases/v1") == []


def test_of_processes_that_cache_at_once_one_builds_and_the_others_say_who(place: Place, stack: ExitStack) -> None:
    children = [stack.enter_context(place.child("cache", f"host-{number}")) for number in range(4)]
    with ThreadPoolExecutor(8) as threads:
        heard = {threads.submit(each.hears): each for each in children}
        shown = {each: threads.submit(each.shown, "waiting for") for each in children}
        first = next(as_completed(heard))
        builder = heard.pop(first)
        assert first.result() == "building"
        for each in heard.values():
            expected = f"rows@v1: waiting for process {builder.pid} on {os.uname().nodename}, "
            assert shown[each].result().startswith(expected)
        builder.go_on()
        outcome = builder.outcome()
        assert [other.result() for other in heard] == [outcome] * 3
    assert outcome["digest"] == expected_digest()
    assert outcome["numbers"] == [0, RECORDS - 1]
    check_whole(place)
    assert place.head().revoked == frozenset()
    assert place.store.names("rows/_running") == []


def test_a_builder_that_wakes_up_while_another_builds_cannot_publish(place: Place, stack: ExitStack) -> None:
    builder = stack.enter_context(place.child("cache anew", "a"))
    attempt = running(place, builder)
    successor = stack.enter_context(place.child("cache anew", "b"))
    successor.shown("waiting for")
    builder.send_signal(signal.SIGSTOP)
    assert successor.hears() == "building"
    builder.send_signal(signal.SIGCONT)
    builder.go_on()
    told = builder.outcome()
    assert told["error"] == "BuildRevokedError"
    assert attempt in told["message"]
    assert place.head().versions == {}
    successor.go_on()
    assert successor.outcome()["digest"] == expected_digest()
    check_whole(place)


def test_what_a_stopped_builder_has_finished_is_the_successors_and_stays_when_it_wakes_up(
    place: Place, stack: ExitStack
) -> None:
    builder = stack.enter_context(place.child("cache", "a"))
    first = running(place, builder)
    notes = f"{paths.unfinished('rows', 'v1')}/{first}"
    wait_until(lambda: {"plan.json", "00000.json", "00001.json"} <= set(place.store.names(notes)))
    builder.send_signal(signal.SIGSTOP)
    successor = stack.enter_context(place.child("cache", "b"))
    assert successor.hears() == "building"
    assert place.head().adopted.keys() == {first}
    second = place.head().adopted[first]
    successor.go_on()
    published = successor.outcome()
    builder.send_signal(signal.SIGCONT)
    builder.go_on()
    assert builder.outcome() == published
    ref = place.storage.fetch("rows", "v1")
    assert [shard.attempt for shard in ref._base.version.manifest.shards][:2] == [first, first]
    assert ref._base.version.manifest.attempts == {first, second}
    assert ref.digest == expected_digest()
    assert place.storage.gc(grace=0.0) == []
    assert place.storage.verify("rows", "v1", progress=False)


def test_of_two_builds_of_one_version_one_wins_and_the_other_removes_its_files(place: Place, stack: ExitStack) -> None:
    builders = [stack.enter_context(place.child("submit", name)) for name in ("a", "b")]
    for builder in builders:
        assert builder.hears() == "building"
    for builder in builders:
        builder.go_on()
    outcomes = [builder.outcome() for builder in builders]
    assert sorted(outcome.get("error", "") for outcome in outcomes) == ["", "AlreadyExistsError"]
    check_whole(place)
    assert place.store.names("rows/_running") == []
    copies = [list((place.folder / name).rglob("*.array_record")) for name in ("a", "b")]
    assert [bool(found) for found in copies] == ["error" not in outcome for outcome in outcomes]


def test_gc_leaves_a_running_build_alone_and_a_stopped_one_cannot_publish(place: Place, stack: ExitStack) -> None:
    builder = stack.enter_context(place.child("submit", "a"))
    attempt = running(place, builder)
    assert place.storage.gc(grace=3600) == []
    assert place.storage.gc(grace=0.0) == []
    assert place.attempts() == [attempt]
    assert place.head().revoked == frozenset()
    builder.send_signal(signal.SIGSTOP)
    # A beat that was on its way when it was stopped still counts.
    wait_until(lambda: place.storage.gc(grace=0.0) == [f"rows/{attempt}"], every=LEASE_SECONDS / 4)
    assert place.head().revoked == {attempt}
    assert place.attempts() == []
    builder.send_signal(signal.SIGCONT)
    builder.go_on()
    assert builder.outcome()["error"] == "BuildRevokedError"
    assert place.head().versions == {}
    assert place.attempts() == []
