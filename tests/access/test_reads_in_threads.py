"""Reads return the same bytes and raise the same errors however many threads share them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import examples

import cachelayer
from cachelayer import CorruptionError, DataRef, Storage
from cachelayer.arrayrecord.blocks import PAYLOAD
from cachelayer.records import threads

COUNT = 90
SIZES = [8, 520, 3_080, 20_000, PAYLOAD + 1, 140_000]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("threads")
    storage, rng = Storage(folder), np.random.default_rng(0)
    for size in SIZES:
        data = {"data": rng.integers(0, 4, (COUNT, size), dtype=np.uint8), "n": np.arange(COUNT)}
        for compression in (None, "zstd"):
            storage.submit(data, f"d{size}", compression or "none", compression=compression, shard_bytes=40 * size)
    rows = [rng.bytes(int(size)) for size in rng.integers(0, 40_000, COUNT)]
    for compression in (None, "zstd"):
        storage.submit(rows, "rows", compression or "none", compression=compression, shard_bytes=1 << 19)
    return folder


@pytest.fixture(autouse=True, scope="module")
def everything_is_shared() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "_SHARED_NBYTES", 1)
        patch.setattr(threads, "_JOB_NBYTES", 1)
        patch.setattr(threads.Gain, "shares", lambda _: True)
        yield


def outcome(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except CorruptionError as error:
        return str(error)


@cache
def ref_of(folder: Path, name: str, verify: Any, count: int) -> DataRef[Any]:
    return Storage(folder, threads=count, verify=verify).fetch(name)


def assert_alike(folder: Path, name: str, verify: Any, numbers: list[int]) -> None:
    one, three = (ref_of(folder, name, verify, count) for count in (1, 3))
    ways: list[Callable[[DataRef[Any]], Any]] = [
        lambda ref: ref.read(numbers),
        lambda ref: ref.__getitems__(numbers),
        lambda ref: list(ref.select(sorted({*numbers})).stream(7, prefetch=0)),
    ]
    for way in ways:
        left, right = (outcome(lambda ref=ref, way=way: way(ref)) for ref in (one, three))
        np.testing.assert_equal(left, right)


@settings(max_examples=examples(40))
@given(
    name=st.sampled_from([*(f"d{size}" for size in SIZES), "rows"]),
    version=st.sampled_from(["none", "zstd"]),
    verify=st.sampled_from(["open", "always"]),
    numbers=st.lists(st.integers(0, COUNT - 1), max_size=20),
)
@pytest.mark.slow
def test_any_number_of_threads_reads_the_same(
    folder: Path, name: str, version: str, verify: Any, numbers: list[int]
) -> None:
    assert_alike(folder, f"{name}@{version}", verify, numbers)


@pytest.mark.parametrize("name", ["d3080@zstd", "d20000@none", "d20000@zstd", "d140000@zstd", "rows@zstd"])
@pytest.mark.slow
def test_damaged_shards_raise_the_same_first_error(folder: Path, tmp_path: Path, name: str) -> None:
    Storage(tmp_path).submit(Storage(folder).fetch(name), "d", "v", compression=name.split("@")[1], shard_bytes=1 << 19)
    rng = np.random.default_rng(1)
    for shard in sorted((tmp_path / "d").rglob("*.array_record")):
        damaged = np.fromfile(shard, np.uint8)
        for place in rng.integers(len(damaged) // 4, len(damaged) // 2, 3).tolist():
            damaged[place : place + 64] ^= 0x55
        damaged.tofile(shard)
    failed = 0
    for _ in range(4):
        numbers = rng.integers(0, COUNT, 30).tolist()
        for verify in ("never", "always"):
            assert_alike(tmp_path, "d@v", verify, numbers)
        ref = Storage(tmp_path, verify="always", threads=3).fetch("d@v")
        failed += isinstance(outcome(lambda ref=ref, numbers=numbers: ref.read(numbers)), str)
    assert failed


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True])
def test_a_number_of_threads_that_makes_no_sense_is_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises((cachelayer.InvalidArgumentError, TypeError), match="threads"):
        Storage(tmp_path, threads=wrong)
