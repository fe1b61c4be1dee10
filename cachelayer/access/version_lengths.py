"""The lengths of the records of a version: from the files beside its shards, or computed if it has none."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np

from cachelayer.access.cached_shards import CachedShards
from cachelayer.arrayrecord.length_column import LengthColumn, LengthPages, StoredColumn
from cachelayer.arrayrecord.length_pages import BufferPages, LengthsFile, RangedPages
from cachelayer.arrayrecord.lengths import LENGTH, Layout, encode, header_checksum
from cachelayer.arrayrecord.mapping import MappedFile
from cachelayer.arrayrecord.reader import Verify
from cachelayer.errors import StorageError
from cachelayer.locks import ProcessLock, cached_property
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.progress.meter import Progress
from cachelayer.records.memory import Bytes, splits_of
from cachelayer.records.record_buffers import Records
from cachelayer.records.varying_leaves import VaryingLeaves
from cachelayer.system_threads import Pool
from cachelayer.user_warnings import warn
from cachelayer.versions.stored_version import StoredVersion

# Records that one thread reads at a time to compute their lengths, and about the most of their bytes.
_TOGETHER = 4096
_TOGETHER_NBYTES = 1 << 24
_MOST_THREADS = 8


class VersionLengths:
    """The lengths of the leaves of a version's records. Thread-safe.

    Args:
        version: the version.
        varying: reads lengths from records.
        verify: ``"always"`` checks all lengths of a shard when the first is used.
        read: returns the records of these numbers.
        copies: the local copies of the shards and their lengths; None if there are none.
    """

    def __init__(
        self,
        version: StoredVersion,
        varying: VaryingLeaves,
        verify: Verify,
        read: Callable[..., Records],
        copies: CachedShards | None = None,
    ) -> None:
        self._version = version
        self._varying = varying
        self._verify = verify
        self._read = read
        self._shards = version.manifest.shards
        self._shard_of: dict[str, int] = {}
        self._copies = copies
        self._copied: dict[int, Bytes] = {}
        self._lock = ProcessLock()
        self._columns: dict[int, LengthColumn] = {}

    def column(self, leaf: int) -> LengthColumn:
        """Return the lengths of the leaf of this number. Shards without lengths are read once, with a warning."""
        with self._lock:
            if leaf not in self._columns:
                self._columns[leaf] = self._column(self._varying.numbers.index(leaf))
            return self._columns[leaf]

    def _column(self, place: int) -> LengthColumn:
        totals = self._shards.length_totals(place)
        if any(total is None for total in totals):
            totals = [
                self._computed[shard][0].totals[place] if total is None else total for shard, total in enumerate(totals)
            ]
        pages: LengthPages
        if isinstance(self._version.store, LocalStore):
            pages = BufferPages(self._file, self._opened, place, checked=self._verify == "always")
        else:
            pages = RangedPages(self._file, self._read_ranges, place, len(self._shards))
        return StoredColumn(self._shards.records, np.array(totals, np.int64), pages)

    def _name(self, shard: int) -> str:
        return paths.lengths_of(f"{self._version.dataset_id}/{self._shards[shard].name}")

    def _file(self, shard: int) -> LengthsFile:
        stats, name = self._shards[shard].stats, self._name(shard)
        self._shard_of[name] = shard
        return self._computed[shard][0] if stats.length_totals is None else LengthsFile.of(stats, name)

    def _opened(self, shard: int) -> Bytes:
        computed = self._here(shard)
        if computed is not None:
            return computed
        store = self._version.store
        if not isinstance(store, LocalStore):
            raise TypeError("files in an object store are read by ranges")
        with self._version.reporting_deletion():
            return MappedFile.open(store.path(self._name(shard)), nbytes=self._file(shard).layout.nbytes).buffer

    def _read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        here = {name: self._here(self._shard_of[name]) for name in {name for name, _, _ in ranges}}
        stored = [each for each in ranges if here[each[0]] is None]
        with self._version.reporting_deletion():
            fetched = iter(self._version.store.read_ranges(stored) if stored else [])
        found = []
        for name, begin, end in ranges:
            raw = here[name]
            found.append(next(fetched) if raw is None else bytes(raw[begin:end]))
        return found

    def _here(self, shard: int) -> Bytes | None:
        """Return the lengths of a shard that were computed, or of which there is a local copy; else None."""
        if self._shards[shard].stats.length_totals is None:
            return np.frombuffer(self._computed[shard][1], np.uint8)
        found = self._copied.get(shard)
        if found is None and self._copies is not None:
            # If the folder of the copies cannot be used, reading records warns of it.
            with suppress(StorageError):
                found = self._copies.lengths(shard)
            if found is not None:
                self._copied[shard] = found
        return found

    @cached_property
    def _computed(self) -> Mapping[int, tuple[LengthsFile, bytes]]:
        """The lengths of the shards that have no file of them, as such files in memory."""
        missing = [shard for shard, total in enumerate(self._shards.length_totals(0)) if total is None]
        records, splits = self._shards.records, splits_of(self._shards.records).tolist()
        count = int(records[missing].sum())
        warn(
            f"{self._version.name} was written before cachelayer stored lengths: {count:,} records are read once, and "
            "again in each process. storage.rewrite() makes a version that stores their lengths"
        )
        threads = Pool(min(_MOST_THREADS, os.cpu_count() or 1), "cachelayer-lengths")
        with Progress(f"lengths of {self._version.name}", count, None) as progress, threads:
            return {
                shard: self._file_of(shard, splits[shard], splits[shard + 1], threads, progress) for shard in missing
            }

    @property
    def _together(self) -> int:
        each = self._version.info.nbytes // max(1, self._version.manifest.shard_records)
        return max(1, min(_TOGETHER, _TOGETHER_NBYTES // max(1, each)))

    def _file_of(
        self, shard: int, start: int, stop: int, threads: Pool, progress: Progress
    ) -> tuple[LengthsFile, bytes]:
        """Return the file of lengths of the records ``start`` to ``stop``, which are those of a shard."""

        def lengths_of(piece: tuple[int, int]) -> Any:
            records = self._read(np.arange(*piece), in_part=True)
            progress.update(len(records), 0)
            return self._varying.lengths(records).astype(LENGTH)

        bounds = [*range(start, stop, self._together), stop]
        lengths = np.concatenate(list(threads.map(lengths_of, pairwise(bounds))))
        raw = encode(lengths)
        totals = lengths.sum(axis=0, dtype=np.int64).tolist()
        return LengthsFile(self._name(shard), Layout(*lengths.shape), header_checksum(raw), totals), raw
