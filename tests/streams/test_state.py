"""States: one small JSON object that goes where it belongs and nowhere else."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cachelayer
from cachelayer import StateError, StreamIterator


def iterator(records: int = 10, identity: str = "numbers", **arguments: Any) -> StreamIterator[Any]:
    arguments = {"shuffle": True, "seed": 7, **arguments}
    return iter(cachelayer.wrap(list(range(records)), identity=identity).stream(4, **arguments))


def state(**changes: Any) -> dict[str, Any]:
    return {**iterator().get_state(), **changes}


def test_a_state_says_what_its_position_counts_in() -> None:
    found = iterator()
    next(found)
    assert found.get_state() == {
        "format": 1,
        "dataset": "numbers",
        "digest": cachelayer.wrap(range(10), identity="numbers").digest,
        "records": 10,
        "order": {"kind": "exact", "version": 1, "seed": 7, "shuffle": True, "reshuffle": True},
        "position": 4,
    }


def test_batch_epochs_remainder_shards_and_start_are_not_compared() -> None:
    saved = state(position=5)
    ref = cachelayer.wrap(range(10), identity="numbers")
    for arguments in ({"num_epochs": None}, {"remainder": "pad"}, {"shard": (1, 2), "remainder": "drop"}, {"start": 9}):
        other = iter(ref.stream(2, shuffle=True, seed=7, **arguments))
        other.set_state(saved)
        assert other.get_state() == saved
    unshuffled = {"shuffle": False, "seed": None}
    iterator(reshuffle=True, **unshuffled).set_state(iterator(reshuffle=False, **unshuffled).get_state())


@pytest.mark.parametrize(
    ("target", "changes", "message"),
    [
        (
            {"identity": "others"},
            {},
            r"digest is '[0-9a-f]{64}' \(others\) here and '[0-9a-f]{64}' \(numbers\) in",
        ),
        ({"records": 11}, {}, r"records is 11 here and 10 in the state.*advance_to\(newer\)"),
        ({"seed": 8}, {}, r"seed is 8 here and 7 in the state: pass what differs to stream\(\)"),
        ({"shuffle": False, "seed": None}, {}, "shuffle is False here and True in the state"),
        ({"reshuffle": False}, {}, "reshuffle is False here and True in the state"),
        ({}, {"order": {**state()["order"], "version": 2}}, "version 2, which this release does not know"),
        ({}, {"order": None}, "not a sampler state: its order is None"),
        ({}, {"format": 2}, "format 2; this release reads up to 1: update cachelayer"),
        ({}, {"format": 0}, "not a sampler state: its format is 0"),
        ({}, {"position": 11}, "position 11 of the state is past the end of this stream, 10: set it on stream.epochs"),
        ({}, {"position": 1.0}, "position is 1.0"),
        ({}, {"position": True}, "position is True"),
    ],
)
def test_a_state_of_another_stream_or_one_that_cannot_be_is_refused_with_what_differs(
    target: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(StateError, match=message):
        iterator(**target).set_state(state(**changes))


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -1, -(10**5000), 10**5000, "7", [], {}, object(), np.arange(3)],
    ids=["nan", "inf", "-1", "low", "high", "text", "list", "dict", "object", "array"],
)
def test_a_state_that_was_edited_is_refused_and_leaves_the_iterator_where_it_is(value: Any) -> None:
    found = iterator()
    first = next(found).tolist()
    for name in ("format", "position", "digest", "records", "order"):
        with pytest.raises(StateError):
            found.set_state(state(**{name: value}))
    with pytest.raises(StateError):
        found.set_state(state(order={**state()["order"], "seed": value}))
    assert found.position == 4
    assert sorted([*first, *(row for batch in found for row in batch.tolist())]) == list(range(10))


@pytest.mark.parametrize(
    "other", [None, 5, [], {}, {"position": 3}, {"format": 1}, "", "{", b"\xff", '"text"', object()]
)
def test_what_is_no_state_is_refused(other: Any) -> None:
    with pytest.raises(StateError, match="not a sampler state"):
        iterator().set_state(other)


@given(st.integers(0, 2**64 - 1))
def test_a_state_survives_json(seed: int) -> None:
    one, other = iterator(seed=seed), iterator(seed=seed)
    next(one)
    text = json.dumps(one.get_state())
    assert len(text) < 2048
    for form in (json.loads(text), text, text.encode()):
        other.set_state(form)
        assert other.get_state() == one.get_state()
        assert next(other).tolist() == next(one).tolist()
        one.set_state(form)
