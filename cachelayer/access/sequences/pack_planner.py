"""Plan which documents share a row of fixed length: arithmetic on their lengths only.

Version 1 of the algorithm; docs/format.md specifies it, with golden vectors.

Each :data:`GROUP` documents of a segment are packed by themselves, by best fit on the histogram of their lengths,
longest first (after Krell et al.: Efficient sequence packing without cross-contamination, 2021, arXiv 2107.02027).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cachelayer.records.memory import Ints, splits_of
from cachelayer.streams.order.permutation import permuted_pieces

PLAN_VERSION = 1
Plan = NDArray[np.int64]
"""The pieces of packs, int64 of shape ``[4, pieces]``; see :data:`PIECE`."""
PIECE = ("pack", "record", "begin", "count")
"""The kind of row that a plan has."""
GROUP = 1 << 14
"""The number of documents that are packed by themselves."""
LongDocuments = Literal["split", "truncate", "drop"]
LONG: tuple[LongDocuments, ...] = ("split", "truncate", "drop")
# The documents of group g are shuffled as the records of epoch 2**62 + g, which no stream and no split reaches.
_FIRST_EPOCH = 1 << 62


@dataclass(frozen=True)
class Packing:
    """How documents are packed.

    Args:
        length: the number of values in a row.
        max_length: the number of values of a piece, at most ``length``.
        long: what becomes of documents that are longer: pieces of ``max_length`` and one for the rest, their beginning,
            or nothing.
        seed: shuffles which documents of a group share a row; None for the order of the records.
    """

    length: int
    max_length: int
    long: LongDocuments = "split"
    seed: int | None = None


def plan(lengths: Iterable[Ints], packing: Packing, segments: Sequence[int] = ()) -> Iterator[Plan]:
    """Yield the packs of each group of documents. Documents without values are in no pack.

    Packs are ordered by their first piece, and the pieces of a pack by their documents. The documents of a segment have
    groups of their own, so that those that are appended change no pack.

    Args:
        lengths: the lengths of all documents, in parts of any size.
        packing: how to pack them.
        segments: the number of documents of each segment; those after them are one segment.
    """
    packs = documents = 0
    for number, group in enumerate(_groups(lengths, segments)):
        packed = _pack_group(group, number, packing)
        packed[:2] += [[packs], [documents]]
        packs = int(packed[0, -1]) + 1 if packed.shape[1] else packs
        documents += len(group)
        yield packed


def _groups(parts: Iterable[Ints], segments: Sequence[int]) -> Iterator[Ints]:
    """Yield the same lengths, one group after another."""
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
    """Yield the number of documents of each group; at last those of documents of no segment, without end."""
    for size in segments:
        yield from (min(GROUP, size - start) for start in range(0, size, GROUP))
    yield from repeat(GROUP)


def _pack_group(lengths: Ints, number: int, packing: Packing) -> Plan:
    longest, long = packing.max_length, packing.long
    counts = -(-lengths // longest) if long == "split" else (lengths > 0).astype(np.int64)
    if long == "drop":
        counts[lengths > longest] = 0
    owner = np.repeat(np.arange(len(lengths)), counts)
    begins = (np.arange(len(owner)) - splits_of(counts)[owner]) * longest
    sizes = np.minimum(lengths[owner] - begins, longest)
    packs = _pack_of(sizes, packing, number)
    # Packs are numbered in the order of their first pieces.
    _, first, rank = np.unique(packs, return_index=True, return_inverse=True)
    packs = first.argsort().argsort()[rank] if len(packs) else packs
    order = packs.argsort(kind="stable")
    return np.stack([packs, owner, begins, sizes])[:, order]


def _pack_of(sizes: Ints, packing: Packing, group: int) -> Ints:
    """Return the pack of each piece."""
    order = np.arange(len(sizes))
    if packing.seed is not None and len(sizes):
        epoch = _FIRST_EPOCH + group
        order = np.concatenate(list(permuted_pieces(len(sizes), packing.seed, epoch, 0, len(sizes))))
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
    """Places pieces, longest first, into the packs with the least room that is enough; opens packs if there is none.

    Packs of consecutive numbers with equal room are handled together: ``runs`` has the room of each such run, its first
    pack, and the number of its packs, by ascending room. If runs have equal room, the run that got its room last comes
    first.
    """

    length: int
    runs: list[tuple[int, int, int]] = field(default_factory=list)
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
        at = bisect_left(self.runs, (length,))
        if at < len(self.runs):
            return self.runs.pop(at)
        first, count = self.opened, -(-pieces // (self.length // length))
        self.opened += count
        return self.length, first, count

    def _keep(self, room: int, first: int, count: int) -> None:
        if room:
            self.runs.insert(bisect_left(self.runs, (room,)), (room, first, count))

    def packs(self) -> Ints:
        """Return the pack of each piece, in the order in which they were placed."""
        first, pieces, each = np.array(self.filled, np.int64).reshape(-1, 3).T
        run = np.repeat(np.arange(len(first)), pieces)
        packs: Ints = first[run] + (np.arange(len(run)) - splits_of(pieces)[run]) // each[run]
        return packs
