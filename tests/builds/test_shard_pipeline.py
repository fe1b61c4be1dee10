"""Where shards end is decided by the sizes of records alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import cachelayer
from cachelayer.builds.build_options import RECORD_OVERHEAD
from cachelayer.builds.shard_pipeline import ShardCutter

LENGTHS = st.lists(st.integers(0, 300), max_size=60)


def shards_of(lengths: list[int], splits: list[int], shard_nbytes: int) -> list[list[int]]:
    """The lengths of the records of each shard, where they arrive in batches that end at ``splits``."""
    cutter = ShardCutter(shard_nbytes)
    shards: list[list[int]] = []
    bounds = [0, *sorted(splits), len(lengths)]
    for start, stop in pairwise(bounds):
        batch = lengths[start:stop]
        covered = 0
        for begins, rows in cutter.cut(np.array(batch, np.int64)):
            assert rows.start == covered < rows.stop
            covered = rows.stop
            if begins:
                shards.append([])
            shards[-1].extend(batch[rows])
        assert covered == len(batch)
    return shards


def one_by_one(lengths: list[int], shard_nbytes: int) -> list[list[int]]:
    """The rule: a record opens a new shard where it does not fit into the one before."""
    shards: list[list[int]] = []
    filled = 0
    for length in lengths:
        taken = length + RECORD_OVERHEAD
        if not shards or filled + taken > shard_nbytes:
            shards.append([])
            filled = 0
        shards[-1].append(length)
        filled += taken
    return shards


@given(lengths=LENGTHS, shard_nbytes=st.integers(1, 1500), data=st.data())
def test_cuts_do_not_depend_on_batches(lengths: list[int], shard_nbytes: int, data: st.DataObject) -> None:
    splits = data.draw(st.lists(st.integers(0, len(lengths)), max_size=8))
    assert shards_of(lengths, splits, shard_nbytes) == one_by_one(lengths, shard_nbytes)


def test_a_shard_that_is_exactly_full_is_not_cut_early_and_a_larger_record_has_one_to_itself() -> None:
    full = [100] * 3
    nbytes = sum(full) + 3 * RECORD_OVERHEAD
    assert shards_of(full * 2, [3], nbytes) == [full, full]
    assert shards_of(full * 2, [2, 3], nbytes - 1) == [[100, 100]] * 3
    assert shards_of([1, 5000, 5000, 1], [], 1000) == [[1], [5000], [5000], [1]]


def test_a_generator_is_cut_where_a_list_of_equal_records_is(tmp_path: Path) -> None:
    def rows() -> Iterator[dict[str, int]]:
        return ({"n": number, "m": number} for number in range(5000))

    storage = cachelayer.Storage(tmp_path)
    generated = storage.submit(rows, "d@generated", shard_bytes=50_000)
    listed = storage.submit(list(rows()), "d@listed", shard_bytes=50_000)
    assert generated.digest == listed.digest
    *full, last = generated._base.version.manifest.shards.records.tolist()
    assert len(full) > 5
    assert len(set(full)) == 1
    assert last <= full[0]
