"""Mixtures: exact proportions, endless, elastic, resumable."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import examples

import cachelayer
from cachelayer import DataRef, InvalidArgumentError, InvalidTypeError, StateError, Storage
from cachelayer.streams.mixture import MixedOrder, Pattern
from cachelayer.streams.permutation import _sorted_permutation

SIZES = (3, 10, 25)


@pytest.fixture(scope="module")
def refs(tmp_path_factory: pytest.TempPathFactory) -> list[DataRef[Any]]:
    storage = Storage(tmp_path_factory.mktemp("mixed"))
    return [
        storage.cache([{"part": place, "n": number} for number in range(size)], "d", f"v{place}")
        for place, size in enumerate(SIZES)
    ]


WEIGHTS = st.lists(st.integers(1, 40), min_size=1, max_size=6).map(tuple)


@given(WEIGHTS, st.integers(0, 500))
@settings(deadline=None)
def test_of_a_round_from_anywhere_each_part_has_its_weight(weights: tuple[int, ...], start: int) -> None:
    pattern = Pattern(weights)
    round_ = pattern.part_of[np.arange(start, start + pattern.turns) % pattern.turns]
    assert np.bincount(round_, minlength=len(weights)).tolist() == list(weights)
    for part in range(len(weights)):
        parts, turns = pattern.at(np.arange(start + pattern.turns))
        assert turns[parts == part].tolist() == list(range(int((parts == part).sum())))


@given(WEIGHTS)
@settings(deadline=None)
def test_parts_are_spread_evenly(weights: tuple[int, ...]) -> None:
    pattern = Pattern(weights)
    for part, weight in enumerate(weights):
        counts = np.cumsum(pattern.part_of == part)
        ideal = np.arange(1, pattern.turns + 1) * weight / pattern.turns
        assert abs(counts - ideal).max() <= len(weights)


def test_the_pattern_is_this_for_ever() -> None:
    assert Pattern((3, 1)).part_of.tolist() == [0, 0, 1, 0]
    assert Pattern((1, 2, 4)).part_of.tolist() == [2, 1, 2, 0, 2, 1, 2]
    order = MixedOrder(Pattern((3, 1)), (5, 4), shuffle=True, seed=42)
    assert order(0, 0, 16).tolist() == [4, 3, 5, 2, 1, 0, 8, 4, 2, 0, 7, 3, 1, 3, 6, 4]


@given(WEIGHTS, st.data())
@settings(deadline=None, max_examples=examples(15))
def test_each_part_goes_through_its_own_epochs(weights: tuple[int, ...], data: st.DataObject) -> None:
    sizes = tuple(data.draw(st.lists(st.integers(1, 20), min_size=len(weights), max_size=len(weights))))
    order = MixedOrder(Pattern(weights), sizes, shuffle=True, seed=data.draw(st.integers(0, 2**64 - 1)))
    found = order(0, 0, 400)
    first = 0
    for size in sizes:
        mine = found[(found >= first) & (found < first + size)] - first
        for epoch in range(len(mine) // size):
            assert sorted(mine[epoch * size : (epoch + 1) * size].tolist()) == list(range(size))
        first += size
    start, stop = sorted((data.draw(st.integers(0, 400)), data.draw(st.integers(0, 400))))
    assert order(0, start, stop).tolist() == found[start:stop].tolist()


def test_parts_of_one_size_have_orders_of_their_own() -> None:
    order = MixedOrder(Pattern((1, 1)), (50, 50), shuffle=True, seed=1)
    found = order(0, 0, 100)
    assert found[::2].tolist() != (found[1::2] - 50).tolist()


def take(stream: Any, count: int) -> list[tuple[int, int]]:
    rows = []
    for batch in itertools.islice(stream, count):
        rows += zip(batch["part"].tolist(), batch["n"].tolist(), strict=True)
    return rows


def test_every_shard_count_gives_the_same_global_batches(refs: list[DataRef[Any]]) -> None:
    mixture = cachelayer.mix(list(zip(refs, (5, 2, 1), strict=True)))
    alone = take(mixture.stream(16, shuffle=True, seed=3), 20)
    for shards in (2, 4):
        streams = [mixture.stream(16, shuffle=True, seed=3, shard=(shard, shards)) for shard in range(shards)]
        found = [
            row for batches in itertools.islice(zip(*streams, strict=True), 20) for b in batches for row in take([b], 1)
        ]
        assert found == alone
    assert [part for part, _ in alone[:80]].count(0) == 50


def test_a_mixture_resumes_anywhere(refs: list[DataRef[Any]]) -> None:
    mixture = cachelayer.mix([(refs[0], 1), (refs[2], 3)])
    stream = mixture.stream(6, shuffle=True, seed=3)
    iterator = iter(stream)
    before = take(iterator, 9)
    state = iterator.get_state()
    assert state["position"] == 54
    after = iter(pickle.loads(pickle.dumps(mixture)).stream(4, shuffle=True, seed=3))
    after.set_state(state)
    assert before + take(after, 3) == take(stream, 11)
    assert take([stream[10]], 1) == take(mixture.stream(6, shuffle=True, seed=3, start=60), 1)
    assert stream.records(10).shape == (6,)
    far = mixture.stream(6, shuffle=True, seed=3)[10**15]
    assert len(far["n"]) == 6


def test_an_unbatched_mixture_hands_out_elements(refs: list[DataRef[Any]]) -> None:
    stream = cachelayer.mix([(refs[0], 2), (refs[1], 1)]).stream()
    assert [(int(e["part"]), int(e["n"])) for e in itertools.islice(stream, 6)] == [
        (0, 0),
        (1, 0),
        (0, 1),
        (0, 2),
        (1, 1),
        (0, 0),
    ]
    with pytest.raises(TypeError, match="a mixture has no end"):
        len(stream)


def test_states_of_other_mixtures_are_refused(refs: list[DataRef[Any]]) -> None:
    a, b, _ = refs
    state = iter(cachelayer.mix([(a, 1), (b, 2)]).stream(2)).get_state()
    for parts in ([(a, 2), (b, 4)], [(a, 2), (b, 1)], [(b, 2), (a, 1)], [(a[:2], 1), (b, 2)]):
        with pytest.raises(StateError, match="digest"):
            iter(cachelayer.mix(parts).stream(2)).set_state(state)
    iter(cachelayer.mix([(a, 1), (b, 2)]).stream(4)).set_state(state)


def test_views_joins_and_splits_can_be_mixed(refs: list[DataRef[Any]]) -> None:
    joined = cachelayer.concat(refs[:2])
    mixture = cachelayer.mix([(joined, 1), (refs[2].split({"t": 0.8, "v": 0.2}, seed=0)["v"], 1), (refs[0], 2)])
    assert len(take(mixture.stream(8, shuffle=True, seed=1), 4)) == 32
    assert "Mixture([(JoinedRef(" in repr(mixture)


def test_sixty_five_thousand_turns_are_the_most(refs: list[DataRef[Any]]) -> None:
    mixture = cachelayer.mix([(refs[0], 65_535), (refs[1], 1)])
    rows = take(mixture.stream(4096), 16)
    assert [part for part, _ in rows].count(1) == 1
    with pytest.raises(InvalidArgumentError, match="sum to 65537, more than 65536: divide"):
        cachelayer.mix([(refs[0], 65_536), (refs[1], 1)])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda r: [], InvalidArgumentError, "pass one DataRef or more"),
        (lambda r: [r[0]], InvalidTypeError, "pass pairs of a DataRef and its weight"),
        (lambda r: [(r[0], 0)], InvalidArgumentError, "weight 0: it must be at least 1"),
        (lambda r: [(r[0], "0.5")], InvalidTypeError, "weight '0.5' of type str"),
        (lambda r: [(r[0][:0], 1)], InvalidArgumentError, "no records to mix"),
        (lambda r: [([1, 2], 1)], InvalidTypeError, "pass pairs of a DataRef and its weight"),
        (lambda r: [(cachelayer.mix([(r[0], 1)]), 1)], InvalidTypeError, "pass pairs of a DataRef and its weight"),
        (lambda r: 5, InvalidTypeError, "a list of pairs"),
    ],
)
def test_what_cannot_be_mixed_says_so(
    refs: list[DataRef[Any]], make: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        cachelayer.mix(make(refs))


def test_random_numbers_are_keyed_by_the_position_in_the_mixture(refs: list[DataRef[Any]]) -> None:
    def draw(element: Any, generator: np.random.Generator) -> Any:
        return {**element, "draw": generator.random()}

    mixture = cachelayer.mix([(refs[0], 1), (refs[1], 1)])
    a = mixture.stream(4, seed=1).map(draw, rng=True)[3]["draw"]
    b = mixture.stream(2, seed=1, shard=(1, 2)).map(draw, rng=True)[7]["draw"]
    assert a[3] == b[0]


def test_many_parts_cost_little_more_than_one() -> None:
    weights = (1,) * 40
    order = MixedOrder(Pattern(weights), (60_000,) * 40, shuffle=True, seed=1)
    order(0, 0, 4096)
    before = _sorted_permutation.cache_info().misses
    for start in range(4096, 40_960, 4096):
        order(0, start, start + 4096)
    assert _sorted_permutation.cache_info().misses == before
