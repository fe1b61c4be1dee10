"""The plan of packs: which documents share a row of fixed length. It is arithmetic on their lengths alone.

This is version 1 of the algorithm, which docs/format.md specifies, with golden vectors.

Each :data:`GROUP` documents of a segment are packed by themselves, by best fit on the histogram of their lengths,
longest first (after Krell et al.: Efficient sequence packing without cross-contamination, 2021, arXiv 2107.02027)::

    lengths 3 2 1 2, rows of 4     sorted 3 2 2 1     row 0: 3 1     row 1: 2 2
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cachelayer.streams.order.permutation import permuted
from cachelayer.support.memory import Ints, splits_of

PLAN_VERSION = 1
Plan = NDArray[np.int64]
"""The pieces of packs: int64 of shape ``[4, pieces]``, whose rows :data:`PIECE` names."""
PIECE = ("pack", "record", "begin", "count")
"""What the rows of a plan are: the pack and the record of each piece, its first value there, its number of values."""
GROUP = 1 << 14
"""The number of documents of a group."""
LongDocuments = Literal["split", "truncate", "drop"]
LONG: tuple[LongDocuments, ...] = ("split", "truncate", "drop")
_FIRST_EPOCH = 1 << 62
"""Group g is shuffled as epoch 2**62 + g of a stream, which no stream and no split reaches."""


@dataclass(frozen=True)
class Packing:
    """The lengths and choices by which documents are packed."""

    length: int
    """The number of values of a row."""
    max_length: int
    """The number of values of the longest piece, at most ``length``."""
    long: LongDocuments = "split"
    """What is packed of a longer document: pieces of ``max_length`` and a rest, its beginning, or nothing."""
    seed: int | None = None
    """A seed that shuffles which documents of a group share a row; None for the order of the records."""


def plan(lengths: Iterable[Ints], packing: Packing, segments: Sequence[int] = ()) -> Iterator[Plan]:
    """Yield the packs of each group of documents. Documents without values are in no pack.

    Packs are ordered by their first piece, and the pieces of a pack by their documents. Each segment has groups of its
    own, so that documents that are appended change no pack.

    ``lengths`` come in parts of any size. Documents after those of ``segments`` are one more segment.
    """
    packs = documents = 0
    for number, group in enumerate(_groups(lengths, segments)):
        packed = _pack_group(group, number, packing)
        packed[:2] += [[packs], [documents]]
        packs = int(packed[0, -1]) + 1 if packed.shape[1] else packs
        documents += len(group)
        yield packed


def _groups(parts: Iterable[Ints], segments: Sequence[int]) -> Iterator[Ints]:
    """Yield the same lengths in parts of one group each."""
    sizes = _group_sizes(segments)
    pending = np.empty(0, np.int64)
    size = next(sizes)
    for part in parts:
        pending = np.concatenate([pending, part])
        while len(pending) >= size:
            yield pending[:size]
            pending = pending[size:]
            size = next(sizes)
    if len(pending):
        yield pending


def _group_sizes(segments: Sequence[int]) -> Iterator[int]:
    """Yield the number of documents of each group of the segments, and then the size of a full group without end."""
    for size in segments:
        yield from (min(GROUP, size - start) for start in range(0, size, GROUP))
    yield from repeat(GROUP)


def _pack_group(lengths: Ints, number: int, packing: Packing) -> Plan:
    """Return the packs of a group, with packs and documents numbered from 0."""
    longest = packing.max_length
    counts = -(-lengths // longest) if packing.long == "split" else (lengths > 0).astype(np.int64)
    if packing.long == "drop":
        counts[lengths > longest] = 0
    document = np.repeat(np.arange(len(lengths)), counts)
    begins = (np.arange(len(document)) - splits_of(counts)[document]) * longest
    sizes = np.minimum(lengths[document] - begins, longest)
    packs = _pack_of(sizes, packing, number)
    # Packs are numbered in the order of their first pieces.
    _, first, rank = np.unique(packs, return_index=True, return_inverse=True)
    packs = first.argsort().argsort()[rank] if len(packs) else packs
    order = packs.argsort(kind="stable")
    return np.stack([packs, document, begins, sizes])[:, order]


def _pack_of(sizes: Ints, packing: Packing, group: int) -> Ints:
    """Return the pack of each piece."""
    order = np.arange(len(sizes))
    if packing.seed is not None and len(sizes):
        order = permuted(len(sizes), packing.seed, _FIRST_EPOCH + group, 0, len(sizes))
    order = order[(-sizes[order]).argsort(kind="stable")]
    different, counts = np.unique(sizes, return_counts=True)
    fit = _Fit(packing.length)
    for size, count in zip(different[::-1].tolist(), counts[::-1].tolist(), strict=True):
        fit.place(size, count)
    packs = np.empty(len(sizes), np.int64)
    packs[order] = fit.packs()
    return packs


@dataclass
class _Fit:
    """Places pieces, longest first, into the packs with the least room that is enough, and opens packs where none is.

    Consecutive packs with equal room are handled together, as a stretch.
    """

    length: int
    """The number of values of a pack."""
    stretches: list[tuple[int, int, int]] = field(default_factory=list)
    """The room of each stretch, its first pack and the number of its packs, by ascending room. Of stretches with equal
    room, the one that got its room last comes first."""
    opened: int = 0
    """The number of packs that were opened."""
    filled: list[tuple[int, int, int]] = field(default_factory=list)
    """The pieces placed so far, in order: their first pack, their number, and the number of pieces for each pack."""

    def place(self, length: int, pieces: int) -> None:
        """Place some pieces of one length."""
        while pieces:
            room, first, count = self._best(length, pieces)
            each = room // length
            whole = min(pieces // each, count)
            if whole:
                self.filled.append((first, whole * each, each))
                self._keep(room - each * length, first, whole)
                pieces -= whole * each
                first += whole
                count -= whole
            if count and pieces:
                # Fewer pieces are left than this pack has room for.
                self.filled.append((first, pieces, pieces))
                self._keep(room - pieces * length, first, 1)
                pieces = 0
                first += 1
                count -= 1
            if count:
                self._keep(room, first, count)

    def _best(self, length: int, pieces: int) -> tuple[int, int, int]:
        """Take the stretch with the least room that is enough; if there is none, open packs for all pieces."""
        at = bisect_left(self.stretches, (length,))
        if at < len(self.stretches):
            return self.stretches.pop(at)
        first = self.opened
        count = -(-pieces // (self.length // length))
        self.opened += count
        return self.length, first, count

    def _keep(self, room: int, first: int, count: int) -> None:
        if room:
            self.stretches.insert(bisect_left(self.stretches, (room,)), (room, first, count))

    def packs(self) -> Ints:
        """Return the pack of each piece, in the order in which they were placed."""
        first, pieces, each = np.array(self.filled, np.int64).reshape(-1, 3).T
        placed = np.repeat(np.arange(len(first)), pieces)
        packs: Ints = first[placed] + (np.arange(len(placed)) - splits_of(pieces)[placed]) // each[placed]
        return packs
