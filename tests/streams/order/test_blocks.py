"""The order in blocks: each record once, blocks that one shard reads once, and rows that are well mixed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from order_page import reference
from samples import examples
from test_golden import turns_by_stage

import cachelayer
from cachelayer import Blocks, InvalidArgumentError, StateError
from cachelayer.streams.order.blocks import BlockOrder, block_order
from cachelayer.streams.order.mixture import MixedOrder
from cachelayer.streams.order.orders import BlockBounds, ExactOrder, Order, OrderInBlocks, arrange_rows


@st.composite
def orders(draw: st.DrawFn, most: int = 3000) -> BlockOrder:
    """Any order of few records."""
    lanes = 1 << draw(st.integers(0, 7))
    window = lanes * draw(st.integers(1, 6))
    n = draw(st.one_of(st.integers(1, 2 * lanes), st.integers(1, most)))
    return BlockOrder(n, draw(st.integers(1, 40)), window, lanes, draw(st.integers(0, 2**64 - 1)))


def edges_of(order: OrderInBlocks, epoch: int, stop: int) -> BlockBounds:
    return order.blocks(epoch, np.arange(stop))


def arranged(order: OrderInBlocks, start: int, stop: int) -> Any:
    """The places of a step, by row."""
    return start + arrange_rows(order.sort_keys(0, np.arange(start, stop)))


@given(orders(), st.integers(0, 9))
@example(BlockOrder(300_007, 32_000, 2, 2, 0), 0)
@example(BlockOrder(300_007, 3, 1 << 16, 1 << 16, 0), 0)
@example(BlockOrder(300_007, 30_001, 4, 4, 0), 0)
@settings(max_examples=examples(60), deadline=None)
def test_an_epoch_holds_each_record_once_in_blocks_whose_last_places_are_known(order: BlockOrder, epoch: int) -> None:
    n = order.records
    records, spans = order.at(epoch, range(n)), edges_of(order, epoch, n)
    np.testing.assert_array_equal(np.sort(records), np.arange(n))
    assert ((spans.begin <= records) & (records < spans.end)).all()
    sizes = spans.end - spans.begin
    assert set(sizes.tolist()) <= {1, order.block}
    assert order.block == 1 or (sizes == 1).sum() == n - order.dealt
    begins, index = np.unique(spans.begin, return_inverse=True)
    lasts, lanes = np.zeros(len(begins), np.int64), np.zeros(len(begins), np.int64)
    # Places ascend, and the last assignment counts.
    lasts[index] = np.arange(n)
    np.testing.assert_array_equal(spans.last, lasts[index])
    lanes[index] = np.arange(n) % order.lanes
    np.testing.assert_array_equal(lanes[index], np.arange(n) % order.lanes)


@given(orders(), st.data())
@settings(max_examples=examples(60), deadline=None)
def test_a_part_in_blocks_is_the_same_part_of_the_whole(order: BlockOrder, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, order.records))
    stop = data.draw(st.integers(start, order.records))
    whole = order.at(3, range(order.records))
    np.testing.assert_array_equal(order.at(3, range(start, stop)), whole[start:stop])
    places = np.array(data.draw(st.lists(st.integers(0, order.records - 1))), np.int64)
    np.testing.assert_array_equal(order.at(3, places), whole[places])
    np.testing.assert_array_equal(order.compute(3, places), whole[places])
    lane = np.arange(start % order.lanes, order.records, order.lanes)
    np.testing.assert_array_equal(order.at(3, lane), whole[lane])


@given(orders(most=600), st.integers(1, 40), st.integers(0, 5))
@settings(max_examples=examples(60), deadline=None)
def test_rows_are_arranged_as_the_page_says(order: BlockOrder, size: int, skipped: int) -> None:
    start = min(skipped, order.records)
    stop = min(start + size, order.records)
    assert arranged(order, start, stop).tolist() == reference().arranged(range(start, stop), order.lanes)


def blocks_read(order: BlockOrder, shards: int, batch: int) -> float:
    """Blocks that all shards read over distinct blocks, in whole steps."""
    begins = edges_of(order, 0, order.records).begin
    rows = [arranged(order, start, start + batch) for start in range(0, order.records - batch + 1, batch)]
    of_shard = np.concatenate(rows).reshape(len(rows), shards, -1).swapaxes(0, 1).reshape(shards, -1)
    return sum(len(np.unique(begins[mine])) for mine in of_shard) / len(np.unique(begins[of_shard]))


@given(st.integers(0, 6), st.integers(0, 6), st.integers(1, 24), st.integers(0, 99))
@settings(max_examples=examples(40), deadline=None)
def test_no_block_is_read_by_two_of_a_power_of_two_of_shards(lanes: int, shards: int, share: int, seed: int) -> None:
    order = BlockOrder(4000, 16, 2 << lanes, 1 << lanes, seed)
    count = 1 << min(lanes, shards)
    assert blocks_read(order, count, share * count) == 1


@pytest.mark.parametrize(("shards", "lanes", "readers"), [(3, 2, "2"), (7, 8, "1.75"), (16, 4, "4"), (20, 16, "2")])
def test_the_warning_says_how_many_shards_read_a_block(shards: int, lanes: int, readers: str) -> None:
    ref, batch = cachelayer.wrap(list(range(4096)), identity="numbers"), 8 * shards
    with pytest.warns(cachelayer.CacheLayerWarning, match=f"read by up to about {readers} of them") as all_:
        stream = ref.stream(batch, shuffle=Blocks(16, 4 * lanes, lanes), seed=1, shard=(0, shards))
    assert len(all_) == 1
    order: Any = stream._reader.schedule.order
    assert 0.9 * float(readers) <= blocks_read(order, shards, batch) <= float(readers)


@pytest.mark.parametrize(
    ("n", "nbytes", "expected"),
    [
        (0, 4096, (1, 262144, 1)),
        (1, 4096, (1, 262144, 1)),
        (50, 10_000, (50, 2147, 1)),
        (10_000, 10_000, (105, 992, 32)),
        (10**6, 10_000, (105, 896, 128)),
        (10**9, 10_000, (105, 1024, 1024)),
        (10**6, 30_000_000, (1, 1024, 1024)),
        (10**9, 0, (32768, 256, 256)),
    ],
)
def test_default_sizes_are_these_for_ever(n: int, nbytes: int, expected: tuple[int, int, int]) -> None:
    order = block_order(Blocks(), n, nbytes, seed=0)
    assert tuple(order.sizes.values()) == expected
    assert block_order(Blocks(**order.sizes), n, nbytes, seed=0) == order


@given(st.integers(0, 10**7), st.integers(0, 10**6), st.integers(1, 32_768), st.integers(0, 12))
@settings(deadline=None)
def test_few_records_are_left_over(n: int, nbytes: int, least: int, bits: int) -> None:
    for sizes in (Blocks(), Blocks(least, None, 1 << bits)):
        order = block_order(sizes, n, nbytes, seed=0)
        assert min(order.least, max(1, n)) <= order.block <= order.least * 3 // 2
        assert n - order.dealt < order.lanes * order.block
        assert order.rounds or n == 0


WRONG_SIZES = [{"records": 0}, {"window": -1}, {"lanes": 12}, {"lanes": 1 << 17}, {"window": 1 << 21}]


@pytest.mark.parametrize("sizes", [*WRONG_SIZES, {"records": 32_769}, {"window": 7, "lanes": 8}])
def test_sizes_that_cannot_be_are_refused_by_name(sizes: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(sizes))):
        Blocks(**sizes)


def test_a_state_names_the_sizes_and_another_order_is_refused_by_name() -> None:
    ref = cachelayer.wrap(list(range(100)), identity="numbers")
    mine = iter(ref.stream(4, shuffle=Blocks(5, 8, 4), seed=1))
    state = mine.get_state()
    described = {"kind": "blocks", "version": 1, "seed": 1, "shuffle": True, "reshuffle": True}
    assert state["order"] == {**described, "blocks": {"records": 5, "window": 8, "lanes": 4}}
    mine.set_state(state)
    for shuffle, named in [
        (True, "order kind"),
        (Blocks(6, 8, 4), "records of a block"),
        (Blocks(5, 12, 4), "window of blocks"),
        (Blocks(5, 8, 2), "lanes of blocks"),
    ]:
        with pytest.raises(StateError, match=named):
            iter(ref.stream(4, shuffle=shuffle, seed=1)).set_state(state)
    for edited in (None, 5, [], {"records": [5]}, {"records": 5}):
        with pytest.raises(StateError):
            mine.set_state({**state, "order": {**state["order"], "blocks": edited}})


# Mixtures.


def test_a_mixture_has_the_blocks_of_its_parts_at_its_own_positions_and_rows_by_their_lanes() -> None:
    sizes, turns = (300, 41, 77), (3, 1, 2)
    parts = tuple(block_order(Blocks(4, 16, 8), size, 1, seed=size) for size in sizes)
    order, stop = MixedOrder(turns_by_stage({0: turns}), parts, 3), 6 * 300
    records, spans = order.at(0, range(stop)), edges_of(order, 0, stop)
    assert ((spans.begin <= records) & (records < spans.end)).all()
    np.testing.assert_array_equal(order.at(0, np.arange(0, stop, 7)), records[::7])
    uses: dict[tuple[int, int], list[int]] = {}
    for position in np.flatnonzero(spans.last < stop).tolist():
        uses.setdefault((int(spans.begin[position]), int(spans.last[position])), []).append(position)
    assert all(positions[-1] == last for (_, last), positions in uses.items())
    before = [0, 0, 0]
    for start in range(0, 640, 16):
        keys = []
        for position in range(start, start + 16):
            part = reference().round_of(list(turns))[position % sum(turns)]
            lanes = parts[part].lanes
            keys.append((reference().bits_reversed(before[part] % sizes[part] % lanes, lanes) / lanes, position))
            before[part] += 1
        assert arranged(order, start, start + 16).tolist() == [position for _, position in sorted(keys)]


def test_a_state_of_a_mixture_names_the_sizes_of_each_part() -> None:
    parts = [(cachelayer.wrap(list(range(n)), identity=f"{n}"), 1) for n in (300, 41)]
    mixed = cachelayer.mix(parts)
    iterator = iter(mixed.stream(4, shuffle=Blocks(4, 16, 8), seed=3))
    state = iterator.get_state()
    assert state["order"]["blocks"] == {"records": [4, 4], "window": [16, 16], "lanes": [8, 8]}
    iterator.set_state(state)
    with pytest.raises(StateError, match="records of a block is"):
        iter(mixed.stream(4, shuffle=Blocks(5, 16, 8), seed=3)).set_state(state)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("shards", [1, 4])
def test_samplers_of_torch_give_each_shard_the_rows_of_its_stream(shards: int) -> None:
    from cachelayer.adapters import torch

    ref = cachelayer.wrap(list(range(300)), identity="numbers")
    options: dict[str, Any] = {"shuffle": Blocks(4, 8, 4), "seed": 1}
    for shard in range(shards):
        stream = ref.stream(8, shard=(shard, shards), **options)
        batches = torch.BatchSampler(ref, 8, shards, shard, drop_last=False, **options)
        assert list(batches) == [stream.record_numbers(step).tolist() for step in range(len(stream))]
        sampler = torch.Sampler(ref, shards, shard, drop_last=False, **options)
        assert list(sampler) == list(ref.stream(shard=(shard, shards), **options))


# Statistics.


def mean_chi_square(order: Order, n: int, batch: int, classes: int, epochs: int) -> float:
    """The mean chi-square of the labels of a batch, over records that are sorted by class."""
    found = []
    for epoch in range(epochs):
        labels: NDArray[np.int64] = order.at(epoch, range(n)) * classes // n
        steps = labels[: n // batch * batch].reshape(-1, batch)
        counts = np.stack([(steps == label).sum(axis=1) for label in range(classes)])
        found.append((((counts - batch / classes) ** 2) / (batch / classes)).sum(axis=0).mean())
    return float(np.mean(found))


@pytest.mark.parametrize(
    ("least", "window", "lanes"),
    [(16, 1024, 256), (50, 256, 256), pytest.param(100, 256, 256, marks=pytest.mark.soak)],
)
def test_batches_of_sorted_classes_are_as_mixed_as_exactly_shuffled_ones(least: int, window: int, lanes: int) -> None:
    n, batch = 100_000, 256
    exact = mean_chi_square(ExactOrder(n, True, 1), n, batch, 10, 4)
    assert mean_chi_square(BlockOrder(n, least, window, lanes, 1), n, batch, 10, 4) <= 1.05 * exact
