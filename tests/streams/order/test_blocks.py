"""The order in blocks: the contract of the exact order, and blocks that one shard reads once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from order_page import reference
from samples import examples

import cachelayer
from cachelayer import Blocks, InvalidArgumentError, InvalidTypeError, StateError
from cachelayer.streams.order.blocks import BlockOrder
from cachelayer.streams.order.orders import Edges, ExactOrder, Order, arrange_rows
from cachelayer.streams.stream_options import make_options

WORDS = st.integers(0, 2**64 - 1)
SIZES = (0, 1, 2, 3, 7, 10, 64, 100, 997)


@st.composite
def orders(draw: st.DrawFn, most: int = 3000) -> BlockOrder:
    """Any order of few records."""
    lanes = 1 << draw(st.integers(0, 7))
    window = lanes * draw(st.integers(1, 6))
    n = draw(st.one_of(st.integers(1, 2 * lanes), st.integers(1, most)))
    return BlockOrder(n, draw(st.integers(1, 40)), window, lanes, draw(WORDS))


def arranged(order: Order, start: int, stop: int) -> Any:
    """The places of a step, by row."""
    spans = order.spans(0, np.arange(start, stop))
    assert spans is not None
    return start + arrange_rows(spans.ranks)


@given(orders(), st.integers(0, 9))
@settings(max_examples=examples(60), deadline=None)
def test_an_epoch_in_blocks_holds_each_record_once(order: BlockOrder, epoch: int) -> None:
    np.testing.assert_array_equal(np.sort(order.at(epoch, range(order.records))), np.arange(order.records))


@pytest.mark.parametrize(
    ("least", "window", "lanes"), [(32_000, 2, 2), (1000, 300, 1), (3, 1 << 16, 1 << 16), (30_001, 4, 4)]
)
def test_large_windows_and_many_lanes_hold_each_record_once(least: int, window: int, lanes: int) -> None:
    order = BlockOrder(300_007, least, window, lanes, 0)
    np.testing.assert_array_equal(np.sort(order.at(0, range(order.records))), np.arange(order.records))
    check_spans(order, 0)


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


@pytest.mark.slow
@pytest.mark.parametrize("n", [2**40, 2**40 + 12_345, 10**12])
@pytest.mark.parametrize("nbytes", [40, 300, 10_000, 3_000_000])
def test_huge_orders_in_blocks_repeat_nothing(n: int, nbytes: int) -> None:
    order = Blocks().order(n, nbytes, seed=11)
    width = 5000
    places = np.unique(np.concatenate([np.arange(at, at + width) for at in (0, n // 3, n - width)]))
    records = order.at(4, places)
    assert len(np.unique(records)) == len(places)
    assert 0 <= records.min() <= records.max() < n


@given(orders(), st.integers(0, 9))
@settings(max_examples=examples(60), deadline=None)
def test_spans_are_the_blocks_and_their_last_places(order: BlockOrder, epoch: int) -> None:
    check_spans(order, epoch)


def check_spans(order: BlockOrder, epoch: int) -> None:
    """Compare spans with what the whole epoch shows."""
    n, records, spans = order.records, order.at(epoch, range(order.records)), spans_of(order, epoch)
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


def spans_of(order: Order, epoch: int, stop: int | None = None) -> Edges:
    spans = order.spans(epoch, np.arange(order.records if stop is None else stop))
    assert spans is not None
    return spans.edges()


@given(orders(most=600), st.integers(1, 40), st.integers(0, 5))
@settings(max_examples=examples(60), deadline=None)
def test_rows_are_arranged_as_the_page_says(order: BlockOrder, size: int, skipped: int) -> None:
    start = min(skipped, order.records)
    stop = min(start + size, order.records)
    assert arranged(order, start, stop).tolist() == reference().arranged(range(start, stop), order.lanes)


def blocks_read(order: BlockOrder, shards: int, batch: int) -> float:
    """Blocks that all shards read over distinct blocks, in whole steps."""
    begins = spans_of(order, 0).begin
    rows = [arranged(order, start, start + batch) for start in range(0, order.records - batch + 1, batch)]
    of_shard = np.concatenate(rows).reshape(len(rows), shards, -1).swapaxes(0, 1).reshape(shards, -1)
    return sum(len(np.unique(begins[mine])) for mine in of_shard) / len(np.unique(begins[of_shard]))


@given(st.integers(0, 6), st.integers(0, 6), st.integers(1, 24), st.integers(0, 99))
@settings(max_examples=examples(40), deadline=None)
def test_no_block_is_read_by_two_of_a_power_of_two_of_shards(lanes: int, shards: int, share: int, seed: int) -> None:
    order = BlockOrder(4000, 16, 2 << lanes, 1 << lanes, seed)
    count = 1 << min(lanes, shards)
    assert blocks_read(order, count, share * count) == 1


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
    order = Blocks().order(n, nbytes, seed=0)
    assert tuple(order.sizes.values()) == expected
    assert Blocks(**order.sizes).order(n, nbytes, seed=0) == order


@given(st.integers(0, 10**7), st.integers(0, 10**6), st.integers(1, 32_768), st.integers(0, 12))
@settings(deadline=None)
def test_few_records_are_left_over(n: int, nbytes: int, least: int, bits: int) -> None:
    for order in (Blocks().order(n, nbytes, seed=0), Blocks(least, None, 1 << bits).order(n, nbytes, seed=0)):
        assert min(order.least, max(1, n)) <= order.block <= order.least * 3 // 2
        assert n - order.dealt < order.lanes * order.block
        assert order.rounds or n == 0


def test_of_many_records_hardly_any_are_left_over() -> None:
    for n in (10**7 + 12_345, 10**9 + 7, 10**12 - 1):
        order = Blocks().order(n, 10_000, seed=0)
        assert n - order.dealt < 10 * order.lanes


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("remainder", ["keep", "drop", "pad"])
@pytest.mark.slow
def test_global_batches_are_the_same_for_any_shards(n: int, remainder: Any) -> None:
    ref = cachelayer.wrap(list(range(n)), identity="numbers")
    options: dict[str, Any] = {"shuffle": Blocks(3, 32, 16), "seed": 5, "remainder": remainder, "num_epochs": 2}
    alone = list(ref.stream(12, **options))
    for shards in (2, 3, 4, 12):
        with_shards = [list(ref.stream(12, shard=(shard, shards), **options)) for shard in range(shards)]
        for number, whole in enumerate(alone):
            parts = [steps[number] for steps in with_shards]
            if remainder == "pad":
                assert np.concatenate([batch for batch, _ in parts]).tolist() == whole[0].tolist()
                assert np.concatenate([mask for _, mask in parts]).tolist() == whole[1].tolist()
            else:
                assert np.concatenate(parts).tolist() == whole.tolist()


@given(st.integers(1, 200), st.integers(1, 9), st.integers(1, 9), st.data())
@settings(max_examples=examples(15), deadline=None)
def test_batch_sizes_and_shards_may_change_midway(n: int, first: int, second: int, data: st.DataObject) -> None:
    ref = cachelayer.wrap(list(range(n)), identity="numbers")
    options: dict[str, Any] = {"shuffle": Blocks(4, 32, 16), "seed": 5, "prefetch": 0}
    iterator, seen = iter(ref.stream(first, **options)), []
    for _ in range(data.draw(st.integers(0, -(-n // first)))):
        seen += next(iterator).tolist()
    for shard in range(second):
        rest = iter(ref.stream(second, shard=(shard, second), **options))
        rest.set_state(iterator.get_state())
        seen += [number for batch in rest for number in batch.tolist()]
    assert sorted(seen) == list(range(n))


@pytest.mark.parametrize("remainder", ["keep", "drop", "pad"])
@pytest.mark.parametrize("batch", [None, 12])
def test_a_step_is_what_the_iteration_gives(remainder: Any, batch: int | None) -> None:
    if batch is None and remainder == "pad":
        return
    ref = cachelayer.wrap(list(range(101)), identity="numbers")
    for shard in range(3):
        stream = ref.stream(batch, shuffle=Blocks(4, 8, 4), seed=1, shard=(shard, 3), remainder=remainder)
        items = [item[0] if remainder == "pad" else item for item in stream]
        for step, item in enumerate(items):
            np.testing.assert_array_equal(stream.records(step), item)
            found = stream[step]
            np.testing.assert_array_equal(found[0] if remainder == "pad" else found, item)


def test_random_numbers_are_those_of_the_position_of_a_row() -> None:
    ref = cachelayer.wrap(list(range(30)), identity="numbers")
    options: dict[str, Any] = {"shuffle": Blocks(3, 8, 8), "seed": 9, "remainder": "pad"}

    def drawn(number: int, generator: np.random.Generator) -> Any:
        return np.array([number, generator.integers(1 << 62)])

    places = ref.stream(1, **options)
    position_of = {int(places.records(place)[0]): place for place in range(30)}
    for batch, mask in ref.stream(8, **options).map(drawn, rng=True):
        for (number, draw), valid in zip(batch.tolist(), mask, strict=True):
            position = position_of[number]
            key = np.array([9, position], np.uint64)
            generator = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, 0]))
            assert draw == generator.integers(1 << 62)
            assert valid or position == 29


def test_padding_rows_come_last_and_repeat_the_last_record() -> None:
    stream = cachelayer.wrap(list(range(30)), identity="n").stream(8, shuffle=Blocks(3, 8, 8), seed=9, remainder="pad")
    batch, mask = stream[3]
    assert mask.tolist() == [True] * 6 + [False] * 2
    last = cachelayer.wrap(list(range(30)), identity="n").stream(1, shuffle=Blocks(3, 8, 8), seed=9).records(29)
    assert batch[6:].tolist() == [last[0]] * 2


@pytest.mark.parametrize(
    "sizes",
    [
        {"records": 0},
        {"window": -1},
        {"lanes": 0},
        {"lanes": 12},
        {"lanes": 1 << 17},
        {"window": 1 << 21},
        {"records": 32_769},
        {"window": 7, "lanes": 8},
    ],
)
def test_sizes_that_cannot_be_are_refused_by_name(sizes: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(sizes))):
        Blocks(**sizes)


@pytest.mark.parametrize("shuffle", ["exact", 1, None, Blocks, ("blocks",)])
def test_any_other_shuffle_is_refused(shuffle: Any) -> None:
    with pytest.raises(InvalidTypeError, match="'blocks'"):
        make_options(10, 2, shuffle=shuffle, seed=1)


def test_a_shuffle_in_blocks_needs_a_seed() -> None:
    with pytest.raises(InvalidArgumentError, match="'blocks'"):
        make_options(10, 2, shuffle="blocks")
    with pytest.raises(InvalidArgumentError, match="shuffle=Blocks"):
        make_options(10, 2, shuffle=Blocks(lanes=4))


@pytest.mark.parametrize(
    ("shards", "lanes", "readers"),
    [
        (3, 2, "2"),
        (5, 4, "2"),
        (6, 4, "2"),
        (12, 8, "2"),
        (7, 8, "1.75"),
        (13, 16, "1.75"),
        (16, 4, "4"),
        (20, 16, "2"),
    ],
)
def test_the_warning_says_how_many_shards_read_a_block(shards: int, lanes: int, readers: str) -> None:
    ref, batch = cachelayer.wrap(list(range(4096)), identity="numbers"), 8 * shards
    with pytest.warns(cachelayer.CacheLayerWarning, match=f"read by up to about {readers} of them") as all_:
        stream = ref.stream(batch, shuffle=Blocks(16, 4 * lanes, lanes), seed=1, shard=(0, shards))
    assert len(all_) == 1
    order: Any = stream._reader.options.order
    assert 0.9 * float(readers) <= blocks_read(order, shards, batch) <= float(readers)


@pytest.mark.parametrize("n", [1, 5, 63])
def test_smaller_versions_have_fewer_lanes(n: int) -> None:
    order = Blocks(2, 64, 64).order(n, 1, seed=0)
    assert 1 <= order.lanes <= max(1, n // 2)
    # An order of fewer records than were planned for has no blocks in lanes, and is exact.
    assert sorted(BlockOrder(n, 64, 64, 64, 0).at(0, range(n)).tolist()) == list(range(n))


def test_a_state_names_the_sizes_and_another_order_is_refused_by_name() -> None:
    ref = cachelayer.wrap(list(range(100)), identity="numbers")
    mine = iter(ref.stream(4, shuffle=Blocks(5, 8, 4), seed=1))
    next(mine)
    state = mine.get_state()
    assert state["order"] == {
        "kind": "blocks",
        "version": 1,
        "seed": 1,
        "shuffle": True,
        "reshuffle": True,
        "blocks": {"records": 5, "window": 8, "lanes": 4},
    }
    mine.set_state(state)
    for shuffle, named in [
        (True, "order kind"),
        (Blocks(6, 8, 4), "records of a block"),
        (Blocks(5, 12, 4), "window of blocks"),
        (Blocks(5, 8, 2), "lanes of blocks"),
        ("blocks", "records of a block"),
    ]:
        with pytest.raises(StateError, match=named):
            iter(ref.stream(4, shuffle=shuffle, seed=1)).set_state(state)
    exact = iter(ref.stream(4, shuffle=True, seed=1)).get_state()
    with pytest.raises(StateError, match="order kind is 'blocks' here and 'exact' in the state"):
        mine.set_state(exact)
    for edited in (None, 5, [], {"records": [5]}, {"records": 5}):
        with pytest.raises(StateError):
            mine.set_state({**state, "order": {**state["order"], "blocks": edited}})


def test_views_and_joins_have_blocks_of_their_own_numbers(parts: list[Any]) -> None:
    ref = parts[0]
    for view in (ref[10:90:2], ref.select([5, 3, 3, 99]), cachelayer.concat([ref[:30], parts[2]])):
        stream = view.stream(8, shuffle=Blocks(4, 8, 4), seed=1)
        seen = np.concatenate(list(stream))
        assert sorted(seen.tolist()) == sorted(view)
        assert (
            np.concatenate([view.read(stream.records(step)) for step in range(len(stream))]).tolist() == seen.tolist()
        )


# Mixtures.


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Versions of 300, 41 and 77 records, which are numbers."""
    storage = cachelayer.Storage(tmp_path_factory.mktemp("parts"))
    sizes = (300, 41, 77)
    return [storage.cache(list(range(1000 * i, 1000 * i + n)), f"part{i}", "v1") for i, n in enumerate(sizes)]


