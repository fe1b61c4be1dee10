"""Streams against the naive model, and steps that are read together against those that are read alone."""

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference import Batch, Case, cases
from samples import examples, pairwise

import cachelayer
from cachelayer import ArraySpec, Blocks, Buckets, RecordIndexError, Stream
from cachelayer.streams.reading.failures import ReadContext

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{text}:cachelayer.CacheLayerWarning")
    for text in (".* shards share", "this stream is iterated over again")
]


def sharded(**options: Any) -> st.SearchStrategy[tuple[int, Case]]:
    """A number of shards, and any stream that they can share."""
    return st.integers(1, 5).flatmap(
        lambda shards: st.tuples(st.just(shards), cases(shards=shards, in_blocks=True, **options))
    )


def numbers(n: int) -> Any:
    """A dataset whose record k is k."""
    return cachelayer.wrap(list(range(n)), identity="numbers")


def streams(case: Case, shards: int, prefetch: int = 0) -> list[Stream[Any]]:
    arguments = {**case.arguments(), "prefetch": prefetch}
    return [numbers(case.n).stream(case.batch, shard=(shard, shards), **arguments) for shard in range(shards)]


def plain(batch: Any) -> Batch:
    if isinstance(batch, tuple):
        rows, mask = batch
        assert mask.dtype == np.bool_
        return rows.tolist(), mask.tolist()
    result: list[int] = batch.tolist()
    return result


def position(iterator: Any) -> int:
    found: int = iterator.get_state()["position"]
    return found


@given(sharded(), st.integers(0, 3))
@settings(deadline=None, max_examples=examples(150))
def test_every_shard_hands_out_what_the_model_says_with_one_state(
    shards_and_case: tuple[int, Case], prefetch: int
) -> None:
    shards, case = shards_and_case
    positions = case.positions()
    for shard, stream in enumerate(streams(case, shards, prefetch)):
        expected = case.batches(shard, shards)
        assert [plain(batch) for batch in stream] == expected
        assert len(stream) == len(expected)
        pairs = list(stream.with_state())
        assert [plain(batch) for batch, _ in pairs] == expected
        states = [iter(stream).get_state(), *(state for _, state in pairs)]
        assert states == [{**states[0], "position": position} for position in positions]
        assert states == [stream.state(step) for step in range(len(positions))]
        with pytest.raises(RecordIndexError, match=f"the stream has {len(expected)} steps"):
            stream.state(len(positions))


@given(sharded())
@settings(deadline=None)
def test_any_step_can_be_asked_for(shards_and_case: tuple[int, Case]) -> None:
    shards, case = shards_and_case
    for shard, stream in enumerate(streams(case, shards)):
        expected = case.batches(shard, shards)
        total = len(expected)
        for step in range(-total, total):
            assert plain(stream[step]) == expected[step]
            rows = expected[step][0] if case.remainder == "pad" else expected[step]
            assert stream.record_numbers(step).tolist() == rows
            assert stream.record_numbers(step).dtype == np.int64
        for outside in (total, -total - 1, 10**30, -(10**30)):
            with pytest.raises(RecordIndexError, match="step"):
                stream[outside]
            with pytest.raises(RecordIndexError, match=f"the stream has {total} steps"):
                stream.record_numbers(outside)


SEGMENTS = st.lists(
    st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 4), st.integers(0, 4), st.sampled_from(["keep", "pad"])),
    min_size=1,
    max_size=6,
)


@given(
    st.integers(1, 40),
    st.integers(1, 3),
    st.integers(0, 2**64 - 1),
    st.sampled_from([None, (3, 8, 4)]),
    SEGMENTS,
    st.randoms(),
)
@settings(deadline=None)
def test_stopping_and_going_on_with_other_shards_and_batches_loses_and_repeats_nothing(
    n: int, epochs: int, seed: int, blocks: Any, segments: list[tuple[int, int, int, str]], random: Any
) -> None:
    order = Case(n, 1, epochs, seed=seed, blocks=blocks).order()
    state: Any = None
    for shards, share, stop, remainder in [*segments, (1, 3, 10**6, "keep")]:
        case = Case(n, shards * share, epochs, seed=seed, remainder=remainder, blocks=blocks)
        iterators = [iter(stream) for stream in streams(case, shards, prefetch=random.randrange(3))]
        for iterator in iterators:
            if state is not None:
                iterator.set_state(state)
        begin, seen = position(iterators[0]), []
        for _ in range(stop):
            parts = [next(iterator, None) for iterator in iterators]
            if parts[0] is None:
                assert parts == [None] * shards
                break
            for part in parts:
                seen += (part[0][part[1]] if remainder == "pad" else part).tolist()
        states = [iterator.get_state() for iterator in iterators]
        assert states == [states[0]] * shards
        state = random.choice(states)
        # Only the rows of one step may be arranged otherwise.
        assert sorted(seen) == sorted(order[begin : state["position"]])
    assert state["position"] == len(order)


