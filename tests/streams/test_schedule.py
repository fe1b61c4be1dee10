"""Weights that change: bounds in every stage, turns that go on across stages, and states that tell only the past."""

from __future__ import annotations

import ast
import pickle
import re
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import run_page
from repository import ROOT
from samples import examples

from cachelayer.streams.mixture import MixedOrder, Pattern, ends_of
from cachelayer.streams.schedule import Schedule
from cachelayer.streams.turn_tree import WHOLE, shares_of

MOST = 2**62
GOLDEN: dict[str, tuple[int, list[int], int]] = {
    "{0: (0.7, 0.3)}": (10**15, [0, 1, 0, 0, 1, 0, 0, 0], 7 * 10**14),
    "{0: (0.7, 0.3), 10: (0.2, 0.8)}": (6, [0, 0, 1, 0, 1, 1, 0, 1], 4),
    "{0: (0.4, 0.3, 0.2, 0.1), 1000: (0, 1, 1e-09, 0.5), 5000: (1, 1, 1, 1)}": (4996, [1, 3, 1, 1, 0, 2, 1, 3], 2964),
}


def schedule_of(stages: dict[int, Any]) -> Schedule:
    shares = tuple(shares_of([Fraction(weight) for weight in weights]) for weights in stages.values())
    return Schedule(tuple(stages), shares)


WEIGHT = st.one_of(st.just(0.0), st.floats(0.01, 1.0), st.floats(-30, 0).map(lambda power: 10.0**power))


@st.composite
def schedules(draw: st.DrawFn, least: int = 1) -> dict[int, tuple[float, ...]]:
    """Stages of 1 to 3,000 positions of 1 to 32 parts, each of which has a weight in one of them."""
    parts = draw(st.integers(1, 32))
    lengths = draw(st.lists(st.integers(1, 3000), min_size=least - 1, max_size=4))
    starts = [0, *np.cumsum(lengths).tolist()]
    weights = [draw(st.lists(WEIGHT, min_size=parts, max_size=parts)) for _ in starts]
    for stage in weights:
        stage[draw(st.integers(0, parts - 1))] = 1.0
    for part in range(parts):
        if not any(stage[part] for stage in weights):
            weights[-1][part] = 0.5
    return dict(zip(starts, map(tuple, weights), strict=True))


@given(schedules())
@settings(max_examples=examples(40))
def test_at_every_position_of_every_stage_each_part_has_its_share(stages: dict[int, tuple[float, ...]]) -> None:
    schedule = schedule_of(stages)
    starts, end = list(stages), list(stages)[-1] + 3000
    parts, turns = schedule.at(np.arange(end))
    for part in range(len(stages[0])):
        assert turns[parts == part].tolist() == list(range(int((parts == part).sum())))
    for (first, last), weights in zip(pairwise([*starts, end]), stages.values(), strict=True):
        bound = 0.5 if len(weights) == 2 else 1.5
        taken = np.arange(1, last - first + 1)
        for part, weight in enumerate(weights):
            exact = taken * (weight / sum(weights))
            counts = np.cumsum(parts[first:last] == part)
            assert abs(counts - exact).max() <= bound + 1e-9


@given(schedules(), st.integers(0, 2**61), st.randoms(use_true_random=False))
@settings(max_examples=examples(40))
@pytest.mark.slow
def test_any_position_is_found_without_those_before_it(
    stages: dict[int, tuple[float, ...]], far: int, random: Any
) -> None:
    schedule, fresh = schedule_of(stages), schedule_of(stages)
    positions = [*range(200), *(random.randrange(20_000) for _ in range(100)), *range(far, far + 40)]
    random.shuffle(positions)
    parts, turns = schedule.at(np.array(positions))
    for place in range(0, len(positions), 17):
        one = np.array(positions[place : place + 1])
        assert [each.tolist() for each in fresh.at(one)] == [[parts[place]], [turns[place]]]
    for part in np.unique(parts).tolist():
        mine = parts == part
        assert schedule.positions_of(part, turns[mine]).tolist() == np.array(positions)[mine].tolist()
        assert schedule.position_of(part, int(turns[mine][0])) == np.array(positions)[mine][0]


def test_a_part_that_ended_has_no_further_turns() -> None:
    schedule = schedule_of({0: (1, 1), 10: (0, 1), 30: (1, 0)})
    assert schedule.position_of(1, 24) == 29
    assert schedule.position_of(1, 25) is None
    # What is held for later turns of the part is let go after its last one.
    assert schedule.positions_of(1, np.array([24, 25, 10**9])).tolist() == [29, 29, 29]
    assert schedule.position_of(0, 5) == 30
    assert ends_of(schedule, [6, 25]) == [31, 30]
    assert ends_of(schedule, [5, 26]) == [9, None]


def test_a_part_with_hardly_any_weight_ends_past_the_largest_position() -> None:
    schedule = schedule_of({0: (1.0, 1e-300)})
    assert schedule.position_of(1, 0) is None
    assert schedule.positions_of(1, np.array([0, 10**12])).tolist() == [MOST, MOST]
    parts, turns = schedule.at(np.array([0, MOST - 1]))
    assert parts.tolist() == [0, 0]
    assert turns.tolist() == [0, MOST - 1]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6).map(tuple), st.data())
