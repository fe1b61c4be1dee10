"""Local copies of a whole version, made before they are needed."""

from __future__ import annotations

from dataclasses import dataclass

from cachelayer.access.shard_set import ShardSet
from cachelayer.access.version_records import VersionRecords
from cachelayer.progress.meter import Progress


@dataclass(frozen=True)
class Mirrored:
    """How much of a version is on this host.

    Args:
        shards: number of shards of the version.
        local_shards: how many of them are here; fewer where the local cache has no room for more.
        nbytes: bytes of the shards.
        local_nbytes: bytes of those that are here.
        folder: where they are.
    """

    shards: int
    local_shards: int
    nbytes: int
    local_nbytes: int
    folder: str


def mirror(records: VersionRecords, progress: bool | None) -> Mirrored:
    """Have all shards of a version on this host, as far as there is room.

    Raises:
        InvalidArgumentError: where the storage keeps no local copies.
        CacheLayerError: where a copy could not be made.
    """
    version, shards = records.version, records.shards
    table = version.manifest.shards
    if isinstance(shards, ShardSet):
        return Mirrored(len(table), len(table), table.nbytes, table.nbytes, version.store.url)
    with Progress(f"mirror {version.name}", len(records), progress) as shown:
        here = shards.copy_all(lambda shard: shown.update(table[shard].stats.records, table[shard].stats.nbytes))
    folder = "" if records.copies is None else str(records.copies.path)
    return Mirrored(len(table), len(here), table.nbytes, sum(table[shard].stats.nbytes for shard in here), folder)
