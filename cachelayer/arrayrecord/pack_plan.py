"""The file of a plan of packs: which pieces of documents share a row. It can be mapped and needs no parsing.

All little-endian::

    header, 128 bytes
        0    8s   magic
        8    u32  version of this layout
        12   u32  zero
        16   u64  number of packs
        24   u64  number of pieces in all packs
        32   u64  number of values in all pieces
        40   u64  number of values that a pack has room for
        48   32s  what the plan is for: the digest of the packed view
        80   u32  CRC32C of all that follows the header
        84   40s  zeros
        124  u32  CRC32C of the first 124 bytes
    for each piece, one pack after another: u64 record, u32 first value in the document, u32 number of values
    u64 number of the first piece of each pack, then the number of all pieces
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.sealed_header import SealedHeader
from cachelayer.errors import CacheLayerError, CorruptionError, StorageError
from cachelayer.records.memory import Bytes, Ints, gather_ranges, splits_of
from cachelayer.records.pieces import Pieces

PIECE = np.dtype([("record", "<u8"), ("begin", "<u4"), ("count", "<u4")])
"""A piece of a document: the number of its record, where it begins in the document, and the number of its values."""
_HEADER = SealedHeader(struct.Struct("<8sIIQQQQ32sI40s"), b"\x89CLPACK\n", 1, "plan", "packs")
HEADER_NBYTES = _HEADER.nbytes
_SPLIT = np.dtype("<u8")
_MOST = 2**56
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


@dataclass(frozen=True)
class PlanHeader:
    """The header of a plan.

    Args:
        packs: the number of packs.
        pieces: the number of pieces in all packs.
        values: the number of values in all pieces.
        length: the number of values that a pack has room for.
        digest: the digest of the packed view, in hexadecimal.
        checksum: the CRC32C of what follows the header.
    """

    packs: int
    pieces: int
    values: int
    length: int
    digest: str
    checksum: int

    @property
    def splits_start(self) -> int:
        """Where the numbers of first pieces begin in the file."""
        return HEADER_NBYTES + self.pieces * PIECE.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of the file."""
        return self.splits_start + (self.packs + 1) * _SPLIT.itemsize

    def encode(self) -> bytes:
        """Return the bytes of the header."""
        numbers = (self.packs, self.pieces, self.values, self.length)
        return _HEADER.encode(0, *numbers, bytes.fromhex(self.digest), self.checksum, bytes(40))

    @classmethod
    def decode(cls, raw: bytes, nbytes: int, name: str) -> PlanHeader:
        """Return the header in the first bytes of a file of ``nbytes`` bytes.

        Raises:
            FormatError: if it has another format.
            CorruptionError: if it is damaged.
        """
        _, packs, pieces, values, length, digest, checksum, _ = _HEADER.decode(raw, name)
        if pieces > _MOST or not packs <= pieces <= values <= packs * length:
            raise CorruptionError(f"{name}: {values} values in {pieces} pieces in {packs} packs of {length}")
        header = cls(packs, pieces, values, length, digest.hex(), checksum)
        if header.nbytes != nbytes:
            raise CorruptionError(f"{name}: expected {header.nbytes} bytes, found {nbytes}")
        return header


def write_plan(file: BinaryIO, groups: Iterable[Packs], length: int, digest: str) -> PlanHeader:
    """Write a plan to an empty file.

    Args:
        file: the file.
        groups: the packs, some at a time.
        length: the number of values that a pack has room for.
        digest: the digest of the packed view.

    Returns:
        The header.
    """
    sizes, values, checksum = [np.empty(0, np.int64)], 0, 0
    file.write(bytes(HEADER_NBYTES))

    def write(raw: bytes) -> None:
        nonlocal checksum
        checksum = google_crc32c.extend(checksum, raw)
        file.write(raw)

    for group in groups:
        sizes.append(group.sizes)
        values += int(group.pieces["count"].sum(dtype=np.int64))
        write(group.pieces.tobytes())
    splits = splits_of(np.concatenate(sizes))
    write(splits.astype(_SPLIT, copy=False).tobytes())
    header = PlanHeader(len(splits) - 1, int(splits[-1]), values, length, digest, checksum)
    file.seek(0)
    file.write(header.encode())
    return header


