"""Moving many byte ranges at once, against the plainest loops."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from samples import examples

from cachelayer.support.memory import move_ranges, splits_of

LENGTHS = st.one_of(
    st.integers(0, 40),
    st.integers(0, 17).flatmap(lambda power: st.integers(max(0, 2**power - 1), 2**power + 1)),
    st.integers(0, 200_000),
)


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
