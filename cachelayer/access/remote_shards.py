"""The shards of a version in an object store: read by ranges at once, and from local copies as these come."""

from __future__ import annotations

import hashlib
import platform
import threading
from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.background_jobs import BackgroundJobs
from cachelayer.access.cached_shards import CachedShards
from cachelayer.access.local_shards import GroupedRecords, LocalShards
from cachelayer.arrayrecord.ranged import RangedShards
from cachelayer.errors import (
    CacheLayerError,
    CorruptionError,
    InvalidArgumentError,
    StorageError,
)
from cachelayer.locks import ProcessLock
from cachelayer.objects.local_cache import CopyOutcome
from cachelayer.records.memory import Ints, splits_of
from cachelayer.records.record_buffers import RecordBuffer, Records
from cachelayer.user_warnings import warn

# Who looks up a few records has no use for copies of whole shards.
_FEW_RECORDS = 64
_UNREADABLE = (CorruptionError, StorageError)
_Job = tuple[int, int]
_INDEX: Literal[0] = 0
_SHARD: Literal[1] = 1


class RemoteShards:
    """Random access over the records of remote shards. Safe to use from threads.

    Args:
        records: number of records of each shard.
        ranged: reads them by ranges.
        copies: local copies of them; None where there are to be none.
    """

    def __init__(self, records: list[int], ranged: RangedShards, copies: CachedShards | None) -> None:
        self._splits = splits_of(np.asarray(records, np.int64))
        self._ranged = ranged
        self._copies = self._given = copies
        self._is_local = np.zeros(len(records), np.bool_)
        self._was_seen = np.zeros(len(records), np.bool_)
        self._was_damaged = np.zeros(len(records), np.bool_)
        self._all_local = False
        self._read_remotely = 0
        self._lock = ProcessLock()
        self._warned = False
        if copies is not None:
            self._local = LocalShards(records, copies.open)
            self._copier: BackgroundJobs[_Job] = BackgroundJobs(
                partial(_make, copies, ranged), self._take_copy, _rank(len(records))
            )

    def __len__(self) -> int:
        return int(self._splits[-1])

    def local_shards(self) -> int:
        """How many shards are read from local copies."""
        return int(self._is_local.sum())

    def all_local(self) -> bool:
        """Whether every shard is read from a local copy."""
        return self._all_local

    def has_all_copies(self) -> bool:
        """Whether there are local copies of all shards, of which those that others made are used from now on."""
        return bool(self._look_for_copies(np.arange(len(self._was_seen))).all())

    def wait_for_copies(self) -> None:
        """Return when every copy that reading has asked for so far is made, or cannot be."""
        if self._copies is not None:
            self._copier.wait()

    def copy_all(self, copied: Callable[[int], None]) -> list[int]:
        """Have local copies of all shards made, and wait until they are there or no more of them have room.

        Args:
            copied: called with the number of each shard that is there, by one thread at a time.

        Returns:
            The numbers of the shards that are there.

        Raises:
            InvalidArgumentError: where no copies are kept.
            CacheLayerError: where a copy could not be made.
        """
        copies = self._copies = self._given
        if copies is None:
            raise InvalidArgumentError("this storage keeps no local copies: open it without local_cache_bytes=0")
        filling = _Filling(self._take_copy, copied)
        rank = _rank(len(self._is_local))
        # Nobody reads meanwhile, for whom all indices would come first.
        copier: BackgroundJobs[_Job] = BackgroundJobs(
            partial(_make, copies, self._ranged), filling.take, lambda job: rank(job)[::-1]
        )
        for shard in range(len(self._is_local)):
            if copies.has(shard):
                filling.take((_SHARD, shard))
            else:
                copier.want([(_INDEX, shard), (_SHARD, shard)])
        copier.wait()
        if copier.failure is not None:
            raise copier.failure
        return [shard for shard in range(len(self._is_local)) if copies.has(shard)]

    def record(self, number: int) -> bytearray:
        """One record, the caller's own; ``number`` is below ``len(self)``."""
        if self._all_local:
            try:
                return self._local.record(number)
            except _UNREADABLE:
                # Found again, and read over the network, below.
                pass
        found = self.records(np.array([number]))
        return bytearray(found.ranges(np.zeros(1, np.int64), found.lengths).data)

    def records(self, numbers: Ints) -> Records:
        """The records of these numbers, each below ``len(self)``."""
        if len(numbers) == 0:
            return RecordBuffer.of([])
        if self._all_local:
            try:
                return self._local.records(numbers)
            except _UNREADABLE:
                pass
        shard_of = self._splits[1:].searchsorted(numbers, side="right")
        here = self._look_for_copies(shard_of)
        if not here.all():
            self._read_remotely += int(len(here) - here.sum())
        found = self._read(numbers, shard_of, here)
        self._want_copies(numbers, shard_of)
        return found

    def stored_nbytes(self, numbers: Ints) -> Ints:
        """The bytes that these records take in their shards, from the indices alone."""
        shard_of = self._splits[1:].searchsorted(numbers, side="right")
        return self._ranged.stored_nbytes(shard_of, numbers - self._splits[shard_of])

    def _read(self, numbers: Ints, shard_of: Ints, here: NDArray[np.bool_]) -> Records:
        """Records, of which some are here."""
        if not here.any():
            return self._ranged.records(shard_of, numbers - self._splits[shard_of])
        if here.all():
            try:
                return self._local.records(numbers)
            except _UNREADABLE:
                self._give_up_damaged(numbers, shard_of)
                return self._read(numbers, shard_of, np.zeros_like(here))
        parts = [np.flatnonzero(here), np.flatnonzero(~here)]
        groups = [(rows, self._read(numbers[rows], shard_of[rows], here[rows])) for rows in parts]
        return GroupedRecords(len(numbers), groups)

    def _look_for_copies(self, shard_of: Ints) -> NDArray[np.bool_]:
        """For each record whether its shard is here."""
        if self._copies is not None:
            try:
                for shard in np.unique(shard_of[~self._was_seen[shard_of]]).tolist():
                    if self._copies.has(shard):
                        self._use_copy(shard)
                    self._was_seen[shard] = True
            except StorageError as error:
                self._copies = None
                self._warn_once(error)
        here: NDArray[np.bool_] = self._is_local[shard_of]
        return here

    def _want_copies(self, numbers: Ints, shard_of: Ints) -> None:
        if self._copies is None or self._all_local or self._read_remotely < _FEW_RECORDS:
            return
        if self._copier.failure is not None:
            self._warn_once(self._copier.failure)
        shards = set(np.unique(shard_of).tolist())
        last = int(shard_of[-1])
        if last + 1 < len(self._is_local) and self._is_pass_in_order(numbers, last):
            shards.add(last + 1)
        away = [shard for shard in shards if not self._is_local[shard] and not self._was_damaged[shard]]
        self._copier.want((what, shard) for shard in away for what in (_INDEX, _SHARD))

    def _is_pass_in_order(self, numbers: Ints, last: int) -> bool:
        """Whether consecutive records were read that reach into the second half of a shard: the next comes next."""
        middle = (self._splits[last] + self._splits[last + 1]) // 2
        return bool(numbers[-1] >= middle and (np.diff(numbers) == 1).all())

    def _take_copy(self, job: _Job) -> None:
        """Use a copy from now on."""
        what, shard = job
        copies = self._copies
        if copies is None or self._was_damaged[shard]:
            return
        if what == _INDEX:
            try:
                self._ranged.use_index_copy(shard, partial(copies.index, shard))
            except CorruptionError:
                copies.drop(shard)
                raise
        if copies.has(shard):
            self._use_copy(shard)

    def _use_copy(self, shard: int) -> None:
        self._is_local[shard] = True
        self._all_local = bool(self._is_local.all())

    def _give_up_damaged(self, numbers: Ints, shard_of: Ints) -> None:
        """Remove copies that cannot be read, and read these shards over the network from now on."""
        for shard in np.unique(shard_of).tolist():
            try:
                self._local.records(numbers[shard_of == shard])
            except _UNREADABLE as error:
                with self._lock:
                    # Another thread may have come upon it at the same time.
                    was_damaged = self._was_damaged[shard]
                    self._all_local = False
                    self._was_damaged[shard], self._is_local[shard] = True, False
                if was_damaged:
                    continue
                if isinstance(error, StorageError):
                    self._warn_once(error)
                    continue
                if self._copies is not None:
                    self._copies.drop(shard)
                self._warn(f"a local copy is damaged, its records are read over the network: {error}")

    def _warn_once(self, error: CacheLayerError) -> None:
        if not self._warned:
            self._warned = True
            self._warn(f"local copies cannot be made or used, records are read over the network: {error}")

    @staticmethod
    def _warn(text: str) -> None:
        warn(text)


class _Filling:
    """Takes copies that were made, one after another."""

    def __init__(self, use: Callable[[_Job], None], copied: Callable[[int], None]) -> None:
        self._use = use
        self._copied = copied
        self._lock = threading.Lock()

    def take(self, job: _Job) -> None:
        with self._lock:
            self._use(job)
            if job[0] == _SHARD:
                self._copied(job[1])


def _rank(count: int) -> Callable[[_Job], tuple[int, int]]:
    """Indices first; and hosts that begin at once copy different shards first."""
    turn = int(hashlib.sha256(platform.node().encode()).hexdigest()[:12], 16)
    return lambda job: (job[0], (job[1] - turn) % max(1, count))


def _make(copies: CachedShards, ranged: RangedShards, job: _Job) -> CopyOutcome:
    what, shard = job
    if what == _INDEX:
        return copies.make_index(shard, lambda: ranged.whole_index(shard))
    return copies.make(shard)
