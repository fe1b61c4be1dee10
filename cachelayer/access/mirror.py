"""Make local copies of a whole version before they are needed."""

from __future__ import annotations

from dataclasses import dataclass

from cachelayer.access.local_shards import LocalShards
from cachelayer.access.version_records import VersionRecords
from cachelayer.progress.meter import Progress


@dataclass(frozen=True)
class Mirrored:
    """How many shards of a version are on this host.

    Args:
        shards: number of shards of the version.
        local_shards: number of them that are here; fewer than ``shards`` if the local cache is too small.
        nbytes: bytes of all shards of the version.
        local_nbytes: bytes of the shards that are here.
        folder: where these shards are.
    """

    shards: int
    local_shards: int
    nbytes: int
    local_nbytes: int
    folder: str


def mirror(records: VersionRecords, progress: bool | None) -> Mirrored:
    """Make local copies of the shards of a version, as many as the local cache has room for.

    Raises:
        InvalidArgumentError: if the storage keeps no local copies.
        CacheLayerError: if a copy could not be made.
    """
    version, shards = records.version, records.shards
    table = version.manifest.shards
    if isinstance(shards, LocalShards):
        return Mirrored(len(table), len(table), table.nbytes, table.nbytes, version.store.url)
    with Progress(f"mirror {version.name}", len(records), progress) as display:
        here = shards.copy_all(lambda shard: display.update(table[shard].stats.records, table[shard].stats.nbytes))
    folder = "" if records.copies is None else str(records.copies.path)
    return Mirrored(len(table), len(here), table.nbytes, sum(table[shard].stats.nbytes for shard in here), folder)
