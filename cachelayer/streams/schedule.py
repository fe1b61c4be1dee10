"""The part that each position of a mixture belongs to whose weights change at given positions. Arithmetic only.

Each stage deals out its positions by a tree of its own, from its first position on. The turns of a part go on from one
stage to the next: what a stage adds to is the number of turns before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.locks import cached_property
from cachelayer.streams.steps import MOST_POSITIONS
from cachelayer.streams.turn_tree import TurnTree

# Positions that are computed at once and kept, because the next batch usually lies among them too.
_PIECE = 1 << 11
_KEPT_PIECES = 64

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Schedule:
    """The part that each position belongs to, in one stage or more.

    Args:
        starts: the first position of each stage, ascending from 0, each less than 2**62.
        shares: the integers of all parts in each stage; see :func:`cachelayer.streams.turn_tree.shares_of`.
    """

    starts: tuple[int, ...]
    shares: tuple[tuple[int, ...], ...]

    def __reduce__(self) -> tuple[type[Schedule], tuple[Any, ...]]:
        return Schedule, (self.starts, self.shares)

    @cached_property
    def _first(self) -> Indices:
        return np.array(self.starts, np.int64)

    @cached_property
    def _trees(self) -> Sequence[TurnTree]:
        return [TurnTree(shares) for shares in self.shares]

    @cached_property
    def _before(self) -> Indices:
        """The number of turns of each part before each stage: int64 of shape ``[stages, parts]``."""
        found = [[0] * len(self.shares[0])]
        for tree, (start, end) in zip(self._trees, pairwise(self.starts), strict=False):
            found.append([before + more for before, more in zip(found[-1], tree.counts(end - start), strict=True)])
        return np.array(found, np.int64)

    def past(self, position: int) -> Mapping[str, Any]:
        """Return what decided the turns before a position: how many stages, and SHA-256 of them.

        The text of a stage is ``start:share,share,...;`` in decimal digits.
        """
        stages = int(self._first.searchsorted(position))
        return {"mixture": {"stages": stages, "sha256": self._digests[stages]}}

    @cached_property
    def _digests(self) -> Sequence[str]:
        """SHA-256 of the first stages, for each number of them from 0 on."""
        state = hashlib.sha256()
        found = [state.hexdigest()]
        for start, shares in zip(self.starts, self.shares, strict=True):
            state.update(f"{start}:{','.join(map(str, shares))};".encode())
            found.append(state.hexdigest())
        return found

    def between(self, start: int, stop: int) -> Iterator[tuple[int, Indices, int]]:
        """Yield the parts of the positions ``start`` to ``stop``, once for each stage that they have positions in.

        With each come the offsets of its positions from ``start``, ascending, and its turn at the first of them.
        """
        stage = int(self._first.searchsorted(start, side="right")) - 1
        position = start
        while position < stop:
            begin = self.starts[stage]
            end = min(stop, self.starts[stage + 1]) if stage + 1 < len(self.starts) else stop
            for part, offsets, turn in self._trees[stage].between(position - begin, end - begin):
                yield part, offsets + (position - start), turn + int(self._before[stage, part])
            position, stage = end, stage + 1

    def at(self, positions: Indices) -> tuple[Indices, Indices]:
        """Return the part that each position belongs to, and the number of turns that the part has before it."""
        parts, turns = np.empty(len(positions), np.int64), np.empty(len(positions), np.int64)
        for number, which in _groups(positions // _PIECE):
            piece_parts, piece_turns = _piece(self, number)
            places = positions[which] - number * _PIECE
            parts[which], turns[which] = piece_parts[places], piece_turns[places]
        return parts, turns

    def positions_of(self, part: int, turns: Indices) -> Indices:
        """Return the positions of turns of a part; if it has no such turn, that of its last."""
        found = np.empty(len(turns), np.int64)
        turns = np.minimum(turns, self._turns[part] - 1)
        for stage, which in _groups(self._before[:, part].searchsorted(turns, side="right") - 1):
            tree, start = self._trees[stage], self.starts[stage]
            within = (turns[which] - self._before[stage, part]).tolist()
            found[which] = [min(start + tree.position_of(part, turn), MOST_POSITIONS) for turn in within]
        return found

    @cached_property
    def _turns(self) -> Sequence[int]:
        """The number of turns of each part in all."""
        endless = [share > 0 for share in self.shares[-1]]
        return [
            MOST_POSITIONS if more else before for more, before in zip(endless, self._before[-1].tolist(), strict=True)
        ]

    def position_of(self, part: int, turn: int) -> int | None:
        """Return the position of a turn of a part; None if it does not come before 2**62."""
        if turn >= self._turns[part]:
            return None
        position = int(self.positions_of(part, np.array([turn]))[0])
        return position if position < MOST_POSITIONS else None


def _groups(numbers: Indices) -> Iterator[tuple[int, Indices]]:
    """Yield each number, and where it stands."""
    for number in sorted(set(numbers.tolist())):
        yield number, np.flatnonzero(numbers == number)


@lru_cache(maxsize=_KEPT_PIECES)
def _piece(schedule: Schedule, number: int) -> tuple[Indices, Indices]:
    parts, turns = np.empty(_PIECE, np.int64), np.empty(_PIECE, np.int64)
    for part, offsets, first in schedule.between(number * _PIECE, (number + 1) * _PIECE):
        parts[offsets] = part
        turns[offsets] = np.arange(first, first + len(offsets))
    return parts, turns
