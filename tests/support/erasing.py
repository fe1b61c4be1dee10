"""Versions of which records were erased, made by hand under another name, beside the version that has them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cachelayer import DataRef, Storage
from cachelayer.builds.erase import write_anew
from cachelayer.builds.shard_target import shard_target
from cachelayer.provenance.environment import event
from cachelayer.versions.derive import keeping
from cachelayer.versions.log import Log
from cachelayer.versions.publish import publish
from cachelayer.versions.reference import Reference
from cachelayer.versions.shard_table import ShardTable


def erased(
    storage: Storage,
    name: str,
    new: str,
    records: Sequence[int],
    reason: str = "asked to",
    claimed: Sequence[int] | None = None,
) -> DataRef[Any]:
    """Publish the successor of a version, such as ``"d@v1"``, of which records were erased, or others are claimed."""
    store, dataset_id = storage._store, name.partition("@")[0]
    base = storage._catalog.resolve(Reference.parse(name, None))
    before, numbers = base.manifest, base.kept.take(list(records))
    shards, first = list(before.shards), 0
    with shard_target(store, None, dataset_id, 0) as target:
        for number, shard in enumerate(before.shards):
            within = numbers[(numbers >= first) & (numbers < first + shard.stats.records)] - first
            first += shard.stats.records
            if len(within):
                shards[number] = write_anew(base, number, within, target)
    claims = numbers if claimed is None else base.kept.take(list(claimed))
    whole = before.without_records(claims.tolist(), ShardTable.of(shards), reason)
    manifest, kept = keeping(replace(whole, token=uuid.uuid4().hex), base.kept)
    publish(Log(store, dataset_id), new, manifest, kept, event("publish", version=new))
    return storage.fetch(dataset_id, new)
