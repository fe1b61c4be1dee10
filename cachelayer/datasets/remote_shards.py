"""Reading of shards in an object store: from local copies, where there are some, else by ranges of the objects."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.ranged import RangedShards
from cachelayer.arrayrecord.records_without_files import FindFiles
from cachelayer.datasets.held_blocks import HeldBlock
from cachelayer.datasets.local_copies import LocalCopies
from cachelayer.errors import CorruptionError, StorageError
from cachelayer.records.files_in_records import join_records
from cachelayer.records.spans import Records
from cachelayer.support.counting import count
from cachelayer.support.memory import Ints, distinct, splits_of

Fetch = Callable[[Ints, Ints], tuple[Records, frozenset[int]]]
"""Fetches records, given the shard of each and its number there; also returns the rows of damaged records."""
_FEW_RECORDS = 64
"""Copies of whole shards are made after so many records: a caller that reads fewer does not need them."""


class RemoteShards:
    """Random access to the records of remote shards. Thread-safe.

    Records come over the network by exact ranges. After some records, or when a stream says what it needs next, shards
    are copied to this host in the background, and each shard is read from its copy as soon as there is one.
    """

    def __init__(self, counts: Ints, ranged: RangedShards, copies: LocalCopies | None) -> None:
        self._splits = splits_of(counts)
        self._ranged = ranged
        self.copies = copies
        # Records that were read one by one, and in blocks.
        self._read_remotely = 0
        self._held_remotely = 0

    def __len__(self) -> int:
        return int(self._splits[-1])

    @property
    def takes_requests(self) -> bool:
        """True if some shards have no local copies. Copies that other processes made are used from now on."""
        return not self._find_copies(np.arange(len(self._splits) - 1)).all()

    def record(self, number: int) -> bytearray:
        """Return one record; the caller may change it. ``number`` is less than ``len(self)``."""
        return self.records(np.array([number])).record(0)

    def records(self, numbers: Ints) -> Records:
        """Return the records of these numbers, each less than ``len(self)``."""
        return self._checked_records(numbers, self._ranged.fetch)

    def records_without_files(self, numbers: Ints, files_of: FindFiles, least: int) -> Records:
        """Return records whose files are fetched when they are used; see :meth:`RangedShards.fetch_without_files`."""
        return self._checked_records(numbers, partial(self._ranged.fetch_without_files, files_of=files_of, least=least))

    def _checked_records(self, numbers: Ints, fetch: Fetch) -> Records:
        shard_of = self._splits[1:].searchsorted(numbers, side="right")
        is_local = self._find_copies(shard_of)
        records, broken = self._read(numbers, shard_of, is_local, fetch)
        if broken:
            raise CorruptionError(f"{records.name(min(broken))} does not match its checksum")
        if self.copies is not None:
            self._read_remotely += len(numbers) - int(is_local.sum())
            if self._read_remotely >= _FEW_RECORDS:
                self.copies.copy_in_background(distinct(shard_of[~is_local]).tolist())
        return records

    def prepare(self, numbers: Ints, later: Ints, readers: int) -> None:
        """Get ready to read records; see :meth:`StoredSource.prepare`."""
        if self.copies is not None:
            ends = self._splits[1:]
            shard_of = ends.searchsorted(numbers, side="right")
            self.copies.prepare(shard_of, ends.searchsorted(later, side="right"), readers)

    def fetch_block(self, numbers: Ints) -> HeldBlock:
        """Fetch a block of records; shards that have copies are read there.

        Each of many hosts reads some blocks of every shard, so copies of whole shards would multiply the bytes: they
        are made once this process has fetched half as many records as there are, by 64 hosts after 32 epochs.
        """
        shard_of = self._splits[1:].searchsorted(numbers, side="right")
        is_local = self._find_copies(shard_of)
        records, broken = self._read(numbers, shard_of, is_local, self._ranged.fetch)
        if self.copies is not None and not is_local.all():
            self._held_remotely += len(numbers) - int(is_local.sum())
            if 2 * self._held_remotely >= len(self):
                self.copies.copy_in_background(range(len(self._splits) - 1))
        return HeldBlock(numbers, records.packed(), broken)

    def stored_nbytes(self, numbers: Ints) -> Ints:
        """Return the bytes that these records take in their shards; reads the indices only."""
        shard_of = self._splits[1:].searchsorted(numbers, side="right")
        return self._ranged.stored_nbytes(shard_of, numbers - self._splits[shard_of])

    def _find_copies(self, shard_of: Ints) -> NDArray[np.bool_]:
        return np.zeros(len(shard_of), np.bool_) if self.copies is None else self.copies.find(shard_of)

    def _read(
        self, numbers: Ints, shard_of: Ints, is_local: NDArray[np.bool_], fetch: Fetch
    ) -> tuple[Records, frozenset[int]]:
        """Return records, and the rows of damaged ones. Local records stay in the mapped copies, uncopied."""
        near = np.flatnonzero(is_local)
        far = np.flatnonzero(~is_local)
        groups: list[tuple[Ints, Records]] = []
        broken: frozenset[int] = frozenset()
        if self.copies is not None and len(near):
            try:
                groups.append((near, self.copies.shards.records(numbers[near])))
                count(copies_hit=len(near))
            except (CorruptionError, StorageError):
                can_be_read = self._can_be_read(self.copies, numbers, shard_of, is_local)
                return self._read(numbers, shard_of, is_local & can_be_read, fetch)
        if len(far):
            if self.copies is not None:
                count(copies_missed=len(far))
            shards = shard_of[far]
            records, damaged = fetch(shards, numbers[far] - self._splits[shards])
            groups.append((far, records))
            broken = frozenset(far[sorted(damaged)].tolist())
        return join_records(len(numbers), groups), broken

    def _can_be_read(
        self, copies: LocalCopies, numbers: Ints, shard_of: Ints, is_local: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Return which of the local records can be read. Copies that cannot are refused, so nobody reads them again."""
        can_be_read = np.zeros(len(numbers), np.bool_)
        for shard in distinct(shard_of[is_local]).tolist():
            mine = np.flatnonzero(shard_of == shard)
            try:
                copies.shards.records(numbers[mine])
                can_be_read[mine] = True
            except (CorruptionError, StorageError) as error:
                copies.refuse(shard, error)
        return can_be_read
