"""Index rows of blocks that are going to be fetched: those that lie near each other in an index come in one request."""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType, ref

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.index import ROW
from cachelayer.locks import ProcessLock, cached_property
from cachelayer.records.memory import Ints

MOST_BESIDE = 0.045
"""Bytes of index rows that are of no use, for each byte of the blocks."""
_PAGE_BITS = 17
MOST_TOGETHER = 1 << _PAGE_BITS
"""Number of records of a shard among which blocks begin whose rows come together: 2 MiB of rows."""
# Threads seldom wait for each other with so many locks, and these are few beside the blocks of an epoch.
_LOCKS = 1 << 12
# Bytes that keeping the rows of a block takes beside them.
_BESIDE_KEPT = 1 << 8
# The number of a shard and of a record in it, as one number.
_WITHIN_BITS = 40


class ExpectedRows:
    """The index rows of blocks of one size: which of them come together, and those that came before they were needed.

    Each block is served once. If it is fetched once more, its rows come alone. Safe to use from threads.

    Args:
        shard_of: the shard of each block.
        within: the number of its first record there.
        count: number of records of each block.
        record_nbytes: approximate stored bytes of a record.
    """

    def __init__(self, shard_of: Ints, within: Ints, count: int, record_nbytes: float) -> None:
        self._keys = np.unique((shard_of << _WITHIN_BITS) + within)
        self._count = count
        most = int(MOST_BESIDE * record_nbytes / ROW.itemsize * count * len(self._keys))
        self._firsts = _first_of_each_run(self._keys, count, most)
        self._is_used = np.zeros(len(self._keys), np.bool_)
        self._kept: dict[int, NDArray[np.void]] = {}
        self._fetching: dict[int, ProcessLock] = {}

    @property
    def nbytes(self) -> int:
        """The bytes that the kept rows take in memory."""
        return self.nbytes_of(self._kept)

    def nbytes_of(self, blocks: Sized) -> int:
        """Return the bytes that the rows of some blocks take in memory."""
        return len(blocks) * (self._count * ROW.itemsize + _BESIDE_KEPT)

    def find(self, shard: int, within: int, count: int) -> int | None:
        """Return the number of the block that begins at a record of a shard; None if no such block is expected."""
        key = (shard << _WITHIN_BITS) + within
        block = int(self._keys.searchsorted(key))
        if count != self._count or block == len(self._keys) or self._keys[block] != key or self._is_used[block]:
            return None
        return block

    def lock(self, block: int) -> ProcessLock:
        """Return the lock to hold while the rows of a block are taken or fetched, since others may come with them."""
        return self._fetching.setdefault(int(self._firsts[block]) % _LOCKS, ProcessLock())

    def take(self, block: int) -> NDArray[np.void] | None:
        """Return the rows of a block, which is being fetched now; None if they are not here."""
        self._is_used[block] = True
        return self._kept.pop(block, None)

    def together(self, block: int) -> Ints:
        """Return the blocks whose rows come together with those of a block: it and those that are not fetched yet."""
        first, last = np.searchsorted(self._firsts, self._firsts[block] + [0, 1])
        blocks = np.arange(first, last)
        wanted: Ints = blocks[~self._is_used[first:last] | (blocks == block)]
        return wanted

    def begins(self, blocks: Ints) -> Ints:
        """Return the number of the first record of each block in its shard."""
        return self._keys[blocks] & ((1 << _WITHIN_BITS) - 1)

    def keep(self, blocks: Ints, rows: Any, begin: int) -> None:
        """Keep the rows of blocks until they are taken.

        Args:
            blocks: the blocks.
            rows: rows of their shard, from record ``begin`` on.
        """
        for block, at in zip(blocks.tolist(), (self.begins(blocks) - begin).tolist(), strict=True):
            if not self._is_used[block]:
                self._kept[block] = rows[at : at + self._count].copy()


@dataclass(frozen=True, eq=False)
class _Note:
    """What a reader of shards expects, once that is asked for."""

    find: Callable[[], ExpectedRows | None]

    @cached_property
    def rows(self) -> ExpectedRows | None:
        """The rows; None if nothing is expected."""
        return self.find()


class Expected:
    """What readers of shards expect, as long as they keep the notes. Safe to use from threads."""

    def __init__(self) -> None:
        self._references: tuple[ReferenceType[_Note], ...] = ()
        self._lock = ProcessLock()

    def _notes(self) -> list[_Note]:
        found = [reference() for reference in self._references]
        return [note for note in found if note is not None]

    def _all(self) -> list[ExpectedRows]:
        found = [note.rows for note in self._notes()]
        return [rows for rows in found if rows is not None]

    @property
    def nbytes(self) -> int:
        """The bytes of all rows that are kept."""
        return sum(rows.nbytes for rows in self._all())

    def added(self, find: Callable[[], ExpectedRows | None]) -> object:
        """Return a note of what one reader expects."""
        note = _Note(find)
        with self._lock:
            self._references = tuple(map(ref, [*self._notes(), note]))
        return note

    def find(self, shard_of: Ints, within: Ints) -> tuple[ExpectedRows, int] | None:
        """Return an expected block, as what holds it and its number in there; None if these records are none."""
        if (
            not self._references
            or len(within) == 0
            or (shard_of != shard_of[0]).any()
            or (within[1:] - within[:-1] != 1).any()
        ):
            return None
        for rows in self._all():
            block = rows.find(int(shard_of[0]), int(within[0]), len(within))
            if block is not None:
                return rows, block
        return None


def _first_of_each_run(keys: Ints, count: int, most: int) -> Ints:
    """Return for each block the number of the first whose rows come with its own: those with the shortest gaps.

    Blocks of different pages of a shard never come together.

    Args:
        keys: the blocks, ascending.
        count: number of records of each.
        most: number of records in all gaps.
    """
    pages = keys >> _PAGE_BITS
    gaps = keys[1:] - keys[:-1] - count
    near = np.flatnonzero((pages[1:] == pages[:-1]) & (gaps >= 0))
    near = near[gaps[near].argsort(kind="stable")]
    begins = np.ones(len(keys), np.bool_)
    begins[near[gaps[near].cumsum() <= most] + 1] = False
    return np.maximum.accumulate(np.where(begins, np.arange(len(keys)), 0))
