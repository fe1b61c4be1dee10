"""Plans of packs: each is made once, and stored beside the version whose documents it packs.

The file is a ``.npy`` array, int64 of shape ``[4, pieces]``: for each piece, one pack after another, the number of its
pack, the number of its record, where it begins in the document, and the number of its values. Then, as a u32, the
CRC32C of the 32 digits that the name of the file begins with and of all that comes before. It is checked whole when it
is opened, and mapped.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import google_crc32c
import numpy as np

from cachelayer.access.sequences.documents import Documents
from cachelayer.access.sequences.pack_planner import PIECE, Packing, Plan, plan
from cachelayer.errors import CorruptionError, FormatError, StorageError
from cachelayer.objects import paths
from cachelayer.objects.store import Store
from cachelayer.temporary_files import scratch_folder
from cachelayer.user_warnings import warn

_CHECKSUM_NBYTES = 4
_DIGITS = 32
_CHUNK = 1 << 24


def plan_of(documents: Documents, packing: Packing, digest: str) -> Plan:
    """Return a plan: the stored one, or else a new one, which is stored if that is possible.

    Args:
        documents: the documents to pack.
        packing: how to pack them.
        digest: the digest of the packed view.
    """
    version = documents.home
    if version is None:
        return _joined(plan(documents.lengths(), packing))
    store, name = version.folder, paths.plan(version.info.digest, digest)
    try:
        if store.exists(name):
            return _read(store, name, documents, packing, digest)
    except (CorruptionError, FormatError) as error:
        warn(f"a stored plan of packs cannot be used, so it is made again: {error}")
    try:
        with scratch_folder() as folder:
            write_plan(folder / "plan", plan(documents.lengths(), packing), digest)
            store.upload(folder / "plan", name)
        return _read(store, name, documents, packing, digest)
    except (StorageError, CorruptionError) as error:
        warn(f"the plan of packs cannot be stored beside {version.name}, so each process makes it: {error}")
    return _joined(plan(documents.lengths(), packing))


def _joined(groups: Iterable[Plan]) -> Plan:
    return np.concatenate([np.empty((len(PIECE), 0), np.int64), *groups], axis=1)


def _read(store: Store, name: str, documents: Documents, packing: Packing, digest: str) -> Plan:
    """Return a stored plan: mapped, from a bucket after it was downloaded."""
    local = store.local_path(name)
    if local is not None:
        return _checked(read_plan(local, digest), name, documents, packing)
    with scratch_folder() as folder:
        path = folder / Path(name).name
        store.download(name, path, store.size(name) or 0)
        return _checked(read_plan(path, digest), name, documents, packing)


def _checked(plan: Plan, name: str, documents: Documents, packing: Packing) -> Plan:
    """Return a plan if its packs are numbered in order, and each holds pieces of documents that it has room for."""
    packs, record, begin, count = plan
    if len(packs):
        steps = np.diff(packs, prepend=-1)
        values = np.add.reduceat(count, np.flatnonzero(steps))
        least, most = min(int(each.min()) for each in (steps, record, begin, count - 1)), int(steps.max())
        if least < 0 or most > 1 or record.max() >= len(documents) or values.max() > packing.length:
            raise CorruptionError(f"{name}: the plan of packs contradicts itself")
    return plan


def write_plan(path: Path, groups: Iterable[Plan], digest: str) -> None:
    """Write a plan.

    Args:
        path: the file, empty or absent.
        groups: the pieces, some at a time.
        digest: the digest of the packed view.
    """
    with path.open("wb") as file:
        np.save(file, _joined(groups).astype("<i8", copy=False))
    checksum = _checksum(path, path.stat().st_size, digest)
    with path.open("ab") as file:
        file.write(checksum)


def read_plan(path: Path, digest: str) -> Plan:
    """Return the plan in a file, mapped.

    Raises:
        CorruptionError: if the file is damaged, or that of another view.
        FormatError: if it holds no plan.
    """
    end = path.stat().st_size - _CHECKSUM_NBYTES
    with path.open("rb") as file:
        file.seek(max(0, end))
        written = file.read()
    if end < 0 or written != _checksum(path, end, digest):
        raise CorruptionError(f"{path}: the plan of packs does not match its checksum")
    try:
        plan: Plan = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise FormatError(f"{path}: not a plan of packs: {error}") from error
    if plan.dtype != np.int64 or plan.ndim != 2 or len(plan) != len(PIECE):
        raise FormatError(f"{path}: not a plan of packs, but {plan.dtype} of shape {list(plan.shape)}")
    return plan


def _checksum(path: Path, nbytes: int, digest: str) -> bytes:
    """Return the checksum of the first bytes of a file."""
    checksum = google_crc32c.value(digest[:_DIGITS].encode())
    with path.open("rb") as file:
        while nbytes > 0 and (chunk := file.read(min(nbytes, _CHUNK))):
            checksum = google_crc32c.extend(checksum, chunk)
            nbytes -= len(chunk)
    return int(checksum).to_bytes(_CHECKSUM_NBYTES, "little")
