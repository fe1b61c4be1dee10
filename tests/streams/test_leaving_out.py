"""Steps that are left out: on any number of shards, after any restore, with every other step as it was."""

import itertools
import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Case, cases
from samples import examples

import cachelayer
from cachelayer import InvalidArgumentError, InvalidTypeError, RecordIndexError, StateError

N = 50


def numbers(n: int = N) -> Any:
    return cachelayer.wrap(list(range(n)), identity="numbers")


def rows(item: Any) -> list[int]:
    return np.atleast_1d(item[0] if isinstance(item, tuple) else item).tolist()


@pytest.mark.filterwarnings("ignore::cachelayer.CacheLayerWarning")
@given(
    st.sampled_from([1, 2, 4]).flatmap(
        lambda shards: st.tuples(st.just(shards), cases(shards=shards, most=60, in_blocks=True))
    ),
    st.data(),
)
@settings(deadline=None, max_examples=examples(100))
def test_what_is_left_out_is_the_same_on_any_shards_and_after_any_restore(
    shards_and_case: tuple[int, Case], data: st.DataObject
) -> None:
    shards, case = shards_and_case
    options = {**case.arguments(), "prefetch": 0}
    streams = [numbers(case.n).stream(case.batch, shard=(shard, shards), **options) for shard in range(shards)]
    total = len(case.steps())
    left = data.draw(st.sets(st.integers(0, total - 1), max_size=4)) if total else set()
    stop, before = data.draw(st.integers(0, total - len(left))), data.draw(st.integers(0, min(left, default=0)))
    states = set()
    for stream in streams:
        rest = stream.without(steps=sorted(left))
        expected = [str(item) for step, item in enumerate(stream) if step not in left]
        assert [str(item) for item in rest] == expected
        assert len(rest) == len(expected)
        assert [str(rest[step]) for step in range(len(rest))] == expected
        assert [state for _, state in rest.with_state()] == [rest.state(step + 1) for step in range(len(rest))]
        iterator = iter(rest)
        assert [str(next(iterator)) for _ in range(stop)] == expected[:stop]
        states.add(json.dumps(iterator.get_state()))
        # A state from before is restored into a stream without steps; and a state carries what is left out.
        for target, state, begin in ((rest, stream.state(before), before), (stream, iterator.get_state(), stop)):
            restored = pickle.loads(pickle.dumps(iter(target)))
            restored.set_state(state)
            assert [str(item) for item in restored] == expected[begin:]
    (state,) = states
    alone = iter(numbers(case.n).stream(case.batch, **options))
    alone.set_state(state)
    of_shards = [iter(stream.without(steps=sorted(left))) for stream in streams]
    for iterator in of_shards:
        iterator.set_state(state)
    of_steps = zip(*of_shards, strict=True)
    assert [rows(item) for item in alone] == [[row for part in parts for row in rows(part)] for parts in of_steps]
    if case.remainder == "keep":
        sizes = {len(records) for step, (_, records) in enumerate(case.steps()) if step not in left}
        assert sizes <= rest._reader.schedule.step_sizes(case.start)


@pytest.mark.parametrize(("batch", "remainder"), [(None, "keep"), (5, "wrap"), (8, "keep"), (8, "wrap")])
def test_steps_are_left_out_by_the_records_in_them(batch: int | None, remainder: Any) -> None:
    stream = numbers().stream(batch, shuffle=True, seed=4, num_epochs=2, remainder=remainder)
    rest = stream.without(records=[7, 30])
    expected = [rows(item) for item in stream if not {7, 30} & set(rows(item))]
    assert [rows(item) for item in rest] == expected
    assert [rest.record_numbers(step).tolist() for step in range(len(rest))] == expected


def test_elements_are_left_out_on_any_shards_alone() -> None:
    for shards in (1, 2, 3):
        streams = [numbers().stream(shard=(shard, shards)).without(records=[7, 30]) for shard in range(shards)]
        seen = sorted(element for stream in streams for element in stream)
        assert seen == [record for record in range(N) if record not in (7, 30)]


def test_what_is_left_out_already_leaves_out_no_other_step() -> None:
    # The second step is left out by its number; the one before it then goes on behind it.
    state = numbers(20).stream(4, remainder="wrap").without(steps=[1]).state(0)
    iterator = iter(numbers(20).stream(6, remainder="wrap"))
    iterator.set_state(state)
    assert next(iterator).tolist() == [0, 1, 2, 3, 8, 9]
    for remainder in ("keep", "drop", "wrap"):
        rest = numbers(3).stream(8, num_epochs=3, remainder=remainder).without(records=[0])
        assert len(rest) == len(rest.without(records=[0])) == 0
    chained = numbers(20).stream(4, remainder="wrap", num_epochs=2).without(records=[2, 18]).without(records=[1, 17])
    assert [batch.tolist()[0] for batch in chained] == [4, 8, 12, 4, 8, 12]


