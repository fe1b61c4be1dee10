"""How much of a large test runs: a sample of it in every run, all of it in the soak suite.

Three kinds of tests are large: properties, which draw examples; those that go through every place or try every seed;
and products of parameters. With ``-m soak``, all properties and all tests that are marked ``sampled`` run in full.
"""

import itertools
from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")
IN_FULL = False
"""Whether this is the soak suite. ``conftest.py`` says so before it imports any test."""
SHARE = 5
"""One in so many examples, places or seeds is a sample."""


def examples(count: int) -> int:
    """Return how many of so many examples are drawn in this run."""
    return count if IN_FULL else max(5, count // SHARE)


def some(cases: Sequence[T], start: int = 0) -> Sequence[T]:
    """Return one in ``SHARE`` of the cases, from the one numbered ``start`` on, or all of them in the soak suite."""
    return cases if IN_FULL else cases[start % SHARE :: SHARE]


def pairwise(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return enough combinations for any two values of two axes to meet, or all combinations in the soak suite."""
    product = list(itertools.product(*axes))
    if IN_FULL:
        return product
    missing, chosen = set().union(*map(_pairs, product)), []
    while missing:
        best = max(product, key=lambda combination: len(_pairs(combination) & missing))
        chosen.append(best)
        missing -= _pairs(best)
    return chosen


def _pairs(combination: Sequence[Any]) -> set[Any]:
    return set(itertools.combinations(enumerate(combination), 2))
