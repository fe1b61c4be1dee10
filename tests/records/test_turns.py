"""Threads that read take turns, and a turn that is lost stops nobody."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer.access.open_shards import OpenShards
from cachelayer.access.readahead import ReadAhead
from cachelayer.arrayrecord.places import UniformRecords
from cachelayer.arrayrecord.ranged import RangedShards
from cachelayer.records import threads, turns
from cachelayer.records.threads import Cost, Reading, each
from cachelayer.records.turns import leave_turn, out_of_turn, take_turn

LONG = 1 << 20


@pytest.fixture(autouse=True)
def free() -> Iterator[None]:
    yield
    assert not turns._TURN.locked()


def test_a_read_has_the_turn_except_in_long_copies() -> None:
    with Reading(None):
        assert turns._TURN.locked()
        with out_of_turn(100):
            assert turns._TURN.locked()
        with out_of_turn(LONG):
            assert not turns._TURN.locked()
        assert turns._TURN.locked()
    with Reading(None), out_of_turn(LONG):
        assert not turns._TURN.locked()


def test_images_are_decoded_out_of_turn() -> None:
    found: list[bool] = []
    with Reading(1):
        each(3, lambda _: found.append(turns._TURN.locked()), Cost())
    assert found == [False] * 3


def test_another_thread_has_its_turn_while_one_copies() -> None:
    had = threading.Event()

    def read() -> None:
        with Reading(None):
            had.set()

    other = threading.Thread(target=read)
    with Reading(None):
        with out_of_turn(LONG):
            other.start()
            assert had.wait(30)
        other.join()


def test_a_turn_that_was_never_given_back_is_freed_by_the_next_thread() -> None:
    lost = threading.Thread(target=take_turn)
    lost.start()
    lost.join()
    assert turns._TURN.locked()
    with Reading(None), out_of_turn(LONG):
        assert not turns._TURN.locked()


def test_interrupts_that_end_each_wait_keep_no_thread_from_a_lost_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def __init__(self) -> None:
            self.lock = turns._TURN

        def acquire(self, *, blocking: bool = True, timeout: float = -1) -> bool:
            if blocking:
                raise KeyboardInterrupt
            return self.lock.acquire(blocking=False)

        def release(self) -> None:
            self.lock.release()

    assert turns._TURN.acquire(blocking=False)
    waits = 0
    with monkeypatch.context() as patch:
        patch.setattr(turns, "_TURN", Interrupted())
        turns._TAKEN[0] = time.monotonic()
        while True:
            try:
                with Reading(None):
                    break
            except KeyboardInterrupt:
                waits += 1
    assert waits


def test_a_thread_whose_turn_was_freed_meanwhile_goes_on() -> None:
    with Reading(None):
        turns._TURN.release()
    with Reading(None), out_of_turn(LONG):
        turns._TURN.acquire()


def test_a_forked_child_reads_although_a_thread_of_its_parent_had_the_turn() -> None:
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        take_turn()
        taken.set()
        done.wait(30)
        leave_turn()

    other = threading.Thread(target=hold)
    other.start()
    assert taken.wait(30)
    child = os.fork()
    if child == 0:
        with Reading(None):
            pass
        os._exit(turns._TURN.locked())
    assert os.waitpid(child, 0)[1] == 0
    done.set()
    other.join()


def test_a_read_that_fails_or_is_interrupted_leaves_the_turn() -> None:
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), Reading(None), out_of_turn(LONG):
            raise error


def test_a_read_that_is_interrupted_while_it_waits_for_its_turn_does_not_count_as_a_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threads, "take_turn", interrupted)
    with pytest.raises(KeyboardInterrupt), Reading(None):
        pass
    assert threading.get_ident() not in threads._READERS


def test_a_read_that_waits_for_a_disk_is_out_of_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = cachelayer.Storage(tmp_path).cache({"x": np.arange(1000)}, "d", "v1", progress=False)
    found: list[bool] = []
    records = type(ref._base.local_shards)._found  # type: ignore[attr-defined]

    def noted(*arguments: object, **options: object) -> object:
        found.append(turns._TURN.locked())
        return records(*arguments, **options)

    monkeypatch.setattr(type(ref._base.local_shards), "_found", noted)  # type: ignore[attr-defined]
    monkeypatch.setattr(ReadAhead, "load", lambda *_: True)
    ref.read(range(600))
    monkeypatch.setattr(ReadAhead, "announce", lambda *_: False)
    ref.read(range(600))
    assert found == [False, True]


def test_a_read_within_a_read_does_not_wait_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_SECONDS", 60)
    read = threading.Event()

    def nested() -> None:
        with Reading(None), Reading(None):
            read.set()

    thread = threading.Thread(target=nested)
    thread.start()
    try:
        assert read.wait(10)
    finally:
        if turns._TURN.locked():
            turns._TURN.release()
        thread.join()


def test_shards_are_opened_and_looked_up_out_of_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = cachelayer.Storage(tmp_path)
    storage.cache({"x": np.arange(4000)}, "d", "v1", shard_bytes=20_000, progress=False)
    found: list[tuple[str, bool]] = []

    def noted(owner: type, name: str) -> None:
        method = getattr(owner, name)

        def note(*arguments: object, **options: object) -> object:
            found.append((name, turns._TURN.locked()))
            return method(*arguments, **options)

        monkeypatch.setattr(owner, name, note)

    noted(OpenShards, "_checked")
    noted(ReadAhead, "_sample")
    refs: Any = [storage.fetch("d", "v1") for _ in range(2)]
    assert refs[0].read(range(600))["x"].tolist() == list(range(600))
    monkeypatch.setattr(ReadAhead, "announce", lambda *_: False)
    assert refs[1].read(range(0, 4000, 5))["x"].tolist() == list(range(0, 4000, 5))
    assert {name for name, _ in found} == {"_checked", "_sample"}
    assert not any(locked for _, locked in found)


def test_a_few_records_which_may_be_on_a_slow_disk_are_read_out_of_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref: Any = cachelayer.Storage(tmp_path).cache({"x": np.arange(1000)}, "d", "v1", progress=False)
    found: list[bool] = []
    slab = UniformRecords.slab

    def noted(records: UniformRecords, offset: int, nbytes: int) -> Any:
        found.append(turns._TURN.locked())
        return slab(records, offset, nbytes)

    monkeypatch.setattr(UniformRecords, "slab", noted)
    assert ref.read([3, 900])["x"].tolist() == [3, 900]
    assert found
    assert not any(found)


def test_what_comes_over_the_network_is_read_out_of_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://turns-{tmp_path.name}"
    cachelayer.Storage(url, local_cache_bytes=0).cache({"x": np.arange(1000)}, "d", "v1", progress=False)
    ref: Any = cachelayer.Storage(url, local_cache=tmp_path, verify="always").fetch("d", "v1")
    ref._base.shards.copy_all(lambda _: None)
    assert not ref._base.is_fetched
    (copy,) = tmp_path.rglob("*.array_record")
    raw = bytearray(copy.read_bytes())
    raw[raw.index((700).to_bytes(8, "little"))] ^= 1
    copy.write_bytes(raw)
    found: list[bool] = []
    records = RangedShards.records

    def noted(*arguments: Any) -> Any:
        found.append(turns._TURN.locked())
        return records(*arguments)

    monkeypatch.setattr(RangedShards, "records", noted)
    with pytest.warns(cachelayer.CacheLayerWarning, match="a local copy is damaged"):
        assert ref.read(range(1000))["x"].tolist() == list(range(1000))
    assert found == [False]
