"""Compare the files of shards and columns, in a store or on this host, with what was published."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from cachelayer.arrayrecord import index
from cachelayer.arrayrecord.writer import file_checksum
from cachelayer.errors import CorruptionError
from cachelayer.objects import paths
from cachelayer.objects.store import Store
from cachelayer.versions.columns import ColumnFile
from cachelayer.versions.shard_table import ShardFile


def check_file(file: ShardFile | ColumnFile, name: str, path: Path, place: str) -> None:
    """Raise unless a file on this host holds what was published.

    Args:
        file: the shard or the column file.
        name: one of its :attr:`files`.
        path: the file.
        place: what errors call it.

    Raises:
        CorruptionError: if it holds anything else.
        OSError: if it cannot be read.
    """
    if path.stat().st_size != file.files[name]:
        raise CorruptionError(f"{place}: expected {file.files[name]} bytes, found {path.stat().st_size}")
    _check(file, name, place, lambda: file_checksum(path), path.read_bytes)


def is_stored(store: Store, dataset_id: str, file: ShardFile | ColumnFile) -> bool:
    """Return whether a store has all files of a shard, or a column file, with all bytes that were published."""
    try:
        for name, nbytes in file.files.items():
            place = f"{dataset_id}/{name}"
            if store.size(place) != nbytes:
                return False
            _check(file, name, place, partial(store.crc32c, place), partial(store.read, place))
    except CorruptionError:
        return False
    return True


def _check(
    file: ShardFile | ColumnFile,
    name: str,
    place: str,
    checksum: Callable[[], int | None],
    read: Callable[[], bytes | None],
) -> None:
    if isinstance(file, ColumnFile):
        is_right = hashlib.sha256(read() or b"").hexdigest() == file.sha256
    elif name == file.name:
        is_right = checksum() == file.stats.crc32c
    elif name == paths.index_of(file.name):
        is_right = bool(index.check(read() or b"", file.stats.index_crc32c, file.stats.records, place))
    else:
        lengths = file.stats.lengths_file
        is_right = lengths is not None and bool(lengths.check(np.frombuffer(read() or b"", np.uint8), place))
    if not is_right:
        raise CorruptionError(f"{place}: what was read does not match its checksum: restore it, or build again")
