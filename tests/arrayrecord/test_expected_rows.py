"""Index rows of blocks come together if they lie near each other, and within a budget of bytes that are of no use."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import examples

from cachelayer.arrayrecord.expected_rows import MOST_BESIDE, MOST_TOGETHER, ExpectedRows
from cachelayer.arrayrecord.index import ROW

COUNT, NBYTES = 10, 1000


def expected(places: list[tuple[int, int]]) -> ExpectedRows:
    """Blocks of ``COUNT`` records of 1 kB, named by their shards and numbers there."""
    shard_of, within = np.array(places, np.int64).reshape(-1, 2).T
    return ExpectedRows(shard_of, within * COUNT, COUNT, NBYTES)


@settings(max_examples=examples(100))
@given(st.sets(st.tuples(st.integers(0, 3), st.integers(0, 300)), min_size=1, max_size=60), st.randoms())
def test_each_row_is_fetched_once_and_few_beside(places: set[tuple[int, int]], random: object) -> None:
    rows, fetched, nbytes = expected(sorted(places)), set[tuple[int, int]](), 0
    order = sorted(places)
    random.shuffle(order)  # type: ignore[attr-defined]
    for shard, number in order:
        block = rows.find(shard, number * COUNT, COUNT)
        assert block is not None
        with rows.lock(block):
            found = rows.take(block)
            if found is None:
                together = rows.together(block)
                begins = rows.begins(together)
                span = np.zeros(begins[-1] - begins[0] + COUNT, ROW)
                span["position"] = np.arange(begins[0], begins[-1] + COUNT)
                rows.keep(together, span, int(begins[0]))
                fetched |= {(shard, begin) for begin in begins.tolist()}
                nbytes += span.nbytes
            else:
                assert (found["position"] == np.arange(COUNT) + number * COUNT).all()
                assert (shard, number * COUNT) in fetched
        assert rows.find(shard, number * COUNT, COUNT) is None
    assert rows.nbytes == 0
    wanted = len(places) * COUNT
    assert nbytes <= wanted * (ROW.itemsize + MOST_BESIDE * NBYTES)


def test_the_shortest_gaps_are_bridged_first_and_none_between_shards() -> None:
    # The budget of five blocks of 10 kB is 140 rows.
    rows = expected([(0, 0), (0, 2), (0, 17), (0, 18), (1, 0)])
    assert [rows.together(block).tolist() for block in range(5)] == [[0, 1], [0, 1], [2, 3], [2, 3], [4]]


@pytest.mark.parametrize(
    ("shard", "within", "count"), [(0, 5, COUNT), (0, 0, COUNT - 1), (1, 0, COUNT), (0, 40, COUNT)]
)
def test_other_records_are_not_expected(shard: int, within: int, count: int) -> None:
    assert expected([(0, 0), (0, 3)]).find(shard, within, count) is None


def test_rows_that_come_together_are_few_although_no_block_lies_between() -> None:
    size = 1 << 20
    rows = ExpectedRows(np.zeros(size, np.int64), np.arange(size) * COUNT, COUNT, 1e6)
    runs = np.array([len(rows.together(block)) for block in range(0, size, size // 64)])
    assert 1 < runs.min() <= runs.max() <= MOST_TOGETHER // COUNT + 1


def test_blocks_that_are_named_twice_are_kept_once() -> None:
    rows = expected([(0, 0), (0, 0), (0, 1), (0, 1)])
    (first, second) = rows.together(0)
    rows.take(first)
    rows.keep(np.array([first, second]), np.zeros(2 * COUNT, ROW), 0)
    assert rows.find(0, COUNT, COUNT) == second
    assert rows.take(second) is not None
    assert rows.nbytes == 0


def test_locks_take_no_more_memory_for_more_blocks() -> None:
    rows = expected([(0, 1000 * number) for number in range(20_000)])
    locks = {id(rows.lock(block)) for block in range(20_000)}
    assert len(locks) <= 4096
