"""What a version of 10^5 shards costs before its first record is read: bytes and time of manifest and log entry.

Run: ``python benchmarks/format_scale.py [shards [records]]``. Nothing but the manifest is made.
"""

from __future__ import annotations

import gc
import hashlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from harness import machine, peak_mb, table

from cachelayer import ArraySpec
from cachelayer.arrayrecord.index import ShardStats
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.shard_set import ShardSet
from cachelayer.versions.shard_table import ShardFile, ShardTable
from cachelayer.versions.snapshot import Snapshot, VersionInfo, manifest_name

SPEC = {"tokens": ArraySpec("int32", (None,)), "label": ArraySpec("int64")}


def a_manifest(shards: int, records: int) -> Manifest:
    """A manifest as a build would write it."""
    each = records // shards
    stats = [
        ShardStats(
            records=each,
            nbytes=1_000_000_000 + number,
            crc32c=number * 2_654_435_761 % 2**32,
            sha256=digest,
            compression="none",
            index_crc32c=number * 2_246_822_519 % 2**32,
            lengths_crc32c=number,
            length_crc32cs=(number * 3_266_489_917 % 2**32,),
            length_totals=(1000 * each,),
        )
        for number in range(shards)
        for digest in [hashlib.sha256(number.to_bytes(8, "little")).hexdigest()]
    ]
    return Manifest(ShardSet.of("typed/1", SPEC, ShardTable(ShardFile(stat, 0) for stat in stats)))


def seconds(work: Callable[[], Any], rounds: int = 5) -> float:
    """The median time of some work."""
    times = []
    for _ in range(rounds):
        gc.collect()
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def main(shards: int, records: int) -> None:
    """Print the table."""
    made = a_manifest(shards, records)
    raw = made.encode()
    info = VersionInfo(
        "v1", hashlib.sha256(raw).hexdigest(), 0, made.digest, made.records, made.nbytes, "2026-01-01T00:00:00+00:00"
    )
    entry = Snapshot(1, {"v1": info}).encode("0" * 32)
    two = Snapshot(1, {"v1": info, "v2": info}).encode("0" * 32)

    def opened() -> None:
        hashlib.sha256(raw).hexdigest()
        Manifest.decode(raw, manifest_name(info)).digest  # noqa: B018

    rows = [
        ("manifest", f"{len(raw):,} B"),
        ("manifest, bytes a shard", f"{len(raw) / shards:.0f} B"),
        ("all indices", f"{sum(shard.stats.index_nbytes for shard in made.shards):,} B"),
        ("log entry with one version", f"{len(entry):,} B"),
        ("log entry, bytes a further version", f"{len(two) - len(entry):,} B"),
        ("SHA-256 of the manifest", f"{1e3 * seconds(lambda: hashlib.sha256(raw).digest()):.0f} ms"),
        ("JSON of the manifest parsed", f"{1e3 * seconds(lambda: json.loads(raw)):.0f} ms"),
        ("manifest parsed", f"{1e3 * seconds(lambda: Manifest.decode(raw, manifest_name(info))):.0f} ms"),
        ("opened: parsed, and checked against the log", f"{1e3 * seconds(opened):.0f} ms"),
    ]
    title = f"A version of {shards:,} shards and {records:,} records ({machine()}; peak {peak_mb():,.0f} MB)"
    print(table(title, ("what", "cost"), rows))


if __name__ == "__main__":
    given = [int(float(text)) for text in sys.argv[1:]]
    main(*(given + [100_000, 10_000_000_000][len(given) :]))
