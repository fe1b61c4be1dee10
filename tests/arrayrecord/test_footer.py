"""The footer of a file."""

from __future__ import annotations

import numpy as np
import pytest

from cachelayer.arrayrecord import footer, varints
from cachelayer.errors import CorruptionError


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def message(fields: list[tuple[int, int]]) -> bytes:
    return b"".join(varint(tag) + varint(value) for tag, value in fields)


def test_a_footer_says_where_each_chunk_lies_and_how_many_records_it_has() -> None:
    messages = [message([(8, 88 + 562 * number), (16, 520), (24, 1)]) for number in range(2_000)]
    messages += [message([(24, 7), (8, 2**40)]), message([(16, 1)]), message([])]
    sizes = np.array(list(map(len, messages)))
    parsed = footer.parse_footer(np.frombuffer(b"".join(messages), np.uint8), sizes, 2**40)
    assert parsed.chunk_offsets.tolist() == [*(88 + 562 * number for number in range(2_000)), 2**40, 0, 0]
    assert parsed.chunk_records.tolist() == [1] * 2_000 + [7, 0, 0]


@pytest.mark.parametrize("raw", [b"\x80", b"\x08\x80", b"\x80" * 10 + b"\x01"])
def test_a_varint_that_is_cut_short_or_too_long_is_refused(raw: bytes) -> None:
    with pytest.raises(CorruptionError):
        varints.decode_all(np.frombuffer(raw, np.uint8))
