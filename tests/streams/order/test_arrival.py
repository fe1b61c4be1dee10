"""The order of arrival: what comes depends on no record behind its window, and each epoch has every record once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import examples

import cachelayer
from cachelayer import Arrival, Buckets, InvalidArgumentError, StateError, Storage
from cachelayer.streams.order.arrival import ArrivalOrder
from cachelayer.streams.order.orders import ExactOrder

SEEDS = st.integers(0, 2**64 - 1)
NUMBERS = cachelayer.wrap(list(range(100)), identity="numbers")


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 5000), st.integers(1, 6000), SEEDS, st.integers(0, 3))
def test_an_epoch_has_each_record_once_and_epoch_0_has_those_of_a_window_in_it(
    n: int, window: int, seed: int, epoch: int
) -> None:
    numbers = ArrivalOrder(n, window, seed).at(epoch, range(n))
    assert sorted(numbers.tolist()) == list(range(n))
    if epoch:
        assert numbers.tolist() == ExactOrder(n, True, seed).at(epoch, range(n)).tolist()
    else:
        assert (numbers // window == np.arange(n) // window).all()


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 400), st.integers(1, 9), st.integers(0, 3000), SEEDS)
def test_whole_windows_are_the_same_however_many_records_follow(window: int, count: int, more: int, seed: int) -> None:
    places = range(window * count)
    few, many = (ArrivalOrder(window * count + extra, window, seed).at(0, places) for extra in (0, more))
    assert few.tolist() == many.tolist()


def test_a_state_goes_on_in_the_same_window_alone_on_any_number_of_shards() -> None:
    options: dict[str, Any] = {"shuffle": Arrival(30), "seed": 3, "num_epochs": 2}
    expected = np.concatenate(list(NUMBERS.stream(20, **options)))
    iterator = iter(NUMBERS.stream(20, **options))
    next(iterator)
    state = iterator.get_state()
    parts = []
    for shard in range(2):
        resumed = iter(NUMBERS.stream(10, **options, shard=(shard, 2)))
        resumed.set_state(state)
        parts.append([batch.tolist() for batch in resumed])
    assert [number for two in zip(*parts, strict=True) for part in two for number in part] == expected[20:].tolist()
    with pytest.raises(StateError, match="window of arrivals"):
        iter(NUMBERS.stream(20, **{**options, "shuffle": "arrival"})).set_state(state)
    with pytest.raises(StateError, match="order kind"):
        iter(NUMBERS.stream(20, **{**options, "shuffle": True})).set_state(state)
    assert "shuffle=Arrival(window=30)" in repr(NUMBERS.stream(20, **options))


def test_without_reshuffle_every_epoch_is_that_of_the_arrival() -> None:
    epochs = list(NUMBERS.stream(100, shuffle=Arrival(7), seed=1, num_epochs=2, reshuffle=False))
    assert epochs[0].tolist() == epochs[1].tolist()


def test_a_window_is_any_number_that_positions_can_have() -> None:
    whole = NUMBERS.stream(100, shuffle=Arrival(2**62), seed=1)
    assert whole[0].tolist() == NUMBERS.stream(100, shuffle=Arrival(100), seed=1)[0].tolist()
    for window in (0, 2**62 + 1, 2**70):
        with pytest.raises(InvalidArgumentError, match="Arrival: window"):
            Arrival(window)


def test_what_has_no_order_of_arrival_refuses_it_by_name(tmp_path: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="mixture"):
        cachelayer.mix([(NUMBERS, 1)]).stream(2, shuffle="arrival", seed=0)
    rows = [{"tokens": np.arange(number % 5)} for number in range(20)]
    ref = Storage(tmp_path).cache(rows, "d", "v1")
    with pytest.raises(InvalidArgumentError, match="arrival"):
        ref.stream(2, shuffle="arrival", seed=0, buckets=Buckets("tokens", [2, 5]))
    newer = Storage(tmp_path).append("d@v1", new="v2", source=rows)
    with pytest.raises(InvalidArgumentError, match="advance_to"):
        iter(ref.stream(2, shuffle="arrival", seed=0)).advance_to(newer)
