"""Plans of packs: each piece once, in order, no pack too full, few gaps, and the same on every machine."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachelayer.access.sequences.pack_planner import GROUP, LONG, Packing, plan
from cachelayer.arrayrecord.pack_plan import PIECE
from cachelayer.streams.order.permutation import permuted

LENGTHS = st.lists(st.integers(0, 40), max_size=60)
SMALL = st.builds(Packing, st.integers(1, 20), st.sampled_from(LONG), st.none() | st.integers(0, 2**64 - 1))


def pieces_of(lengths: list[int], how: Packing) -> list[tuple[int, int, int]]:
    """The pieces that are to be packed, one document after another."""
    out = []
    for record, length in enumerate(lengths):
        kept = {"split": length, "truncate": min(length, how.length), "drop": length if length <= how.length else 0}
        out += [(record, at, min(how.length, kept[how.long] - at)) for at in range(0, kept[how.long], how.length)]
    return out


def planned(lengths: Any, how: Packing, parts: int = 1) -> list[list[tuple[int, int, int]]]:
    packs = []
    for group in plan(np.array_split(np.asarray(lengths, np.int64), parts), how):
        assert group.pieces.dtype == PIECE
        ends = np.cumsum(group.sizes).tolist()
        pieces = group.pieces.tolist()
        assert len(pieces) == (ends[-1] if ends else 0)
        packs += [pieces[end - size : end] for end, size in zip(ends, group.sizes.tolist(), strict=True)]
    return packs


@given(LENGTHS, SMALL)
@settings(deadline=None)
def test_each_piece_is_in_one_pack_and_none_is_too_full(lengths: list[int], how: Packing) -> None:
    packs = planned(lengths, how)
    assert sorted(piece for pack in packs for piece in pack) == pieces_of(lengths, how)
    assert all(0 < sum(count for *_, count in pack) <= how.length for pack in packs)
    assert sorted(map(tuple, packs)) == [tuple(pack) for pack in packs]
    assert all(pack == sorted(pack) for pack in packs)


@given(LENGTHS, SMALL, st.integers(1, 5))
@settings(deadline=None)
def test_the_parts_in_which_lengths_come_do_not_matter(lengths: list[int], how: Packing, parts: int) -> None:
    assert planned(lengths, how, parts) == planned(lengths, how)


def specified(lengths: list[int], how: Packing, group: int = 0) -> list[list[tuple[int, int, int]]]:
    """The packs of a group, made as the page on the format says."""
    pieces = pieces_of(lengths, how)
    sizes = []
    for *_, count in pieces:
        unit = 1 << max(0, count.bit_length() - 7)
        sizes.append(min(-(-count // unit) * unit, how.length))
    order = list(range(len(pieces)))
    if how.seed is not None:
        order = permuted(len(pieces), how.seed, 2**62 + group, 0, len(pieces)).tolist()
    order.sort(key=lambda piece: -sizes[piece])
    packs: list[list[int]] = []
    runs: list[tuple[int, list[int]]] = []  # room and packs; the one that was put back last comes first
    for size in sorted(set(sizes), reverse=True):
        left = [piece for piece in order if sizes[piece] == size]
        while left:
            fitting = [run for run in runs if run[0] >= size]
            if fitting:
                room, mine = run = min(fitting, key=lambda run: run[0])
                runs.remove(run)
            else:
                room, mine = how.length, [len(packs) + more for more in range(-(-len(left) // (how.length // size)))]
                packs += [[] for _ in mine]
            each = room // size
            full = mine[: len(left) // each]
            for pack in full:
                packs[pack], left = packs[pack] + left[:each], left[each:]
            partly = mine[len(full) : len(full) + 1] if left else []
            for pack in partly:
                packs[pack], room_left, left = packs[pack] + left, room - len(left) * size, []
            put_back = [
                (room - each * size, full),
                (room_left if partly else 0, partly),
                (room, mine[len(full + partly) :]),
            ]
            for entry in put_back:
                if entry[0] and entry[1]:
                    runs.insert(0, entry)
    return [[pieces[piece] for piece in sorted(pack)] for pack in sorted(packs, key=min)]


@given(
    st.lists(st.integers(0, 700), max_size=80),
    st.integers(1, 600),
    st.sampled_from(LONG),
    st.none() | st.integers(0, 9),
)
@settings(deadline=None)
def test_it_is_the_plan_that_the_page_on_the_format_specifies(
    lengths: list[int], length: int, long: Any, seed: int | None
) -> None:
    how = Packing(length, long, seed)
    assert planned(lengths, how) == specified(lengths, how)


def test_later_groups_have_permutations_of_their_own() -> None:
    lengths = np.random.default_rng(4).integers(0, 9, GROUP + 60)
    how = Packing(16, seed=3)
    *_, last = plan([lengths], how)
    expected = [piece for pack in specified(lengths[GROUP:].tolist(), how, 1) for piece in pack]
    assert last.pieces.tolist() == [(record + GROUP, begin, count) for record, begin, count in expected]


@pytest.mark.parametrize(("length", "share"), [(2048, 4), (32768, 4), (2048, 64), (131072, 64)])
@pytest.mark.parametrize("long", LONG)
def test_log_normal_lengths_fill_packs(length: int, share: int, long: Any) -> None:
    drawn = np.random.default_rng(0).lognormal(0, 1, 3 * GROUP)
    lengths = np.maximum(1, drawn / drawn.mean() * length / share).astype(np.int64)
    groups = list(plan([lengths], Packing(length, long)))
    values = sum(int(group.pieces["count"].sum()) for group in groups)
    assert values / (length * sum(len(group.sizes) for group in groups)) >= 0.97


def test_groups_are_packed_by_themselves() -> None:
    lengths = np.random.default_rng(1).integers(0, 50, 2 * GROUP + 10)
    for seed in (None, 3):
        how = Packing(64, seed=seed)
        whole = list(plan([lengths], how))
        assert len(whole) == 3
        for number, group in enumerate(whole):
            records = group.pieces["record"]
            assert records.min() >= number * GROUP
            assert records.max() < (number + 1) * GROUP
        longer = list(plan([lengths, lengths], how))
        for before, after in zip(whole[:2], longer, strict=False):
            assert (before.pieces == after.pieces).all()


def test_a_very_long_document_is_cut() -> None:
    packs = planned([2**32 - 1], Packing(2**30))
    assert packs == [[(0, at, min(2**30, 2**32 - 1 - at))] for at in range(0, 2**32 - 1, 2**30)]


def test_the_plan_is_this_for_ever() -> None:
    assert planned([3, 0, 7, 5, 2, 9, 1, 25], Packing(10)) == GOLDEN_SPLIT
    assert planned([3, 0, 7, 5, 2, 9, 1, 25], Packing(10, "truncate")) == GOLDEN_TRUNCATE
    assert planned([3, 0, 7, 5, 2, 9, 1, 25], Packing(10, "drop")) == GOLDEN_DROP
    assert planned([4] * 6 + [6] * 4, Packing(10, seed=42)) == GOLDEN_SEED
    numbers = np.arange(3 * GROUP, dtype=np.int64)
    lengths = numbers * 2654435761 % 4093
    for how, digest in GOLDEN_DIGESTS:
        state = hashlib.sha256()
        for group in plan([lengths], how):
            state.update(group.sizes.astype("<i8").tobytes() + group.pieces.tobytes())
        assert state.hexdigest() == digest, how


GOLDEN_SPLIT: Any = [
    [(0, 0, 3), (2, 0, 7)],
    [(3, 0, 5), (7, 20, 5)],
    [(4, 0, 2)],
    [(5, 0, 9), (6, 0, 1)],
    [(7, 0, 10)],
    [(7, 10, 10)],
]
GOLDEN_TRUNCATE: Any = [[(0, 0, 3), (2, 0, 7)], [(3, 0, 5), (4, 0, 2)], [(5, 0, 9), (6, 0, 1)], [(7, 0, 10)]]
GOLDEN_DROP: Any = [[(0, 0, 3), (2, 0, 7)], [(3, 0, 5), (4, 0, 2)], [(5, 0, 9), (6, 0, 1)]]
GOLDEN_SEED: Any = [
    [(0, 0, 4), (6, 0, 6)],
    [(1, 0, 4), (9, 0, 6)],
    [(2, 0, 4), (8, 0, 6)],
    [(3, 0, 4), (5, 0, 4)],
    [(4, 0, 4), (7, 0, 6)],
]
GOLDEN_DIGESTS: Any = [
    (Packing(2048), "06f19521c9db4828adee3d67510a46d9973ea728da32d6b0552336a06348d854"),
    (Packing(2048, "truncate", 7), "0e10717b3d45061344e41c9309878264746c756fbea3ae7fa06dc69525a8cf31"),
    (Packing(512, "drop", 2**64 - 1), "16f2d696bd10a4c49166c4fed9a8704d4e2bc736267f2074d62c1d7612eae68e"),
]
