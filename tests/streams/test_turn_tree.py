"""Two-way splits: how near each part is to its share at every position, and that turns are found in any order."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from samples import examples

from cachelayer.streams.turn_tree import WHOLE, TurnTree, shares_of

# Weights of one size, of many sizes, and like numbers of Fibonacci with dust between them, which are the hardest.
ALIKE = st.floats(0.5, 1.0)
FAR_APART = st.floats(-60, 0).map(lambda power: 2.0**power)
FIBONACCI = st.tuples(st.integers(0, 24), st.floats(0.95, 1.05)).map(lambda pair: 1.618 ** -pair[0] * pair[1])
DUST = st.just(1e-9)
WEIGHTS = st.one_of(
    *(st.lists(kind, min_size=2, max_size=32) for kind in (ALIKE, FAR_APART, FIBONACCI, st.one_of(FIBONACCI, DUST)))
)


def tree_of(weights: list[float]) -> TurnTree:
    return TurnTree(shares_of([Fraction(weight) for weight in weights]))


def at(tree: TurnTree, start: int, stop: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The part of each position, and its turn."""
    parts, turns = np.full(stop - start, -1), np.full(stop - start, -1)
    for part, offsets, first in tree.between(start, stop):
        parts[offsets], turns[offsets] = part, np.arange(first, first + len(offsets))
    return parts, turns


def largest_error(tree: TurnTree) -> Fraction:
    """The most that the turns of a part can be away from its share: 1/2 at each node, as much of it as reaches it."""
    parts = len(tree.shares)
    held, above = list(tree.shares), {}
    for number, node in enumerate(tree.nodes, parts):
        held.append(held[node.left] + held[node.right])
        above[node.left] = above[node.right] = number
    worst = Fraction(0)
    for part, share in enumerate(tree.shares):
        at, error = part, Fraction(0)
        while share and at in above:
            error += Fraction(share, 2 * held[at])
            at = above[at]
        worst = max(worst, error)
    return worst


@given(WEIGHTS)
@settings(max_examples=examples(120))
@example([1.0] * 32)
@example([1.618**-power for power in range(32)])
@example([1.618**-power for power in range(20) for _ in range(1 + power % 2)] + [1e-12] * 2)
@example([1.0, 1e-15])
@pytest.mark.slow
def test_no_weights_can_move_a_part_further_than_one_and_a_half(weights: list[float]) -> None:
    tree = tree_of(weights)
    assert largest_error(tree) <= (Fraction(1, 2) if len(weights) == 2 else Fraction(3, 2))


@given(WEIGHTS, st.integers(0, 2**40))
@settings(max_examples=examples(40))
def test_at_every_position_each_part_has_its_share(weights: list[float], start: int) -> None:
    tree, count = tree_of(weights), 1000
    parts, _ = at(tree, start, start + count)
    before = tree.counts(start)
    bound = 0.5 if len(weights) == 2 else 1.5
    for part, share in enumerate(tree.shares):
        counts = before[part] + np.cumsum(parts == part)
        for offset in {0, 1, count // 2, count - 1, int(counts.argmax()), *np.flatnonzero(parts == part)[:50].tolist()}:
            exact = Fraction((start + offset + 1) * share, WHOLE)
            # Fractions of nodes are rounded to 2**-64.
            assert abs(int(counts[offset]) - exact) <= bound + (start + count) * len(weights) / 2**64


@given(WEIGHTS, st.integers(0, 2**62 - 600))
@settings(max_examples=examples(50))
def test_turns_of_a_part_follow_one_another_and_are_found_again(weights: list[float], start: int) -> None:
    tree, positions = tree_of(weights), np.arange(start, start + 500)
    parts, turns = at(tree, start, start + 500)
    before = tree.counts(start)
    for part in range(len(weights)):
        mine = turns[parts == part].tolist()
        assert mine == list(range(before[part], before[part] + len(mine)))
    for position, part, turn in list(zip(positions.tolist(), parts.tolist(), turns.tolist(), strict=True))[::7]:
        assert tree.position_of(part, turn) == position
        assert tree.counts(position)[part] == turn
    some_parts, some_turns = at(tree, start + 123, start + 130)
    assert some_parts.tolist() == parts[123:130].tolist()
    assert some_turns.tolist() == turns[123:130].tolist()


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ([1], [WHOLE]),
        ([0, 3, 0], [0, WHOLE, 0]),
        ([1, 1], [WHOLE // 2, WHOLE // 2]),
        ([1, 1, 1], [WHOLE // 3 + 1, WHOLE // 3, WHOLE // 3]),
        ([1e-300, 1e300], [1, WHOLE - 1]),
        ([5e-324, 5e-324], [WHOLE // 2, WHOLE // 2]),
        ([1.7e308, 1.7e308, 0.0], [WHOLE // 2, WHOLE // 2, 0]),
    ],
)
def test_weights_become_integers_of_one_sum(weights: list[float], shares: list[int]) -> None:
    assert list(shares_of([Fraction(weight) for weight in weights])) == shares
    assert sum(shares) == WHOLE


def test_parts_without_weight_have_no_positions() -> None:
    parts, _ = at(tree_of([0.0, 1.0, 0.0, 2.0]), 0, 300)
    assert np.bincount(parts, minlength=4).tolist() == [0, 100, 0, 200]
    assert set(at(tree_of([0.0, 1.0]), 0, 9)[0].tolist()) == {1}


GOLDEN = {
    (0.7, 0.3): "010010001001001000100100",
    (0.5, 0.25, 0.25): "102010201020102010201020",
    (0.4, 0.3, 0.2, 0.1): "201031020120103102012010",
    (1e-3, 5.0, 2.0, 2.5, 0.125): "131213121312131213121312",
}


@pytest.mark.parametrize("weights", GOLDEN)
def test_the_turns_are_these_for_ever(weights: tuple[float, ...]) -> None:
    tree = tree_of(list(weights))
    assert "".join(map(str, at(tree, 0, 24)[0].tolist())) == GOLDEN[weights]


def test_gaps_between_turns_differ_little() -> None:
    tree = tree_of([0.7, 0.3])
    parts, _ = at(tree, 0, 10_000)
    gaps = {after - before for before, after in pairwise(np.flatnonzero(parts == 1).tolist())}
    assert gaps == {3, 4}
