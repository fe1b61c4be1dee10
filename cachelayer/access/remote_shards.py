"""The shards of a version in an object store: read by ranges at once, and from local copies as these come."""

from __future__ import annotations

import hashlib
import platform
import warnings
from typing import Literal

import numpy as np

from cachelayer.access.copier import Copier
from cachelayer.access.local_copies import LocalCopies
from cachelayer.access.shards import JoinedRecords, ShardSet
from cachelayer.arrayrecord.ranged import RangedShards
from cachelayer.codec.frames import RecordBuffer, Records
from cachelayer.codec.memory import Ints, splits_of
from cachelayer.errors import CacheLayerWarning, CorruptionError, StorageError

# Who looks up a few records has no use for copies of whole shards.
_FEW_RECORDS = 64
# A batch from no more shards than these is taken for part of a pass in order: the next shard comes next.
_FEW_SHARDS = 2
_INDEX: Literal[0] = 0
_SHARD: Literal[1] = 1


class RemoteShards:
    """Random access over the records of remote shards. Safe to use from threads.

    Args:
        records: number of records of each shard.
        ranged: reads them by ranges.
        copies: local copies of them; None where there are to be none.
    """

    def __init__(self, records: list[int], ranged: RangedShards, copies: LocalCopies | None) -> None:
        self._splits = splits_of(np.asarray(records, np.int64))
        self._ranged = ranged
        self._copies = copies
        self._is_local = np.zeros(len(records), np.bool_)
        self._was_seen = np.zeros(len(records), np.bool_)
        self._read_remotely = 0
        self._warned = False
        if copies is not None:
            self._local = ShardSet(records, copies.open)
            # Hosts that begin at once copy different shards first.
            turn = int(hashlib.sha256(platform.node().encode()).hexdigest()[:12], 16)
            count = max(1, len(records))
            self._copier: Copier[tuple[int, int]] = Copier(self._copy, lambda job: (job[0], (job[1] - turn) % count))

    def __len__(self) -> int:
        return int(self._splits[-1])

    def record(self, number: int) -> bytearray:
        """One record, the caller's own; ``number`` is below ``len(self)``."""
        found = self.records(np.array([number]))
        return bytearray(found.ranges(np.zeros(1, np.int64), found.lengths).data)

    def records(self, numbers: Ints) -> Records:
        """The records of these numbers, each below ``len(self)``."""
        if len(numbers) == 0:
            return RecordBuffer.of([])
        shard_of = self._splits[1:].searchsorted(numbers, side="right")
        here = self._look_for_copies(shard_of)
        if here.all():
            try:
                return self._local.records(numbers)
            except CorruptionError as error:
                self._give_up_copies(shard_of, error)
                here[:] = False
        if not here.any():
            return self._by_ranges(shard_of, numbers)
        away = ~here
        groups = [
            (np.flatnonzero(here), self.records(numbers[here])),
            (np.flatnonzero(away), self._by_ranges(shard_of[away], numbers[away])),
        ]
        return JoinedRecords(len(numbers), groups)

    def _by_ranges(self, shard_of: Ints, numbers: Ints) -> Records:
        found = self._ranged.records(shard_of, numbers - self._splits[shard_of])
        self._read_remotely += len(numbers)
        self._want_copies(np.unique(shard_of).tolist())
        return found

    def _look_for_copies(self, shard_of: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """For each record whether its shard is here."""
        if self._copies is None:
            return np.zeros(len(shard_of), np.bool_)
        try:
            for shard in np.unique(shard_of[~self._was_seen[shard_of]]).tolist():
                self._was_seen[shard] = True
                self._is_local[shard] = self._copies.has(shard)
        except StorageError as error:
            self._copies = None
            self._is_local[:] = False
            self._warn(f"no local copies are made, records are read over the network: {error}")
        here: np.ndarray[tuple[int], np.dtype[np.bool_]] = self._is_local[shard_of]
        return here

    def _want_copies(self, shards: list[int]) -> None:
        if self._copies is None or self._read_remotely < _FEW_RECORDS:
            return
        if self._copier.failure is not None:
            if not self._warned:
                self._warned = True
                self._warn(f"no local copies are made, records are read over the network: {self._copier.failure}")
            return
        if len(shards) <= _FEW_SHARDS and shards[-1] + 1 < len(self._is_local):
            shards = [*shards, shards[-1] + 1]
        self._copier.want((what, shard) for shard in shards for what in (_INDEX, _SHARD))

    def _copy(self, job: tuple[int, int]) -> bool | None:
        """Make a copy, and use it from now on."""
        what, shard = job
        if self._copies is None:
            return False
        if what == _INDEX:
            done = self._copies.make_index(shard)
            if done:
                self._ranged.take_index(shard, self._copies.index(shard))
            return done
        done = self._copies.make(shard)
        if done and self._copies.has(shard):
            self._is_local[shard] = True
        return done

    def _give_up_copies(self, shard_of: Ints, error: CorruptionError) -> None:
        """Read shards over the network again: those whose copies were removed, else all of these."""
        shards = np.unique(shard_of)
        gone = [shard for shard in shards.tolist() if self._copies is None or not self._copies.has(shard)]
        self._is_local[gone or shards] = False
        self._warn(f"a local copy is damaged, its records are read over the network: {error}")

    @staticmethod
    def _warn(text: str) -> None:
        warnings.warn(text, CacheLayerWarning, stacklevel=6)
