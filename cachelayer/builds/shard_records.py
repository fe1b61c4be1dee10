"""Read the records of shards that were put, to write them again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from cachelayer.arrayrecord.local_shards import LocalShards, ShardFiles
from cachelayer.objects import paths
from cachelayer.records.memory import Ints
from cachelayer.records.record_buffers import PackedRecords
from cachelayer.versions.shard_table import ShardFile
from cachelayer.versions.stored_version import StoredVersion


def records_of_shard(version: StoredVersion, shard: ShardFile) -> Iterator[tuple[Ints, PackedRecords]]:
    """Yield the numbers of all records of a shard, and the records, some MiB at a time.

    Args:
        version: a version of the dataset.
        shard: a shard of the dataset. Each record is compared with its checksum: damage must not get one of its own.

    Raises:
        CorruptionError: if the shard is not what was put.
    """
    with version.shard_file(shard) as path:
        files = ShardFiles(path, Path(paths.index_of(str(path))), shard.stats)
        for numbers, records in LocalShards.of_file(nullcontext(files), shard.stats, "always").in_order():
            yield numbers, records.packed()
