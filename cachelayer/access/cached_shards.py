"""Local copies of the shards of a version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from cachelayer.arrayrecord.mapping import MappedFile
from cachelayer.arrayrecord.reader import ShardReader, Verify
from cachelayer.errors import CorruptionError
from cachelayer.objects import paths
from cachelayer.objects.local_cache import CacheFolder, CopyGroup, CopyOutcome
from cachelayer.objects.store import ObjectStore
from cachelayer.records.memory import Bytes
from cachelayer.versions.shard_table import ShardFile

_GROUPS_HELD = 16


class LocalCopies:
    """Where the shards of a version are, or come to be, on local disk.

    Args:
        folder: keeps the copies.
        store: where the shards come from.
        dataset_id: whose shards they are.
        shards: the shards.
        verify: what is checked when copies are read.
    """

    def __init__(
        self, folder: CacheFolder, store: ObjectStore, dataset_id: str, shards: Sequence[ShardFile], verify: Verify
    ) -> None:
        self._folder = folder
        self._store = store
        self._dataset_id = dataset_id
        self._shards = shards
        self._verify: Verify = verify
        # Each holds a descriptor, and a version that was appended to day by day has a group for each day.
        self._group = lru_cache(_GROUPS_HELD)(self._open_group)

    def _open_group(self, attempt: str) -> CopyGroup:
        return self._folder.of_attempt(self._store.url, self._dataset_id, attempt)

    def _names(self, number: int) -> tuple[CopyGroup, str, str]:
        shard = self._shards[number]
        name = Path(shard.name).name
        return self._group(shard.attempt), name, paths.index_of(name)

    def has(self, number: int) -> bool:
        """Whether there are whole copies of a shard and its index."""
        group, name, index_name = self._names(number)
        stats = self._shards[number].stats
        return group.has(name, stats.nbytes) and group.has(index_name, stats.index_nbytes)

    def index(self, number: int) -> Bytes:
        """The copy of an index, mapped.

        Raises:
            CorruptionError: where it is not there any more.
        """
        group, _, index_name = self._names(number)
        return MappedFile.open(group.path(index_name), nbytes=self._shards[number].stats.index_nbytes).buffer

    def open(self, number: int, since: int) -> ShardReader:
        """A reader of the copy of a shard, for a read that began at a time of the monotonic clock.

        Raises:
            CorruptionError: where it is not what was published; it is removed then.
        """
        group, name, index_name = self._names(number)
        try:
            stats = self._shards[number].stats
            return ShardReader(group.path(name), group.path(index_name), stats, self._verify, since)
        except CorruptionError:
            self.drop(number)
            raise

    def drop(self, number: int) -> None:
        """Remove the copies of a shard and its index, which are not what they should be."""
        group, name, index_name = self._names(number)
        group.drop(name)
        group.drop(index_name)

    def make_index(self, number: int, read: Callable[[], Bytes]) -> CopyOutcome:
        """Make a copy of the index of a shard, which ``read`` reads and checks; see :meth:`CopyGroup.make`."""
        group, _, index_name = self._names(number)

        def fill(path: Path) -> None:
            raw = read()
            with path.open("rb+") as file:
                file.write(raw.data)

        return group.make(index_name, self._shards[number].stats.index_nbytes, fill)

    def make(self, number: int) -> CopyOutcome:
        """Copy a shard, and check it; see :meth:`CopyGroup.make`."""
        group, name, _ = self._names(number)
        shard = self._shards[number]
        source = f"{self._dataset_id}/{shard.name}"

        def fill(path: Path) -> None:
            if self._store.download(source, path, shard.stats.nbytes) != shard.stats.crc32c:
                raise CorruptionError(f"{self._store.url}/{source}: what was copied does not match its CRC32C")

        return group.make(name, shard.stats.nbytes, fill)