@given(sharded(), st.data())
@settings(deadline=None)
def test_an_iterator_goes_to_any_state_backwards_and_forwards(
    shards_and_case: tuple[int, Case], data: st.DataObject
) -> None:
    shards, case = shards_and_case
    shard = data.draw(st.integers(0, shards - 1))
    iterator = iter(streams(case, shards, prefetch=data.draw(st.integers(0, 2)))[shard])
    expected, positions = case.batches(shard, shards), case.positions()
    for _ in range(4):
        step = data.draw(st.integers(0, len(expected)))
        iterator.set_state({**iterator.get_state(), "position": positions[step]})
        for batch in expected[step : step + 3]:
            assert plain(next(iterator)) == batch
        assert position(iterator) == positions[min(step + 3, len(expected))]


@given(sharded(remainders=("keep", "drop")), st.integers(0, 1))
@example((3, Case(4, 3)), 0)
@settings(deadline=None)
def test_unbatched_shards_take_turns_and_their_states_agree(shards_and_case: tuple[int, Case], prefetch: int) -> None:
    shards, case = shards_and_case
    case = replace(case, batch=shards)
    for shard in range(shards):
        stream = numbers(case.n).stream(shard=(shard, shards), prefetch=prefetch, **case.arguments())
        parts = case.batches(shard, shards)
        iterator = iter(stream)
        assert position(iterator) == case.positions()[0]
        for step, (part, after) in enumerate(zip(parts, case.positions()[1:], strict=True)):
            assert stream.record_numbers(step).tolist() == part
            if part:
                assert [next(iterator)] == [stream[step]] == part
                assert position(iterator) == after
            else:
                with pytest.raises(RecordIndexError, match=f"no element for shard {shard}"):
                    stream[step]
        assert next(iterator, None) is None
        assert position(iterator) == case.end
        assert len(stream) == sum(map(len, parts))


@given(st.integers(1, 12), st.integers(1, 3), st.integers(0, 50), st.sampled_from(["keep", "drop", "pad"]))
@settings(deadline=None, max_examples=examples(20))
def test_endless_streams_are_finite_ones_that_go_on(n: int, share: int, start: int, remainder: str) -> None:
    batch = min(2 * share, n) if remainder == "drop" else 2 * share
    arguments: dict[str, Any] = {"shuffle": True, "seed": 5, "remainder": remainder, "start": start}
    endless = numbers(n).stream(batch, num_epochs=None, **arguments)
    finite = numbers(n).stream(batch, num_epochs=100, **arguments)
    expected = [plain(part) for part in itertools.islice(finite, 15)]
    assert [plain(part) for part in itertools.islice(endless, 15)] == expected
    assert [plain(endless[step]) for step in range(len(expected))] == expected
    with pytest.raises(TypeError, match="num_epochs"):
        len(endless)
    with pytest.raises(IndexError, match="no last step"):
        endless[-1]


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize(("batch", "shards", "prefetch"), pairwise([None, 1, 7, 300, 5000], [1, 3], [0, 2]))
def test_streams_longer_than_what_is_read_at_once(batch: int | None, shards: int, prefetch: int) -> None:
    n = 4001
    case = Case(n, shards if batch is None else batch * shards, epochs=2, start=17, seed=9)
    arguments = {**case.arguments(), "prefetch": prefetch}
    for shard in range(shards):
        stream = numbers(n).stream(None if batch is None else case.batch, shard=(shard, shards), **arguments)
        expected = [record for part in case.batches(shard, shards) for record in part]
        handed_out = list(stream)
        assert (handed_out if batch is None else np.concatenate(handed_out).tolist()) == expected
        assert len(stream) == len(handed_out)


