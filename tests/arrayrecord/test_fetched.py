"""Blocks of records that were fetched: which bytes of replies they keep, and how they are read."""

from __future__ import annotations

import gc
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import examples
from test_ranged import Remote

from cachelayer import CorruptionError, Storage
from cachelayer.arrayrecord import index
from cachelayer.arrayrecord.blocks import BLOCK, HEADER, to_logical, to_position, without_headers
from cachelayer.arrayrecord.fetched import FetchedRecords, read_fetched
from cachelayer.arrayrecord.ranged import check_inside


@settings(max_examples=examples(60), deadline=None)
@given(
    begin=st.integers(0, 3 * BLOCK).filter(lambda position: position % BLOCK >= HEADER),
    nbytes=st.integers(0, 4 * BLOCK),
    cuts=st.lists(st.floats(0, 1), max_size=8),
)
def test_block_headers_are_left_out_however_a_reply_is_cut(begin: int, nbytes: int, cuts: list[float]) -> None:
    file = np.random.default_rng(nbytes).integers(0, 256, begin + nbytes, np.uint8)
    positions = np.arange(begin, begin + nbytes)
    splits = sorted({begin, begin + nbytes, *(begin + int(cut * nbytes) for cut in cuts)})
    pieces = [file[start:stop].tobytes() for start, stop in pairwise(splits)]
    expected = file[begin:][positions % BLOCK >= HEADER]
    assert np.array_equal(without_headers(pieces, begin), expected)
    # What may be written to is not copied.
    memory = file[begin:].copy()
    found = without_headers([memory.data], begin)
    assert np.array_equal(found, expected)
    assert np.shares_memory(found, memory) or not nbytes


def remote(folder: Path, sizes: list[int], **options: Any) -> tuple[Remote, list[bytes]]:
    """Records of these sizes in shards that are read by ranges."""
    values = [np.random.default_rng(number).bytes(size) for number, size in enumerate(sizes)]
    ref = Storage(folder).submit(values, "d", "v1", shard_bytes=1 << 26, **options)
    return Remote(ref), values


def fetch(there: Remote, begin: int, end: int) -> FetchedRecords:
    """A block of the only shard."""
    return there.ranged.fetch(np.zeros(end - begin, np.int64), np.arange(begin, end), 1.0)


def whole(block: FetchedRecords) -> list[bytes]:
    return read_fetched([block], np.zeros(len(block), np.int64), np.arange(len(block))).to_list()


SIZES = {
    "small": [10] * 60,
    "across headers": [10_000] * 60,
    "larger than a header's distance": [100_000] * 60,
    "any": np.random.default_rng(0).integers(0, 30_000, 60).tolist(),
}


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("sizes", SIZES)
def test_records_of_several_blocks_are_read_together(tmp_path: Path, sizes: str, compression: str | None) -> None:
    there, values = remote(tmp_path, SIZES[sizes], compression=compression)
    blocks = [fetch(there, begin, begin + 12) for begin in range(0, 60, 12)]
    numbers = np.random.default_rng(1).permutation(60)[:40]
    found = read_fetched(blocks, *np.divmod(numbers, 12))
    # What was read keeps the memory of the blocks.
    del blocks
    gc.collect()
    assert found.lengths.tolist() == [len(values[number]) for number in numbers]
    assert found.uniform_nbytes in {None, len(values[0])}
    assert found.ranges(np.zeros(40, np.int64), found.lengths).tobytes() == b"".join(
        values[number] for number in numbers
    )
    middle = min(found.lengths.tolist()) // 2
    assert found.slab(middle, 3 if middle > 3 else 0).tobytes() == b"".join(
        values[number][middle : middle + (3 if middle > 3 else 0)] for number in numbers
    )


@pytest.mark.parametrize("sizes", [[0] * 8, [9, 0, 0, 0, 0, 0, 9, 9], [70_000, 0, 0, 0, 0, 0, 200_000, 9]])
def test_records_of_no_bytes_are_held_alone_and_among_others(tmp_path: Path, sizes: list[int]) -> None:
    there, values = remote(tmp_path, sizes)
    for begin, end in [(0, 8), (1, 2), (2, 6), (0, 3), (4, 7)]:
        assert whole(fetch(there, begin, end)) == values[begin:end]


def test_a_damaged_record_is_found_when_it_is_fetched_and_told_when_it_is_read(tmp_path: Path) -> None:
    there, values = remote(tmp_path, [1000] * 20)
    shard = there.objects[0].name
    whole = there.reads.whole(shard)
    at = whole.index(values[7]) + 500
    there.reads.changed[shard] = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    block = fetch(there, 0, 20)
    assert block.damaged == {7}
    others = np.array([6, 8])
    read = read_fetched([block], np.zeros(2, np.int64), others)
    assert read.ranges(np.zeros(2, np.int64), read.lengths).tobytes() == values[6] + values[8]
    with pytest.raises(CorruptionError, match="record 7"):
        read_fetched([block], np.zeros(2, np.int64), np.array([6, 7]))


@pytest.mark.parametrize("length", [0, 1, 100, 2**32 - 1])
@pytest.mark.parametrize("position", [0, 23, 1001, 2**40, 2**63 - 1, 2**63, 2**64 - 1])
def test_no_index_row_names_a_range_outside_of_the_shard(position: int, length: int) -> None:
    rows = np.array([(position, length, 0)], index.ROW)
    logical, lengths = to_logical(rows["position"].astype(np.int64)), rows["length"].astype(np.int64)
    begins = to_position(logical)
    ends = np.where(lengths > 0, to_position(logical + lengths - 1) + 1, begins)
    with pytest.raises(CorruptionError, match="it "):
        check_inside(rows, begins, ends, 1000, lambda _: "it")


def test_records_are_never_read_outside_of_what_was_fetched() -> None:
    buffer = np.zeros(10, np.uint8)
    for start, length in ((-1, 3), (8, 3), (11, 0), (2, -1), (2**63 - 1, 3)):
        column = np.array([start], np.int64)
        with pytest.raises(CorruptionError, match="it "):
            FetchedRecords(
                buffer, column, np.array([length]), np.zeros(1, np.uint32), np.zeros(1, np.bool_), lambda _: "it"
            )


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("row", [-1, 12, 2**40, -(2**63)])
def test_no_row_is_read_that_a_block_does_not_have(tmp_path: Path, compression: str | None, row: int) -> None:
    there, _ = remote(tmp_path, [1000] * 24, compression=compression)
    blocks = [fetch(there, 0, 12), fetch(there, 12, 24)]
    with pytest.raises(CorruptionError, match=str(row)):
        read_fetched(blocks, np.array([0, 1, 1]), np.array([11, 0, row]))
