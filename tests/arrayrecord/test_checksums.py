"""Checking many records at once finds what checking them one by one finds."""

from __future__ import annotations

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelayer.arrayrecord.checksums import checked, first_damaged
from cachelayer.errors import CorruptionError
from cachelayer.records.record_buffers import RecordBuffer


def records_of(sizes: list[int], seed: int) -> tuple[RecordBuffer, np.ndarray]:
    rng = np.random.default_rng(seed)
    listed = [rng.bytes(size) for size in sizes]
    checksums = np.array([google_crc32c.value(record) for record in listed], np.uint32)
    buffer = RecordBuffer.of(listed)
    return RecordBuffer(buffer.buffer.copy(), buffer.starts, buffer.lengths), checksums


@given(
    sizes=st.one_of(
        st.lists(st.integers(0, 40), max_size=90),
        st.builds(lambda count, size: [size] * count, st.integers(0, 300), st.integers(0, 40)),
        st.builds(lambda count, size: [size] * count, st.integers(60, 70), st.sampled_from([3_080, 16_383, 16_384])),
    ),
    seed=st.integers(0, 9),
    data=st.data(),
)
def test_the_first_damaged_record_is_found_whatever_the_sizes(sizes: list[int], seed: int, data: st.DataObject) -> None:
    records, checksums = records_of(sizes, seed)
    assert first_damaged(records, checksums) is None
    filled = np.flatnonzero(records.lengths).tolist()
    damaged = sorted(data.draw(st.sets(st.sampled_from(filled), max_size=3))) if filled else []
    for row in damaged:
        place = data.draw(st.integers(0, int(records.lengths[row]) - 1))
        records.buffer[int(records.starts[row]) + place] ^= 1 << data.draw(st.integers(0, 7))
    assert first_damaged(records, checksums) == (damaged[0] if damaged else None)


def test_a_wrong_checksum_and_two_records_that_changed_places_are_found() -> None:
    records, checksums = records_of([24] * 200, 1)
    for row in (0, 7, 8, 199):
        wrong = checksums.copy()
        wrong[row] ^= 1 << 31
        assert first_damaged(records, wrong) == row
    wrong = checksums.copy()
    wrong[[70, 90]] = wrong[[90, 70]]
    with pytest.raises(CorruptionError, match=r"record 70 does not match its checksum"):
        checked(records, wrong, lambda row: f"record {row}")
