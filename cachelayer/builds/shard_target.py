"""Where the shards of a build go: into a working folder, and from there into the store, named by what they hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cachelayer.arrayrecord.writer import ShardStats, file_checksum
from cachelayer.errors import StorageError
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.local_cache import CacheFolder, CopyGroup
from cachelayer.objects.store import Store
from cachelayer.temporary_files import DiskRoom, working_folder
from cachelayer.user_warnings import warn
from cachelayer.versions.shard_table import ShardFile


@dataclass(frozen=True)
class ShardTarget:
    """Puts the shards of a build into the store.

    Args:
        store, dataset_id: where they go.
        generation: that of the log when the build began.
        folder: an empty folder to write them in.
        room: the room on its disk, which whoever writes there takes first.
        copies: the local copies of the dataset's shards; None to keep none.
    """

    store: Store
    dataset_id: str
    generation: int
    folder: Path
    room: DiskRoom
    copies: CopyGroup | None

    @property
    def is_local(self) -> bool:
        return isinstance(self.store, LocalStore)

    def put(self, path: Path, stats: ShardStats) -> ShardFile:
        """Put a shard, and what stands beside it; the files are gone then. Threads may share this.

        Args:
            path: the file of the shard, durable as those beside it.
            stats: what it holds.
        """
        shard = ShardFile(stats, self.generation)
        names = {_beside(path, name): name for name in shard.files}
        self.put_files(names)
        if self.copies is not None and not self.is_local:
            self.copies.adopt({file: Path(name).name for file, name in names.items()})
        for file in names:
            file.unlink(missing_ok=True)
        return shard

    def put_files(self, names: Mapping[Path, str]) -> None:
        """Put files in place of what lies under their names, in their order: what was damaged there is whole then.

        Args:
            names: durable files, and their names relative to the dataset.
        """
        objects = {file: f"{self.dataset_id}/{name}" for file, name in names.items()}
        if isinstance(self.store, LocalStore):
            for file, name in objects.items():
                self.store.move_into(file, name)
            self.store.sync(f"{self.dataset_id}/{paths.SHARDS}")
            return
        for file, name in objects.items():
            # What is there in all its bytes, as after an interrupted build, crosses no network again.
            checksum = self.store.crc32c(name)
            if checksum is None or checksum != file_checksum(file):
                self.store.upload(file, name)


def _beside(path: Path, name: str) -> Path:
    """Return the file in the working folder that becomes the object of this name."""
    return path.with_suffix(Path(name).suffix)


@contextmanager
def shard_target(store: Store, copies: CacheFolder | None, dataset_id: str, generation: int) -> Iterator[ShardTarget]:
    """Yield where the shards of a build go; what is left in its working folder is removed in the end.

    Args:
        store, dataset_id: where they go.
        copies: keeps local copies; None for none.
        generation: the present generation of the log.
    """
    group = None if copies is None else _group(copies, store, dataset_id)
    parent = None if copies is None or group is None else copies.path
    if isinstance(store, LocalStore):
        store.make_folder(f"{dataset_id}/{paths.SHARDS}")
        parent = store.make_folder(paths.temporary(dataset_id))
    with working_folder(parent) as folder:
        yield ShardTarget(store, dataset_id, generation, folder, DiskRoom(folder), group)


def _group(copies: CacheFolder, store: Store, dataset_id: str) -> CopyGroup | None:
    """Return the local copies of a dataset; None, with a warning, if the folder cannot be used."""
    try:
        return copies.of_dataset(store.url, dataset_id)
    except StorageError as error:
        warn(f"no local copy is kept of what is built: {error}")
        return None