def test_a_step_far_away_is_found_at_once() -> None:
    class Squares:
        def __len__(self) -> int:
            return 10**12

        def __getitem__(self, index: int) -> int:
            return index % 1000

    stream = cachelayer.wrap(Squares(), identity="squares").stream(512, shuffle=True, seed=1, num_epochs=None)
    per_epoch = -(-(10**12) // 512)
    step = 3 * per_epoch + 10**9
    iterator = iter(stream)
    iterator.set_state({**iterator.get_state(), "position": 3 * 10**12 + 10**9 * 512})
    records = stream.record_numbers(step)
    assert len(set(records.tolist())) == 512
    assert next(iterator).tolist() == (records % 1000).tolist() == stream[step].tolist()


def test_iterators_are_independent_and_exhausted_ones_stay_so_until_they_are_set_back() -> None:
    stream = numbers(5).stream(2, shuffle=True, seed=1)
    one, other = iter(stream), iter(stream)
    begin, first = one.get_state(), next(one).tolist()
    assert len(list(one)) == 2
    assert list(one) == []
    assert next(other).tolist() == first
    longer = iter(numbers(5).stream(2, shuffle=True, seed=1, num_epochs=2))
    longer.set_state(one.get_state())
    assert np.concatenate(list(longer)).tolist() == Case(5, 1, 2, seed=1).order()[5:]
    one.set_state(begin)
    assert len(list(one)) == 3


N, BATCH = 61, 6
SPEC = {"n": ArraySpec(np.int64), "s": ArraySpec(str), "v": ArraySpec(np.int64, (None,))}


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> Any:
    elements = [{"n": n, "s": "x" * (n % 7), "v": np.arange(n % 7)} for n in range(N)]
    storage = cachelayer.Storage(tmp_path_factory.mktemp("together"))
    return storage.cache(elements, "d@v1", shard_bytes=2000, element_spec=SPEC, progress=False)


def shown(batch: Any) -> str:
    return re.sub(r"\s+", " ", repr(batch))


VIEWS: dict[str, Callable[[Any], Any]] = {
    "all": lambda ref: ref,
    "reversed": lambda ref: ref[::-1],
    "strided": lambda ref: ref[5:60:3],
    "chosen": lambda ref: ref.select([4, 4, 60, 2, 9, 30, 1, 0, 8]),
    "sampled": lambda ref: ref.sample(np.arange(N, dtype=float), seed=3),
    "mixed": lambda ref: cachelayer.mix([(ref[:40], 3), (ref[40:], 1)]),
    "joined": lambda ref: cachelayer.concat([ref[20:], ref[:20]]),
}
ORDERS: dict[str, dict[str, Any]] = {
    "in order": {},
    "shuffled": {"shuffle": True, "seed": 5},
    "in blocks": {"shuffle": Blocks(4, 16, 8), "seed": 5},
    "in buckets": {"buckets": Buckets("v", [2, 4, 7]), "shuffle": True, "seed": 5},
}
PAIRS = [("strided", "in blocks"), ("joined", "in buckets"), ("reversed", "in buckets")]


@pytest.mark.parametrize(
    ("view", "order"),
    [*((view, "shuffled") for view in VIEWS), *(("all", order) for order in ORDERS), *PAIRS],
)
@given(
    st.sampled_from(["keep", "drop", "pad", "wrap"]),
    st.sampled_from([(0, 1), (0, 2), (2, 3)]),
    st.integers(0, 3 * N),
    st.integers(2, 12),
)
@settings(deadline=None, max_examples=examples(6))
def test_steps_read_together_are_those_read_alone(
    ref: Any, view: str, order: str, remainder: Any, shard: tuple[int, int], start: int, count: int
) -> None:
    options: dict[str, Any] = {**ORDERS[order], "remainder": remainder, "shard": shard, "prefetch": 0}
    if "buckets" in options and remainder == "wrap":
        options["remainder"] = "keep"
    if view in ("sampled", "mixed"):
        options.pop("remainder")
        if "buckets" in options or (view == "sampled" and "shuffle" in options):
            options = {"shard": shard, "prefetch": 0}
    else:
        options["num_epochs"] = 4
        start = 0 if "buckets" in options else min(start, 3 * len(VIEWS[view](ref)))
    reader = VIEWS[view](ref).stream(BATCH, start=start, **options)._reader
    position = reader.schedule.start
    while position < 5 * N and (steps := reader.schedule.at(position, count)) is not None:
        position = steps.following
        together, error = reader.read(steps, ReadContext())
        assert error is None
        alone = [reader.item(steps[number]) for number in range(len(steps))]
        assert list(map(shown, together)) == list(map(shown, alone))