@pytest.mark.parametrize("steps", [[1], [0, 1, 2, 3, 4]])
def test_epochs_that_wrap_go_on_after_what_is_left_out(steps: list[int]) -> None:
    rest = numbers(10).stream(8, remainder="wrap", num_epochs=4).without(steps=steps)
    batches = [batch.tolist() for batch in rest]
    assert [batch.tolist() for epoch in itertools.islice(rest.epochs(), 5) for batch in epoch] == batches


def test_a_last_step_that_wraps_takes_none_that_are_left_out() -> None:
    streams = [numbers(2).stream(shard=(shard, 3), remainder="wrap").without(records=[0]) for shard in range(3)]
    assert [list(stream) for stream in streams] == [[1], [1], [1]]
    assert list(numbers(2).stream(remainder="wrap").without(records=[0, 1])) == []


def test_the_state_after_the_last_step_is_restored_whatever_was_left_out_there() -> None:
    state = numbers(10).stream(8, remainder="wrap").without(steps=[1]).state(0)
    iterator = iter(numbers(10).stream(3, remainder="wrap"))
    iterator.set_state(state)
    assert [batch.tolist() for batch in iterator] == [[0, 1, 2], [3, 4, 5], [6, 7, 6]]
    again = iter(numbers(10).stream(3, remainder="wrap"))
    again.set_state(iterator.get_state())
    assert list(again) == []


def test_another_batch_size_leaves_out_the_same_records() -> None:
    stream = numbers().stream(8, shuffle=True, seed=4)
    gone = set(stream.record_numbers(2).tolist())
    iterator = iter(numbers().stream(5, shuffle=True, seed=4))
    iterator.set_state(stream.without(steps=[2]).state(0))
    assert sorted(row for batch in iterator for row in batch.tolist()) == sorted(set(range(N)) - gone)


def test_endless_streams_and_their_epochs_leave_out_steps_too() -> None:
    endless = numbers().stream(8, shuffle=True, seed=2, num_epochs=None)
    rest, far = endless.without(steps=[1, 10**9]), 10**12
    assert rest[0].tolist() == endless[0].tolist()
    assert rest[far].tolist() == endless[far + 2].tolist()
    epochs = numbers().stream(8, shuffle=True, seed=2).without(steps=[1]).epochs()
    first = [batch.tolist() for batch in next(epochs)]
    assert first == [endless[step].tolist() for step in (0, 2, 3, 4, 5, 6)]
    with pytest.raises(InvalidArgumentError, match="num_epochs"):
        endless.without(records=[3])


def test_a_state_stays_small() -> None:
    with pytest.raises(InvalidArgumentError, match="exclude"):
        numbers(5000).stream(2).without(steps=range(0, 2500, 2))
    assert len(json.dumps(numbers(5000).stream(2).without(steps=range(0, 2000, 2)).state(0))) < 20_000


def test_what_is_not_there_cannot_be_left_out() -> None:
    stream = numbers().stream(8)
    assert "left_out=((8, 24),)" in repr(stream.without(steps=[2, 1]))
    assert "left_out" not in repr(stream)
    with pytest.raises(RecordIndexError, match="step 7"):
        stream.without(steps=[7])
    with pytest.raises(RecordIndexError, match="record 50"):
        stream.without(records=[50])
    with pytest.raises(InvalidTypeError, match="step"):
        stream.without(steps=[1.5])
    state = stream.without(steps=[1]).state(0)
    for damaged in ([[1]], [["a", 2]], 3, [[-1, 2]]):
        with pytest.raises(StateError, match="left_out"):
            iter(stream).set_state({**state, "left_out": damaged})


@pytest.mark.parametrize("chosen", [{"steps": slice(0, 2)}, {"records": slice(0, 2)}, {"steps": 1}, {"records": 1}])
def test_what_lists_no_numbers_is_refused(chosen: Any) -> None:
    stream = cachelayer.wrap(list(range(10)), identity="ten").stream(4)
    with pytest.raises(cachelayer.InvalidTypeError, match=rf"{next(iter(chosen))}.*range"):
        stream.without(**chosen)
