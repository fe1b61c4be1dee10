"""Golden vectors: what docs/order.md specifies, its code and the library give the same records, now and for ever."""

from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from order_page import VECTORS, reference
from samples import examples

from cachelayer import Buckets
from cachelayer.streams.order.blocks import BlockOrder
from cachelayer.streams.order.buckets import BucketOrder
from cachelayer.streams.order.mixture import MixedOrder, Turns, seed_of_part, turns_of
from cachelayer.streams.order.orders import ExactOrder, stand_ins
from cachelayer.streams.order.permutation import round_keys
from cachelayer.streams.order.weighted import WeightedOrder, sums_of

WORDS = st.integers(0, 2**64 - 1)


def vectors(kind: str) -> Any:
    return pytest.mark.parametrize("case", VECTORS[kind], ids=lambda case: "-".join(map(str, list(case.values())[:4])))


@dataclass(frozen=True)
class Numbered:
    """A table of buckets whose records are numbered one bucket after another."""

    sizes: tuple[int, ...]
    leaf: str = "tokens"

    @property
    def buckets(self) -> Buckets:
        return Buckets(self.leaf, range(1, len(self.sizes) + 1))

    @property
    def records(self) -> list[list[int]]:
        """The records of each bucket."""
        return [[*range(end - size, end)] for end, size in zip(accumulate(self.sizes), self.sizes, strict=True)]

    def take(self, bucket: int, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        return ranks + sum(self.sizes[:bucket])


def turns_by_stage(stages: dict[int, Any]) -> Turns:
    rounds = [turns_of([Fraction(str(weight)) for weight in weights]) for weights in stages.values()]
    return Turns(tuple(stages), tuple(rounds))


def mixed_order(stages: dict[int, Any], sizes: list[int], seed: int) -> MixedOrder:
    orders = tuple(ExactOrder(size, True, seed_of_part(seed, part)) for part, size in enumerate(sizes))
    return MixedOrder(turns_by_stage(stages), orders, seed)


@vectors("keys")
def test_keys_never_change(case: dict[str, Any]) -> None:
    expected = [int(key, 16) for key in case["keys"]]
    assert reference().keys_of(case["seed"], case["epoch"]) == expected == list(round_keys(case["seed"], case["epoch"]))


@vectors("exact")
def test_the_exact_order_never_changes(case: dict[str, Any]) -> None:
    n, seed, epoch, start = (case[name] for name in ("n", "seed", "epoch", "start"))
    places = range(start, start + len(case["records"]))
    assert ExactOrder(n, True, seed).at(epoch, places).tolist() == case["records"]
    few = places if n <= 1000 or n > 65_536 else places[:1]
    assert [reference().record_at(n, seed, epoch, place) for place in few] == case["records"][: len(few)]


@vectors("blocks")
def test_the_order_in_blocks_never_changes(case: dict[str, Any]) -> None:
    seed, epoch, start = (case[name] for name in ("seed", "epoch", "start"))
    places = range(start, start + len(case["records"]))
    assert BlockOrder(*case["sizes"], seed).at(epoch, places).tolist() == case["records"]
    assert [reference().record_in_blocks(*case["sizes"], seed, epoch, p) for p in places[:2]] == case["records"][:2]


@vectors("buckets")
def test_the_order_of_buckets_never_changes(case: dict[str, Any]) -> None:
    sizes, G, seed, epoch = (case[name] for name in ("records", "G", "seed", "epoch"))
    table = Numbered(tuple(sizes))
    order = BucketOrder(table, G, seed is not None, seed)
    whole = sum(size // G for size in sizes) * G
    begins = [*range(0, min(whole, 4 * G), G), *order.cuts]
    found = []
    for begin, (_, records) in zip(begins, case["steps"], strict=False):
        [bucket], _ = order.locate(epoch, np.array([begin]))
        found.append([int(bucket), order.at(epoch, range(begin, begin + len(records))).tolist()])
    assert found == case["steps"]
    if sum(sizes) < 1000:
        steps = reference().steps_of_buckets(table.records, G, seed, epoch)[:4]
        assert [[bucket, records[:4]] for bucket, records in steps] == case["steps"]


@vectors("weighted")
def test_the_draws_never_change(case: dict[str, Any]) -> None:
    weights, position = eval(case["weights"]), case["position"]
    order = WeightedOrder(sums=sums_of(np.array(weights, np.float64)), weights="", seed=case["seed"])
    assert order.at(0, range(position, position + 8)).tolist() == case["records"]
    sums = reference().sums_of(weights)
    assert [reference().drawn(sums, case["seed"], position + k) for k in range(8)] == case["records"]


@vectors("mixtures")
def test_mixtures_never_change(case: dict[str, Any]) -> None:
    stages, sizes, seed, position = eval(case["schedule"]), case["sizes"], case["seed"], case["position"]
    parts, turns = turns_by_stage(stages).at(np.arange(position, position + 8))
    assert (parts.tolist(), int(turns[0])) == (case["datasets"], case["turn"])
    order = mixed_order(stages, sizes, seed)
    firsts = np.cumsum([0, *sizes])[parts]
    assert (order.at(0, range(position, position + 8)) - firsts).tolist() == case["records"]
    assert reference().mixed_record(sizes, stages, seed, position) == (case["datasets"][0], case["records"][0])


@vectors("stand_ins")
def test_stand_ins_never_change(case: dict[str, Any]) -> None:
    n, seed, position = case["n"], case["seed"], case["position"]
    found = [*stand_ins(ExactOrder(n, seed=seed), *divmod(position, n))]
    assert found[:3] == case["tried"]
    group = [*range(*case["group"])]
    assert found == reference().stand_ins(group, position % n, seed, position)


@given(n=st.one_of(st.integers(1, 300), st.integers(65_537, 1 << 45)), seed=WORDS, epoch=WORDS, data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_any_place_is_what_the_page_says(n: int, seed: int, epoch: int, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, n - 1))
    expected = [reference().record_at(n, seed, epoch, place)]
    assert ExactOrder(n, True, seed).at(epoch, np.array([place])).tolist() == expected


@given(
    st.one_of(st.integers(1, 3000), st.integers(1 << 30, 1 << 45)),
    st.integers(1, 40),
    st.integers(1, 6),
    st.integers(0, 7),
    WORDS,
    st.integers(0, 2**62),
    st.data(),
)
@settings(max_examples=examples(60), deadline=None)
def test_any_place_in_blocks_is_what_the_page_says(
    n: int, least: int, depth: int, bits: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    sizes, place = (n, least, depth << bits, 1 << bits), data.draw(st.integers(0, n - 1))
    expected = [reference().record_in_blocks(*sizes, seed, epoch, place)]
    assert BlockOrder(*sizes, seed).compute(epoch, np.array([place])).tolist() == expected


@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=40), WORDS, st.integers(0, 2**62 - 8))
@settings(max_examples=examples(60))
def test_any_draws_are_what_the_page_says(weights: list[float], seed: int, position: int) -> None:
    weights[0] = weights[0] or 1.0
    order = WeightedOrder(sums=sums_of(np.array(weights)), weights="", seed=seed)
    expected = [reference().drawn(reference().sums_of(weights), seed, position + k) for k in range(8)]
    assert order.at(0, np.arange(position, position + 8)).tolist() == expected
