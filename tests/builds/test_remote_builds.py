"""Building in object stores by many processes, some of which die or stop on the way."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from building_child import LEASE_SECONDS, RECORDS, Child, child, expected_digest
from leftovers import assert_only_versions_are_left, files_below
from servers import Server, new_bucket

import cachelayer
from cachelayer.support.host import process_name
from cachelayer.testing.engines import wait_until

HOST = process_name().rpartition("-")[0]


@dataclass(frozen=True)
class Place:
    """An empty prefix of a bucket, and what children need to build there."""

    server: Server
    url: str
    folder: Path

    @property
    def storage(self) -> cachelayer.Storage:
        options = self.server.storage_options()
        return cachelayer.Storage(self.url, local_cache=self.folder / "own", storage_options=options)

    def child(self, how: str, name: str) -> AbstractContextManager[Child]:
        return child(how, self.url, self.server.storage_options(), self.folder / name)

    def shards(self) -> list[str]:
        return self.storage._store.names("rows/shards")


@pytest.fixture
def place(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", str(LEASE_SECONDS))
    return Place(server, server.url(new_bucket(server), "a/prefix"), tmp_path)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def has_begun(place: Place, builder: Child) -> None:
    """Wait until a shard of the one builder is in the store."""
    assert builder.hears() == "building"
    wait_until(place.shards)


def check_whole(place: Place) -> None:
    """Whether the version is there and whole, and nothing else is."""
    assert place.storage.fetch("rows@v1").digest == expected_digest()
    assert_only_versions_are_left(place.storage, "rows")


def test_of_processes_that_cache_at_once_one_builds_and_the_others_say_who(place: Place, stack: ExitStack) -> None:
    children = [stack.enter_context(place.child("cache", f"host-{number}")) for number in range(4)]
    with ThreadPoolExecutor(8) as threads:
        heard = {threads.submit(each.hears): each for each in children}
        shown = {each: threads.submit(each.shown, "waiting for") for each in children}
        first = next(as_completed(heard))
        builder = heard.pop(first)
        assert first.result() == "building"
        for each in heard.values():
            expected = f"rows@v1: waiting for {HOST}-{builder.pid} "
            assert shown[each].result().startswith(expected)
        builder.go_on()
        outcome = builder.outcome()
        assert [other.result() for other in heard] == [outcome] * 3
    assert outcome["digest"] == expected_digest()
    assert outcome["numbers"] == [0, RECORDS - 1]
    check_whole(place)


@pytest.mark.parametrize("first", ["successor", "sleeper"])
def test_a_builder_that_wakes_up_beside_its_successor_gets_the_one_version(
    first: str, place: Place, stack: ExitStack
) -> None:
    sleeper = stack.enter_context(place.child("cache", "a"))
    has_begun(place, sleeper)
    successor = stack.enter_context(place.child("cache", "b"))
    successor.shown("waiting for")
    sleeper.send_signal(signal.SIGSTOP)
    assert successor.hears() == "building"
    outcomes = []
    for builder in (sleeper, successor) if first == "sleeper" else (successor, sleeper):
        if builder is sleeper:
            sleeper.send_signal(signal.SIGCONT)
        builder.go_on()
        outcomes.append(builder.outcome())
    assert outcomes[0] == outcomes[1]
    assert outcomes[0]["digest"] == expected_digest()
    assert not files_below(place.storage, "rows/_builds")
    check_whole(place)


def test_gc_leaves_a_running_build_alone_and_what_it_takes_for_dead_cannot_be_published(
    place: Place, stack: ExitStack
) -> None:
    builder = stack.enter_context(place.child("submit", "a"))
    has_begun(place, builder)
    assert place.storage.gc(grace=3600) == []
    assert place.storage.gc(grace=0.0) == []
    assert place.shards()
    builder.send_signal(signal.SIGSTOP)
    # A beat that was on its way when it was stopped still counts.
    wait_until(lambda: place.storage.gc(grace=0.0))
    assert place.shards() == []
    builder.send_signal(signal.SIGCONT)
    builder.go_on()
    assert builder.outcome()["error"] == "BuildRevokedError"
    assert place.storage.versions("rows") == {}
    again = stack.enter_context(place.child("submit", "b"))
    again.go_on()
    told = again.outcome()
    assert told.get("digest") == expected_digest(), told
    check_whole(place)
