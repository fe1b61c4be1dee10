"""The shards of a version in an object store: read over the network first, then from local copies."""

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
from cachelayer.access.held import Held, joined
from cachelayer.arrayrecord.places import GroupedRecords
from cachelayer.arrayrecord.ranged import RangedShards
from cachelayer.errors import (
    CacheLayerError,
    CorruptionError,
    InvalidArgumentError,
    StorageError,
)
from cachelayer.locks import ProcessLock
from cachelayer.objects.local_cache import CopyOutcome
from cachelayer.records.memory import Ints, distinct, keep_freed_memory, splits_of
from cachelayer.records.record_buffers import RecordBuffer, Records
from cachelayer.user_warnings import warn

# A caller that reads only a few records does not need copies of whole shards.
_FEW_RECORDS = 64
_UNREADABLE = (CorruptionError, StorageError)
# What to copy, the index or the shard itself, and the number of the shard.
_Job = tuple[int, int]
_INDEX: Literal[0] = 0
_SHARD: Literal[1] = 1


class RemoteShards:
    """Random access to the records of remote shards. Thread-safe.

    Reads exact ranges over the network. After some records it makes local copies of the shards in the background, and
    reads each shard from its copy as soon as there is one.

    Args:
        records: the number of records of each shard.
        ranged: reads the shards over the network.
        copies: the local copies of the shards; None to make no copies.
    """

    def __init__(self, records: list[int], ranged: RangedShards, copies: CachedShards | None) -> None:
        keep_freed_memory()
        self._splits = splits_of(np.asarray(records, np.int64))
        self._ranged = ranged
        # ``_copies`` becomes None if the local cache fails.
        self._copies = self._cached_shards = copies
        self._is_local = np.zeros(len(records), np.bool_)
        self._was_looked_up = np.zeros(len(records), np.bool_)
        self._was_damaged = np.zeros(len(records), np.bool_)
        self._all_local = False
        self._read_remotely = 0
        self._lock = ProcessLock()
        self._warned = False
        if copies is not None:
            self._local = copies.local_shards(records)
            self._jobs: BackgroundJobs[_Job] = BackgroundJobs(partial(_do_job, copies, ranged), self._use_finished_job)

    def __len__(self) -> int:
        return int(self._splits[-1])

    def local_shards(self) -> int:
        """Return the number of shards that are read from local copies."""
        return int(self._is_local.sum())

    def all_local(self) -> bool:
        """Return whether every shard is read from a local copy."""
        return self._all_local

    def has_all_copies(self) -> bool:
        """Return whether there are local copies of all shards; use copies that other processes made from now on."""
        return bool(self._find_copies(np.arange(len(self._was_looked_up))).all())

    def wait_for_copies(self) -> None:
        """Return when all copies that were started are finished or have failed."""
        if self._copies is not None:
            self._jobs.wait()

    def copy_all(self, on_copied: Callable[[int], None]) -> list[int]:
        """Make local copies of all shards, as many as the local cache has room for, and wait for them.

        Args:
            on_copied: called with the number of each shard that has a local copy, by one thread at a time.

        Returns:
            The numbers of the shards that have a local copy.
        """
        copies = self._copies = self._cached_shards
        if copies is None:
            raise InvalidArgumentError("this storage keeps no local copies: open it without local_cache_bytes=0")
        finished = _FinishedJobs(self._use_finished_job, on_copied)
        jobs: BackgroundJobs[_Job] = BackgroundJobs(partial(_do_job, copies, self._ranged), finished.take)
        count = len(self._is_local)
        # Hosts that begin at once copy other shards first.
        for shard in (number % count for number in range(_first_shard(count), _first_shard(count) + count)):
            if copies.has(shard):
                finished.take((_SHARD, shard))
            else:
                jobs.want([(_INDEX, shard), (_SHARD, shard)])
        jobs.wait()
        if jobs.failure is not None:
            raise jobs.failure
        return [shard for shard in range(len(self._is_local)) if copies.has(shard)]

    def record(self, number: int) -> bytearray:
        """Return one record; the caller may change it. ``number`` is less than ``len(self)``."""
        if self._all_local:
            try:
                return self._local.record(number)
            except _UNREADABLE:
                # The code below meets the damaged copy again and reads over the network.
                pass
        records = self.records(np.array([number]))
        return bytearray(records.ranges(np.zeros(1, np.int64), records.lengths).data)

    def records(self, numbers: Ints) -> Records:
        """Return the records of these numbers, each less than ``len(self)``."""
        if len(numbers) == 0:
            return RecordBuffer.of([])
        if self._all_local:
            try:
                return self._local.records(numbers)
            except _UNREADABLE:
                pass
        shard_of = self._splits[1:].searchsorted(numbers, side="right")
        is_local = self._find_copies(shard_of)
        if not is_local.all():
            self._read_remotely += int(len(is_local) - is_local.sum())
        records = self._read(numbers, shard_of, is_local)
        self._want_copies(numbers, shard_of)
        return records

    def hold(self, numbers: Ints, share: float) -> Held:
        """Fetch a block of records, those of copied shards from the copies. This starts no copies.

        In an epoch in blocks, each host reads some blocks of every shard, and their records once.
        Copies of whole shards would multiply the bytes.

        Args:
            numbers: the records.
            share: the fraction of all records that the caller is going to fetch.
        """
        shard_of = self._splits[1:].searchsorted(numbers, side="right")
        is_local = self._find_copies(shard_of)
        groups = []
        if is_local.any():
            rows = np.flatnonzero(is_local)
            groups.append((rows, Held.of_local(self._read(numbers[rows], shard_of[rows], is_local[rows]))))
        if not is_local.all():
            rows = np.flatnonzero(~is_local)
            within = numbers[rows] - self._splits[shard_of[rows]]
            groups.append((rows, Held.of(self._ranged.fetch(shard_of[rows], within, share))))
        return joined(len(numbers), groups)

    def announce(self, numbers: Ints) -> bool:
        """Start to load records of local copies if they are not in memory; return whether any was not."""
        return self._copies is not None and self._local.announce(numbers)

    def stored_nbytes(self, numbers: Ints) -> Ints:
        """Return the bytes that these records take in their shards; reads the indices only."""
        shard_of = self._splits[1:].searchsorted(numbers, side="right")
        return self._ranged.stored_nbytes(shard_of, numbers - self._splits[shard_of])

    def _read(self, numbers: Ints, shard_of: Ints, is_local: NDArray[np.bool_]) -> Records:
        """Return records, reading those that are local from their copies."""
        if not is_local.any():
            return self._ranged.records(shard_of, numbers - self._splits[shard_of])
        if is_local.all():
            try:
                return self._local.records(numbers)
            except _UNREADABLE:
                self._drop_damaged_copies(numbers, shard_of)
                return self._read(numbers, shard_of, np.zeros_like(is_local))
        rows_of = [np.flatnonzero(is_local), np.flatnonzero(~is_local)]
        groups = [(rows, self._read(numbers[rows], shard_of[rows], is_local[rows])) for rows in rows_of]
        return GroupedRecords(len(numbers), groups)

    def _find_copies(self, shard_of: Ints) -> NDArray[np.bool_]:
        """Return for each record whether its shard has a local copy; look up each shard once."""
        # Another thread may give up the local cache meanwhile.
        copies = self._copies
        if copies is not None:
            try:
                for shard in distinct(shard_of[~self._was_looked_up[shard_of]]).tolist():
                    if copies.has(shard):
                        self._use_copy(shard)
                    self._was_looked_up[shard] = True
            except StorageError as error:
                self._copies = None
                self._warn_once(error)
        is_local: NDArray[np.bool_] = self._is_local[shard_of]
        return is_local

    def _want_copies(self, numbers: Ints, shard_of: Ints) -> None:
        """Start to copy the shards of records that were read, and the next shard in a pass through all records."""
        if self._copies is None or self._all_local or self._read_remotely < _FEW_RECORDS:
            return
        if self._jobs.failure is not None:
            self._warn_once(self._jobs.failure)
        shards = set(distinct(shard_of).tolist())
        last = int(shard_of[-1])
        if last + 1 < len(self._is_local) and self._is_pass_in_order(numbers, last):
            shards.add(last + 1)
        remote = [shard for shard in shards if not self._is_local[shard] and not self._was_damaged[shard]]
        first = _first_shard(len(self._is_local))
        remote.sort(key=lambda shard: (shard - first) % len(self._is_local))
        self._jobs.want((what, shard) for what in (_INDEX, _SHARD) for shard in remote)

    def _is_pass_in_order(self, numbers: Ints, last: int) -> bool:
        """Return whether consecutive records were read, up to the second half of a shard: its successor comes soon."""
        middle = (self._splits[last] + self._splits[last + 1]) // 2
        return bool(numbers[-1] >= middle and (np.diff(numbers) == 1).all())

    def _use_finished_job(self, job: _Job) -> None:
        """Read from a finished copy from now on."""
        what, shard = job
        copies = self._copies
        if copies is None or self._was_damaged[shard]:
            return
        if what == _INDEX:
            try:
                self._ranged.use_copy(shard, partial(copies.index, shard))
            except CorruptionError:
                copies.drop(shard)
                raise
        if copies.has(shard):
            self._use_copy(shard)

    def _use_copy(self, shard: int) -> None:
        self._is_local[shard] = True
        self._all_local = bool(self._is_local.all())

    def _drop_damaged_copies(self, numbers: Ints, shard_of: Ints) -> None:
        """Remove damaged copies, and read these shards over the network from now on."""
        for shard in distinct(shard_of).tolist():
            try:
                self._local.records(numbers[shard_of == shard])
            except _UNREADABLE as error:
                with self._lock:
                    # Another thread may meet the damaged copy at the same time.
                    was_damaged = self._was_damaged[shard]
                    self._all_local = False
                    self._was_damaged[shard], self._is_local[shard] = True, False
                if was_damaged:
                    continue
                if isinstance(error, StorageError):
                    self._warn_once(error)
                    continue
                copies = self._copies
                if copies is not None:
                    copies.drop(shard)
                warn(f"a local copy is damaged, so its records are read over the network: {error}")

    def _warn_once(self, error: CacheLayerError) -> None:
        with self._lock:
            is_first, self._warned = not self._warned, True
        if is_first:
            warn(f"local copies cannot be made or used, so records are read over the network: {error}")


class _FinishedJobs:
    """Takes finished jobs, one at a time, and reports each copied shard."""

    def __init__(self, use: Callable[[_Job], None], on_copied: Callable[[int], None]) -> None:
        self._use = use
        self._on_copied = on_copied
        self._lock = threading.Lock()

    def take(self, job: _Job) -> None:
        with self._lock:
            self._use(job)
            if job[0] == _SHARD:
                self._on_copied(job[1])


def _first_shard(count: int) -> int:
    """Return the shard that this host copies first: each host begins with another."""
    return int(hashlib.sha256(platform.node().encode()).hexdigest()[:12], 16) % max(1, count)


def _do_job(copies: CachedShards, ranged: RangedShards, job: _Job) -> CopyOutcome:
    what, shard = job
    if what == _INDEX:
        return copies.make_index(shard, lambda: ranged.whole_index(shard))
    return copies.make(shard)
