"""Batches from buckets: the steps that the page specifies, and any of them at once."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from order_page import reference
from samples import examples
from test_golden import Numbered

from cachelayer import Blocks, Buckets, InvalidArgumentError, StateError
from cachelayer.protocols import Digests
from cachelayer.streams.order.buckets import BucketOrder
from cachelayer.streams.schedule import Schedule
from cachelayer.streams.state import restore, state_of
from cachelayer.streams.stream_options import make_options

DIGESTS = Digests.of("0")
SEEDS = st.none() | st.integers(0, 2**64 - 1)


TABLES = st.lists(st.integers(0, 30), min_size=1, max_size=5).map(lambda sizes: Numbered(tuple(sizes)))


def options_of(table: Any, batch: int, seed: int | None = None, **options: Any) -> Schedule:
    options = {"shuffle": seed is not None, "seed": seed} | options
    return make_options(sum(table.sizes), batch, 1, table, **options)


def steps_of(schedule: Schedule) -> list[tuple[int, int, list[int]]]:
    """The begin, the bucket and the records of every step, one after another."""
    found, position, records = [], schedule.start, max(1, schedule.records)
    order = schedule.order
    assert isinstance(order, BucketOrder)
    while (step := schedule.at(position, 1)) is not None:
        epoch, place = divmod(step.begin, records)
        numbers = order.at(epoch, range(place, place + step.end - step.begin)).tolist()
        found.append((step.begin, int(order.locate(epoch, np.array([place]))[0][0]), numbers))
        position = step.following
    return found


@given(TABLES, st.integers(1, 9), SEEDS, st.integers(0, 3), st.booleans(), st.sampled_from(["keep", "drop", "pad"]))
@settings(deadline=None, max_examples=examples(60))
def test_steps_are_those_that_the_page_specifies_and_any_is_found_at_once(
    table: Numbered, batch: int, seed: int | None, epochs: int, reshuffle: bool, remainder: str
) -> None:
    schedule = options_of(table, batch, seed, num_epochs=epochs, reshuffle=reshuffle, remainder=remainder)
    found, expected = steps_of(schedule), []
    for epoch in range(epochs):
        position = epoch * sum(table.sizes)
        for bucket, records in reference().steps_of_buckets(table.records, batch, seed, epoch if reshuffle else 0):
            if remainder != "drop" or len(records) == batch:
                expected.append((position, bucket, list(records)))
            position += len(records)
    assert found == expected
    begins = [begin for begin, _, _ in found]
    assert [step and step.begin for step in (schedule.nth(0, k) for k in range(len(found) + 1))] == [*begins, None]
    for number, begin in enumerate(begins):
        assert schedule.count(begin) == len(begins) - number
        assert schedule.nth(begin, len(begins) - number - 1) == schedule.nth(0, len(begins) - 1)
        assert steps_of(replace(schedule, start=begin)) == found[number:]


@given(TABLES.filter(lambda table: sum(table.sizes)), st.integers(1, 9), SEEDS)
@settings(deadline=None, max_examples=examples(40))
def test_only_starts_of_steps_are_valid_positions(table: Numbered, batch: int, seed: int | None) -> None:
    options, end = options_of(table, batch, seed, num_epochs=2), 2 * sum(table.sizes)
    starts = {begin for begin, _, _ in steps_of(options)} | {end}
    for position in range(end + 1):
        state = state_of(DIGESTS, "", options, position)
        if position in starts:
            assert restore(DIGESTS, "", options, state) == (options, position)
            continue
        before, after = max(s for s in starts if s < position), min(s for s in starts if s > position)
        named = f"position {position} lies within a step.* the nearest are {before} and {after}$"
        with pytest.raises(StateError, match=named):
            restore(DIGESTS, "", options, state)
        with pytest.raises(InvalidArgumentError, match=named):
            options_of(table, batch, seed, num_epochs=2, start=position)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (options_of(Numbered((10, 5)), 8, 1), "global_batch_size is 8 here and 4 in the state"),
        (options_of(Numbered((10, 4, 1)), 4, 1), r"bounds of buckets is \[1, 2, 3\] here and \[1, 2\] in the state"),
        (options_of(Numbered((10, 5), "labels"), 4, 1), r"leaves of buckets is \['labels'\] here"),
        (make_options(15, 4, shuffle=True, seed=1), "order kind is 'exact' here and 'buckets' in the state"),
    ],
    ids=["batch size", "bounds", "leaves", "order"],
)
def test_a_state_of_another_batch_size_or_other_buckets_is_refused_by_name(options: Schedule, named: str) -> None:
    mine = options_of(Numbered((10, 5)), 4, 1)
    state = state_of(DIGESTS, "", mine, 8)
    assert state["order"]["buckets"] == {"leaves": ["tokens"], "bounds": [1, 2], "global_batch_size": 4}
    with pytest.raises(StateError, match=named):
        restore(DIGESTS, "", options, state)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Buckets("tokens", []), "0 bounds"),
        (lambda: Buckets("tokens", range(1, 40)), "39 bounds"),
        (lambda: Buckets("tokens", [128, 64]), r"\[64, 128\]"),
        (lambda: Buckets("tokens", [64, 64]), r"\[64\]"),
        (lambda: Buckets("tokens", [0, 4]), "0"),
        (lambda: Buckets("tokens", [4, 2**31]), "2147483648"),
        (lambda: Buckets(("tokens", "tokens"), [4]), "tokens"),
        (lambda: options_of(Numbered((10, 5)), 4, 1, shuffle=Blocks(records=2)), "blocks"),
        (lambda: options_of(Numbered((3, 3, 3)), 4, 1, remainder="drop", num_epochs=None), "num_epochs=None"),
    ],
)
def test_buckets_that_cannot_be_are_refused(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make()
    assert options_of(Numbered((3, 3, 3)), 4, 1, num_epochs=None).count(0) is None
