"""Plan which documents share a row of fixed length: arithmetic on their lengths only.

Version 1 of the algorithm; docs/format.md specifies it, with golden vectors. It never changes under this number.

Each :data:`GROUP` documents in a row are packed by themselves, by best fit on the histogram of their lengths, longest
first (after Krell et al.: Efficient sequence packing without cross-contamination, 2021, arXiv 2107.02027). Longer
lengths count as rounded up to seven significant bits, so that a histogram has few bins.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.pack_plan import PIECE, Packs
from cachelayer.records.memory import Ints, splits_of
from cachelayer.streams.order.permutation import permuted_pieces

PLAN_VERSION = 1
GROUP = 1 << 14
"""The number of documents that are packed by themselves."""
Long = Literal["split", "truncate", "drop"]
LONG: tuple[Long, ...] = ("split", "truncate", "drop")
# A length has this many significant bits in the histogram.
_BITS = 7
_HALF = 1 << (_BITS - 1)
# The documents of group g are shuffled as the records of epoch 2**62 + g, which no stream and no split reaches.
_FIRST_EPOCH = 1 << 62
_SMALL = 1 << 16


@dataclass(frozen=True)
class Packing:
    """How documents are packed.

    Args:
        length: the number of values in a row.
        long: what becomes of documents that are longer: pieces of ``length`` and one for the rest, their beginning, or
            nothing.
        seed: shuffles which documents of a group share a row; None for the order of the records.
    """

    length: int
    long: Long = "split"
    seed: int | None = None


def plan(lengths: Iterable[Ints], packing: Packing) -> Iterator[Packs]:
    """Yield the packs of each group of documents. Documents without values are in no pack.

    Packs are ordered by their first piece, and the pieces of a pack by their documents.

    Args:
        lengths: the lengths of all documents, in parts of any size.
        packing: how to pack them.
    """
    for number, group in enumerate(_groups(lengths)):
        yield _pack_group(group, number, packing)


def _groups(parts: Iterable[Ints]) -> Iterator[Ints]:
    """Yield the same lengths, :data:`GROUP` at a time."""
    held = np.empty(0, np.int64)
    for part in parts:
        held = np.concatenate([held, part])
        whole = len(held) - len(held) % GROUP
        yield from (held[start : start + GROUP] for start in range(0, whole, GROUP))
        held = held[whole:]
    if len(held):
        yield held


def _pack_group(lengths: Ints, number: int, packing: Packing) -> Packs:
    pieces = _pieces(lengths, packing)
    pieces["record"] += np.uint64(number * GROUP)
    codes = _codes(pieces["count"].astype(np.int64))
    packs = _pack_of(codes, packing, number)
    # The packs in the order of their first pieces: of several values for one pack, the last assignment remains.
    count = int(packs.max()) + 1 if len(packs) else 0
    first = np.empty(count, np.int64)
    first[packs[::-1]] = np.arange(len(packs))[::-1]
    rank = np.empty(count, np.int64)
    rank[first.argsort()] = np.arange(count)
    ordered = rank[packs]
    return Packs(pieces[_sorted_rows(ordered, count)], np.bincount(ordered, minlength=count).astype(np.int64))


def _pieces(lengths: Ints, packing: Packing) -> NDArray[np.void]:
    """Return the pieces of some documents, numbered from 0."""
    length, long = packing.length, packing.long
    counts = -(-lengths // length) if long == "split" else (lengths > 0).astype(np.int64)
    if long == "drop":
        counts[lengths > length] = 0
    owner = np.repeat(np.arange(len(lengths)), counts)
    begins = (np.arange(len(owner)) - splits_of(counts)[owner]) * length
    pieces = np.empty(len(owner), PIECE)
    pieces["record"], pieces["begin"] = owner, begins
    pieces["count"] = np.minimum(lengths[owner] - begins, length)
    return pieces


def _codes(lengths: Ints) -> Ints:
    """Return the number of the histogram's bin of each length; longer lengths have larger numbers."""
    shifts = np.maximum(np.frexp(lengths.astype(np.float64))[1].astype(np.int64) - _BITS, 0)
    return (shifts << (_BITS - 1)) + ((lengths + (1 << shifts) - 1) >> shifts)


def _length_of(code: int) -> int:
    """Return the longest length in a bin."""
    shift = max(0, code // _HALF - 1)
    return (code - shift * _HALF) << shift


def _pack_of(codes: Ints, packing: Packing, group: int) -> Ints:
    order = np.arange(len(codes))
    if packing.seed is not None and len(codes):
        epoch = _FIRST_EPOCH + group
        order = np.concatenate(list(permuted_pieces(len(codes), packing.seed, epoch, 0, len(codes))))
    order = order[_sorted_rows(_SMALL - 1 - codes[order], _SMALL)]
    histogram = np.bincount(codes)
    bins = np.flatnonzero(histogram)[::-1]
    dealt = _Fit(packing.length)
    for code, count in zip(bins.tolist(), histogram[bins].tolist(), strict=True):
        dealt.place(min(_length_of(code), packing.length), count)
    packs = np.empty(len(codes), np.int64)
    packs[order] = dealt.packs()
    return packs


def _sorted_rows(keys: Ints, below: int) -> Ints:
    """Return the stable order of keys in [0, below). Numpy sorts 16 bits several times faster."""
    small: Any = keys.astype(np.uint16) if below <= _SMALL else keys
    order: Ints = small.argsort(kind="stable")
    return order


@dataclass
class _Fit:
    """Places pieces, longest first, into the packs with the least room that is enough; opens packs if there is none.

    Packs of consecutive numbers with equal room are handled together: ``rooms`` has the room of each such run in
    ascending order, ``firsts`` its first pack, ``counts`` the number of its packs. If runs have equal room, the run
    that got its room last comes first.
    """

    length: int
    rooms: list[int] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    opened: int = 0
    # For each run of packs that was filled: its first pack, the number of pieces, the pieces for each pack.
    filled: list[tuple[int, int, int]] = field(default_factory=list)

    def place(self, length: int, pieces: int) -> None:
        while pieces:
            room, first, count = self._best(length, pieces)
            each = room // length
            whole = min(pieces // each, count)
            if whole:
                self.filled.append((first, whole * each, each))
                self._keep(room - each * length, first, whole)
                pieces -= whole * each
                first, count = first + whole, count - whole
            if count and pieces:
                # Fewer pieces are left than this pack has room for.
                self.filled.append((first, pieces, pieces))
                self._keep(room - pieces * length, first, 1)
                pieces, first, count = 0, first + 1, count - 1
            if count:
                self._keep(room, first, count)

    def _best(self, length: int, pieces: int) -> tuple[int, int, int]:
        at = bisect_left(self.rooms, length)
        if at < len(self.rooms):
            return self.rooms.pop(at), self.firsts.pop(at), self.counts.pop(at)
        first, count = self.opened, -(-pieces // (self.length // length))
        self.opened += count
        return self.length, first, count

    def _keep(self, room: int, first: int, count: int) -> None:
        if room:
            at = bisect_left(self.rooms, room)
            self.rooms.insert(at, room)
            self.firsts.insert(at, first)
            self.counts.insert(at, count)

    def packs(self) -> Ints:
        """Return the pack of each piece, in the order in which they were placed."""
        first, pieces, each = np.array(self.filled, np.int64).reshape(-1, 3).T
        run = np.repeat(np.arange(len(first)), pieces)
        packs: Ints = first[run] + (np.arange(len(run)) - splits_of(pieces)[run]) // each[run]
        return packs
