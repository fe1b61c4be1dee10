"""Windows, packs, padded records and buckets from object stores, and what the first batch of them takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import samples
from documents import BUCKETS, OPTIONS, cached_documents, same_batches
from servers import Server, new_bucket

import cachelayer
from cachelayer import Storage

EACH = [(server, copies) for server in ("s3", "gcs") for copies in (0, None)]


def streams(ref: Any, **more: Any) -> dict[str, Any]:
    options, buckets = OPTIONS | more, {"buckets": BUCKETS}
    joined = cachelayer.concat([ref.fields("tokens"), ref[:40].fields("tokens")])
    return {
        "windows": ref.windows("tokens", 12, stride=5, separator=0).stream(8, **options),
        "windows of a slice": ref[7:100].windows("tokens", 12).stream(8, **options),
        "packed": ref.packed("tokens", 32, seed=1).stream(8, **options),
        "padded": ref.padded({"tokens": 20}, long="truncate").stream(8, **options),
        "buckets": ref.stream(8, **options, **buckets),
        "buckets of fields": ref[::-1].fields("tokens").stream(8, **options, **buckets),
        "buckets of joined fields": joined.stream(8, **options, **buckets),
    }


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("server", "copies"), EACH if samples.IN_FULL else [("s3", None), ("gcs", 0)], indirect=["server"]
)
def test_batches_from_a_bucket_are_those_of_a_local_disk_on_any_shards_and_after_a_restore(
    server: Server, tmp_path: Path, copies: int | None
) -> None:
    options: dict[str, Any] = {"local_cache": tmp_path / "copies", "local_cache_bytes": copies}
    far = Storage(server.url(new_bucket(server), "caches"), storage_options=server.storage_options(), **options)
    near = cached_documents(Storage(tmp_path / "near"))
    cached_documents(far)
    found = [streams(far.fetch("d", "v1"), shard=(shard, 2)) for shard in (0, 1)]
    for name, stream in streams(near).items():
        expected = list(stream.epoch(0))
        halves = [list(each[name].epoch(0)) for each in found]
        whole = [
            {key: np.concatenate([half[key] for half in step]) for key in step[0]} for step in zip(*halves, strict=True)
        ]
        same_batches(whole, expected)
        iterator = iter(stream)
        next(iterator)
        again = iter(found[1][name])
        again.set_state(iterator.get_state())
        same_batches(list(again), halves[1][1:])
