"""Read the records of a published version, from local files or from a remote store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.cached_shards import CachedShards
from cachelayer.access.held import Held, InPlace
from cachelayer.access.local_shards import LocalShards
from cachelayer.access.record_base import RecordBase
from cachelayer.access.remote_shards import RemoteShards
from cachelayer.access.version_lengths import VersionLengths
from cachelayer.arrayrecord.length_column import LengthColumn
from cachelayer.arrayrecord.ranged import RangedShards
from cachelayer.arrayrecord.ranged_rows import ShardObject
from cachelayer.arrayrecord.reader import ShardReader, Verify
from cachelayer.errors import CacheLayerError
from cachelayer.locks import cached_property
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.local_cache import CacheFolder
from cachelayer.protocols import BlocksAhead
from cachelayer.records.codec import Codec, codec_named
from cachelayer.records.image_sizes import sized_spec
from cachelayer.records.memory import Piece
from cachelayer.records.record_buffers import Records
from cachelayer.records.spec import ImageSize
from cachelayer.versions.shard_table import ShardFile
from cachelayer.versions.stored_version import StoredVersion

# Records per read. Local reads are large enough to hide the cost of a call; remote reads are small enough to take no
# longer than a round trip.
_LOCAL_RECORDS = 8192
_REMOTE_RECORDS = 256


@dataclass(frozen=True)
class VersionRecords(RecordBase):
    """The records of a version. Opens each file when it is first read, and again after unpickling. Thread-safe.

    Args:
        version: the version as it is stored.
        verify: what to check when bytes are read.
        copies: the local cache of shards of a remote store; None to make no local copies.
        decodes: whether images and audio are decoded.
        threads: the most threads that work on one read; None for as many as there are cores, at most 8.
        sizes: the sizes that images are decoded to, by the numbers of their leaves.
    """

    version: StoredVersion
    verify: Verify = "open"
    copies: CacheFolder | None = None
    decodes: bool = True
    threads: int | None = None
    sizes: tuple[tuple[int, ImageSize], ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: self.__dict__[field.name] for field in fields(self)}

    @property
    def digest(self) -> str:
        """The digest of all records of the shards."""
        return self.version.manifest.shards_digest

    @property
    def name(self) -> str:
        return self.version.name

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.version.manifest.provenance.get("metadata") or {}

    def __len__(self) -> int:
        return self.version.manifest.shard_records

    @property
    def record_nbytes(self) -> int:
        return self.version.info.nbytes // max(1, len(self))

    @cached_property
    def codec(self) -> Codec:
        manifest = self.version.manifest
        return codec_named(manifest.codec, sized_spec(manifest.element_spec, dict(self.sizes)))

    @property
    def home(self) -> StoredVersion | None:
        return self.version

    @property
    def records_per_read(self) -> int:
        shards = self.shards
        return _LOCAL_RECORDS if isinstance(shards, LocalShards) or shards.all_local() else _REMOTE_RECORDS

    @property
    def reads_in_part(self) -> bool:
        shards = self.shards
        if not isinstance(shards, LocalShards):
            return shards.reads_in_part
        if self.verify == "always" or not len(self):
            return False
        # What was appended may be compressed although the first records are not, or the reverse.
        ends = {0, len(self.version.manifest.shards) - 1}
        return all(shards.reader(number).header.compression == "none" for number in ends)

    @property
    def segments(self) -> tuple[int, ...]:
        return self.version.segments

    @cached_property
    def shards(self) -> LocalShards | RemoteShards:
        version, shards = self.version, self.version.manifest.shards
        records = shards.records.tolist()
        if isinstance(version.store, LocalStore):
            return LocalShards(records, self.open_shard)
        ranged = RangedShards(self._read_pieces, _Objects(version.dataset_id, shards))
        return RemoteShards(records, ranged, self._cached_shards, checks=self.verify != "never")

    @property
    def local_shards(self) -> LocalShards | None:
        shards = self.shards
        return shards if isinstance(shards, LocalShards) else None

    @cached_property
    def _cached_shards(self) -> CachedShards | None:
        version = self.version
        if self.copies is None or isinstance(version.store, LocalStore):
            return None
        return CachedShards(self.copies, version.store, version.dataset_id, version.manifest.shards, self.verify)

    def _read_pieces(self, ranges: Sequence[tuple[str, int, int]]) -> list[list[Piece]]:
        with self.version.reporting_deletion():
            return self.version.store.read_pieces(ranges)

    def open_shard(self, number: int, since: int) -> ShardReader:
        """Return a reader of a shard in a local store.

        Args:
            number: the shard.
            since: when the current read began, in nanoseconds of the monotonic clock.

        Raises:
            CorruptionError: if its files differ from those that were published.
            VersionNotFoundError: if the version was deleted meanwhile.
        """
        with self.version.reporting_deletion(), self.version.shard_file(number) as path:
            stats = self.version.manifest.shards[number].stats
            return ShardReader(path, Path(paths.index_of(str(path))), stats, self.verify, since)

    def hold(self, numbers: NDArray[np.int64], share: float) -> Held:
        shards = self.shards
        if isinstance(shards, LocalShards):
            shards.announce(numbers)
            return Held.of(InPlace(shards.records, numbers), len(numbers))
        return shards.hold(numbers, share)

    def expect(self, blocks: BlocksAhead) -> object:
        shards = self.shards
        return None if isinstance(shards, LocalShards) else shards.expect(blocks)

    @property
    def is_fetched(self) -> bool:
        shards = self.shards
        return not isinstance(shards, LocalShards) and not shards.has_all_copies()

    def announce(self, numbers: NDArray[np.int64]) -> bool:
        return self.shards.announce(numbers)

    @cached_property
    def _are_quick_alone(self) -> bool:
        is_plain = self.local_shards is not None and self.reads_in_part and self.element_codec is self.codec
        return is_plain and self.codec.reads_alone

    def are_quick_alone(self, numbers: NDArray[np.int64]) -> bool:
        try:
            return self._are_quick_alone and self.local_shards is not None and self.local_shards.are_in_memory(numbers)
        except CacheLayerError:
            # A shard cannot be opened. Its error comes when the first of its records is read, and not before.
            return False

    def stored(self) -> Self:
        return replace(self, decodes=False, sizes=())

    def sized(self, sizes: Mapping[int, ImageSize]) -> Self:
        return replace(self, decodes=True, sizes=tuple({**dict(self.sizes), **sizes}.items()))

    def record(self, number: int) -> bytearray:
        return self.shards.record(number)

    def records(self, numbers: NDArray[np.int64], *, in_part: bool = False) -> Records:
        return self.shards.records(numbers, in_part=in_part)

    @cached_property
    def _lengths(self) -> VersionLengths:
        return VersionLengths(self.version, self.varying, self.verify, self.records, self._cached_shards)

    def lengths(self, leaf: int) -> LengthColumn:
        return self._lengths.column(leaf)


class _Objects(dict[int, ShardObject]):
    """The objects of each shard, by shard number; made on first use, because a version may have very many shards."""

    def __init__(self, dataset_id: str, shards: Sequence[ShardFile]) -> None:
        self._dataset_id = dataset_id
        self._shards = shards

    def __missing__(self, number: int) -> ShardObject:
        shard = self._shards[number]
        name = f"{self._dataset_id}/{shard.name}"
        self[number] = made = ShardObject(name, paths.index_of(name), shard.stats)
        return made
