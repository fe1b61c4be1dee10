"""Check that a file of a version holds what its SHA-256 promises: the digest of a version rests on that alone.

::

    shard          index ──place, checksum──> records ──> SHA-256 of the records
                                              └─lengths─> the file of lengths
    column file    bytes ──> SHA-256 of the file

The checks read local files. ``verify`` checks a version where it is; ``copy`` and ``repair`` check each file that they
put into a storage, because the manifest that vouches for it came with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.arrayrecord.lengths import LengthsFile
from cachelayer.arrayrecord.local_shards import LocalShards, ShardFiles
from cachelayer.arrayrecord.mapping import MappedFile
from cachelayer.errors import CorruptionError
from cachelayer.objects import paths
from cachelayer.objects.local import file_crc32c
from cachelayer.records.codec import Codec
from cachelayer.records.frames import Frames
from cachelayer.records.memory import Ints
from cachelayer.records.record_buffers import Records
from cachelayer.versions.column_file import ColumnFile, check_column_file
from cachelayer.versions.shard_table import ShardFile

StoredFile = ShardFile | ColumnFile


def checked_records(path: Path, file: StoredFile, codec: Codec) -> Iterator[tuple[Ints, Records]]:
    """Check a shard, with its other files beside it, or a column file; yield the records of a shard meanwhile.

    Args:
        codec: the codec of its records.

    Yields:
        The numbers in the shard and the records of a batch.

    Raises:
        CorruptionError: at the latest after the last batch, if the file is not what was published.
    """
    if isinstance(file, ColumnFile):
        check_column_file(path, file)
        return
    stats = file.stats
    lengths = list[NDArray[Any]]()
    digest = hashlib.sha256()
    files = nullcontext(ShardFiles(path, Path(paths.index_of(str(path))), stats))
    for numbers, records in LocalShards.of_file(files, stats, "always").in_order():
        digest.update(Frames.of(records).memory())
        if stats.lengths_file is not None:
            lengths.append(codec.lengths(records))
        yield numbers, records
    # After the records, because the check of a record names the number of a damaged one.
    if file_crc32c(path) != stats.crc32c:
        raise CorruptionError(f"{path}: the file does not match its CRC32C")
    if digest.hexdigest() != stats.sha256:
        raise CorruptionError(f"{path}: the records do not match the SHA-256 of the shard")
    if stats.lengths_file is not None:
        _check_lengths(Path(paths.lengths_of(str(path))), stats.lengths_file, lengths)


def _check_lengths(path: Path, file: LengthsFile, lengths: list[NDArray[Any]]) -> None:
    """Raise if the lengths that are stored beside a shard are not the lengths of its records."""
    sums = np.stack(file.check(MappedFile.open(path, nbytes=file.nbytes).buffer, str(path)), axis=1)
    is_wrong = (np.concatenate(lengths) != np.diff(sums, axis=0)).any(axis=1)
    if is_wrong.any():
        record = is_wrong.argmax()
        raise CorruptionError(f"{path}: the lengths of record {record} of the shard are not those of its leaves")
