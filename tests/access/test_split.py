"""Parts of a dataset: disjoint, exhaustive, stable."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cachelayer
from cachelayer import InvalidArgumentError, InvalidTypeError, StateError, Storage
from cachelayer.access.split import split
from cachelayer.records.selection import Selection
from cachelayer.streams.order.permutation import permuted

SEEDS = st.integers(0, 2**64 - 1)


def numbers(n: int) -> Any:
    return cachelayer.wrap(list(range(n)), identity="numbers")


@st.composite
def shares(draw: st.DrawFn) -> dict[str, float]:
    weights = draw(st.lists(st.integers(1, 1000), min_size=1, max_size=5))
    return {f"part{number}": weight / sum(weights) for number, weight in enumerate(weights)}


@st.composite
def views(draw: st.DrawFn) -> tuple[Selection, list[int], list[int]]:
    """A view of records that came in segments, their sizes, and the numbers that the view shows."""
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=4))
    view, numbers = Selection.all(sum(sizes)), list(range(sum(sizes)))
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            rows = draw(st.builds(slice, st.none(), st.none(), st.sampled_from([2, -1, -3])))
            view, numbers = view.slice(rows), numbers[rows]
        elif draw(st.booleans()):
            keep = draw(st.lists(st.booleans(), min_size=len(numbers), max_size=len(numbers)))
            view, numbers = view.select(np.array(keep, bool)), np.array(numbers, int)[np.array(keep, bool)].tolist()
        else:
            numbers = draw(st.permutations(numbers))
            view = Selection(np.array(numbers, np.int64))
    return view, sizes, numbers


def dealt(numbers: list[int], sizes: list[int], parts: dict[str, float], seed: int) -> dict[str, list[int]]:
    """The parts of a view, as docs/order.md says, with everything in memory."""
    segment_of = np.searchsorted(np.cumsum(sizes), numbers, side="right")
    rows: dict[str, list[int]] = {name: [] for name in parts}
    for segment in range(len(sizes)):
        own = np.flatnonzero(segment_of == segment)
        exact, before = [], sum(map(len, rows.values()))
        wanted = [max(0.0, share * (before + len(own)) - len(rows[name])) for name, share in parts.items()]
        exact = [want * (len(own) / sum(wanted)) if len(own) else 0.0 for want in wanted]
        counts = [min(len(own), int(value)) for value in exact]
        ranked = sorted(range(len(parts)), key=lambda part: (counts[part] - exact[part], part))
        for part in ranked[: len(own) - sum(counts)]:
            counts[part] += 1
        places = iter(permuted(len(own), seed, 2**63 + segment, 0, len(own)))
        for name, count in zip(parts, counts, strict=True):
            rows[name] += [int(own[next(places)]) for _ in range(count)]
    return {name: [numbers[row] for row in sorted(found)] for name, found in rows.items()}


@given(views(), shares(), SEEDS)
@settings(deadline=None)
def test_parts_of_any_view_are_those_of_the_specification(
    case: tuple[Selection, list[int], list[int]], parts: dict[str, float], seed: int
) -> None:
    view, sizes, shown = case
    expected = dealt(shown, sizes, parts, seed)
    for name, part in pickle.loads(pickle.dumps(split(view, sizes, parts, seed))).items():
        listed = Selection(np.array(expected[name], np.int64))
        places = list(range(-len(part), len(part)))
        assert len(part) == len(listed)
        assert part.take(places).tolist() == listed.take(places).tolist()
        assert [part.number(place) for place in places] == listed.take(places).tolist()
        assert part.digest("ab" * 32, sum(sizes)) == listed.digest("ab" * 32, sum(sizes))
        assert part.slice(slice(None, None, -2)).take(slice(None)).tolist() == expected[name][::-2]
        assert not part.has_repeats
        assert abs(len(part) - parts[name] * len(shown)) < len(parts)
    assert sorted(number for rows in expected.values() for number in rows) == sorted(shown)


def test_parts_of_many_records_are_the_same_as_ever() -> None:
    found = numbers(1_000_000).split({"train": 0.9, "val": 0.1}, seed=0)
    assert found["val"].digest == "9408b4afbecd93b54ac242bd655ad3b6d5af90e07908928f249d19fe7d4884fb"
    assert found["train"].digest == "43ac2130b85d2ba45c727a687614c2723b7ff1c9ccc658bee317d336aa2f8b9b"


def test_the_parts_are_these_for_ever() -> None:
    parts = numbers(20).split({"train": 0.7, "val": 0.2, "test": 0.1}, seed=42)
    assert {name: list(part) for name, part in parts.items()} == {
        "train": [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 13, 15, 17, 19],
        "val": [9, 11, 14, 18],
        "test": [12, 16],
    }


def test_parts_are_views_with_digests_of_their_own(tmp_path: Path) -> None:
    ref = Storage(tmp_path).cache([{"n": n} for n in range(100)], "d", "v1")
    parts = ref.split({"train": 0.8, "val": 0.2}, seed=1)
    assert len({ref.digest, *(part.digest for part in parts.values())}) == 3
    assert parts["val"].digest == Storage(tmp_path).fetch("d@v1").split({"a": 0.8, "b": 0.2}, seed=1)["b"].digest
    assert parts["val"].digest != ref.split({"train": 0.8, "val": 0.2}, seed=2)["val"].digest
    assert parts["train"].dataset_id == "d"
    state = iter(parts["train"].stream()).get_state()
    with pytest.raises(StateError, match="digest"):
        iter(parts["val"].stream()).set_state(state)
    assert ref.split({"all": 1}, seed=0)["all"].digest == ref.digest


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (({"a": 0.5, "b": 0.4},), InvalidArgumentError, "0.9"),
        (({},), InvalidArgumentError, "0"),
        (({"a": 1.5, "b": -0.5},), InvalidArgumentError, "'a' is 1.5"),
        (({"a": 1.0, "b": 0.0},), InvalidArgumentError, "'b' is 0.0"),
        (({"a": 10**400},), InvalidArgumentError, "'a' is 1000"),
        (({"a": float("nan")},), InvalidArgumentError, "nan"),
        (({"a": "1"},), InvalidTypeError, "'a' is '1'"),
        (([0.5, 0.5],), InvalidTypeError, "pass a dict"),
    ],
)
def test_shares_that_cannot_be_are_refused(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        numbers(10).split(*arguments, seed=0)
    with pytest.raises(InvalidArgumentError, match="seed"):
        numbers(10).split({"a": 1.0}, seed=-1)


def test_a_selection_does_not_follow_the_array_that_it_was_made_from() -> None:
    indices = np.array([1, 2, 3])
    view = numbers(10).select(indices)
    digest = view.digest
    indices[0] = 7
    assert list(view) == [1, 2, 3]
    assert view.digest == digest


def test_records_that_stand_twice_in_a_view_cannot_be_split() -> None:
    with pytest.raises(InvalidArgumentError, match="more than once"):
        numbers(10).select([0, 0, 1]).split({"a": 0.5, "b": 0.5}, seed=0)
    parts = numbers(10).select([3, 1, 2]).split({"a": np.float32(0.5), "b": np.float64(0.5)}, seed=0)
    assert sorted([*parts["a"], *parts["b"]]) == [1, 2, 3]
