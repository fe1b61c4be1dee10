"""The copies of the shards of a version in the local cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cachelayer.arrayrecord.local_shards import LocalShards, ShardFiles, Verify
from cachelayer.arrayrecord.mapping import MappedFile
from cachelayer.errors import CorruptionError
from cachelayer.locks import cached_property
from cachelayer.objects import paths
from cachelayer.objects.local_cache import CacheFolder, CopyGroup, CopyOutcome
from cachelayer.objects.store import ObjectStore
from cachelayer.records.memory import Bytes
from cachelayer.user_warnings import warn
from cachelayer.versions.shard_table import ShardTable


class CachedShards:
    """The copies of the shards of a version in the local cache: finds, makes, opens and removes them.

    Args:
        folder: the local cache.
        store: the store that the shards are downloaded from.
        dataset_id: the dataset of the version.
        shards: the shards.
        verify: what to check when copies are read.
    """

    def __init__(
        self, folder: CacheFolder, store: ObjectStore, dataset_id: str, shards: ShardTable, verify: Verify
    ) -> None:
        self._folder = folder
        self._store = store
        self._dataset_id = dataset_id
        self._shards = shards
        self._verify: Verify = verify

    @cached_property
    def _group(self) -> CopyGroup:
        return self._folder.of_dataset(self._store.url, self._dataset_id)

    def _names(self, number: int) -> tuple[CopyGroup, str, str]:
        shard = self._shards[number]
        name = Path(shard.name).name
        return self._group, name, paths.index_of(name)

    def has(self, number: int) -> bool:
        """Return whether there are complete copies of a shard and its index."""
        group, name, index_name = self._names(number)
        stats = self._shards[number].stats
        return group.has(name, stats.nbytes) and group.has(index_name, stats.index_nbytes)

    def index(self, number: int) -> Bytes:
        """Return the copy of an index, mapped."""
        group, _, index_name = self._names(number)
        return MappedFile.open(group.path(index_name), nbytes=self._shards[number].stats.index_nbytes).buffer

    def local_shards(self, records: list[int]) -> LocalShards:
        """Return what reads the copies.

        Args:
            records: the number of records of each shard.
        """
        shards = self._shards
        return LocalShards(records, shards.shard_nbytes, shards.record_nbytes, self._files, self._verify)

    @contextmanager
    def _files(self, number: int) -> Iterator[ShardFiles]:
        """Yield the copy of a shard; remove it if it turns out to differ from what was published."""
        group, name, index_name = self._names(number)
        try:
            yield ShardFiles(group.path(name), group.path(index_name), self._shards[number].stats)
        except CorruptionError:
            self.drop(number)
            raise

    def drop_files(self, files: Iterable[str]) -> None:
        """Remove the copies of shards that records were erased from, named without suffixes."""
        for file in files:
            name = Path(paths.shard(file)).name
            for each in (name, paths.index_of(name), paths.lengths_of(name)):
                self._group.drop(each)

    def drop(self, number: int) -> None:
        """Remove the damaged copies of a shard and its index."""
        group, name, index_name = self._names(number)
        group.drop(name)
        group.drop(index_name)

    def make_index(self, number: int, read: Callable[[], Bytes]) -> CopyOutcome:
        """Copy the index that ``read`` reads and checks; see :meth:`CopyGroup.make`."""
        group, _, index_name = self._names(number)

        def fill(path: Path) -> None:
            raw = read()
            with path.open("rb+") as file:
                file.write(raw.data)

        return group.make(index_name, self._shards[number].stats.index_nbytes, fill)

    def make(self, number: int) -> CopyOutcome:
        """Copy a shard and check the copy; see :meth:`CopyGroup.make`."""
        group, name, _ = self._names(number)
        shard = self._shards[number]
        source = f"{self._dataset_id}/{shard.name}"

        def fill(path: Path) -> None:
            if self._store.download(source, path, shard.stats.nbytes) != shard.stats.crc32c:
                raise CorruptionError(f"{self._store.url}/{source}: the downloaded bytes do not match their CRC32C")

        outcome = group.make(name, shard.stats.nbytes, fill)
        if outcome is CopyOutcome.NO_ROOM and self._drop_other_versions():
            outcome = group.make(name, shard.stats.nbytes, fill)
        if outcome is CopyOutcome.HERE:
            self._make_lengths(number)
        return outcome

    def _drop_other_versions(self) -> bool:
        """Remove the copies of shards that only other versions of the dataset have; return whether there were any."""
        own = {Path(name).name for shard in self._shards for name in shard.files}
        return self._group.make_room_without(own)

    def _make_lengths(self, number: int) -> None:
        """Copy the lengths of a shard, if it has any and there is room for them."""
        shard = self._shards[number]
        file = shard.stats.lengths_file
        if file is None:
            return
        group, name, _ = self._names(number)
        source = paths.lengths_of(f"{self._dataset_id}/{shard.name}")

        def fill(path: Path) -> None:
            self._store.download(source, path, file.nbytes)
            file.check(MappedFile.open(path).buffer, f"{self._store.url}/{source}")

        group.make(paths.lengths_of(name), file.nbytes, fill)

    def lengths(self, number: int) -> Bytes | None:
        """Return the copy of the lengths of a shard, mapped and checked; None if there is none."""
        file = self._shards[number].stats.lengths_file
        group, name, _ = self._names(number)
        name = paths.lengths_of(name)
        if file is None or not group.has(name, file.nbytes):
            return None
        try:
            raw = MappedFile.open(group.path(name), nbytes=file.nbytes).buffer
            file.check(raw, str(group.path(name)))
        except CorruptionError as error:
            group.drop(name)
            warn(f"a local copy is damaged, so lengths are read over the network: {error}")
            return None
        return raw
