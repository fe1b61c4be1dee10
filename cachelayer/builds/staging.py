"""Where the shards of a build are written, and how they come from there to the store."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cachelayer.builds.uploads import Deliver
from cachelayer.errors import StorageError
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.local_cache import CacheFolder
from cachelayer.objects.store import ObjectStore
from cachelayer.user_warnings import warn


@dataclass(frozen=True)
class Stage:
    """Where shards are written.

    Args:
        folder: the folder.
        deliver: takes them on to the store; None where they are there already.
    """

    folder: Path
    deliver: Deliver | None


@contextmanager
def staging(
    store: ObjectStore, copies: CacheFolder | None, dataset_id: str, attempt: str, files: range | None = None
) -> Iterator[Stage]:
    """A folder for the shards of an attempt: in the store itself, else among the local copies, else a temporary one.

    Local copies and what is temporary are removed when the attempt fails.

    Args:
        store: where the shards go in the end.
        copies: keeps local copies; None for none.
        dataset_id, attempt: whose shards they are.
        files: the numbers of the shards that are written now, where others write theirs beside them.
    """
    if isinstance(store, LocalStore):
        yield Stage(store.make_folder(paths.build(dataset_id, attempt)), None)
        return
    try:
        group = None if copies is None else copies.of_attempt(store.url, dataset_id, attempt)
    except StorageError as error:
        warn(f"no local copy is kept of what is built: {error}")
        group = None
    folder = Path(tempfile.mkdtemp(prefix="cachelayer-")) if group is None else group.path("")

    # Two shards that are delivered at once must not both make room for the other.
    one_by_one = threading.Lock()
    builder = os.getpid()

    def deliver(shard: Path) -> None:
        files = (shard, Path(paths.index_of(str(shard))))
        for path in files:
            if group is not None:
                group.keep(path)
            store.upload(path, f"{paths.build(dataset_id, attempt)}/{path.name}")
        with one_by_one:
            if group is None or not group.fits():
                for path in files:
                    path.unlink()

    try:
        yield Stage(folder, deliver)
    except BaseException:
        if os.getpid() != builder:
            # A child that the source forked: the files are its parent's.
            raise
        if group is not None and files is not None:
            _remove(folder, files)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if group is None:
        shutil.rmtree(folder, ignore_errors=True)


def _remove(folder: Path, files: range) -> None:
    """Remove the shards of these numbers, and their indices."""
    for path in folder.glob("shard-*"):
        if int(path.stem.removeprefix("shard-")) in files:
            path.unlink(missing_ok=True)