def check_plan(path: Path) -> PlanHeader:
    """Return the header of a whole file, all of whose bytes match their checksum.

    Raises:
        FormatError, CorruptionError: if it is not such a plan, or is missing.
        StorageError: if it cannot be read.
    """
    try:
        with path.open("rb") as file:
            header = PlanHeader.decode(file.read(HEADER_NBYTES), os.fstat(file.fileno()).st_size, str(path))
            checksum = 0
            while chunk := file.read(_CHUNK):
                checksum = google_crc32c.extend(checksum, chunk)
    except FileNotFoundError as error:
        raise CorruptionError(f"{path}: the file is missing") from error
    except CacheLayerError:
        raise
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error}") from error
    if checksum != header.checksum:
        raise CorruptionError(f"{path}: the plan of packs does not match its checksum")
    return header


def check_bytes(raw: Bytes, name: str) -> None:
    """Raise unless these bytes are a whole plan, and match its checksum.

    Raises:
        FormatError, CorruptionError: if they are not.
    """
    header = PlanHeader.decode(raw[:HEADER_NBYTES].tobytes(), len(raw), name)
    if google_crc32c.value(raw[HEADER_NBYTES:].tobytes()) != header.checksum:
        raise CorruptionError(f"{name}: the plan of packs does not match its checksum")


class PlanBytes(Protocol):
    """The bytes of a plan, wherever they are. Thread-safe."""

    @property
    def name(self) -> str:
        """The name of the file in errors."""

    @property
    def nbytes(self) -> int:
        """The bytes of the file."""

    def read(self, starts: Ints, stops: Ints) -> Bytes:
        """Return some ranges, one after another; each must lie in the file."""


@dataclass(frozen=True, eq=False)
class BytesInMemory:
    """The bytes of a plan in memory, or mapped."""

    name: str
    buffer: Bytes

    @property
    def nbytes(self) -> int:
        return len(self.buffer)

    def read(self, starts: Ints, stops: Ints) -> Bytes:
        return gather_ranges(self.buffer, starts, stops - starts)


class PackPlan:
    """A plan of packs: finds the pieces of any packs at once.

    Args:
        source: the bytes of its file.
        digest: the digest of the packed view.
        length: the number of values that a pack has room for.
        documents: the number of documents.

    Raises:
        FormatError, CorruptionError: if the file is not the plan of these packs.
    """

    def __init__(self, source: PlanBytes, digest: str, length: int, documents: int) -> None:
        head = source.read(np.zeros(1, np.int64), np.array([min(HEADER_NBYTES, source.nbytes)]))
        self.header = PlanHeader.decode(head.tobytes(), source.nbytes, source.name)
        if (self.header.digest, self.header.length) != (digest, length):
            raise CorruptionError(f"{source.name}: it is the plan of other packs")
        self._source = source
        self._documents = documents

    def __len__(self) -> int:
        return self.header.packs

    @property
    def fill(self) -> float:
        """The share of cells that hold values; 1 if there are no packs."""
        cells = self.header.packs * self.header.length
        return self.header.values / cells if cells else 1.0

    def pieces(self, numbers: Ints) -> Pieces:
        """Return the pieces of some packs, each in [0, len); row i is pack ``numbers[i]``.

        Raises:
            CorruptionError: if the plan contradicts itself.
        """
        header = self.header
        begins = header.splits_start + numbers * _SPLIT.itemsize
        splits = self._source.read(begins, begins + 2 * _SPLIT.itemsize).view("<i8").reshape(len(numbers), 2)
        first, stop = splits[:, 0], splits[:, 1]
        self._check((first < 0) | (first >= stop) | (stop > header.pieces) | (stop - first > header.length))
        starts, stops = (HEADER_NBYTES + number * PIECE.itemsize for number in (first, stop))
        found: Any = self._source.read(starts, stops).view(PIECE)
        record, begin, count = (found[field].astype(np.int64) for field in ("record", "begin", "count"))
        row = np.repeat(np.arange(len(numbers)), stop - first)
        splits = splits_of(count)
        offset = splits[:-1] - splits[splits_of(stop - first)[:-1]][row]
        self._check((record < 0) | (record >= self._documents) | (count < 1) | (count > header.length - offset))
        # What is shorter than a pack was not cut there.
        return Pieces(row, record, begin, count, offset, count < header.length)

    def _check(self, wrong: NDArray[np.bool_]) -> None:
        if wrong.any():
            raise CorruptionError(f"{self._source.name}: the plan of packs is damaged: delete the file to have it anew")
