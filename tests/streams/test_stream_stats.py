"""What iterators say of themselves: the sums that hold, whose the numbers are, and what the verdict advises."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forks import in_a_fork

import cachelayer
from cachelayer import ArraySpec, StreamStats
from cachelayer.tally import ORIGINS

RECORDS, NBYTES = 600, 800
WORK = ("reading", "decoding", "mapping", "collating")


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> Any:
    def elements() -> Iterator[Any]:
        for number in range(RECORDS):
            tokens = np.full(1 + number % 50, number, np.int32)
            yield {"x": np.full(NBYTES // 8, number, np.int64), "tokens": tokens}

    spec = {"x": ArraySpec("int64", (NBYTES // 8,)), "tokens": ArraySpec("int32", (None,))}
    storage = cachelayer.Storage(tmp_path_factory.mktemp("stats"))
    return storage.submit(elements, "d", "v1", element_spec=spec)


def busy(seconds: float) -> None:
    """Work for so long, by the clock."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def working(seconds: float) -> Callable[[Any], Any]:
    """A function that works for so long, and passes its argument on."""

    def work(element: Any) -> Any:
        busy(seconds)
        return element

    return work


def work_of(stats: StreamStats) -> float:
    return sum(getattr(stats, name) for name in WORK)


def assert_sums(stats: StreamStats) -> None:
    assert stats.waited + stats.own == pytest.approx(stats.seconds)
    assert work_of(stats) + stats.idle == pytest.approx(stats.seconds + stats.helped, rel=0.05)
    assert all(getattr(stats, name) >= 0 for name in (*WORK, "waited", "own", "idle", "helped"))


def consumed(stream: Any, own: float = 0.0) -> StreamStats:
    """The stats at the end of a stream whose consumer works for so long on each item."""
    iterator = iter(stream)
    clocks, item = [time.perf_counter()], object()
    while item is not None:
        item = next(iterator, None)
        clocks.append(time.perf_counter())
        busy(own if item is not None else 0.0)
        clocks.append(time.perf_counter())
    stats: StreamStats = iterator.stats()
    assert_sums(stats)
    # The first call begins the time and the last one ends it. The clocks are those around each call.
    calls = [(before, after) for before, after in zip(clocks[::2], clocks[1::2], strict=False)]
    assert calls[-1][0] - calls[0][1] <= stats.seconds <= calls[-1][1] - calls[0][0]
    assert stats.waited <= sum(after - before for before, after in calls)
    return stats


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("batch", [20, None])
def test_the_parts_sum_to_the_time_and_show_a_slow_function(ref: Any, batch: int | None, prefetch: int) -> None:
    stream = ref[:200].stream(batch, shuffle=True, seed=1, prefetch=prefetch).map(working(0.002))
    stats = consumed(stream)
    assert stats.mapping >= 0.4
    assert stats.waited > 0.5 * stats.seconds
    # A machine that is busy may take as long to read so many single elements.
    assert batch is None or stats.bottleneck == "mapping"


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("batch", [20, None])
def test_the_parts_sum_to_the_time_and_show_a_slow_consumer(ref: Any, batch: int | None, prefetch: int) -> None:
    own = 0.02 if batch else 0.001
    stats = consumed(ref[:200].stream(batch, shuffle=True, seed=1, prefetch=prefetch), own)
    assert stats.own >= 0.2
    assert stats.own > 0.3 * stats.seconds
    assert stats.idle > 0.3 * stats.seconds
    assert stats.mapping == stats.collating == 0


def test_a_function_of_batches_counts_as_mapping_and_a_stack_of_outputs_as_collating(ref: Any) -> None:
    stats = consumed(ref[:100].stream(10).map(lambda e: e["x"]).map_batches(working(0.01)))
    assert stats.mapping >= 0.1
    assert stats.collating > 0
    assert stats.mapping > stats.collating


def test_decompression_and_text_count_as_decoding(tmp_path: Path) -> None:
    texts = [{"text": "word " * 500} for _ in range(300)]
    ref = cachelayer.Storage(tmp_path).submit(texts, "d", "v1", compression="zstd")
    stats = consumed(ref.stream(50, prefetch=0))
    assert stats.decoding > 0
    assert stats.nbytes["memory_map"] + stats.nbytes["disk"] > 300 * 2500


