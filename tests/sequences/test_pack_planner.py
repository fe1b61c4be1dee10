"""Plans of packs: each piece once, in order, no pack too full, few gaps, and the same on every machine."""

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachelayer.sequences.pack_planner import GROUP, LONG, Packing, plan
from cachelayer.streams.order.permutation import permuted


def pieces_of(lengths: list[int], how: Packing) -> list[tuple[int, int, int]]:
    """The pieces that are to be packed, one document after another."""
    out, most = [], how.max_length
    for record, length in enumerate(lengths):
        kept = {"split": length, "truncate": min(length, most), "drop": length if length <= most else 0}[how.long]
        out += [(record, at, min(most, kept - at)) for at in range(0, kept, most)]
    return out


def packs_of(groups: Any) -> list[list[tuple[int, int, int]]]:
    packs: list[list[tuple[int, int, int]]] = []
    for number, *piece in (piece for group in groups for piece in group.T.tolist()):
        if number == len(packs):
            packs.append([])
        packs[number].append(tuple(piece))
    return packs


def planned(lengths: Any, how: Packing, parts: int = 1) -> list[list[tuple[int, int, int]]]:
    return packs_of(plan(np.array_split(np.asarray(lengths, np.int64), parts), how))


def specified(lengths: list[int], how: Packing) -> list[list[tuple[int, int, int]]]:
    """The packs of the first group, made as the page on the format says."""
    pieces = pieces_of(lengths, how)
    sizes = [count for *_, count in pieces]
    order = list(range(len(pieces)))
    if how.seed is not None:
        order = permuted(len(pieces), how.seed, 2**62, 0, len(pieces)).tolist()
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
    st.integers(1, 5),
)
@settings(deadline=None)
def test_it_is_the_plan_that_the_page_on_the_format_specifies(
    lengths: list[int], length: int, long: Any, seed: int | None, parts: int
) -> None:
    how = Packing(length, max(1, length - len(lengths)), long, seed)
    packs = planned(lengths, how, parts)
    assert packs == specified(lengths, how)
    assert sorted(piece for pack in packs for piece in pack) == pieces_of(lengths, how)
    assert all(0 < sum(count for *_, count in pack) <= length for pack in packs)


@pytest.mark.parametrize("long", LONG)
def test_log_normal_lengths_fill_packs(long: Any) -> None:
    drawn = np.random.default_rng(0).lognormal(0, 1, 3 * GROUP)
    lengths = np.maximum(1, drawn / drawn.mean() * 512).astype(np.int64)
    groups = list(plan([lengths], Packing(2048, 2048, long)))
    values = sum(int(group[3].sum()) for group in groups)
    assert values / (2048 * (groups[-1][0, -1] + 1)) >= 0.97


def test_a_very_long_document_is_cut() -> None:
    packs = planned([2**32 - 1], Packing(2**30, 2**30))
    assert packs == [[(0, at, min(2**30, 2**32 - 1 - at))] for at in range(0, 2**32 - 1, 2**30)]


@pytest.mark.parametrize("seed", [None, 5])
def test_documents_of_later_segments_change_no_pack(seed: int | None) -> None:
    how = Packing(40, 40, seed=seed)
    lengths = np.random.default_rng(1).integers(0, 60, 2 * GROUP + 100)
    for segments in ([GROUP + 7, GROUP - 7, 100], [100, 0, 2 * GROUP], [2 * GROUP]):
        parts = np.array_split(lengths, 7)
        packs = packs_of(plan(parts, how, segments))
        end = 0
        for count, size in enumerate(segments, 1):
            end += size
            before = packs_of(plan([lengths[:end]], how, segments[:count]))
            assert packs[: len(before)] == before
            assert all(record >= end for pack in packs[len(before) :] for record, *_ in pack)
        assert sorted(piece for pack in packs for piece in pack) == pieces_of(lengths.tolist(), how)


def test_the_plan_is_this_for_ever() -> None:
    assert planned([3, 0, 7, 5, 2, 9, 1, 25], Packing(10, 10)) == GOLDEN_SPLIT
    assert planned([3, 0, 7, 5, 2, 9, 1, 25], Packing(10, 10, "truncate")) == GOLDEN_TRUNCATE
    assert planned([3, 0, 7, 5, 2, 9, 1, 25], Packing(10, 10, "drop")) == GOLDEN_DROP
    assert planned([4] * 6 + [6] * 4, Packing(10, 10, seed=42)) == GOLDEN_SEED
    numbers = np.arange(3 * GROUP, dtype=np.int64)
    lengths = numbers * 2654435761 % 4093
    for how, digest in GOLDEN_DIGESTS:
        state = hashlib.sha256()
        for group in plan([lengths], how):
            state.update(group.astype("<i8").tobytes())
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
    (Packing(2048, 2048), "e9b7f151ee08ebdb1cf2677f275a40b0d06cf07dc65df37740d58653a26249ce"),
    (Packing(2048, 2048, "truncate", 7), "260eb6f8b51391d51af9c8028477e0a4c936f31df510dfa4d4ac532c4dc24119"),
    (Packing(512, 512, "drop", 2**64 - 1), "697a59f8a2145c4b96bfd5e53a7563ed81ca8dcff0fc18aeceabda312f968935"),
]
