"""Where the shards of a build go: into a working folder, and from there into the store, named by what they hold."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cachelayer.arrayrecord.compression import Compression
from cachelayer.arrayrecord.writer import ShardWriter
from cachelayer.errors import StorageError
from cachelayer.objects import paths
from cachelayer.objects.local_cache import CacheFolder, CopyGroup
from cachelayer.objects.store import Store
from cachelayer.records.codec import Codec
from cachelayer.temporary_files import DiskRoom, working_folder
from cachelayer.user_warnings import warn
from cachelayer.versions.shard_table import ShardFile


@dataclass(frozen=True)
class ShardTarget:
    """Puts the shards of a build into the store.

    Args:
        dataset: the folder of the dataset.
        generation: that of the log when the build began.
        folder: an empty folder to write them in.
        room: the room on its disk, which whoever writes there takes first.
        copies: the local copies of the dataset's shards; None to keep none.
    """

    dataset: Store
    generation: int
    folder: Path
    room: DiskRoom
    copies: CopyGroup | None

    @property
    def is_local(self) -> bool:
        return self.dataset.local_path(paths.SHARDS) is not None

    def begin_shard(self, compression: Compression, codec: Codec) -> ShardWriter:
        """Return the writer of a new shard, with its index and its lengths beside it."""
        path = self.folder / f"{uuid.uuid4().hex}.array_record"
        index_path, lengths_path = Path(paths.index_of(str(path))), Path(paths.lengths_of(str(path)))
        return ShardWriter(path, index_path, compression, lengths_path, codec)

    def put(self, writer: ShardWriter) -> ShardFile:
        """Finish a shard and put it, with what stands beside it; the files are gone then. Threads may share this."""
        shard = ShardFile(writer.finish(), self.generation)
        names = {writer.path.with_suffix(Path(name).suffix): name for name in shard.files}
        self.dataset.move_in(names)
        if self.copies is not None:
            self.copies.adopt({file: Path(name).name for file, name in names.items()})
        for file in names:
            file.unlink(missing_ok=True)
        return shard


@contextmanager
def shard_target(dataset: Store, copies: CacheFolder | None, generation: int) -> Iterator[ShardTarget]:
    """Yield where the shards of a build go; what is left in its working folder is removed in the end.

    Args:
        dataset: the folder of the dataset.
        copies: keeps local copies; None for none.
        generation: the present generation of the log.
    """
    group = None if copies is None else _group(copies, dataset)
    parent = dataset.working_folder() if copies is None or group is None else copies.path
    with working_folder(parent) as folder:
        yield ShardTarget(dataset, generation, folder, DiskRoom(folder), group)


def _group(copies: CacheFolder, dataset: Store) -> CopyGroup | None:
    """Return the local copies of a dataset; None, with a warning, if the folder cannot be used."""
    try:
        return copies.of_dataset(dataset.url)
    except StorageError as error:
        warn(f"no local copy is kept of what is built: {error}")
        return None
