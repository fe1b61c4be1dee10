"""Columns that were added to a version after it was built: files of their own beside its shards.

The record number is the alignment: row i of a group of columns belongs to record i of the shards. Leaves of fixed size
are stored as one ``.npy`` file a group, whose rows are records as the codec writes them; leaves of varying size as
shards.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from cachelayer import json_values
from cachelayer.errors import CorruptionError, SourceError
from cachelayer.json_values import Sha256, Whole
from cachelayer.objects import paths
from cachelayer.records import spec_json, tree
from cachelayer.records.codec import TYPED, Codec, codec_named
from cachelayer.records.leaf_names import names_of_leaves
from cachelayer.records.leaves import leaf_of
from cachelayer.records.memory import Bytes
from cachelayer.records.tree import Tree
from cachelayer.versions.shard_table import FileChecksum, ShardFile, ShardTable

MOST_GROUPS = 16
"""The most groups of a version: each costs a read."""
_MAX_HEADER_NBYTES = 10_000
"""What ``np.load`` reads; it takes longer headers for an attack."""
_NPY_BEGIN = struct.Struct("<8sI")
_NPY_ALIGNMENT = 64
BLOCK_NBYTES = 1 << 16
"""The bytes of a column file that have one checksum; a request of its own fetches them from a large file."""


@dataclass(frozen=True)
class ColumnFile:
    """A ``.npy`` file with a row of fixed size for each record.

    Args:
        records: number of rows.
        record_nbytes: bytes of a row.
        nbytes: bytes of the file; the rows stand at its end.
        sha256, crc32c: of the whole file.
        crc32cs: the CRC32C of each block of :data:`BLOCK_NBYTES`.
        generation: that of the log when it was put.
    """

    records: Whole
    record_nbytes: Whole
    nbytes: Whole
    sha256: Sha256
    crc32c: Whole
    crc32cs: tuple[Whole, ...]
    generation: Whole

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
    def files(self) -> dict[str, FileChecksum]:
        """Its name, relative to the dataset, and its facts; as :attr:`ShardFile.files`."""
        return {self.name: FileChecksum(self.nbytes, self.crc32c)}

    @property
    def begin(self) -> int:
        """Where the first row begins."""
        return self.nbytes - self.records * self.record_nbytes

    def check(self) -> None:
        """Raise if these cannot be the facts of a file."""
        if not 0 < self.begin < 1 << 16 or len(self.crc32cs) != -(-self.nbytes // BLOCK_NBYTES):
            raise ValueError(f"a column file of {self.nbytes} bytes cannot hold {self.records} rows and its checksums")

    def check_blocks(self, raw: Any, first: int, name: str) -> None:
        """Raise unless consecutive blocks, from the block of this number on, have their checksums."""
        for number, start in enumerate(range(0, len(raw), BLOCK_NBYTES), first):
            if google_crc32c.value(bytes(raw[start : start + BLOCK_NBYTES])) != self.crc32cs[number]:
                raise CorruptionError(f"{name}: block {number} of the column file does not match its checksum")


@dataclass(frozen=True)
class ShardSet:
    """Records, or columns of records, that were built together, as they are stored.

    Args:
        codec: the name of their codec.
        element_spec: the spec of an element; of columns, a dict of them.
        array: the file of columns that all have a fixed size; else None.
        shards: the shards; empty if there is an array.
    """

    codec: str
    element_spec: Tree
    array: ColumnFile | None
    shards: ShardTable

    @property
    def records(self) -> int:
        return int(self.shards.records.sum()) if self.array is None else self.array.records

    @property
    def nbytes(self) -> int:
        return self.shards.nbytes if self.array is None else self.array.nbytes

    @property
    def files(self) -> list[ShardFile | ColumnFile]:
        """The files with their places in the store."""
        return list(self.shards) if self.array is None else [self.array]

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the digest, as JSON values."""
        spec = spec_json.to_json(self.element_spec)
        content = self.shards.sha256 if self.array is None else [self.array.sha256]
        return {"codec": self.codec, "element_spec": spec, "sha256": content, "records": self.records}

    def of_generations(self, generations: Sequence[int]) -> ShardSet:
        """Return the group with its files under the names that they have in these generations."""
        if self.array is None:
            return replace(self, shards=self.shards.of_generations(list(generations)))
        return replace(self, array=replace(self.array, generation=generations[0]))

    def to_json(self) -> dict[str, Any]:
        return {
            "codec": self.codec,
            "element_spec": spec_json.to_json(self.element_spec),
            "array": None if self.array is None else json_values.encoded(self.array),
            "shards": self.shards.to_json(),
        }

    @classmethod
    def from_json(cls, document: Any) -> ShardSet:
        """Return the group that :meth:`to_json` wrote, if it can have written it."""
        facts = json_values.mapping("columns", document)
        group = cls(
            json_values.text("codec", facts["codec"]),
            spec_json.from_json(facts["element_spec"]),
            json_values.decoded(ColumnFile | None, "array", facts["array"]),
            ShardTable.from_json(facts["shards"]),
        )
        if not isinstance(group.element_spec, dict) or (group.array is not None and len(group.shards)):
            raise ValueError("a group of columns is no dict, or is stored twice")
        if group.array is not None:
            group.array.check()
            if layout_nbytes(group.element_spec) != group.array.record_nbytes:
                raise ValueError(f"rows of {group.array.record_nbytes} bytes are not those of their columns")
        return group


