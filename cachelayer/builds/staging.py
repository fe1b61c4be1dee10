"""The folder that a build writes its shards to, and their upload from there to the store."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cachelayer.builds.shard_pipeline import Upload
from cachelayer.errors import StorageError
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.local_cache import CacheFolder, CopyGroup
from cachelayer.objects.store import ObjectStore
from cachelayer.user_warnings import warn
from cachelayer.versions.file_lock import temporary_folder


@dataclass(frozen=True)
class Stage:
    """Where shards are written.

    Args:
        folder: the folder.
        uploader: uploads them to the store; None if they are written there.
    """

    folder: Path
    uploader: Upload | None = None


@contextmanager
def staging(
    store: ObjectStore, copies: CacheFolder | None, dataset_id: str, attempt: str, files: range | None = None
) -> Iterator[Stage]:
    """Yield a folder for the shards of an attempt: in the store, else among the local copies, else a temporary one.

    Local copies and temporary files are removed if the attempt fails.

    Args:
        store: the store.
        copies: keeps local copies; None for none.
        dataset_id, attempt: the attempt.
        files: the numbers of the shards that this call writes, if other processes write to the folder too.
    """
    folder_name = paths.build(dataset_id, attempt)
    if isinstance(store, LocalStore):
        yield Stage(store.make_folder(folder_name))
        return
    group = None if copies is None else _group(copies, store, dataset_id, attempt)
    if group is None:
        with temporary_folder() as folder:
            yield Stage(folder, _Uploader(store, folder_name, None).upload)
        return
    folder, builder = group.path(""), os.getpid()
    try:
        yield Stage(folder, _Uploader(store, folder_name, group).upload)
    except BaseException:
        if os.getpid() != builder:
            # This is a child that the source forked: the files belong to its parent.
            raise
        if files is not None:
            _remove(folder, files)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        raise


class _Uploader:
    """Uploads shards, and keeps local copies of them as long as there is room.

    Args:
        store: where they go.
        folder: the folder there.
        group: the local copies; None to keep none.
    """

    def __init__(self, store: ObjectStore, folder: str, group: CopyGroup | None) -> None:
        self._store = store
        self._folder = folder
        self._group = group

    def upload(self, shard: Path) -> None:
        beside = (Path(paths.index_of(str(shard))), Path(paths.lengths_of(str(shard))))
        files = (shard, *(path for path in beside if path.exists()))
        for path in files:
            self._store.upload(path, f"{self._folder}/{path.name}")
        if self._group is not None:
            self._group.adopt(files)
            return
        for path in files:
            path.unlink()


def _group(copies: CacheFolder, store: ObjectStore, dataset_id: str, attempt: str) -> CopyGroup | None:
    """Return the local copies of an attempt; None, with a warning, if the folder cannot be used."""
    try:
        return copies.of_attempt(store.url, dataset_id, attempt)
    except StorageError as error:
        warn(f"no local copy is kept of what is built: {error}")
        return None


def _remove(folder: Path, files: range) -> None:
    """Remove the shards of these numbers, and what is beside them."""
    for path in folder.glob("shard-*"):
        if int(path.stem.removeprefix("shard-")) in files:
            path.unlink(missing_ok=True)