@settings(max_examples=examples(40))
def test_the_end_of_a_part_is_the_position_after_its_last_record(weights: tuple[int, ...], data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 60), min_size=len(weights), max_size=len(weights)))
    for turns in (Pattern(weights), schedule_of({0: weights})):
        order = MixedOrder(turns, tuple(sizes))
        for part, end in enumerate(ends_of(turns, sizes)):
            assert end is not None
            first = sum(sizes[:part])
            records = order(0, 0, end)
            mine = records[(records >= first) & (records < first + sizes[part])]
            assert mine.tolist() == list(range(first, first + sizes[part]))
            assert records[-1] == first + sizes[part] - 1


def test_the_past_is_the_stages_that_begin_before_a_position() -> None:
    stages = {0: (0.7, 0.3), 100: (0.5, 0.5), 200: (0.1, 0.9)}
    whole = schedule_of(stages)
    for position, count in ((0, 0), (1, 1), (100, 1), (101, 2), (200, 2), (201, 3), (MOST, 3)):
        past = whole.past(position)["mixture"]
        assert past["stages"] == count
        assert past == schedule_of(dict(list(stages.items())[: max(1, count)])).past(position)["mixture"]
    assert len({whole.past(position)["mixture"]["sha256"] for position in (0, 1, 101, 201)}) == 4


def test_a_schedule_travels_without_what_it_has_computed() -> None:
    schedule = schedule_of({start: (start + 1, 1, 2) for start in range(0, 10_000, 100)})
    before = len(pickle.dumps(schedule))
    found = schedule.at(np.arange(20_000))
    assert len(pickle.dumps(schedule)) == before
    again = pickle.loads(pickle.dumps(schedule)).at(np.arange(20_000))
    assert all((one == other).all() for one, other in zip(found, again, strict=True))


@pytest.fixture(scope="module")
def documented() -> dict[str, Any]:
    """What the code on the page defines."""
    return run_page("order.md", 6)


@pytest.mark.parametrize("text", GOLDEN)
def test_the_turns_of_a_schedule_are_these_for_ever(text: str) -> None:
    position, parts, turn = GOLDEN[text]
    found, turns = schedule_of(ast.literal_eval(text)).at(np.arange(position, position + 8))
    assert (found.tolist(), int(turns[0])) == (parts, turn)


def test_the_documented_vectors_are_what_the_turns_are() -> None:
    text = (ROOT / "docs" / "order.md").read_text()
    rows = re.findall(r"^\| `(\{0: .*\})` \| (\d+) \| ([\d, ]+) \| (\d+) \|$", text, re.MULTILINE)
    assert len(rows) >= 6
    listed = {}
    for stages, position, parts, turn in rows:
        listed[stages, int(position)] = [int(part) for part in parts.split(", ")]
        found, turns = schedule_of(ast.literal_eval(stages)).at(np.arange(int(position), int(position) + 8))
        assert found.tolist() == listed[stages, int(position)]
        assert int(turns[0]) == int(turn)
    assert all(listed[stages, position] == parts for stages, (position, parts, _) in GOLDEN.items())


@given(schedules(), st.data())
@settings(max_examples=examples(40))
def test_turns_are_what_the_documented_code_says(documented: dict[str, Any], stages: Any, data: st.DataObject) -> None:
    position = data.draw(st.one_of(st.integers(0, 15_000), st.integers(0, MOST - 1)))
    parts, turns = schedule_of(stages).at(np.array([position]))
    assert (parts[0], turns[0]) == documented["turn_at"](stages, position)


@given(schedules(), st.data())
@settings(max_examples=20)
def test_records_are_what_the_documented_code_says(
    documented: dict[str, Any], stages: Any, data: st.DataObject
) -> None:
    sizes = data.draw(st.lists(st.integers(1, 50), min_size=len(stages[0]), max_size=len(stages[0])))
    seed, start = data.draw(st.integers(0, 2**64 - 1)), data.draw(st.integers(0, 15_000))
    order = MixedOrder(schedule_of(stages), tuple(sizes), shuffle=True, seed=seed)
    for position, record in enumerate(order(0, start, start + 5).tolist(), start):
        part, number = documented["scheduled_record"](sizes, stages, seed, position)
        assert record == sum(sizes[:part]) + number


@given(st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 5000)), min_size=1, max_size=12), st.booleans())
@settings(max_examples=15)
def test_records_do_not_depend_on_what_was_asked_for_before(ranges: list[tuple[int, int]], is_shuffled: bool) -> None:
    schedule = schedule_of({0: (5, 3, 0), 20_000: (1, 1, 2), 33_333: (0, 0.1, 0.9)})
    sizes, seed = (1000, 70_000, 300), 3 if is_shuffled else None
    whole = MixedOrder(schedule, sizes, is_shuffled, seed)(0, 0, 65_000)
    order = MixedOrder(schedule_of(dict(zip(schedule.starts, schedule.shares, strict=True))), sizes, is_shuffled, seed)
    for start, count in ranges:
        assert order(0, start, start + count).tolist() == whole[start : start + count].tolist()
    ending = MixedOrder(schedule, sizes, is_shuffled, seed, length=7001)
    for epoch, start in ((0, 0), (1, 0), (3, 6900)):
        found = ending(epoch, start, 7001).tolist()
        assert found == whole[7001 * epoch + start : 7001 * (epoch + 1)].tolist()


def test_shares_are_exact() -> None:
    schedule = schedule_of({0: (0.7, 0.3)})
    for share, weight in zip(schedule.shares[0], (0.7, 0.3), strict=True):
        assert abs(Fraction(share, WHOLE) - Fraction(weight) / (Fraction(0.7) + Fraction(0.3))) < Fraction(1, 2**63)
