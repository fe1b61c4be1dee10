"""Column files: columns of fixed size that were added to a version, in a ``.npy`` file with a row for each record."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from cachelayer.errors import CorruptionError, SourceError
from cachelayer.objects import paths
from cachelayer.objects.local import open_file
from cachelayer.objects.store import Blob
from cachelayer.records.codec import TYPED, Codec, codec_named
from cachelayer.records.leaf_codecs import leaf_codec_for
from cachelayer.specs import tree
from cachelayer.specs.leaf_names import names_of_leaves
from cachelayer.specs.tree import Tree
from cachelayer.support.json_values import Count, Sha256
from cachelayer.support.memory import Bytes

_MAX_HEADER_NBYTES = 10_000
"""The longest header that ``np.load`` reads: it takes longer ones for an attack."""
_NPY_BEGIN = struct.Struct("<8sI")
_NPY_ALIGNMENT = 64
CHECKED_NBYTES = 1 << 16
"""The bytes of a column file that share a checksum. One request fetches them from a large file."""


@dataclass(frozen=True)
class ColumnFile:
    """A ``.npy`` file with a row of fixed size for each record."""

    records: Count
    """Number of rows."""
    record_nbytes: Count
    """Bytes of a row."""
    nbytes: Count
    """Bytes of the file. The rows are at its end."""
    sha256: Sha256
    """SHA-256 of the file, in hexadecimal."""
    crc32c: Count
    """CRC32C of the file."""
    crc32cs: tuple[Count, ...]
    """The CRC32C of each range of :data:`CHECKED_NBYTES` bytes."""
    generation: Count
    """The generation of the log when the file was put."""

    @property
    def file(self) -> str:
        """Its name without the suffix, relative to the dataset."""
        return paths.file(paths.SHARDS, self.sha256, self.generation)

    @property
    def content(self) -> str:
        return paths.content_of(self.file)

    @property
    def name(self) -> str:
        return paths.column(self.file)

    @property
    def blobs(self) -> list[Blob]:
        """Its one object; like :attr:`ShardFile.blobs`."""
        return [Blob(self.name, self.nbytes, self.crc32c)]

    @property
    def begin(self) -> int:
        """The offset of the first row."""
        return self.nbytes - self.records * self.record_nbytes

    def check(self) -> None:
        """Raise if these cannot be the facts of a file."""
        if not 0 < self.begin < 1 << 16 or len(self.crc32cs) != -(-self.nbytes // CHECKED_NBYTES):
            raise ValueError(f"a column file of {self.nbytes} bytes cannot hold {self.records} rows and its checksums")

    def check_ranges(self, raw: Any, first: int, name: str) -> None:
        """Raise unless ranges of :data:`CHECKED_NBYTES` bytes, from number ``first`` on, have their checksums."""
        for number, start in enumerate(range(0, len(raw), CHECKED_NBYTES), first):
            if google_crc32c.value(bytes(raw[start : start + CHECKED_NBYTES])) != self.crc32cs[number]:
                raise CorruptionError(f"{name}: range {number} of the column file does not match its checksum")


def write_column_file(path: Path, spec: Tree, records: int, rows: Iterable[Bytes], generation: int) -> ColumnFile:
    """Write a column file of rows, uint8 of shape ``[rows, bytes of a row]``; make it durable, and return its facts."""
    codec = codec_named(TYPED, spec)
    written = 0
    with path.open("wb") as out:
        out.write(npy_header(codec, records))
        for batch in rows:
            out.write(np.ascontiguousarray(batch).data)
            written += len(batch)
        out.flush()
        os.fsync(out.fileno())
    if written != records:
        raise SourceError(f"the columns have {written} rows, and the version {records} records")
    return ColumnFile(records, codec.layout.fixed_nbytes, *_sums(path), generation=generation)


def check_column_file(path: Path, file: ColumnFile) -> None:
    """Raise CorruptionError unless a local file is this column file."""
    if _sums(path) != (file.nbytes, file.sha256, file.crc32c, file.crc32cs):
        raise CorruptionError(f"{path}: the column file does not match its SHA-256 and checksums")


def _sums(path: Path) -> tuple[int, str, int, tuple[int, ...]]:
    """Return the bytes of a file, its SHA-256, its CRC32C, and that of each of its ranges."""
    digest = hashlib.sha256()
    checksum = 0
    checksums = []
    nbytes = 0
    with open_file(path) as file:
        while body := file.read(CHECKED_NBYTES):
            digest.update(body)
            checksum = google_crc32c.extend(checksum, body)
            checksums.append(google_crc32c.value(body))
            nbytes += len(body)
    return nbytes, digest.hexdigest(), checksum, tuple(checksums)


def npy_header(codec: Codec, records: int) -> bytes:
    """Return the header of an array of rows: a structure of the columns, or plain bytes if there are very many columns.

    Columns have the names of their leaves, or the paths if several leaves have one name.
    """
    header = _header(_row_dtype(codec), records)
    if len(header) > _MAX_HEADER_NBYTES:
        header = _header(np.dtype((np.void, codec.layout.fixed_nbytes)), records)
    return header


def _header(dtype: np.dtype[Any], records: int) -> bytes:
    """Return a header of version 3.0 of the format, which has names in UTF-8."""
    array = {"fortran_order": False, "descr": np.lib.format.dtype_to_descr(dtype), "shape": (records,)}
    text = repr(array).encode()
    nbytes = -(-(_NPY_BEGIN.size + len(text) + 1) // _NPY_ALIGNMENT) * _NPY_ALIGNMENT
    length = nbytes - _NPY_BEGIN.size
    return _NPY_BEGIN.pack(np.lib.format.magic(3, 0), length) + text.ljust(length - 1) + b"\n"


def _row_dtype(codec: Codec) -> np.dtype[Any]:
    layout = codec.layout
    parts = [leaf_codec_for(leaf).parts for _, leaf in tree.leaves(codec.spec)]
    names = names_of_leaves(codec.spec)
    if len(set(names)) < len(names) or "" in names:
        names = [path for path, _ in tree.leaves(codec.spec)]
    fields = []
    for name, (place,), (part,) in zip(names, layout.places, parts, strict=True):
        # numpy writes no other dtypes into headers.
        is_standard = part.dtype.type.__module__ == "numpy"
        dtype = part.dtype if is_standard else np.dtype((np.void, part.dtype.itemsize))
        fields.append((place, name, (dtype, part.shape)))
    offsets, names, formats = zip(*sorted(fields, key=itemgetter(0)), strict=True)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": layout.fixed_nbytes})
