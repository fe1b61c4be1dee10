"""Keep the records of a slow source before their shard is finished, and take them up in a resumed build."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from cachelayer.builds.encode import Block
from cachelayer.errors import StorageError
from cachelayer.records.record_buffers import Frames
from cachelayer.user_warnings import warn
from cachelayer.versions.kept_records import KeptRecords, Piece

KEEP_SECONDS = 60.0
"""The seconds that a source may take for records before they are kept: about what a kill loses."""
_QUICK_NBYTES = 1 << 20
_NBYTES_PER_SECOND = 1 << 20
"""A source that gives more than this is not slow: its shards are finished soon."""

Draw = Callable[[int, int | None], Iterator[Frames]]
"""Makes the records from a number on, up to another number or the end."""
Take = Callable[[Block], Iterable[Frames]]
"""Counts records that are encoded already, and returns them."""


class KeptNotes(Protocol):
    """Keeps records beside the notes of finished shards."""

    def records_in_shards(self) -> int:
        """Return how many records are in finished shards, without a gap."""

    def keep(self, piece: Piece, frames: list[Frames], nullable: frozenset[int]) -> None:
        """Keep records that lie in no finished shard yet."""


@dataclass(frozen=True)
class _Drawn:
    """Records that a source gave at once.

    Args:
        first: the number of the first.
        frames: the records.
        seconds: how long it took.
    """

    first: int
    frames: Frames
    seconds: float

    @property
    def stop(self) -> int:
        return self.first + len(self.frames)


class SlowRecords:
    """Keeps the records that a source gives, whenever it took about a minute for those in no finished shard.

    Nothing is kept of a source that fills shards in less time, or that gives more than 1 MB a second.

    Args:
        notes: keeps them.
        nullable: returns the leaves that were None in some element so far.
    """

    def __init__(self, notes: KeptNotes, nullable: Callable[[], frozenset[int]]) -> None:
        self._notes = notes
        self._nullable = nullable
        self._drawn: deque[_Drawn] = deque()
        self._warned = False

    def watching(self, draw: Draw) -> Draw:
        """Return a function that makes records as another does, and keeps them if that is slow."""

        def watched(first: int, stop: int | None) -> Iterator[Frames]:
            drawn = draw(first, stop)
            while True:
                began = time.monotonic()
                frames = next(drawn, None)
                if frames is None:
                    return
                self._add(_Drawn(first, frames, time.monotonic() - began))
                first += len(frames)
                yield frames

        return watched

    def _add(self, drawn: _Drawn) -> None:
        if self._drawn and self._drawn[-1].stop != drawn.first:
            # What lies between is kept already.
            self._keep()
        self._drawn.append(drawn)
        in_shards = self._notes.records_in_shards()
        while self._drawn and self._drawn[0].stop <= in_shards:
            self._drawn.popleft()
        seconds = sum(each.seconds for each in self._drawn)
        nbytes = sum(each.frames.buffer.nbytes for each in self._drawn)
        if nbytes > _QUICK_NBYTES + _NBYTES_PER_SECOND * seconds:
            self._drawn.clear()
        elif seconds >= KEEP_SECONDS:
            self._keep()

    def _keep(self) -> None:
        if not self._drawn:
            return
        piece = Piece(self._drawn[0].first, self._drawn[-1].stop)
        try:
            self._notes.keep(piece, [each.frames for each in self._drawn], self._nullable())
        except StorageError as error:
            # The build may still succeed: it needs the store only when the shard is finished.
            if not self._warned:
                warn(f"records {piece.first} to {piece.stop - 1} are not kept, so a kill would lose them: {error}")
            self._warned = True
        self._drawn.clear()


@dataclass(frozen=True)
class Kept:
    """What an interrupted build kept of a slow source.

    Args:
        records: reads it.
        pieces: the places of the records, in order; shards may hold some of them by now.
    """

    records: KeptRecords | None = None
    pieces: tuple[Piece, ...] = ()

    def after(self, record: int) -> tuple[Piece, ...]:
        """Return the pieces with records from this one on."""
        return tuple(piece for piece in self.pieces if piece.stop > record)

    def block(self, piece: Piece, first: int, stop: int) -> Block:
        """Return some records of a piece.

        Raises:
            CorruptionError: if it was damaged meanwhile.
        """
        if self.records is None:
            raise ValueError("there are no pieces")
        frames, nullable = self.records.read(piece)
        return Block(stop - first, [frames[first - piece.first : stop - piece.first]], nullable, [], 0)

    def with_drawn(self, draw: Draw, take: Take, start: int, stop: int | None) -> Iterator[Frames]:
        """Yield the kept records, in order, and what the source gives between and after them.

        Args:
            draw: makes records.
            take: counts kept records.
            start: the first record to yield.
            stop: the number after that of the last; None for the end of the source.
        """
        for piece in self.after(start):
            if piece.first > start:
                yield from draw(start, piece.first)
            first, last = max(start, piece.first), piece.stop if stop is None else min(piece.stop, stop)
            if first < last:
                yield from take(self.block(piece, first, last))
            start = max(first, last)
        yield from draw(start, stop)
