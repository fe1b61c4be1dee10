"""Plans of views: a plan is made once, and stored beside the version whose records it arranges.

A plan of packs says which documents share a row; a plan of groups, which records have the same values of some fields.
The file is checked when it is opened, and mapped::

    .npy array     int64, [rows of the plan, columns]
    CRC32C         u32, of the first 32 digits of the plan's digest (the file is named by them), and of the array
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import numpy as np

from cachelayer.errors import CorruptionError, FormatError, StorageError
from cachelayer.objects import paths
from cachelayer.objects.local import file_crc32c, open_file
from cachelayer.objects.store import Blob, Store
from cachelayer.support.memory import Ints
from cachelayer.support.temporary_files import sync_path, working_folder
from cachelayer.support.user_warnings import warn
from cachelayer.versions.stored_version import StoredVersion

_CHECKSUM_NBYTES = 4
_ITEM_NBYTES = 8
_DIGITS = 32
_READ_NBYTES = 1 << 24
_MOST_OF_HEADER = 1 << 12
"""More bytes than the header of the array has."""


@dataclass(frozen=True)
class PlanMaker:
    """A plan's digest and size, with the functions that make and check the plan."""

    digest: str
    """The digest of the plan, which follows from the records and from all else that decides it."""
    rows: int
    """The number of rows of the plan."""
    most_columns: Callable[[], int]
    """Returns the largest number of columns that a plan of these records can have."""
    make: Callable[[], Iterable[Ints]]
    """Returns the columns of the plan, some at a time: int64 of shape ``[rows, some]``."""
    is_sound: Callable[[Ints], bool]
    """Returns whether a plan agrees with itself and with the records."""

    def new(self) -> Ints:
        """Return the plan, made in memory."""
        return joined(self.rows, self.make())


def plan_of(version: StoredVersion | None, maker: PlanMaker) -> Ints:
    """Return the stored plan; if there is none, or it is damaged, make one and store it if that is possible.

    Without a version, it is made in memory.
    """
    if version is None:
        return maker.new()
    store = version.folder
    name = paths.plan(version.info.digest, maker.digest)
    try:
        stat = store.stat(name)
        if stat is not None:
            return _read(store, name, stat.nbytes, maker)
    except (CorruptionError, FormatError) as error:
        warn(f"a stored plan cannot be used, so it is made again: {error}", logger="stores")
    try:
        with working_folder(store.local_path(paths.WORKING)) as folder:
            path = folder / "plan"
            write_plan(path, maker.new(), maker.digest)
            blob = Blob(name, path.stat().st_size, file_crc32c(path))
            store.put_file(path, blob)
        return _read(store, name, blob.nbytes, maker)
    except (StorageError, CorruptionError) as error:
        warn(f"the plan cannot be stored beside {version.name}, so each process makes it: {error}", logger="stores")
    return maker.new()


def joined(rows: int, pieces: Iterable[Ints]) -> Ints:
    """Return the columns of some pieces of a plan as one array."""
    return np.concatenate([np.empty((rows, 0), np.int64), *pieces], axis=1)


def _read(store: Store, name: str, nbytes: int, maker: PlanMaker) -> Ints:
    """Return a stored plan of so many bytes: mapped, from a bucket after it was downloaded."""
    most = maker.rows * _ITEM_NBYTES * maker.most_columns() + _MOST_OF_HEADER
    if nbytes > most:
        raise CorruptionError(f"{name}: a plan of {nbytes} bytes, of records whose plan has at most {most}")
    local = store.local_path(name)
    if local is not None:
        return _checked(read_plan(local, maker.digest, maker.rows), name, maker)
    with working_folder() as folder:
        path = folder / Path(name).name
        store.download(name, path, nbytes)
        return _checked(read_plan(path, maker.digest, maker.rows), name, maker)


def _checked(plan: Ints, name: str, maker: PlanMaker) -> Ints:
    if not maker.is_sound(plan):
        raise CorruptionError(f"{name}: the plan contradicts itself")
    return plan


def write_plan(path: Path, plan: Ints, digest: str) -> None:
    """Write a plan, and make it durable."""
    with path.open("wb") as file:
        np.save(file, plan.astype("<i8", copy=False))
    checksum = _checksum(path, path.stat().st_size, digest)
    with path.open("ab") as file:
        file.write(checksum)
    sync_path(path)


def read_plan(path: Path, digest: str, rows: int) -> Ints:
    """Return the plan in a file, mapped."""
    end = path.stat().st_size - _CHECKSUM_NBYTES
    with open_file(path) as file:
        file.seek(max(0, end))
        written = file.read()
    if end < 0 or written != _checksum(path, end, digest):
        raise CorruptionError(f"{path}: the plan does not match its checksum")
    try:
        plan: Ints = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise FormatError(f"{path}: not a plan: {error}") from error
    if plan.dtype != np.int64 or plan.ndim != 2 or len(plan) != rows:
        raise FormatError(f"{path}: not a plan of {rows} rows, but {plan.dtype} of shape {list(plan.shape)}")
    return plan


def _checksum(path: Path, nbytes: int, digest: str) -> bytes:
    """Return the checksum of the first bytes of a file."""
    checksum = google_crc32c.value(digest[:_DIGITS].encode())
    with path.open("rb") as file:
        while nbytes > 0 and (body := file.read(min(nbytes, _READ_NBYTES))):
            checksum = google_crc32c.extend(checksum, body)
            nbytes -= len(body)
    return int(checksum).to_bytes(_CHECKSUM_NBYTES, "little")
