"""Read the records of a published version, from local files or from a remote store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.local_copies import LocalCopies
from cachelayer.access.remote_shards import RemoteShards
from cachelayer.access.version_lengths import VersionLengths
from cachelayer.arrayrecord.lengths import LengthColumn
from cachelayer.arrayrecord.local_shards import LocalShards, ShardFiles, Verify
from cachelayer.arrayrecord.ranged import RangedShards, ShardObject
from cachelayer.errors import ErasedRecordError
from cachelayer.locks import cached_property
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.local_cache import CacheFolder
from cachelayer.objects.store import Buffer
from cachelayer.protocols import DatasetInfo, Digests, Held, Needed, Sources
from cachelayer.records.codec import Codec, codec_named
from cachelayer.records.memory import distinct
from cachelayer.records.record_buffers import HeldBlock, Records, held_records
from cachelayer.versions.stored_version import StoredVersion

# A read of so many records hides the cost of the call.
_RECORDS_PER_READ = 8192


@dataclass(frozen=True, eq=False)
class VersionRecords:
    """The records of a version. Opens each file when it is first read, and again after unpickling. Thread-safe.

    Args:
        version: the version as it is stored.
        verify: what to check when bytes are read.
        copies: the local cache of shards of a remote store; None to make no local copies.
    """

    version: StoredVersion
    verify: Verify = "open"
    copies: CacheFolder | None = None
    kind: ClassVar[str] = "DataRef"

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: self.__dict__[field.name] for field in fields(self)}

    @property
    def digests(self) -> Digests:
        digest = self.version.manifest.shards_digest
        return Digests(digest, digest, (*self.version.manifest.supersedes, digest)[0])

    @property
    def references(self) -> tuple[str, ...]:
        return (self.version.reference,)

    @cached_property
    def info(self) -> DatasetInfo:
        version, manifest = self.version, self.version.manifest
        nbytes = manifest.shards.nbytes if manifest.unerased_nbytes is None else manifest.unerased_nbytes
        nbytes //= max(1, len(self))
        metadata = manifest.provenance.get("metadata") or {}
        return DatasetInfo(version.name, metadata, nbytes, nbytes, _RECORDS_PER_READ)

    def sources(self, numbers: NDArray[np.int64]) -> Sources:
        kept = self.version.kept
        if kept.progression() != (0, 1, len(self)):
            # A version that keeps some records of its shards, in any order, numbers those that it has.
            different, places = np.unique(numbers, return_inverse=True)
            rows = kept.rows_of(different)
            _, first = np.unique(kept.numbers_of(rows), return_index=True)
            numbers = rows[first][places]
        return Sources.whole(self.version.reference, numbers)

    def __len__(self) -> int:
        return self.version.manifest.shard_records

    @cached_property
    def erased(self) -> NDArray[np.int64]:
        return np.array(self.version.manifest.erased, np.int64)

    def erased_error(self, number: int) -> ErasedRecordError:
        # Its number in the version, which may keep some records of its shards.
        rows = self.version.kept.rows_of(np.array([number])).tolist()
        return ErasedRecordError(self.version.name, (*rows, number)[0], self.version.manifest.reason_of(number))

    @cached_property
    def codec(self) -> Codec:
        return codec_named(self.version.manifest.codec, self.version.manifest.element_spec)

    @property
    def home(self) -> StoredVersion | None:
        return self.version

    @property
    def reads_in_part(self) -> bool:
        # What comes over a network is checked, and a checksum covers a whole record.
        if not isinstance(self.shards, LocalShards) or self.verify == "always" or not len(self):
            return False
        return {*self.version.manifest.shards.compressions} == {"none"}

    @property
    def segments(self) -> tuple[int, ...]:
        return self.version.segments

    def in_shards(
        self, numbers: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], tuple[int, ...], NDArray[np.int64]]]:
        yield np.arange(len(numbers)), self.segments, numbers

    @cached_property
    def shards(self) -> LocalShards | RemoteShards:
        version, shards = self.version, self.version.manifest.shards
        records = shards.records.tolist()
        if isinstance(version.store, LocalStore):
            return LocalShards(records, shards.shard_nbytes, shards.record_nbytes, self._shard_files, self.verify)
        ranged = RangedShards(self._read_ranges, cache(self._shard_object), shards.records, version.indices)
        return RemoteShards(shards.records, ranged, self._local_copies)

    @cached_property
    def _local_copies(self) -> LocalCopies | None:
        version = self.version
        if self.copies is None or isinstance(version.store, LocalStore):
            return None
        copies = LocalCopies(self.copies, version.store, version.dataset_id, version.manifest.shards, self.verify)
        copies.drop_files(version.manifest.gone)
        return copies

    def _shard_object(self, number: int) -> ShardObject:
        shard = self.version.manifest.shards[number]
        name = f"{self.version.dataset_id}/{shard.name}"
        return ShardObject(name, paths.index_of(name), shard.stats)

    def _read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[Buffer]:
        with self.version.reporting_deletion():
            return self.version.store.read_ranges(ranges)

    @contextmanager
    def _shard_files(self, number: int) -> Iterator[ShardFiles]:
        """Yield the files of a shard in a local store; say so if the version was deleted meanwhile."""
        with self.version.reporting_deletion(), self.version.shard_file(number) as path:
            yield ShardFiles(path, Path(paths.index_of(str(path))), self.version.manifest.shards[number].stats)

    def needed(self, numbers: NDArray[np.int64]) -> Needed:
        return {self: distinct(numbers)} if self.takes_requests else {}

    def hold(self, numbers: NDArray[np.int64]) -> HeldBlock:
        return HeldBlock(numbers, cast(RemoteShards, self.shards).hold(numbers))

    @property
    def takes_requests(self) -> bool:
        # Local shards are not opened for this.
        shards = None if isinstance(self.version.store, LocalStore) else self.shards
        return isinstance(shards, RemoteShards) and not shards.has_all_copies()

    def record(self, number: int) -> bytearray:
        return self.shards.record(number)

    def records(self, numbers: NDArray[np.int64], held: Held | None = None) -> Records:
        if held is not None and self in held:
            found = held_records(held[self], numbers)
            if found is not None:
                return found
        return self.shards.records(numbers)

    @cached_property
    def _lengths(self) -> VersionLengths:
        return VersionLengths(self.version, self.codec, self.records, self._local_copies)

    def lengths(self, leaf: int) -> LengthColumn:
        return self._lengths.column(leaf)
