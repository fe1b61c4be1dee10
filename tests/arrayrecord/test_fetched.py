"""Records that were fetched together: which bytes of replies they keep, and how they are read out of many buffers."""

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
from cachelayer.arrayrecord.index import BLOCK, HEADER, PAYLOAD, SIGNATURE, buffers_of_ranges, check_inside, to_logical
from cachelayer.datasets.held_blocks import HeldBlock, held_records
from cachelayer.records.spans import Records, Spans

BEGINS = st.integers(0, 3 * BLOCK).filter(lambda position: position % BLOCK >= HEADER)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(BEGINS, st.integers(0, 4 * BLOCK)), min_size=1, max_size=4))
def test_block_headers_are_left_out(ranges: list[tuple[int, int]]) -> None:
    file = np.random.default_rng(len(ranges)).integers(0, 256, 8 * BLOCK, np.uint8)
    is_payload = np.arange(len(file)) % BLOCK >= HEADER
    raw = [file[begin : begin + nbytes].tobytes() for begin, nbytes in ranges]
    begins = np.array([begin for begin, _ in ranges])
    wanted = [file[begin : begin + nbytes][is_payload[begin : begin + nbytes]] for begin, nbytes in ranges]
    starts = to_logical(begins) - begins // BLOCK * PAYLOAD
    rows = np.arange(len(ranges))
    lengths = np.array([*map(len, wanted)])
    found = Spans(buffers_of_ranges(raw, begins), starts, lengths, rows)
    assert found.packed_copy().to_list() == [each.tobytes() for each in wanted]
    for wrong in (Spans(found.buffers, starts - 1, lengths, rows), Spans(found.buffers, starts, lengths + 1, rows)):
        with pytest.raises(CorruptionError, match="record 0"):
            wrong.packed_copy()


def remote(folder: Path, sizes: list[int], **options: Any) -> tuple[Remote, list[bytes]]:
    """Records of these sizes in shards that are read by ranges."""
    values = [np.random.default_rng(number).bytes(size) for number, size in enumerate(sizes)]
    ref = Storage(folder).submit(values, "d@v1", shard_bytes=1 << 26, **options)
    return Remote(ref), values


def fetch(there: Remote, begin: int, end: int) -> tuple[Records, frozenset[int]]:
    """A block of the only shard, and the rows of its damaged records."""
    return there.ranged.fetch(np.zeros(end - begin, np.int64), np.arange(begin, end))


SIZES = {
    "small": [10] * 60,
    "across headers": [10_000] * 60,
    "larger than a header's distance": [100_000] * 60,
    "any": np.random.default_rng(0).integers(0, 30_000, 60).tolist(),
    "none": [0] * 60,
    "mostly none": [70_000, 0, 0, 0, 0, 0, 200_000, 9] * 7 + [0] * 4,
}


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("sizes", SIZES)
def test_records_of_several_blocks_are_read_together(tmp_path: Path, sizes: str, compression: str | None) -> None:
    there, values = remote(tmp_path, SIZES[sizes], compression=compression)
    for begin, end in [(0, 8), (1, 2), (2, 6), (0, 3), (4, 7), (3, 3)]:
        assert fetch(there, begin, end)[0].packed().to_list() == values[begin:end]
    blocks = [
        HeldBlock(np.arange(begin, begin + 12), fetch(there, begin, begin + 12)[0].packed())
        for begin in range(0, 60, 12)
    ]
    numbers = np.random.default_rng(1).permutation(60)[:40]
    found = held_records(blocks, numbers)
    assert found is not None
    assert found.packed_copy().to_list() == [values[number] for number in numbers]
    middle = min(found.lengths.tolist()) // 2
    nbytes = 3 if middle > 3 else 0
    assert found.take(middle, nbytes).tobytes() == b"".join(
        values[number][middle : middle + nbytes] for number in numbers
    )


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_damaged_record_is_told_and_the_others_are_right(tmp_path: Path, compression: str | None) -> None:
    there, values = remote(tmp_path, [1000] * 20, compression=compression)
    shard = there.objects[0].name
    raw = bytearray(there.reads.whole(shard))
    raw[raw.index(values[7][:100]) + 50 if compression is None else raw.index(b"\x28\xb5\x2f\xfd", 9000) + 100] ^= 1
    there.reads.changed[shard] = bytes(raw)
    records, broken = fetch(there, 0, 20)
    assert len(broken) == 1
    whole = [row for row in range(20) if row not in broken]
    assert records[np.array(whole)].packed_copy().to_list() == [values[row] for row in whole]
    (row,) = broken
    with pytest.raises(CorruptionError, match=f"record {row}"):
        there.records([row])


@pytest.mark.parametrize("position", [0, 23, 1001, 2**40, 2**63 - 1, 2**63, 2**64 - 1])
def test_no_index_row_names_a_range_outside_of_the_shard(position: int) -> None:
    for length in (0, 1, 100, 2**32 - 1):
        rows = np.array([(position, length, 0)], index.ROW)
        logical, lengths = to_logical(rows["position"].astype(np.int64)), rows["length"].astype(np.int64)
        with pytest.raises(CorruptionError, match="it "):
            check_inside(logical, lengths, to_logical(1000), lambda _: "it", SIGNATURE)
