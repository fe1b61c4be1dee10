"""Ranges are copied out of many buffers, or nothing is: the compiled functions and those in numpy, against a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import examples

from cachelayer import _gather_numpy
from cachelayer.gather import IS_COMPILED

KERNELS = [_gather_numpy]
if IS_COMPILED:
    from cachelayer import _gather  # type: ignore[attr-defined]

    KERNELS.append(_gather)
BLOCK = 1 << 16
HEADER = 24
HUGE = [2**31, 2**62, 2**63 - 1, -1, -(2**63)]
kernels = pytest.mark.parametrize("kernel", KERNELS, ids=[module.__name__ for module in KERNELS])


@dataclass
class Buffer:
    """A buffer of random bytes, of which the first ``unused`` are not to be read."""

    nbytes: int
    has_headers: bool
    unused: int
    seed: int

    def __post_init__(self) -> None:
        self.raw = np.random.default_rng(self.seed).integers(0, 256, self.nbytes, np.uint8)

    @property
    def payload(self) -> bytes:
        if not self.has_headers:
            return self.raw.tobytes()
        return b"".join(self.raw[at + HEADER : at + BLOCK].tobytes() for at in range(0, self.nbytes, BLOCK))

    def read(self, start: int, nbytes: int) -> bytes | None:
        payload = self.payload
        is_inside = max(0, self.unused) <= start and nbytes >= 0 and start + nbytes <= len(payload)
        return payload[start : start + nbytes] if is_inside else None


def table_of(buffers: Sequence[Buffer]) -> np.ndarray[Any, np.dtype[np.int64]]:
    rows = [[each.raw.ctypes.data, each.nbytes, each.has_headers, each.unused] for each in buffers]
    return np.array(rows, np.int64).reshape(-1, 4)


SIZES = st.one_of(st.integers(0, 100), st.integers(BLOCK - 30, BLOCK + 30), st.integers(0, 3 * BLOCK))
BUFFERS = st.lists(
    st.builds(Buffer, SIZES, st.booleans(), st.integers(0, 50), st.integers(0, 2**32)), min_size=1, max_size=3
)
LENGTHS = st.one_of(st.integers(0, 40), st.integers(0, 600), st.sampled_from([16_383, 16_385, 65_512, 70_000, 140_000]))


@st.composite
def ranges(draw: st.DrawFn) -> tuple[list[Buffer], list[int], list[int], list[int]]:
    """Buffers, and for each range its buffer, its start and its length; mostly ranges that lie in their buffer."""
    buffers = draw(BUFFERS)
    buffer_of = []
    starts = []
    lengths = []
    for _ in range(draw(st.integers(0, 20))):
        number = draw(st.integers(0, len(buffers) - 1))
        room = len(buffers[number].payload)
        length = min(draw(LENGTHS), room)
        start = draw(st.integers(min(buffers[number].unused, room - length), room - length))
        if draw(st.integers(0, 30)) == 0:
            wrong = draw(st.sampled_from([number, -1, len(buffers), *HUGE]))
            number, start, length = draw(
                st.sampled_from([(wrong, start, length), (number, start + 1, length), (number, wrong, length)])
            )
        buffer_of.append(number)
        starts.append(start)
        lengths.append(length)
    return buffers, buffer_of, starts, lengths


def expected_of(buffers: Sequence[Buffer], number: int, start: int, length: int) -> bytes | None:
    return buffers[number].read(start, length) if 0 <= number < len(buffers) else None


@kernels
@settings(max_examples=examples(150), deadline=None)
@given(case=ranges(), seed=st.integers(0, 2**32))
def test_ranges_come_to_their_places_or_the_first_bad_one_is_told(kernel: ModuleType, case: Any, seed: int) -> None:
    buffers, buffer_of, starts, lengths = case
    rng = np.random.default_rng(seed)
    wanted = [expected_of(buffers, *each) for each in zip(buffer_of, starts, lengths, strict=True)]
    places = np.zeros(len(wanted), np.int64)
    total = 0
    for row in rng.permutation(len(wanted)).tolist():
        total += int(rng.integers(0, 5))
        places[row] = total
        total += max(0, min(lengths[row], 1 << 20))
    total += int(rng.integers(0, 5))
    fits = rng.integers(0, 8) > 0 or not wanted
    if not fits:
        places[rng.integers(0, len(wanted))] = rng.choice([-1, total + 1, 2**63 - 1])
    out = rng.integers(0, 256, total, np.uint8)
    expected = bytearray(out.tobytes())
    bad = -1
    for row, raw in enumerate(wanted):
        if raw is None or not 0 <= places[row] <= total - len(raw):
            bad = row
            break
    if bad < 0:
        for place, raw in zip(places.tolist(), wanted, strict=True):
            expected[place : place + len(raw or b"")] = raw or b""
    one = len(buffers) == 1 and not any(buffer_of)
    first = None if one else np.array(buffer_of, np.int64)
    found = kernel.copy_ranges(
        table_of(buffers), first, np.array(starts, np.int64), np.array(lengths, np.int64), out, places
    )
    assert found == bad
    assert out.tobytes() == bytes(expected)


@kernels
@settings(max_examples=examples(150), deadline=None)
@given(case=ranges(), nbytes=LENGTHS, offset=st.one_of(st.integers(0, 30), st.sampled_from(HUGE[:3])))
def test_rows_come_one_after_another_or_the_first_bad_one_is_told(
    kernel: ModuleType, case: Any, nbytes: int, offset: int
) -> None:
    buffers, buffer_of, starts, _ = case
    wanted = []
    for number, start in zip(buffer_of, starts, strict=True):
        is_start = 0 <= number < len(buffers) and start >= buffers[number].unused
        wanted.append(buffers[number].read(start + offset, nbytes) if is_start else None)
    bad = next((row for row, raw in enumerate(wanted) if raw is None), -1)
    out = np.full((len(wanted), nbytes), 7, np.uint8)
    found = kernel.copy_rows(
        table_of(buffers), np.array(buffer_of, np.int64), np.array(starts, np.int64), offset, nbytes, out
    )
    assert found == bad
    expected = [b"\7" * nbytes] * len(wanted) if bad >= 0 else wanted
    assert out.tobytes() == b"".join(raw or b"" for raw in expected)


@kernels
def test_what_is_no_array_of_int64_or_no_target_is_refused(kernel: ModuleType) -> None:
    buffers = [Buffer(1000, False, 0, 0)]
    table = table_of(buffers)
    starts = np.arange(4)
    out = np.zeros(40, np.uint8)
    assert kernel.copy_rows(table, None, starts, 0, 10, out) == -1
    before = out.copy()
    read_only = out.copy()
    read_only.setflags(write=False)
    unaligned = np.zeros(33, np.uint8)[1:].view(np.int64)
    refused = (TypeError, ValueError, BufferError)
    for bad in (starts.astype(np.int32), starts.astype(">i8"), unaligned, np.arange(8)[::2], starts.astype(float)):
        with pytest.raises(refused):
            kernel.copy_rows(table, None, bad, 0, 10, out)
    for target in (read_only, np.zeros(39, np.uint8), np.zeros(41, np.uint8), np.zeros(80, np.uint8)[::2]):
        with pytest.raises(refused):
            kernel.copy_rows(table, None, starts, 0, 10, target)
    for others in (np.zeros(3, np.int64), np.zeros(5, np.int64)):
        with pytest.raises(refused):
            kernel.copy_rows(table, others, starts, 0, 10, out)
        with pytest.raises(refused):
            kernel.copy_ranges(table, None, starts, others, out, starts)
        with pytest.raises(refused):
            kernel.copy_ranges(table, None, starts, starts, out, others)
    with pytest.raises(refused):
        kernel.copy_rows(np.zeros((1, 3), np.int64), None, starts, 0, 10, out)
    assert np.array_equal(out, before)


@kernels
def test_without_ranges_or_buffers_nothing_is_copied(kernel: ModuleType) -> None:
    none = np.empty(0, np.int64)
    out = np.zeros(0, np.uint8)
    empty = np.empty((0, 4), np.int64)
    assert kernel.copy_rows(empty, None, none, 0, 10, out) == -1
    assert kernel.copy_ranges(empty, none, none, none, out, none) == -1
    assert kernel.copy_rows(empty, None, np.zeros(1, np.int64), 0, 0, out) == 0
    # A file that is not mapped yet has an empty row in the table: even its first byte is refused.
    table = np.zeros((2, 4), np.int64)
    assert kernel.copy_rows(table, np.ones(1, np.int64), np.zeros(1, np.int64), 0, 1, np.zeros(1, np.uint8)) == 0