def mixture(parts: list[Any], weights: tuple[int, ...] = (3, 1)) -> cachelayer.Mixture[Any]:
    return cachelayer.mix(list(zip(parts, weights, strict=False)))


@pytest.mark.parametrize("shards", [2, 4, 6])
def test_a_mixture_in_blocks_is_the_same_for_any_shards(parts: list[Any], shards: int) -> None:
    mixed, options = mixture(parts), {"shuffle": Blocks(4, 16, 8), "seed": 3, "prefetch": 0}
    alone = mixed.stream(24, **options)
    streams = [mixed.stream(24, shard=(shard, shards), **options) for shard in range(shards)]
    for step in (0, 1, 50):
        assert np.concatenate([stream[step] for stream in streams]).tolist() == alone[step].tolist()
    seen = np.concatenate([alone[step] for step in range(50)])
    own = seen[seen < 1000]
    assert sorted(own[:300].tolist()) != own[:300].tolist()
    counts = np.bincount(own, minlength=300)
    assert counts.sum() == 900
    assert set(counts.tolist()) == {3}


def test_spans_of_a_mixture_are_blocks_of_its_parts_and_positions_of_the_mixture(parts: list[Any]) -> None:
    order: Any = mixture(parts, (3, 1, 2)).stream(6, shuffle=Blocks(4, 16, 8), seed=3)._reader.options.order
    stop = 6 * 300
    records, spans = order.at(0, range(stop)), spans_of(order, 0, stop)
    assert ((spans.begin <= records) & (records < spans.end)).all()
    np.testing.assert_array_equal(order.at(0, np.arange(0, stop, 7)), records[::7])
    inside = np.flatnonzero(spans.last < stop)
    assert ((spans.begin[spans.last[inside]] == spans.begin[inside]) & (spans.last >= np.arange(stop))[inside]).all()
    uses: dict[tuple[int, int], list[int]] = {}
    for position in inside.tolist():
        uses.setdefault((int(spans.begin[position]), int(spans.last[position])), []).append(position)
    for (_, last), positions in uses.items():
        assert positions[-1] == last


