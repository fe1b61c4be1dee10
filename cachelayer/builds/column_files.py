"""Write columns of fixed size to one file, and read the rows of such a file."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator

import numpy as np

from cachelayer.builds.encode import Encoder, marked
from cachelayer.builds.shard_pipeline import ShardTarget
from cachelayer.builds.source import Source
from cachelayer.errors import CorruptionError
from cachelayer.progress import current
from cachelayer.records.codec import codec_for
from cachelayer.records.frames import PREFIX, Frames
from cachelayer.records.memory import Bytes
from cachelayer.records.tree import Tree
from cachelayer.versions.column_file import ColumnFile, write_column_file
from cachelayer.versions.shard_set import ShardSet
from cachelayer.versions.shard_table import ShardTable
from cachelayer.versions.stored_version import StoredVersion


def write_columns(source: Source, spec: Tree, records: int, target: ShardTarget) -> ShardSet:
    """Write columns of fixed size to one file.

    Args:
        source: gives the columns.
        spec: their spec.
        records: how many rows they must have.
        target: puts the file.
    """
    encoder = Encoder(codec_for(spec), "raise")

    def rows() -> Iterator[Bytes]:
        for batch in source.batches():
            encoded = rows_of(encoder.encode(batch))
            current().update(len(encoded), encoded.nbytes)
            yield encoded

    array = put_column_file(target, spec, records, rows())
    return ShardSet.of(codec_for(spec).name, marked(spec, encoder.result.nullable), ShardTable([]), array)


def put_column_file(target: ShardTarget, spec: Tree, records: int, rows: Iterable[Bytes]) -> ColumnFile:
    """Put a column file with these rows, and return it."""
    path = target.folder / f"{uuid.uuid4().hex}.npy"

    def rows_with_room() -> Iterator[Bytes]:
        for some in rows:
            target.room.take(some.nbytes)
            yield some

    file = write_column_file(path, spec, records, rows_with_room(), target.generation)
    target.dataset.move_in({path: file.name})
    return file


def rows_of(frames: Frames) -> Bytes:
    """Return records of one size as rows: uint8 of shape ``[rows, bytes]``."""
    nbytes = int(frames.lengths[0]) if len(frames) else 0
    return frames.buffer.reshape(-1, PREFIX + nbytes)[:, PREFIX:]


def column_rows(version: StoredVersion, file: ColumnFile) -> Bytes:
    """Return the rows of a column file of a version, checked: uint8 of shape ``[rows, bytes]``."""
    name = f"{version.folder.url}/{file.name}"
    raw = np.frombuffer(version.folder.read(file.name) or b"", np.uint8)
    if len(raw) != file.nbytes:
        raise CorruptionError(f"{name}: expected {file.nbytes} bytes, found {len(raw)}")
    file.check_blocks(raw, 0, name)
    return raw[file.begin :].reshape(file.records, file.record_nbytes)