def layout_nbytes(spec: Tree) -> int | None:
    """Return the bytes of a row of columns; None if they vary."""
    layout = codec_named(TYPED, spec).layout
    return None if layout.varying_count or not layout.fixed_nbytes else layout.fixed_nbytes


def merged_spec(specs: Sequence[Tree]) -> Tree:
    """Return the spec of elements with the leaves of several dicts; a later dict replaces equal keys."""
    merged: dict[str, Tree] = {}
    for spec in specs:
        for key in spec:
            # A key that is replaced moves to the end, where its new leaves are.
            merged.pop(key, None)
        merged |= spec
    return merged


def write_column_file(path: Path, spec: Tree, records: int, rows: Iterable[Bytes], generation: int) -> ColumnFile:
    """Write a column file, make it durable, and return its facts.

    Args:
        path: the file.
        spec: the columns, a dict.
        records: the number of rows.
        rows: the rows in order, in arrays uint8 of shape ``[rows, bytes of a row]``.
        generation: that of the log when the file is put.
    """
    codec, written = codec_named(TYPED, spec), 0
    with path.open("wb") as out:
        out.write(npy_header(codec, records))
        for some in rows:
            out.write(np.ascontiguousarray(some).data)
            written += len(some)
        out.flush()
        os.fsync(out.fileno())
    if written != records:
        raise SourceError(f"the columns have {written} rows, and the version {records} records")
    digest, checksum, checksums, nbytes = hashlib.sha256(), 0, [], 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_NBYTES):
            digest.update(block)
            checksum = google_crc32c.extend(checksum, block)
            checksums.append(google_crc32c.value(block))
            nbytes += len(block)
    return ColumnFile(
        records=records,
        record_nbytes=codec.layout.fixed_nbytes,
        nbytes=nbytes,
        sha256=digest.hexdigest(),
        crc32c=checksum,
        crc32cs=tuple(checksums),
        generation=generation,
    )


def npy_header(codec: Codec, records: int) -> bytes:
    """Return the header of an array of rows: a structure of the columns, or bytes if numpy would not read its header.

    Columns have the names of their leaves, or the paths if several leaves have one name.
    """
    dtypes = _row_dtype(codec), np.dtype((np.void, codec.layout.fixed_nbytes))
    headers = (_header({"descr": np.lib.format.dtype_to_descr(dtype), "shape": (records,)}) for dtype in dtypes)
    return next(header for header in headers if len(header) <= _MAX_HEADER_NBYTES)


def _header(array: Mapping[str, Any]) -> bytes:
    """Return a header of version 3.0 of the format, which has names in UTF-8."""
    text = repr({"fortran_order": False, **array}).encode()
    nbytes = -(-(_NPY_BEGIN.size + len(text) + 1) // _NPY_ALIGNMENT) * _NPY_ALIGNMENT
    length = nbytes - _NPY_BEGIN.size
    return _NPY_BEGIN.pack(np.lib.format.magic(3, 0), length) + text.ljust(length - 1) + b"\n"


def _row_dtype(codec: Codec) -> np.dtype[Any]:
    layout = codec.layout
    leaves = [leaf_of(leaf).parts for _, leaf in tree.leaves(codec.spec)]
    names = names_of_leaves(codec.spec)
    if len(set(names)) < len(names) or "" in names:
        names = [path for path, _ in tree.leaves(codec.spec)]
    fields = []
    for name, (place,), (part,) in zip(names, layout.places, leaves, strict=True):
        # numpy writes no other dtypes into headers.
        is_standard = part.dtype.type.__module__ == "numpy"
        dtype = part.dtype if is_standard else np.dtype((np.void, part.dtype.itemsize))
        fields.append((place, name, (dtype, part.shape)))
    offsets, names, formats = zip(*sorted(fields, key=itemgetter(0)), strict=True)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": layout.fixed_nbytes})
