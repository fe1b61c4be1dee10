"""Records that come damaged from an object store are asked for once more before that is an error."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import CorruptionError, Storage
from cachelayer.objects.bucket_store import BucketStore

RECORDS = 300
Range = tuple[str, int, int]


def element(number: int, *, varying: bool) -> dict[str, Any]:
    return {"n": number, "x": np.full(number % 90 + 20 if varying else 100, number)}


def published(*, varying: bool, compression: str | None) -> Any:
    """A version in the memory of this process, which is read as from a bucket, and whose indices are not kept."""
    storage = Storage(f"memory://{uuid.uuid4().hex}", local_cache_bytes=0)
    spec = {"n": np.int64, "x": cachelayer.ArraySpec(np.int64, (None,) if varying else (100,))}
    records = (element(number, varying=varying) for number in range(RECORDS))
    storage.submit(records, "d", "v1", element_spec=spec, shard_bytes=1 << 16, compression=compression)
    ref = storage.fetch("d", "v1")
    # Each shard's own index is read.
    storage._store.delete(ref._base.version.indices)
    return ref


class Damage:
    """Changes a byte of each range the first times that it is read.

    Args:
        name: what the names of the objects contain.
        times: how often a range comes damaged.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, times: int) -> None:
        self.came: dict[Range, int] = {}
        read = BucketStore.read_ranges

        def damaging(store: BucketStore, ranges: Sequence[Range]) -> list[Any]:
            bodies = [bytearray(body) for body in read(store, ranges)]
            for each, body in zip(ranges, bodies, strict=True):
                if name in each[0] and self.came.get(each, 0) < times:
                    self.came[each] = self.came.get(each, 0) + 1
                    body[len(body) // 2] ^= 1
            return [bytes(body) for body in bodies]

        monkeypatch.setattr(BucketStore, "read_ranges", damaging)


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("varying", [False, True])
@pytest.mark.parametrize("name", ["array_record", "index"])
def test_records_and_index_rows_that_come_damaged_are_asked_for_once_more(
    name: str, varying: bool, compression: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = published(varying=varying, compression=compression)
    damage = Damage(monkeypatch, name, 1)
    assert ref[7]["n"] == 7
    assert ref.read([250, 3, 3, 120])["n"].tolist() == [250, 3, 3, 120]
    found = np.concatenate([batch["n"] for batch in ref.stream(30, shuffle=True, seed=1)])
    assert sorted(found.tolist()) == list(range(RECORDS))
    assert damage.came or (name == "index" and not varying)


@pytest.mark.parametrize("name", ["array_record", "index"])
def test_records_that_stay_damaged_are_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = published(varying=True, compression=None)
    damage = Damage(monkeypatch, name, 100)
    with pytest.raises(CorruptionError) as raised:
        ref.read([250, 3])
    assert raised.value.__context__ is None
    assert set(damage.came.values()) == {2}
