"""Moving many byte ranges at once, against the plainest loops."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from samples import examples

from cachelayer.records.memory import gather_ranges, gather_rows, move_ranges, scatter_rows, splits_of

LENGTHS = st.one_of(
    st.integers(0, 40),
    st.integers(0, 17).flatmap(lambda power: st.integers(max(0, 2**power - 1), 2**power + 1)),
    st.integers(0, 200_000),
)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs to know the addresses that are used")
def test_without_addresses_to_spare_freed_memory_is_not_kept() -> None:
    code = (
        "import resource; from pathlib import Path; from cachelayer.records.memory import keep_freed_memory\n"
        "used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20), resource.RLIM_INFINITY))\n"
        "keep_freed_memory()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def noise(seed: int, nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


@settings(max_examples=examples(120), deadline=None)
@given(st.lists(LENGTHS, max_size=8), st.integers(0, 2**32))
@example([], 0)
@example([0, 0], 0)
@example([1 << 14, (1 << 14) - 1, 200_000, 0, 1], 0)
def test_move_ranges_copies_each_range_and_nothing_else(lengths: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = np.array(lengths, np.int64)
    source = noise(seed, int(sizes.max(initial=0)) + 64)
    gaps = rng.integers(0, 20, len(sizes))
    starts = np.array([rng.integers(0, len(source) - size + 1) for size in sizes], np.int64)
    places = splits_of(sizes + gaps)[:-1] + gaps
    order = rng.permutation(len(sizes))
    target = noise(seed + 1, int((sizes + gaps).sum()) + 7)
    expected = target.copy()
    for place, start, size in zip(places, starts, sizes, strict=True):
        for done in range(0, int(size), 5_000):
            stop = min(done + 5_000, int(size))
            expected[place + done : place + stop] = source[start + done : start + stop]
    move_ranges(target, places[order], source, starts[order], sizes[order])
    np.testing.assert_array_equal(target, expected)


@settings(max_examples=examples(120), deadline=None)
@given(LENGTHS, st.integers(0, 6), st.integers(0, 2**32))
@example(1 << 20, 2, 0)
@example((1 << 20) + 1, 2, 0)
def test_gather_and_scatter_move_rows_of_one_length(nbytes: int, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    buffer = noise(seed, nbytes + 100)
    starts = rng.integers(0, 101, rows)
    gathered = gather_rows(buffer, starts, nbytes)
    assert gathered.shape == (rows, nbytes)
    assert all(bytes(row) == bytes(buffer[start : start + nbytes]) for row, start in zip(gathered, starts, strict=True))
    gathered[...] = 0
    np.testing.assert_array_equal(buffer, noise(seed, nbytes + 100))

    apart = np.arange(rows) * (nbytes + 3)
    target = np.zeros(rows * (nbytes + 3) + 1, np.uint8)
    content = noise(seed, rows * nbytes).reshape(rows, nbytes)
    scatter_rows(target, apart, content)
    assert bytes(target) == b"".join(bytes(row) + bytes(3) for row in content) + b"\0"


@pytest.mark.parametrize(("least", "most"), [(0, 9000), (256, 9000), (1500, 9000), (0, 2000), (512, 3000)])
def test_many_ranges_of_any_lengths_up_to_both_ends_of_the_buffer_are_gathered(least: int, most: int) -> None:
    rng = np.random.default_rng(least)
    lengths = rng.choice([0, 1, 255, 256, 257, 511, 512, 513, 700, 1023, 1024, 1025, 5000, 9000], 1500)
    lengths = np.clip(lengths, least, most)
    source = rng.integers(0, 256, 10_000, np.uint8)
    starts = rng.integers(0, len(source) - lengths + 1)
    starts[::3], starts[1::3] = 0, len(source) - lengths[1::3]
    gathered = gather_ranges(source, starts, lengths)
    expected = [source[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    assert np.array_equal(gathered, np.concatenate(expected))
    assert gathered.flags.writeable
