"""Schedules against a model that visits every position: steps, counts, sizes and record numbers."""

from dataclasses import dataclass, replace
from itertools import count
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from samples import examples

from cachelayer.streams.order.buckets import BucketOrder
from cachelayer.streams.order.orders import ExactOrder
from cachelayer.streams.reading.chunk_plan import plan_of
from cachelayer.streams.schedule import Schedule


@dataclass(frozen=True)
class Model:
    """A schedule in order, and what is known of it: its epochs, of which the last one repeats."""

    schedule: Schedule
    epochs: list[tuple[int, int]]
    """The first record and the number of records of each."""

    def places(self) -> list[tuple[int, bool]]:
        """For the first positions: the record number there, and whether a step must begin there."""
        found = []
        for number in range(len(self.epochs) + 40):
            first, records = self.epochs[min(number, len(self.epochs) - 1)]
            found += [(first + place, place == 0 or place in self.schedule.order.cuts) for place in range(records)]
        return found

    def steps(self, start: int) -> list[list[int]]:
        """The positions of every step from a position on."""
        schedule, places = self.schedule, self.places()
        left_out = {position for low, high in schedule.left_out for position in range(low, high)}
        end = len(places) if schedule.end is None else schedule.end
        found: list[list[int]] = []
        step: list[int] = []
        for position in count(start):
            is_border = position >= len(places) or places[position][1] or position in left_out
            if step and is_border and not schedule.crosses:
                found += [] if schedule.drops else [step]
                step = []
            if position >= len(places) or (not step and position >= end):
                return found
            if position not in left_out:
                step.append(position)
            if len(step) == schedule.global_batch:
                found.append(step)
                step = []
        raise AssertionError


@st.composite
def models(draw: st.DrawFn) -> Model:
    shards = draw(st.sampled_from([1, 2, 3]))
    n = draw(st.integers(1, 12))
    batch = shards * draw(st.integers(1, 4))
    remainder: Any = draw(st.sampled_from(["keep", "drop", "pad", "wrap"]))
    epochs_in_all = draw(st.integers(1, 4))
    schedule = Schedule(ExactOrder(n), batch, True, remainder, epochs_in_all, shard_count=shards)
    epochs = [(0, n)]
    if draw(st.booleans()) and not schedule.crosses:
        sizes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any))
        table: Any = SimpleNamespace(sizes=sizes, take=lambda bucket, indices: indices + sum(sizes[:bucket]))
        epochs = [(0, sum(sizes))]
        schedule = replace(schedule, order=BucketOrder(table, batch))
    for _ in range(draw(st.integers(0, 2)) if not schedule.order.cuts else 0):
        _, records = epochs[-1]
        new = draw(st.integers(1, 9))
        under_way = draw(st.integers(0, 2))
        position = schedule.phases[-1].begin + under_way * records + draw(st.integers(1, records))
        schedule = schedule.advanced(position, records + new, "old", "new")
        epochs[-1:] = [*[(0, records)] * (under_way + 1), (records, new), (0, records + new)]
    ranges = st.tuples(st.integers(0, 60), st.integers(1, 9)).map(lambda pair: (pair[0], sum(pair)))
    return Model(schedule.without(draw(st.lists(ranges, max_size=3))), epochs)


@given(models(), st.integers(0, 30), st.integers(1, 4))
@settings(deadline=None, max_examples=examples(300))
def test_steps_are_those_of_a_model_that_visits_every_position(model: Model, start: int, most: int) -> None:
    schedule = model.schedule
    numbers = [number for number, _ in model.places()]
    expected = model.steps(start)
    whole = replace(schedule, shard_count=1, arranges=False)
    found = []
    position = start
    while (steps := whole.at(position, most)) is not None:
        plan = plan_of(replace(whole, remainder="keep") if whole.pads else whole, steps)
        found += [plan.positions[begin:end].tolist() for begin, end in zip(plan.splits, plan.splits[1:], strict=False)]
        assert schedule.order.cuts or plan.numbers.tolist() == [numbers[each] for each in plan.positions]
        assert plan.steps.after == [step.following for step in map(steps.__getitem__, range(len(steps)))]
        position = steps.following
    assert found == expected
    assert schedule.count(start) == len(expected)
    begins = [schedule.nth(start, number) for number in range(len(expected) + 1)]
    assert [step and step.begin for step in begins] == [*(step[0] for step in expected), None]
    sizes = {schedule.row_count(len(step)) for step in expected}
    assert sizes <= schedule.step_sizes(start) <= {*sizes, schedule.global_batch}


@given(models(), st.integers(0, 2**40))
@settings(deadline=None, max_examples=examples(100))
def test_any_step_of_a_stream_without_an_end_is_found_at_once(model: Model, number: int) -> None:
    endless = replace(model.schedule, num_epochs=None)
    if endless.has_no_step:
        assert endless.nth(0, number) is None
        return
    step = endless.nth(0, number)
    assert step is not None
    following = endless.nth(0, number + 1)
    assert following is not None
    assert (step.following, len(step)) == (following.begin, 1)
