"""The file of a plan of packs: which pieces of documents share a row.

Two ``.npy`` arrays, one after the other: the pieces of all packs, with :data:`PIECE` as dtype; and int64, the number of
the first piece of each pack, and of all pieces. Then, as a u32, the CRC32C of the 32 digits that the name of the file
begins with and of all that comes before. It is checked whole when it is opened, and mapped.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.lengths import npy_header
from cachelayer.arrayrecord.mapping import MappedFile
from cachelayer.errors import CorruptionError, FormatError
from cachelayer.locks import cached_property
from cachelayer.records.memory import Bytes, Ints, splits_of
from cachelayer.records.pieces import Pieces

PIECE = np.dtype([("record", "<u8"), ("begin", "<u4"), ("count", "<u4")])
"""A piece of a document: the number of its record, where it begins in the document, and the number of its values."""
_SPLIT = np.dtype("<i8")
_CHECKSUM_NBYTES = 4
_DIGITS = 32
_CHUNK = 1 << 24


@dataclass(frozen=True, eq=False)
class Packs:
    """Packs, one after another.

    Args:
        pieces: the pieces of all packs, with :data:`PIECE` as dtype.
        sizes: the number of pieces of each pack, at least 1.
    """

    pieces: NDArray[np.void]
    sizes: Ints


def write_plan(file: BinaryIO, groups: Iterable[Packs], digest: str) -> None:
    """Write a plan to an empty file that can be read too.

    Args:
        file: the file.
        groups: the packs, some at a time.
        digest: the digest of the packed view.
    """
    sizes = [np.empty(0, np.int64)]
    file.write(npy_header(PIECE, (0,)))
    for group in groups:
        sizes.append(group.sizes)
        file.write(group.pieces.tobytes())
    splits = splits_of(np.concatenate(sizes))
    file.write(npy_header(_SPLIT, splits.shape) + splits.astype(_SPLIT, copy=False).tobytes())
    file.seek(0)
    file.write(npy_header(PIECE, (int(splits[-1]),)))
    file.seek(0)
    checksum = google_crc32c.value(digest[:_DIGITS].encode())
    while chunk := file.read(_CHUNK):
        checksum = google_crc32c.extend(checksum, chunk)
    file.write(checksum.to_bytes(_CHECKSUM_NBYTES, "little"))


def check_plan(path: Path) -> None:
    """Raise unless a file is a whole plan of packs."""
    _checked_arrays(MappedFile.open(path).buffer, str(path), path.name)


def _checked_arrays(raw: Bytes, name: str, digest: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the pieces and the splits of a plan, if all of its bytes are right."""
    body = raw[:-_CHECKSUM_NBYTES]
    checksum = google_crc32c.value(digest[:_DIGITS].encode())
    for start in range(0, len(body), _CHUNK):
        checksum = google_crc32c.extend(checksum, body[start : start + _CHUNK])
    if raw[len(body) :].tobytes() != checksum.to_bytes(_CHECKSUM_NBYTES, "little"):
        raise CorruptionError(f"{name}: the plan of packs does not match its checksum")
    pieces, end = _array_at(body, 0, PIECE, name)
    return pieces, _array_at(body, end, _SPLIT, name)[0]


def _array_at(raw: Bytes, start: int, dtype: np.dtype[Any], name: str) -> tuple[NDArray[Any], int]:
    """Return the array that begins at an offset, and where it ends."""
    count = 0
    begin = start + len(npy_header(dtype, (0,)))
    try:
        header = io.BytesIO(raw[start:begin].tobytes())
        np.lib.format.read_magic(header)
        (count,), _, found = np.lib.format.read_array_header_1_0(header)
        end = begin + count * dtype.itemsize
        if found == dtype and end <= len(raw):
            return raw[begin:end].view(dtype), end
    except ValueError as error:
        raise FormatError(f"{name}: not a plan of packs: {error}") from error
    raise FormatError(f"{name}: not a plan of packs")


class PackPlan:
    """A plan of packs: finds the pieces of any packs at once.

    Args:
        raw: the bytes of its file, mapped or in memory.
        name: the name of the file, for errors.
        digest: the digest of the packed view.
        length: the number of values that a pack has room for.
        documents: the number of documents.
    """

    def __init__(self, raw: Bytes, name: str, digest: str, length: int, documents: int) -> None:
        self._pieces, self._splits = _checked_arrays(raw, name, digest)
        self._name = name
        self._length = length
        self._documents = documents

    def __len__(self) -> int:
        return len(self._splits) - 1

    @cached_property
    def fill(self) -> float:
        """The share of cells that hold values; 1 if there are no packs."""
        cells = len(self) * self._length
        return int(self._pieces["count"].sum(dtype=np.int64)) / cells if cells else 1.0

    def pieces(self, numbers: Ints) -> Pieces:
        """Return the pieces of some packs, each in [0, len); row i is pack ``numbers[i]``."""
        first, stop = self._splits[numbers], self._splits[numbers + 1]
        self._refuse((first < 0) | (first >= stop) | (stop > len(self._pieces)) | (stop - first > self._length))
        splits = splits_of(stop - first)
        row = np.repeat(np.arange(len(numbers)), stop - first)
        found = self._pieces[np.arange(splits[-1]) + (first - splits[:-1])[row]]
        record, begin, count = (found[field].astype(np.int64) for field in ("record", "begin", "count"))
        ends = splits_of(count)
        offset = ends[:-1] - ends[splits[:-1]][row]
        self._refuse((record < 0) | (record >= self._documents) | (count < 1) | (count > self._length - offset))
        # What is shorter than a pack was not cut there.
        return Pieces(row, record, begin, count, offset, count < self._length)

    def _refuse(self, wrong: NDArray[np.bool_]) -> None:
        if wrong.any():
            raise CorruptionError(f"{self._name}: the plan of packs contradicts itself: delete the file")
