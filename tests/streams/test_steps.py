"""The arithmetic of steps, against the naive model."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from reference import Case, cases

from cachelayer.streams.steps import Step, Steps

SHARDS = st.integers(1, 6)


def steps_of(case: Case, shards: int = 1) -> Steps:
    remainder: Any = case.remainder
    return Steps(case.n, case.batch, shards, remainder, case.epochs)


def expected_steps(case: Case) -> list[Step]:
    return [Step(position, position + len(records)) for position, records in case.steps()]


@given(cases())
def test_following_steps_visits_those_of_the_model(case: Case) -> None:
    steps, found, position = steps_of(case), [], case.start
    while (step := steps.at(position)) is not None:
        found.append(step)
        position = steps.after(step)
    assert found == expected_steps(case)
    assert steps.next_start(position) == case.positions()[-1]


@given(cases(), st.integers(0, 200))
def test_the_nth_step_needs_none_before_it(case: Case, number: int) -> None:
    expected = dict(enumerate(expected_steps(case)))
    assert steps_of(case).nth(case.start, number) == expected.get(number)


@given(cases())
def test_count_is_the_number_of_steps(case: Case) -> None:
    assert steps_of(case).count(case.start) == len(case.steps())


@given(cases(), st.data())
def test_count_with_an_offset_leaves_out_shorter_steps(case: Case, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, case.batch - 1))
    longer = [records for _, records in case.steps() if len(records) > offset]
    assert steps_of(case).count(case.start, offset) == len(longer)


@given(cases())
def test_where_a_step_starts_is_settled_at_once(case: Case) -> None:
    steps = steps_of(case)
    start = steps.next_start(case.start)
    assert steps.next_start(start) == start == case.positions()[0]


@given(SHARDS.flatmap(lambda shards: st.tuples(st.just(shards), cases(shards=shards))))
def test_parts_are_contiguous_and_cover_the_step(shards_and_case: tuple[int, Case]) -> None:
    shards, case = shards_and_case
    steps = steps_of(case, shards)
    for step in expected_steps(case):
        parts = [steps.part(step.end - step.begin, shard) for shard in range(shards)]
        assert parts[0][0] == 0
        assert all(one[1] == other[0] for one, other in pairwise(parts))
        assert parts[-1][1] == (case.batch if case.remainder == "pad" else step.end - step.begin)
        sizes = [last - first for first, last in parts]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] - sizes[-1] <= 1


@given(cases(), st.integers(1, 30))
def test_several_steps_are_some_in_a_row_of_one_run(case: Case, most: int) -> None:
    steps = steps_of(case)
    expected = expected_steps(case)
    several = steps.several(case.start, most)
    if not expected:
        assert several is None
        return
    assert several is not None
    inside = list(steps.single(several))
    assert inside == expected[: len(inside)]
    assert 1 <= len(inside) <= most
    assert len(inside) == 1 or several.begin // case.n == (several.end - 1) // case.n


def test_an_endless_stream_has_every_step_and_no_count() -> None:
    steps = Steps(10, 4, 1, "keep", None)
    assert steps.end is None
    assert steps.count(3) is None
    assert steps.nth(0, 3 * 10**12 + 2) == Step(10**13 + 8, 10**13 + 10)


def test_where_no_epoch_has_a_whole_step_all_are_dropped() -> None:
    steps = Steps(3, 4, 1, "drop", 5)
    assert [steps.next_start(position) for position in (0, 1, 3, 15)] == [15] * 4
    assert steps.at(0) is None
    assert steps.count(0) == 0