class Slow:
    """An object that takes its time for each item."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, number: int) -> Any:
        busy(0.001)
        return {"x": np.full(4, number)}


@pytest.mark.parametrize("prefetch", [0, 2])
def test_items_of_a_wrapped_object_count_as_reading(prefetch: int) -> None:
    stats = consumed(cachelayer.wrap(Slow(), identity="slow").stream(10, prefetch=prefetch))
    assert stats.reading >= 0.1
    assert stats.bottleneck == "reading"
    assert "cache it" in str(stats)
    assert set(stats.nbytes.values()) == {0}


def rows_of(item: Any) -> int:
    item = item[0] if isinstance(item, tuple) else item
    leaf = next(iter(item.values()))
    return int(leaf.shape[0])


KINDS: dict[str, Callable[[Any], Any]] = {
    "in order": lambda ref: ref.stream(64),
    "a short last step": lambda ref: ref[:100].stream(64, shard=(1, 2)),
    "dropped": lambda ref: ref[:100].stream(64, remainder="drop", num_epochs=2),
    "padded rows": lambda ref: ref[:100].stream(64, remainder="pad"),
    "blocks": lambda ref: ref.stream(64, shuffle=cachelayer.Blocks(records=8, window=64), seed=1),
    "mixture": lambda ref: cachelayer.mix([(ref[:100], 3), (ref[100:], 1)]).stream(64, shuffle=True, seed=1),
    "concat": lambda ref: cachelayer.concat([ref[:100], ref[300:]]).stream(64, shuffle=True, seed=1),
    "windows": lambda ref: ref.windows("tokens", 16).stream(32, shuffle=True, seed=1),
    "packs": lambda ref: ref.packed("tokens", 64).stream(32, shuffle=True, seed=1),
    "padded": lambda ref: ref.padded({"tokens": 64}).stream(32),
    "fields": lambda ref: ref.fields("x").stream(32),
    "buckets": lambda ref: ref.stream(32, shuffle=True, seed=1, buckets=("tokens", [10, 50])),
    "several concatenated views": lambda ref: cachelayer.concat(
        [ref.windows("tokens", 16), ref[:300].windows("tokens", 16)]
    ).stream(32, shuffle=True, seed=1),
    "wrapped": lambda _: cachelayer.wrap([{"x": np.zeros(3)}] * 100, identity="zeros").stream(32),
    "weighted": lambda ref: ref.sample(np.arange(1.0, RECORDS + 1), seed=1).stream(64),
    "endless": lambda ref: ref.stream(64, shuffle=True, seed=1, num_epochs=None),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mapped", [False, True], ids=["plain", "mapped"])
def test_every_stream_answers_and_counts_the_records_that_it_handed_out(ref: Any, kind: str, mapped: bool) -> None:
    stream = KINDS[kind](ref)
    if mapped:
        stream = stream.map(lambda element: {"x": next(iter(element.values()))[:1]})
    iterator, records = iter(stream), 0
    for _, item in zip(range(30), iterator, strict=False):
        records += rows_of(item)
        assert iterator.stats().records == records
    stats = iterator.stats()
    assert records > 0
    assert stats.records == records
    assert_sums(stats)
    assert stats.reading > 0
    assert (stats.mapping > 0) == mapped
    assert kind == "wrapped" or sum(stats.nbytes.values()) > 0
    assert (stats.requests, stats.retries) == (0, 0)


@pytest.mark.parametrize("shard", [(0, 1), (2, 3)])
def test_elements_are_counted_one_by_one(ref: Any, shard: tuple[int, int]) -> None:
    iterator = iter(ref.stream(shard=shard, shuffle=True, seed=1))
    for count in range(1, 20):
        next(iterator)
        assert iterator.stats().records == count
    assert iterator.stats().queue_depth > 0
    for _ in iterator:
        pass
    assert iterator.stats().records == RECORDS // shard[1]
    assert iterator.stats().queue_depth == 0


def test_bytes_of_local_files_are_those_of_the_records(ref: Any) -> None:
    stats = consumed(ref.stream(50))
    stored = sum(ref.raw()._base.records(np.arange(RECORDS)).lengths.tolist())
    assert stats.nbytes["memory_map"] + stats.nbytes["disk"] == stored
    assert stats.nbytes["range"] == stats.nbytes["copy"] == 0


def test_an_iterator_that_never_started_has_read_nothing(ref: Any) -> None:
    stats = iter(ref.stream(64)).stats()
    assert str(stats) == "nothing read yet"
    assert stats.bottleneck is None
    numbers = dataclasses.asdict(stats)
    assert numbers.pop("prefetch") == 2
    assert numbers.pop("nbytes") == dict.fromkeys(ORIGINS, 0)
    assert set(numbers.values()) == {0}


def test_stats_are_json(ref: Any) -> None:
    stats = consumed(ref.stream(64))
    assert json.loads(json.dumps(dataclasses.asdict(stats)))["records"] == RECORDS


def test_the_time_ends_with_the_stream_and_goes_on_after_a_restore(ref: Any) -> None:
    iterator = iter(ref.stream(100))
    state = iterator.get_state()
    assert len(list(iterator)) == 6
    ended = iterator.stats()
    busy(0.01)
    assert iterator.stats().seconds == ended.seconds
    assert next(iterator, None) is None
    assert iterator.stats().records == RECORDS
    iterator.set_state(state)
    next(iterator)
    again = iterator.stats()
    assert again.records == RECORDS + 100
    assert again.seconds > ended.seconds
    assert again.waited > ended.waited
    next(iterator)
    iterator.set_state(state)
    assert iterator.stats().records == RECORDS + 200


def failing(at: int) -> Callable[[Any], Any]:
    def function(element: Any) -> Any:
        if int(element["x"][0]) == at:
            raise ValueError("a bad element")
        return element["x"]

    return function


@pytest.mark.parametrize("function", [failing(130), lambda element: element["x"] if element["x"][0] != 130 else None])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_after_an_error_they_answer_still(ref: Any, prefetch: int, function: Callable[[Any], Any]) -> None:
    iterator = iter(ref.stream(50, prefetch=prefetch).map(function))
    next(iterator), next(iterator)
    for _ in range(2):
        with pytest.raises((ValueError, cachelayer.ElementError)):
            next(iterator)
        stats = iterator.stats()
        assert stats.records == 100
        assert_sums(stats)


def test_iterators_at_once_have_each_their_own(ref: Any) -> None:
    plain, mapped = iter(ref.stream(50)), iter(ref.stream(100).map(working(0.0005)))
    list(zip(mapped, plain, strict=False))
    assert (plain.stats().records, mapped.stats().records) == (300, 600)
    assert plain.stats().mapping == 0
    assert mapped.stats().mapping >= 0.3


def test_a_function_that_reads_other_records_does_not_count_them_as_its_streams(ref: Any) -> None:
    def look_up(element: Any) -> Any:
        until = time.monotonic() + 0.002
        found = ref.read([int(element["x"][0])])["x"]
        while time.monotonic() < until:
            found = ref.read([int(element["x"][0])])["x"]
        return found

    plain = consumed(ref[:40].stream(10))
    looked_up = consumed(ref[:40].stream(10).map(look_up))
    assert sum(looked_up.nbytes.values()) == sum(plain.nbytes.values())
    assert looked_up.mapping >= 40 * 0.002


@pytest.mark.parametrize("batch", [10, None])
def test_records_that_a_wrapped_object_reads_count_and_its_own_time_is_reading(ref: Any, batch: int | None) -> None:
    class Looking:
        def __len__(self) -> int:
            return 40

        def __getitem__(self, number: int) -> Any:
            found = ref.fields("x").read([number])["x"][0]
            busy(0.001)
            return {"x": found}

    stats = consumed(cachelayer.wrap(Looking(), identity="looking").stream(batch))
    assert sum(stats.nbytes.values()) > 40 * NBYTES
    assert stats.reading >= 0.04
    assert stats.decoding < stats.reading / 2


@pytest.mark.parametrize("prefetch", [0, 2])
def test_another_thread_sees_what_an_iterator_waits_for_while_it_waits(ref: Any, prefetch: int) -> None:
    entered, free = threading.Event(), threading.Event()

    def stuck(element: Any) -> Any:
        entered.set()
        assert free.wait(60)
        return element["x"]

    iterator = iter(ref.stream(50, prefetch=prefetch).map(stuck))
    consumer = threading.Thread(target=next, args=(iterator,))
    consumer.start()
    assert entered.wait(60)
    first = iterator.stats()
    busy(0.02)
    later = iterator.stats()
    while later.bottleneck != "mapping":
        later = iterator.stats()
    free.set()
    consumer.join()
    assert later.waited - first.waited >= 0.02
    assert later.mapping - first.mapping >= 0.02
    assert later.own == pytest.approx(first.own, abs=0.001)
    assert "mapping takes the most" in str(later)
    assert (first.records, iterator.stats().records) == (0, 50)


def test_copies_count_anew(ref: Any) -> None:
    iterator = iter(ref.stream(50))
    next(iterator)
    for other in (copy.copy(iterator), pickle.loads(pickle.dumps(iterator))):
        assert str(other.stats()) == "nothing read yet"
        next(other)
        assert other.stats().records == 50


def test_a_forked_child_counts_on(ref: Any) -> None:
    entered = threading.Event()

    def noted(element: Any) -> Any:
        entered.set()
        return working(0.001)(element)["x"]

    iterator = iter(ref[:200].stream(50, prefetch=1).map(noted))
    next(iterator)
    # The thread of the parent is in the function now.
    entered.clear()
    assert entered.wait(60)

    def rest() -> tuple[float, StreamStats]:
        first = iterator.stats()
        busy(0.005)
        idle = iterator.stats().idle - first.idle
        list(iterator)
        return idle, iterator.stats()

    idle, stats = in_a_fork(rest)
    # The thread of the parent is not there.
    assert idle >= 0.005
    assert stats.records == 200
    assert_sums(stats)


STATS = iter(cachelayer.wrap([0], identity="nothing").stream()).stats()
NONE = dict.fromkeys(ORIGINS, 0)
READS = replace(STATS, seconds=10.0, waited=6.0, own=4.0, reading=6.0, idle=4.0)


@pytest.mark.parametrize(
    ("stats", "verdict"),
    [
        (replace(READS, waited=0.3, own=9.7), "waited for data 3 % of the time (0.3 of 10 s)"),
        (replace(READS, nbytes={**NONE, "range": 5}), "over the network"),
        (replace(READS, nbytes={**NONE, "range": 5}, requests=10, retries=4), "4 of 10 requests repeat"),
        (
            replace(READS, nbytes={**NONE, "range": 5}, requests=1000, retries=4),
            "60 % of the time (6 of 10 s); r",
        ),
        (replace(READS, nbytes={**NONE, "disk": 5, "memory_map": 4}), "not in memory"),
        (replace(READS, nbytes={**NONE, "memory_map": 4}), "leave leaves out"),
        (replace(READS, nbytes={**NONE, "copy": 4}), "leave leaves out"),
        (READS, "an object that is not cached makes the records: cache it"),
        (replace(READS, reading=1.0, decoding=7.0, idle=2.0), "decoding takes the most (88 % of the work)"),
        (replace(READS, reading=1.0, mapping=7.0, idle=2.0), "mapping takes the most (88 % of the work)"),
        (replace(READS, reading=1.0, collating=7.0, idle=2.0), "collating takes the most (88 % of the work)"),
        (replace(READS, waited=2.0, own=8.0, reading=3.0, idle=7.0), "reading ahead was idle 70 % of the time"),
        (replace(READS, prefetch=0), "nothing is read ahead: leave out prefetch=0 (reading takes the most)"),
        (replace(READS, prefetch=0, waited=9.9, own=0.1), "reading takes the most (100 % of the work)"),
        (replace(READS, reading=0.0, idle=10.0, records=5), "other processes read for it"),
        (replace(READS, reading=0.0, idle=10.0), "no records have come"),
    ],
)
def test_the_verdict_says_what_to_do(stats: StreamStats, verdict: str) -> None:
    assert verdict in str(stats)
    assert "\n" not in str(stats)
