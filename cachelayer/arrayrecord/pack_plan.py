"""The file of a plan of packs: which pieces of documents share a row.

A ``.npy`` array, int64 of shape ``[4, pieces]``: for each piece, one pack after another, the number of its pack, the
number of its record, where it begins in the document, and the number of its values. Then, as a u32, the CRC32C of the
32 digits that the name of the file begins with and of all that comes before. It is checked whole when it is opened,
and mapped.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import CorruptionError, FormatError

Plan = NDArray[np.int64]
"""The pieces of packs, as the file has them."""
PIECE = ("pack", "record", "begin", "count")
"""What the rows of a plan are."""
_CHECKSUM_NBYTES = 4
_DIGITS = 32
_CHUNK = 1 << 24


def write_plan(path: Path, groups: Iterable[Plan], digest: str) -> None:
    """Write a plan.

    Args:
        path: the file, empty or absent.
        groups: the pieces, some at a time.
        digest: the digest of the packed view.
    """
    plan = np.concatenate([np.empty((len(PIECE), 0), np.int64), *groups], axis=1)
    with path.open("wb") as file:
        np.save(file, plan.astype("<i8", copy=False))
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
