"""Mixtures: shares exact within a bound, turns that go on across stages, and states that tell only the past."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from order_page import reference
from samples import examples
from test_golden import mixed_order, turns_by_stage

from cachelayer.streams.order.mixture import MOST_TURNS, MixedOrder, round_of, turns_of
from cachelayer.streams.order.orders import ExactOrder

MOST = 2**62
WEIGHT = st.one_of(st.just(0), st.integers(1, 40), st.floats(0.01, 1.0))


@st.composite
def schedules(draw: st.DrawFn) -> dict[int, tuple[float, ...]]:
    """Stages of 1 to 3,000 positions of 1 to 32 parts, each of which has a weight in one of them."""
    parts = draw(st.integers(1, 32))
    lengths = draw(st.lists(st.integers(1, 3000), max_size=4))
    starts = [0, *np.cumsum(lengths).tolist()]
    weights = [draw(st.lists(WEIGHT, min_size=parts, max_size=parts)) for _ in starts]
    for stage in weights:
        stage[draw(st.integers(0, parts - 1))] = 1
    for part in range(parts):
        if not any(stage[part] for stage in weights):
            weights[-1][part] = 0.5
    return dict(zip(starts, map(tuple, weights), strict=True))


@pytest.mark.parametrize(
    ("weights", "turns"),
    [
        ([5], [1]),
        ([0, 3, 0], [0, 1, 0]),
        ([2, 4], [1, 2]),
        ([0.7, 0.3], [7, 3]),
        ([0.123456789, 1], [7202, 58334]),
        ([65_536, 1], [65_535, 1]),
        ([1e-300, 1], [0, 65_536]),
        ([1] * 65_537, [1] * 65_536 + [0]),
    ],
)
def test_weights_become_turns_of_a_round(weights: list[float], turns: list[int]) -> None:
    assert list(turns_of([Fraction(str(weight)) for weight in weights])) == turns


FIBONACCI = st.tuples(st.integers(0, 14), st.floats(0.95, 1.05)).map(lambda pair: 1.618 ** -pair[0] * pair[1])


@given(st.one_of(*(st.lists(kind, min_size=2, max_size=60) for kind in (st.integers(1, 40), FIBONACCI))))
@settings(max_examples=examples(40), deadline=None)
def test_shares_are_those_of_the_weights_and_no_part_is_ever_two_turns_ahead_or_behind(weights: list[float]) -> None:
    exact = [Fraction(str(weight)) for weight in weights]
    turns = turns_of(exact)
    assert sum(turns) <= MOST_TURNS
    for turn, weight in zip(turns, exact, strict=True):
        assert abs(Fraction(turn, sum(turns)) - weight / sum(exact)) < Fraction(1, MOST_TURNS)
    part_of = round_of(turns).part_of
    assert np.bincount(part_of, minlength=len(turns)).tolist() == list(turns)
    for part, turn in enumerate(turns):
        ideal = np.arange(1, sum(turns) + 1) * turn / sum(turns)
        assert abs(np.cumsum(part_of == part) - ideal).max() <= (0.5 if len(turns) == 2 else 1.7)


@given(schedules())
@settings(max_examples=examples(40), deadline=None)
def test_turns_of_a_part_follow_one_another_through_all_stages(stages: dict[int, tuple[float, ...]]) -> None:
    starts, end = list(stages), list(stages)[-1] + 3000
    parts, turns = turns_by_stage(stages).at(np.arange(end))
    for part in range(len(stages[0])):
        assert turns[parts == part].tolist() == list(range(int((parts == part).sum())))
    for (first, last), weights in zip(pairwise([*starts, end]), stages.values(), strict=True):
        counts = np.bincount(parts[first:last], minlength=len(weights))
        assert abs(counts - (last - first) * np.array(weights) / sum(weights)).max() <= 1.7 + 3000 / MOST_TURNS


@given(schedules(), st.integers(0, 2**61), st.randoms(use_true_random=False))
@settings(max_examples=examples(40), deadline=None)
def test_any_position_is_found_without_those_before_it(
    stages: dict[int, tuple[float, ...]], far: int, random: Any
) -> None:
    turns_of_parts, fresh = turns_by_stage(stages), turns_by_stage(stages)
    positions = [*range(200), *(random.randrange(20_000) for _ in range(100)), *range(far, far + 40)]
    random.shuffle(positions)
    parts, turns = turns_of_parts.at(np.array(positions))
    for place in range(0, len(positions), 17):
        part, turn = fresh.at(np.array(positions[place : place + 1]))
        assert (part.tolist(), turn.tolist()) == ([parts[place]], [turns[place]])
    for part in np.unique(parts).tolist():
        mine = parts == part
        assert turns_of_parts.positions_of(part, turns[mine]).tolist() == np.array(positions)[mine].tolist()


@given(st.lists(st.integers(1, 12), min_size=1, max_size=5).map(tuple), st.data())
@settings(max_examples=examples(40), deadline=None)
def test_parts_go_through_epochs_of_their_own_up_to_their_ends(weights: tuple[int, ...], data: st.DataObject) -> None:
    sizes = tuple(data.draw(st.lists(st.integers(1, 60), min_size=len(weights), max_size=len(weights))))
    turns, seed = turns_by_stage({0: weights}), data.draw(st.integers(0, 2**64 - 1))
    records, first = mixed_order({0: weights}, list(sizes), seed).at(0, range(5000)), 0
    for part, size in enumerate(sizes):
        is_mine = (records >= first) & (records < first + size)
        mine = records[is_mine] - first
        for epoch in range(len(mine) // size):
            assert sorted(mine[epoch * size : (epoch + 1) * size].tolist()) == list(range(size))
        end = turns.end_of(part, size)
        assert end is not None
        assert is_mine[end - 1]
        assert is_mine[:end].sum() == size
        first += size


def test_the_past_is_the_stages_that_begin_before_a_position() -> None:
    stages = {0: (0.7, 0.3), 100: (0.5, 0.5), 200: (0.1, 0.9)}
    whole = turns_by_stage(stages)
    for position, count in ((0, 0), (1, 1), (100, 1), (101, 2), (200, 2), (201, 3), (MOST, 3)):
        past = whole.past(position)["mixture"]
        assert past["stages"] == count
        assert past == turns_by_stage(dict(list(stages.items())[: max(1, count)])).past(position)["mixture"]
    assert len({whole.past(position)["mixture"]["sha256"] for position in (0, 1, 101, 201)}) == 4


@given(st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 5000)), min_size=1, max_size=12), st.booleans())
@settings(max_examples=15, deadline=None)
def test_records_do_not_depend_on_what_was_asked_for_before(ranges: list[tuple[int, int]], is_shuffled: bool) -> None:
    turns = turns_by_stage({0: (5, 3, 0), 20_000: (1, 1, 2), 33_333: (0, 0.1, 0.9)})
    orders = tuple(ExactOrder(size, is_shuffled, size if is_shuffled else None) for size in (1000, 70_000, 300))
    whole = MixedOrder(turns, orders).compute(0, np.arange(65_000))
    order = MixedOrder(turns, orders)
    for start, count in ranges:
        assert order.at(0, range(start, start + count)).tolist() == whole[start : start + count].tolist()
        places = np.arange(start, start + count, 3)[::-1]
        assert order.at(0, places).tolist() == whole[places].tolist()
    ending = MixedOrder(turns, orders, length=7001)
    for epoch, start in ((0, 0), (1, 0), (3, 6900)):
        expected = whole[7001 * epoch + start : 7001 * (epoch + 1)].tolist()
        assert ending.at(epoch, range(start, 7001)).tolist() == expected


@given(schedules(), st.data())
@settings(max_examples=examples(20), deadline=None)
def test_turns_and_records_are_what_the_page_says(stages: Any, data: st.DataObject) -> None:
    position = data.draw(st.one_of(st.integers(0, 15_000), st.integers(0, MOST - 1)))
    parts, turns = turns_by_stage(stages).at(np.array([position]))
    assert (parts[0], turns[0]) == reference().turn_at(stages, position)
    sizes = data.draw(st.lists(st.integers(1, 50), min_size=len(stages[0]), max_size=len(stages[0])))
    seed = data.draw(st.integers(0, 2**64 - 1))
    record = mixed_order(stages, sizes, seed).at(0, np.array([position]))[0]
    part, number = reference().mixed_record(sizes, stages, seed, position)
    assert record == sum(sizes[:part]) + number
