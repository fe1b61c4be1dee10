"""Checksums of parts."""

from __future__ import annotations

import google_crc32c
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cachelayer.objects.crc32c import joined

PARTS = st.lists(st.binary(max_size=40) | st.integers(0, 5).map(lambda n: bytes(n * 70_001)), max_size=6)


@given(PARTS)
def test_checksums_of_parts_are_joined_to_that_of_the_whole(parts: list[bytes]) -> None:
    checksum = 0
    for part in parts:
        checksum = joined(checksum, google_crc32c.value(part), len(part))
    assert checksum == google_crc32c.value(b"".join(parts))


def test_checksums_of_long_parts_are_joined() -> None:
    data = np.random.default_rng(0).bytes(1 << 24)
    for cut in (1, 1 << 23, (1 << 24) - 3):
        first, second = google_crc32c.value(data[:cut]), google_crc32c.value(data[cut:])
        assert joined(first, second, len(data) - cut) == google_crc32c.value(data)
