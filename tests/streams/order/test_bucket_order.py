"""Batches from buckets: each record once an epoch, the steps that the page specifies, and any of them at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from order_page import reference
from samples import examples
from test_golden import Numbered

import cachelayer
from cachelayer import Blocks, Buckets, InvalidArgumentError, StateError
from cachelayer.streams.order.buckets import BucketOrder
from cachelayer.streams.state import StreamIdentity
from cachelayer.streams.stream_options import StreamOptions, make_options

WORDS = st.integers(0, 2**64 - 1)


@dataclass(frozen=True)
class Listed:
    """A table of lists."""

    buckets: Buckets
    records: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(map(len, self.records))

    def take(self, bucket: int, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array(self.records[bucket], np.int64)[ranks]


@st.composite
def tables(draw: st.DrawFn, least: int = 0) -> Listed:
    """Any buckets of few records, some of them empty."""
    buckets = draw(st.integers(1, 5))
    chosen = draw(st.lists(st.integers(0, buckets - 1), min_size=least, max_size=60))
    records = tuple(tuple(np.flatnonzero(np.array(chosen) == bucket).tolist()) for bucket in range(buckets))
    return Listed(Buckets("tokens", range(1, buckets + 1)), records)


def options_of(table: Any, batch: int, seed: int | None = None, **options: Any) -> StreamOptions:
    options = {"shuffle": seed is not None, "seed": seed} | options
    return make_options(sum(table.sizes), batch, 1, table, **options)


def steps_of(options: StreamOptions) -> list[tuple[int, list[int]]]:
    """The bucket and the records of every step, one after another."""
    found, position, records = [], options.start, max(1, options.steps.records)
    order = options.order
    assert isinstance(order, BucketOrder)
    while (step := options.steps.at(position)) is not None:
        epoch, place = divmod(step.begin, records)
        numbers = order.at(epoch, range(place, place + step.end - step.begin)).tolist()
        found.append((order.bucket_at(epoch, place), numbers))
        position = options.steps.after(step)
    return found


@given(tables(), st.integers(1, 9), st.none() | WORDS, st.integers(0, 3), st.booleans())
@settings(deadline=None, max_examples=examples(40))
def test_steps_are_those_that_the_page_specifies(
    table: Listed, batch: int, seed: int | None, epochs: int, reshuffle: bool
) -> None:
    options = options_of(table, batch, seed, num_epochs=epochs, reshuffle=reshuffle)
    expected = [
        step
        for epoch in range(epochs)
        for step in reference().steps_of_buckets(table.records, batch, seed, epoch if reshuffle else 0)
    ]
    assert steps_of(options) == [(bucket, list(records)) for bucket, records in expected]


@given(tables(), st.integers(1, 9), st.none() | WORDS, st.sampled_from(["keep", "drop", "pad"]))
@settings(deadline=None, max_examples=examples(40))
def test_each_record_comes_once_in_an_epoch_and_each_batch_from_one_bucket(
    table: Listed, batch: int, seed: int | None, remainder: str
) -> None:
    steps = steps_of(options_of(table, batch, seed, remainder=remainder))
    assert all(set(numbers) <= set(table.records[bucket]) for bucket, numbers in steps)
    seen = sorted(number for _, numbers in steps for number in numbers)
    if remainder == "drop":
        assert all(len(numbers) == batch for _, numbers in steps)
        assert len(steps) == sum(size // batch for size in table.sizes)
        assert len(set(seen)) == len(seen)
    else:
        assert seen == list(range(sum(table.sizes)))
        assert sum(len(numbers) < batch for _, numbers in steps) == sum(size % batch > 0 for size in table.sizes)


@given(tables(1), st.integers(1, 9), st.none() | WORDS, st.sampled_from(["keep", "drop", "pad"]), st.data())
@settings(deadline=None, max_examples=examples(40))
def test_any_step_is_found_at_once_and_any_start_of_a_step_continues_there(
    table: Listed, batch: int, seed: int | None, remainder: str, data: st.DataObject
) -> None:
    options = options_of(table, batch, seed, remainder=remainder, num_epochs=3)
    steps, position, begins = options.steps, 0, []
    while (step := steps.at(position)) is not None:
        begins.append(step)
        position = steps.after(step)
    assert [steps.nth(0, number) for number in range(len(begins) + 1)] == [*begins, None]
    assert steps.count(0) == len(begins) == 3 * steps.per_epoch()
    if not begins:
        return
    number = data.draw(st.integers(0, len(begins) - 1))
    start = begins[number].begin
    assert steps.count(start) == len(begins) - number
    assert [steps.nth(start, more) for more in range(len(begins) - number)] == begins[number:]
    assert steps_of(replace(options, start=start)) == steps_of(options)[number:]


@given(tables(1), st.integers(1, 9), st.none() | WORDS)
@settings(deadline=None, max_examples=examples(40))
def test_only_starts_of_steps_are_valid_positions(table: Listed, batch: int, seed: int | None) -> None:
    options = options_of(table, batch, seed, num_epochs=2)
    starts: set[int] = set()
    position = 0
    while (step := options.steps.at(position)) is not None:
        starts.add(step.begin)
        position = options.steps.after(step)
    starts.add(position)
    identity = StreamIdentity("0", options.order, options.steps)
    for position in range(2 * sum(table.sizes) + 1):
        state = identity.state(position)
        if position in starts:
            assert identity.position(state) == position
            continue
        before, after = max(s for s in starts if s < position), min(s for s in starts if s > position)
        named = f"position {position} lies within a step.* the nearest are {before} and {after}$"
        with pytest.raises(StateError, match=named):
            identity.position(state)
        with pytest.raises(InvalidArgumentError, match=named):
            options_of(table, batch, seed, num_epochs=2, start=position)


def test_a_state_of_another_batch_size_or_other_buckets_is_refused_by_name() -> None:
    table = Numbered((10, 5))
    options = options_of(table, 4, 1)
    state = StreamIdentity("0", options.order, options.steps).state(8)
    assert state["order"]["buckets"] == {"leaves": ["tokens"], "bounds": [1, 2], "global_batch_size": 4}

    def refused(options: StreamOptions, named: str) -> None:
        with pytest.raises(StateError, match=named):
            StreamIdentity("0", options.order, options.steps).position(state)

    refused(options_of(table, 8, 1), "global_batch_size is 8 here and 4 in the state")
    refused(options_of(Numbered((10, 4, 1)), 4, 1), r"bounds of buckets is \[1, 2, 3\] here and \[1, 2\] in the state")
    other = Listed(Buckets("labels", [1, 2]), (tuple(range(10)), tuple(range(10, 15))))
    refused(options_of(other, 4, 1), r"leaves of buckets is \['labels'\] here")
    refused(make_options(15, 4, shuffle=True, seed=1), "order kind is 'exact' here and 'buckets' in the state")


def test_records_and_steps_of_two_epochs_differ() -> None:
    options = options_of(Numbered((64, 64, 64)), 4, 3, num_epochs=2)
    steps = steps_of(options)
    first, second = steps[:48], steps[48:]
    assert [bucket for bucket, _ in first] != [bucket for bucket, _ in second]
    assert {frozenset(numbers) for _, numbers in first}.isdisjoint({frozenset(numbers) for _, numbers in second})


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (("tokens", []), "0 bounds"),
        (("tokens", range(1, 40)), "39 bounds"),
        (("tokens", [128, 64]), r"\[64, 128\]"),
        (("tokens", [64, 64]), r"\[64\]"),
        (("tokens", [0, 4]), "0"),
        (("tokens", [4, 2**31]), "2147483648"),
        ((("tokens", "tokens"), [4]), "tokens"),
    ],
)
def test_invalid_buckets_are_refused(argument: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Buckets(*argument)


def test_buckets_and_blocks_are_refused_together() -> None:
    for shuffle in ("blocks", Blocks(records=2)):
        with pytest.raises(InvalidArgumentError, match="blocks"):
            options_of(Numbered((10, 5)), 4, 1, shuffle=shuffle)


def test_an_endless_stream_without_a_whole_step_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="num_epochs=None"):
        options_of(Numbered((3, 3, 3)), 4, 1, remainder="drop", num_epochs=None)
    assert options_of(Numbered((3, 3, 3)), 4, 1, num_epochs=None).steps.count(0) is None
    assert options_of(Numbered((3, 3, 3)), 4, 1, remainder="drop").steps.count(0) == 0


def test_buckets_without_records_have_no_steps() -> None:
    assert steps_of(options_of(Numbered((0, 0)), 4, 1)) == []
    assert [bucket for bucket, _ in steps_of(options_of(Numbered((0, 4, 0, 3)), 2))] == [1, 1, 3, 3]


def test_padded_batches_are_those_of_their_buckets(tmp_path: Path) -> None:
    lengths = [3, 9, 1, 4, 12, 2, 4, 7, 16, 3, 5, 2]
    elements = [{"tokens": np.full(length, number, np.int32)} for number, length in enumerate(lengths)]
    spec = {"tokens": cachelayer.ArraySpec("int32", (None,))}
    documents = cachelayer.Storage(tmp_path).cache(elements, "documents", "v1", element_spec=spec)
    stream = documents.stream(3, buckets=("tokens", [4, 8, 16]), shuffle=True, seed=1)
    lists = [[0, 2, 3, 5, 6, 9, 11], [7, 10], [1, 4, 8]]
    for step, (bucket, records) in enumerate(reference().steps_of_buckets(lists, 3, 1, 0)):
        assert stream.records(step).tolist() == records
        batch = stream[step]
        assert batch["tokens"].shape == (len(records), [4, 8, 16][bucket])
        assert batch["tokens_length"].tolist() == [lengths[record] for record in records]
