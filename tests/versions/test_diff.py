"""What differs between two versions is told, and nothing else."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import Storage
from cachelayer.versions.diff import Change


def rows(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"n": number, "x": np.full(300, number % 251, np.uint8)} for number in range(first, first + count)]


def test_the_same_data_built_twice_differs_in_provenance_alone(storage: Storage) -> None:
    for version, made in (("v1", "before"), ("v2", "after")):
        storage.submit(rows(10), "d", version, description=f"made {made}", metadata={"lr": {"max": 1}, "by": made})
    diff = storage.diff("d", "v1", "v2")
    assert diff.same_data
    assert (diff.spec, diff.records, diff.only_one.count, diff.only_other.count) == ((), (10, 10), 0, 0)
    assert (diff.shared.count, diff.shared.records, diff.shared.nbytes) == (1, 10, storage.fetch("d@v1").nbytes)
    assert Change("description", "made before", "made after") in diff.provenance
    assert diff.metadata == (Change("by", "before", "after"),)
    assert "data:    the same" in str(diff)


def test_shards_that_both_have_are_counted_once_for_each_time(storage: Storage) -> None:
    one = storage.submit(rows(500), "d", "v1", shard_bytes=35_000)
    other = storage.submit(rows(700), "d", "v2", shard_bytes=35_000)
    diff = one.diff(other)
    counts = [len(ref._base.version.manifest.shards) for ref in (one, other)]
    assert not diff.same_data
    assert diff.records == (500, 700)
    assert diff.nbytes == (one.nbytes, other.nbytes)
    # The last shard of the first is a part of one of the second's.
    assert diff.shared.count == counts[0] - 1
    assert (diff.only_one.count, diff.only_other.count) == (1, counts[1] - counts[0] + 1)
    assert diff.shared.records + diff.only_one.records == 500
    assert diff.shared.nbytes + diff.only_other.nbytes == other.nbytes
    repeated = storage.submit([b"same"] * 8, "e", "v1", shard_bytes=1)
    assert repeated.diff(storage.submit([b"same"] * 3, "e", "v2", shard_bytes=1)).shared.count == 3


def test_leaves_that_were_added_removed_and_changed_are_named(storage: Storage) -> None:
    one = storage.submit([{"a": 1, "b": {"c": 2.0}, "same": "x"}], "d", "v1")
    other = storage.submit([{"a": 1.5, "b": {"d": b""}, "same": "y"}], "d", "v2")
    assert storage.diff("d", "v1", "v2").spec == (
        Change("['a']", "ArraySpec(int64)", "ArraySpec(float64)"),
        Change("['b']['c']", "ArraySpec(float64)", None),
        Change("['b']['d']", None, "ArraySpec(bytes)"),
    )
    shown = str(one.diff(other))
    for line in (
        "  ~ ['a']: ArraySpec(int64) -> ArraySpec(float64)",
        "  - ['b']['c']: ArraySpec(float64)",
        "  + ['b']['d']: ArraySpec(bytes)",
    ):
        assert line in shown.splitlines()


def test_the_same_leaves_in_another_structure_differ(storage: Storage) -> None:
    one, other = storage.submit([({"a": 1},)], "d", "v1"), storage.submit([[{"a": 1}]], "d", "v2")
    (change,) = one.diff(other).spec
    assert change.path == "structure"
    assert change.one != change.other


def test_storages_of_any_kind_are_compared_and_nothing_but_versions(storage: Storage) -> None:
    ref = storage.submit(rows(20), "d", "v1")
    far = storage.copy("d", "v1", Storage(f"memory://{uuid.uuid4().hex}", local_cache_bytes=0), new="e@v1")
    diff = ref.diff(far)
    assert (diff.one, diff.other) == (ref.reference, far.reference)
    assert diff.same_data
    assert (diff.provenance, diff.shared.count) == ((), 1)
    with pytest.raises(cachelayer.InvalidTypeError, match="DataRef"):
        ref.diff("d@v1")  # type: ignore[arg-type]
    with pytest.raises(cachelayer.VersionNotFoundError):
        storage.diff("d", "v1", "v9")
