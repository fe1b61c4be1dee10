"""Mixtures: shares exact within a bound, turns that go on across stages, and states that tell only the past."""

from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import example, given, settings
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


FIBONACCI = st.tuples(st.integers(0, 14), st.floats(0.95, 1.05)).map(lambda pair: 1.618 ** -pair[0] * pair[1])


@given(st.one_of(*(st.lists(kind, min_size=1, max_size=60) for kind in (WEIGHT, FIBONACCI))).filter(any))
@example([65_536, 1])
@example([1e-300, 1])
@settings(max_examples=examples(60), deadline=None)
def test_shares_are_those_of_the_page_and_no_part_is_ever_two_turns_ahead_or_behind(weights: list[float]) -> None:
    exact = [Fraction(str(weight)) for weight in weights]
    turns = turns_of(exact)
    assert list(turns) == reference().turns_of(weights)
    for turn, weight in zip(turns, exact, strict=True):
        assert abs(Fraction(turn, sum(turns)) - weight / sum(exact)) < Fraction(1, MOST_TURNS)
    part_of = round_of(turns).part_of
    assert np.bincount(part_of, minlength=len(turns)).tolist() == list(turns)
    for part, turn in enumerate(turns):
        ideal = np.arange(1, sum(turns) + 1) * turn / sum(turns)
        assert abs(np.cumsum(part_of == part) - ideal).max() <= (0.5 if len(turns) == 2 else 1.7)


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


@given(schedules(), st.data())
@settings(max_examples=examples(20), deadline=None)
def test_a_part_ends_after_the_turn_of_its_last_record(
    stages: dict[int, tuple[float, ...]], data: st.DataObject
) -> None:
    part, size = data.draw(st.integers(0, len(stages[0]) - 1)), data.draw(st.integers(1, 200))
    turns = turns_by_stage(stages)
    is_mine = turns.at(np.arange(20_000))[0] == part
    end = turns.end_of(part, size)
    if end is None or end > 20_000:
        assert is_mine.sum() < size
    else:
        assert is_mine[end - 1]
        assert is_mine[:end].sum() == size


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