def test_rows_of_a_mixture_are_sorted_by_the_lanes_of_its_parts(parts: list[Any]) -> None:
    stream = mixture(parts).stream(16, shuffle=Blocks(4, 16, 8), seed=3)
    order: Any = stream._reader.options.order
    turns, lanes = {0: 0, 1: 0}, [order.lanes for order in order.orders]
    for step in range(40):
        keys = []
        for position in range(16 * step, 16 * step + 16):
            part = reference().round_of([3, 1])[position % 4]
            place = turns[part] % (300, 41)[part]
            keys.append((reference().bits_reversed(place % lanes[part], lanes[part]) / lanes[part], position))
            turns[part] += 1
        expected = [position for _, position in sorted(keys)]
        assert stream.records(step).tolist() == order.at(0, np.array(expected)).tolist()


def test_a_state_of_a_mixture_names_the_sizes_of_each_part(parts: list[Any]) -> None:
    mixed = mixture(parts)
    iterator = iter(mixed.stream(4, shuffle=Blocks(4, 16, 8), seed=3))
    state = iterator.get_state()
    assert state["order"]["blocks"] == {"records": [4, 4], "window": [16, 16], "lanes": [8, 8]}
    iterator.set_state(state)
    with pytest.raises(StateError, match="records of a block is"):
        iter(mixed.stream(4, shuffle=Blocks(5, 16, 8), seed=3)).set_state(state)


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_samplers_of_torch_give_each_shard_the_rows_of_its_stream(parts: list[Any], shards: int) -> None:
    pytest.importorskip("torch")
    from cachelayer.adapters import torch

    options: dict[str, Any] = {"shuffle": Blocks(4, 8, 4), "seed": 1}
    for shard in range(shards):
        stream = parts[0].stream(8, shard=(shard, shards), **options)
        batches = torch.BatchSampler(parts[0], 8, shards, shard, drop_last=False, **options)
        assert list(batches) == [stream.records(step).tolist() for step in range(len(stream))]
        sampler = torch.Sampler(parts[0], shards, shard, drop_last=False, **options)
        assert list(sampler) == list(parts[0].stream(shard=(shard, shards), **options))


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
    [(16, 1024, 256), (16, 1024, 1024), (50, 256, 256), pytest.param(100, 256, 256, marks=pytest.mark.soak)],
)
def test_batches_of_sorted_classes_are_as_mixed_as_exactly_shuffled_ones(least: int, window: int, lanes: int) -> None:
    n, batch = 100_000, 256
    exact = mean_chi_square(ExactOrder(n, True, 1), n, batch, 10, 4)
    assert mean_chi_square(BlockOrder(n, least, window, lanes, 1), n, batch, 10, 4) <= 1.05 * exact


@pytest.mark.slow
def test_the_records_that_are_left_out_are_others_in_each_epoch() -> None:
    order = BlockOrder(1000, 8, 64, 32, 1)
    left = np.concatenate([order.at(epoch, range(960, 1000)) for epoch in range(200)])
    expected = len(left) / 1000
    statistic = ((np.bincount(left, minlength=1000) - expected) ** 2 / expected).sum()
    # Records that lie together are left out together, so this varies more than chi-square does.
    assert statistic < 1000 * 4


def test_the_tail_comes_anywhere_in_an_epoch_from_all_over_the_dataset() -> None:
    order = BlockOrder(1003, 16, 8, 4, 1)
    firsts = []
    for epoch in range(60):
        spans = spans_of(order, epoch)
        places = np.flatnonzero(spans.end - spans.begin == 1)
        assert places.tolist() == list(range(places[0], places[0] + 1003 - order.dealt))
        firsts.append(int(places[0]))
        assert np.ptp(order.at(epoch, places)) > 500
    assert len(set(firsts)) > 30
    assert min(firsts) < 200
    assert max(firsts) > 800
