"""The footer of a file is read in runs of like messages exactly as it is read message by message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import examples

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


OFFSETS = st.integers(0, 2**64 - 1)
SMALL = st.one_of(st.integers(0, 3), OFFSETS)


@st.composite
def footers(draw: st.DrawFn) -> tuple[Any, Any]:
    """The messages of a footer: in runs that are alike, with a few that are not."""
    messages: list[bytes] = []
    for _ in range(draw(st.integers(0, 3))):
        tags = draw(st.sampled_from([(8, 16, 24), (8, 24), (8,), (24, 8), (8, 8, 24), (), (16, 1000, 24)]))
        first, step = draw(OFFSETS), draw(st.integers(0, 1000))
        values = [(first + step * number) % 2**64 for number in range(draw(st.integers(0, 5)))]
        messages += [message([(tag, value if tag == 8 else 1) for tag in tags]) for value in values]
    if draw(st.booleans()):
        messages.append(message(draw(st.lists(st.tuples(st.sampled_from([8, 16, 24]), SMALL), max_size=3))))
    raw = bytearray(b"".join(messages))
    if raw and draw(st.booleans()):
        raw[draw(st.integers(0, len(raw) - 1))] ^= 1 << draw(st.integers(0, 7))
    return np.frombuffer(bytes(raw), np.uint8), np.array(list(map(len, messages)), np.int64)


@settings(max_examples=examples(200), deadline=None)
@given(footers())
def test_messages_that_are_read_in_runs_are_those_that_are_read_one_by_one(found: tuple[Any, Any]) -> None:
    values, sizes = found
    in_runs = footer._in_runs(values, sizes)
    if in_runs is not None:
        for got, wanted in zip(in_runs, footer._one_by_one(values, sizes), strict=True):
            assert got.tolist() == wanted.tolist()


def test_the_footer_of_records_of_one_size_is_read_in_runs() -> None:
    messages = [message([(8, 88 + 562 * number), (16, 520), (24, 1)]) for number in range(20_000)]
    sizes = np.array(list(map(len, messages)))
    values = np.frombuffer(b"".join(messages), np.uint8)
    assert footer._in_runs(values, sizes) is not None
    parsed = footer.parse_footer(values, sizes, 2**40)
    assert parsed.chunk_offsets.tolist() == [88 + 562 * number for number in range(20_000)]
    assert (parsed.chunk_records == 1).all()


def test_a_varint_that_is_cut_short_or_too_long_is_not_read_in_runs() -> None:
    for raw in (b"\x80", b"\x08\x80", b"\x80" * 10 + b"\x01"):
        assert varints.decode_alike(np.frombuffer(raw, np.uint8).reshape(1, -1)) is None
        with pytest.raises(CorruptionError):
            varints.decode_all(np.frombuffer(raw, np.uint8))
