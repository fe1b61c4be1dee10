"""Copies of the shards of a version in the local cache: how they are found, made in the background, and removed.

A shard is in one of these states::

    unknown    no copy is known       find() looks for one that another process made
    wanted     copied soon            a thread downloads its files, checks them, and puts them into the cache
    here       there is a copy        records are read from it
    refused    a copy failed          its records come over the network as long as this process lives
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.local_shards import LocalShards, ShardFiles, Verify
from cachelayer.arrayrecord.mapping import MappedFile
from cachelayer.arrayrecord.ranged import KEPT_NBYTES
from cachelayer.errors import CacheLayerError, CorruptionError, StorageError
from cachelayer.objects import paths
from cachelayer.objects.local_cache import CacheFolder, CopyGroup, CopyOutcome
from cachelayer.objects.store import Blob, Store
from cachelayer.support.counting import count
from cachelayer.support.locks import ProcessLock, cached_property
from cachelayer.support.logs import logger_of
from cachelayer.support.memory import Bytes, Ints, distinct
from cachelayer.support.system_threads import Pool, program_ends, start
from cachelayer.support.user_warnings import warn
from cachelayer.versions.shard_table import ShardTable

_log = logger_of("copies")
_THREADS = 3
"""While one thread checks a copy and writes it to the disk, the others download the next copies."""
_MOST_FAILURES = 3
"""After so many failures one after another, no more copies are tried."""
_BUSY_SECONDS = 0.02
"""How long to wait for another process that makes the same copy."""
_PATIENCE_SECONDS = 5.0
_LEAST_RATE = 10_000_000
"""If no copy came for so long, and in the time that so many bytes a second take, nobody waits for copies."""
_BY_RANGES = 0.1
"""The part of the bytes of a version that streams ask for by ranges before they wait for copies."""
_REQUEST_NBYTES = 1 << 18
"""A request for a record costs a store, and who asks, about as much as so many bytes of a shard."""


@dataclass(frozen=True)
class Mirrored:
    """The shards of a version that are on this host, and all its shards: their numbers and bytes.

    Examples:
        >>> storage = cachelayer.Storage(f"memory:/{folder}", local_cache=folder)
        >>> mirrored = storage.submit([3, 1, 2], "mirrored@v1").mirror()
        >>> mirrored.shards, mirrored.local_shards, mirrored.nbytes == mirrored.local_nbytes
        (1, 1, True)
    """

    shards: int
    """The number of shards of the version."""
    local_shards: int
    """The number of shards that are on this host: fewer than ``shards`` if the local cache is too small."""
    nbytes: int
    """The bytes of all shards of the version."""
    local_nbytes: int
    """The bytes of the shards that are on this host."""
    folder: str
    """The folder of the shards that are on this host."""


class LocalCopies:
    """The copies of the shards of a version. Thread-safe."""

    def __init__(self, folder: CacheFolder, dataset: Store, shards: ShardTable, verify: Verify) -> None:
        self._folder = folder
        self._dataset = dataset
        self._shards = shards
        self._verify: Verify = verify
        self._is_here = np.zeros(len(shards), np.bool_)
        self._was_looked_up = np.zeros(len(shards), np.bool_)
        # Shards whose copies, or whose objects, are damaged: this process makes and uses no copies of them.
        self._is_refused = np.zeros(len(shards), np.bool_)
        self._has_warned = False
        self._lock = ProcessLock()
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._queue: dict[int, None] = {}
        self._wanted: set[int] = set()
        # Wanted shards that a thread has yet to finish.
        self._pending: set[int] = set()
        # How many records streams needed of each shard.
        self._needed = Counter[int]()
        # Bytes that streams ask for by ranges: first the indices, if they are kept.
        self._ranges_nbytes = min(self._shards.index_nbytes, KEPT_NBYTES)
        self._last_made = 0.0
        self._threads: set[threading.Thread] = set()
        self._failures = 0
        self._last_failure: CacheLayerError | None = None

    @cached_property
    def _group(self) -> CopyGroup:
        return self._folder.group(self._dataset.url)

    def has(self, number: int) -> bool:
        """Return whether there are complete copies of a shard, its index and its lengths."""
        return all(self._group.has(Path(blob.name).name, blob.nbytes) for blob in self._shards[number].blobs)

    @property
    def count(self) -> int:
        """The number of shards that are known to have copies."""
        return int(self._is_here.sum())

    def find(self, shard_of: Ints) -> NDArray[np.bool_]:
        """Return for each record whether its shard has a copy. Each shard is looked up once."""
        try:
            for shard in distinct(shard_of[~self._was_looked_up[shard_of]]).tolist():
                self._is_here[shard] |= self.has(shard)
                self._was_looked_up[shard] = True
        except StorageError as error:
            self._was_looked_up[:] = True
            self._failures = _MOST_FAILURES
            self._warn_once(error)
        here: NDArray[np.bool_] = self._is_here[shard_of]
        return here

    @cached_property
    def shards(self) -> LocalShards:
        """The reader of the copies."""
        table = self._shards
        return LocalShards(table.records.tolist(), table.shard_nbytes, table.record_nbytes, self._files, self._verify)

    def _files(self, number: int) -> AbstractContextManager[ShardFiles]:
        shard = self._shards[number]
        path = self._group.path(Path(shard.name).name)
        return nullcontext(ShardFiles(path, Path(paths.index_of(str(path))), shard.stats))

    def drop_files(self, files: Iterable[str]) -> None:
        """Remove the copies of shards, by their names without suffixes."""
        for file in files:
            self._drop(paths.shard(file))

    def _drop(self, shard_name: str) -> None:
        for name in (shard_name, paths.index_of(shard_name), paths.lengths_of(shard_name)):
            self._group.drop(Path(name).name)

    def refuse(self, number: int, error: CacheLayerError) -> None:
        """Stop using a copy that could not be read. A damaged copy is removed, and not made again."""
        with self._lock.of_process():
            was_here = bool(self._is_here[number])
            self._is_here[number] = False
            if isinstance(error, CorruptionError) and not self.has(number):
                # The copy is not damaged but gone, or cut short: it may be made again.
                self._wanted.discard(number)
                return
            self._is_refused[number] = True
        if not was_here:
            return
        if isinstance(error, CorruptionError):
            self._drop(self._shards[number].name)
            count(copies_damaged=1)
            warn(f"a local copy is damaged, so its records are read over the network: {error}", logger="copies")
        else:
            self._warn_once(error)

    def copy_in_background(self, shards: Iterable[int]) -> None:
        """Begin to copy the shards that were not wanted before, and return at once."""
        with self._lock.of_process():
            if self._pid != os.getpid():
                # After a fork, the threads that copied are those of the parent.
                self._reset()
            if self._last_failure is not None:
                self._warn_once(self._last_failure)
            if self._failures >= _MOST_FAILURES:
                return
            new = [number for number in shards if number not in self._wanted and not self._is_refused[number]]
            if not self._pending:
                self._last_made = time.monotonic()
            self._wanted.update(new)
            self._pending.update(new)
            self._queue.update(dict.fromkeys(new))
            for _ in range(min(len(self._queue), _THREADS - len(self._threads))):
                thread = threading.Thread(target=self._run, name="cachelayer-copy", daemon=True)
                try:
                    start(thread, "to copy in")
                except StorageError as error:
                    self._warn_once(error)
                    return
                self._threads.add(thread)

    def prepare(self, shard_of: Ints, later: Ints, readers: int) -> None:
        """Copy the shards of records that are read next, and of some later ones, if there is room for all shards.

        Wait for the copies if ``readers`` processes that read an epoch together would ask for too much by ranges.
        """
        shards, counts = np.unique(shard_of[~self.find(shard_of)], return_counts=True)
        has_room = False
        # A thread that copies meets the error too, and reports it.
        with suppress(StorageError):
            has_room = len(shards) > 0 and bool(self._has_room.all())
        if not has_room:
            return
        self.copy_in_background([*shards.tolist(), *distinct(later[~self.find(later)]).tolist()])
        sizes = np.array(self._shards.shard_nbytes, np.int64)
        nbytes = sizes[shards]
        record_nbytes = np.maximum(nbytes // self._shards.records[shards], _REQUEST_NBYTES)
        by_ranges = np.minimum(counts * record_nbytes, nbytes).sum()
        with self._lock.of_process():
            self._needed.update(dict(zip(shards.tolist(), counts.tolist(), strict=True)))
            if readers * (self._ranges_nbytes + by_ranges) <= _BY_RANGES * sizes.sum():
                self._ranges_nbytes += int(by_ranges)
                return
        patience = max(_PATIENCE_SECONDS, _THREADS * int(sizes.max()) / _LEAST_RATE)
        while self._threads and not program_ends() and not self._pending.isdisjoint(shards.tolist()):
            if time.monotonic() - self._last_made > patience:
                return
            time.sleep(_BUSY_SECONDS / 4)

    def wait(self) -> None:
        """Wait until all wanted copies are made or have failed."""
        # In a child after a fork, the threads of the parent are not alive.
        while threads := [thread for thread in self._threads.copy() if thread.is_alive()]:
            for thread in threads:
                thread.join()

    def _run(self) -> None:
        """Copy shards until none is wanted."""
        while True:
            with self._lock.of_process():
                if not self._queue:
                    self._threads.discard(threading.current_thread())
                    return
                number = max(self._queue, key=self._needed.__getitem__)
                del self._queue[number]
            try:
                outcome = self._copy(number)
            except (CacheLayerError, RuntimeError) as error:
                # A program that ends starts no threads, which downloads need.
                if program_ends():
                    return
                if not isinstance(error, CacheLayerError):
                    raise
                self._note_failure(number, error)
                continue
            if outcome is CopyOutcome.BUSY:
                time.sleep(_BUSY_SECONDS)
            with self._lock.of_process():
                self._failures = 0
                if outcome is CopyOutcome.BUSY:
                    self._needed[number] = 0
                    self._queue[number] = None
                else:
                    self._pending.discard(number)
                    self._last_made = time.monotonic()

    def _note_failure(self, number: int, error: CacheLayerError) -> None:
        """Note that a copy could not be made, for the thread that reads to warn of."""
        with self._lock.of_process():
            self._failures += 1
            self._pending.discard(number)
            if self._failures >= _MOST_FAILURES:
                self._queue.clear()
                self._pending.clear()
            # A damaged object stays damaged. After another error, a copy may be made when the shard is wanted again.
            self._is_refused[number] |= isinstance(error, CorruptionError)
            name = f"{self._dataset.url}/{self._shards[number].name}"
            count(copies_failed=1)
            _log.warning("%(object)s: no local copy is made: %(error)s", {"object": name, "error": error})
            self._wanted.discard(number)
            self._last_failure = error

    @cached_property
    def _order(self) -> list[int]:
        """The numbers of the shards, in the order in which this cache gets copies of them."""
        places = [self._group.place_of(sha256) for sha256 in self._shards.sha256]
        return sorted(range(len(places)), key=places.__getitem__)

    @cached_property
    def _has_room(self) -> NDArray[np.bool_]:
        """True for each shard that gets a copy: the first in the order, as many as fit when the first copy is made.

        Other shards are read over the network. If new copies displaced old ones, an epoch would remove each copy before
        the next epoch used it.
        """
        has_room = np.zeros(len(self._shards), np.bool_)
        has_room[self._order] = self._shards.files_nbytes[self._order].cumsum() <= self._group.room()
        return has_room

    def copy_all(self, on_copied: Callable[[int], None]) -> list[int]:
        """Copy all shards that there is room for, and return the numbers of all shards that have copies."""
        with Pool(_THREADS, "cachelayer-copy") as pool:
            try:
                for number, is_here in zip(self._order, pool.map(self._copy_and_wait, self._order), strict=True):
                    if is_here:
                        on_copied(number)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
        return [number for number in range(len(self._shards)) if self.has(number)]

    def _copy_and_wait(self, number: int) -> bool:
        while (outcome := self._copy(number)) is CopyOutcome.BUSY:
            time.sleep(_BUSY_SECONDS)
        return outcome is CopyOutcome.HERE

    def _copy(self, number: int) -> CopyOutcome:
        """Copy a shard, its index and its lengths, and check the copies; see :meth:`CopyGroup.make`."""
        if not self._has_room[number] and not self.has(number):
            self._report_no_room(self._shards[number].name)
            return CopyOutcome.NO_ROOM
        for blob in self._shards[number].blobs:
            fill = partial(self._fill, blob)
            short = Path(blob.name).name
            outcome = self._group.make(short, blob.nbytes, fill)
            if outcome is CopyOutcome.NO_ROOM and self._drop_other_versions():
                outcome = self._group.make(short, blob.nbytes, fill)
            if outcome is CopyOutcome.NO_ROOM:
                self._report_no_room(blob.name)
            if outcome is not CopyOutcome.HERE:
                return outcome
        self._is_here[number] = not self._is_refused[number]
        return CopyOutcome.HERE

    def _report_no_room(self, name: str) -> None:
        count(copies_refused=1)
        _log.info("%(object)s: there is no room for a local copy", {"object": f"{self._dataset.url}/{name}"})

    def _fill(self, blob: Blob, path: Path) -> None:
        """Download a blob of a shard, and check it."""
        began = time.perf_counter()
        crc32c = self._dataset.download(blob.name, path, blob.nbytes)
        seconds = time.perf_counter() - began
        url = f"{self._dataset.url}/{blob.name}"
        if crc32c != blob.crc32c:
            raise CorruptionError(f"{url}: the downloaded bytes do not match their CRC32C")
        count(copies_made=1)
        _log.info(
            "%(object)s: copied %(nbytes)d bytes in %(seconds).2f s",
            {"object": url, "nbytes": blob.nbytes, "seconds": seconds},
        )

    def _drop_other_versions(self) -> bool:
        """Remove copies that only other versions of the dataset have, and return whether there were any."""
        return self._group.make_room_without({Path(blob.name).name for shard in self._shards for blob in shard.blobs})

    def lengths(self, number: int) -> Bytes | None:
        """Return the copy of the lengths of a shard, mapped and checked; None if there is none."""
        file = self._shards[number].stats.lengths_file
        group = self._group
        name = Path(paths.lengths_of(self._shards[number].name)).name
        if file is None or not group.has(name, file.nbytes):
            return None
        try:
            raw = MappedFile.open(group.path(name), nbytes=file.nbytes).buffer
            file.check(raw, str(group.path(name)))
        except CorruptionError as error:
            group.drop(name)
            count(copies_damaged=1)
            warn(f"a local copy is damaged, so lengths are read over the network: {error}", logger="copies")
            return None
        return raw

    def _warn_once(self, error: CacheLayerError) -> None:
        if program_ends():
            return
        with self._lock.of_process():
            if self._has_warned:
                return
            self._has_warned = True
        warn(f"local copies cannot be made or used, so records are read over the network: {error}", logger="copies")
