"""What a type checker knows, asked of a real one."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs("mypy")
GOOD = """
from collections.abc import Iterator
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import cachelayer
from cachelayer import ArraySpec, BatchStream, DataRef, View, RaggedSpec, SparseSpec, Stream

Row = dict[str, NDArray[np.float32]]
storage = cachelayer.Storage("somewhere")


@storage.cacheable("rows@v1")
def rows(count: int, *, scale: float = 1.0) -> Iterator[Row]:
    yield {}


@storage.cacheable("rows@size-{count}")
def sized(count: int) -> list[str]:
    return []


assert_type(sized(3), DataRef[str])
spec = {"x": ArraySpec("float32", (4,)), "t": ArraySpec(np.int32, [None]), "s": ArraySpec(str), "b": ArraySpec(bytes)}
RaggedSpec("int64", (None, None), splits_dtype="int32"), SparseSpec(np.dtype("int8"), (3,), nullable=True)
assert_type(ArraySpec(float).shape, tuple[int | None, ...])
storage.submit([], "empty@v1", element_spec=spec)
ref = rows(3, scale=2.0)
assert_type(ref, DataRef[Row])
assert_type(ref[0], Row)
assert_type(ref[1:3], DataRef[Row])
assert_type(ref.__getitems__([1, 2]), list[Row])
for element in ref.stream():
    assert_type(element, Row)
for element in ref:
    assert_type(element, Row)
assert_type(ref.stream(shuffle=True, seed=1), Stream[Row])
assert_type(ref.stream(8, shuffle=True, seed=1), BatchStream[Row, Any])
for batch in ref.stream(8):
    assert_type(batch, Any)
assert_type(ref.read([1, 2]), Any)
assert_type(ref.read(slice(3), ["x"]), Any)
assert_type(ref.stream(8, remainder="pad"), BatchStream[Row, Any])


class Other:
    pass


def others(
    untyped: DataRef[Any],
    one: DataRef[int],
    size: int | None,
) -> None:
    assert_type(untyped.stream(8), BatchStream[Any, Any])
    assert_type(untyped.stream(), Stream[Any])
    assert_type(untyped.read([1]), Any)
    assert_type(one.stream(8)[0], Any)
    assert_type(one.read(range(3)), Any)
    assert_type(one.stream(size), BatchStream[Any, Any])
    options: dict[str, Any] = {"shuffle": True, "seed": 1}
    assert_type(one.stream(8, **options), BatchStream[Any, Any])
    images, labels = untyped.stream(8)[0]
    mine: Stream[Other] = untyped.stream(8)
    assert_type(next(iter(storage.fetch("a@v").stream(8))), Any)


def trained(batches: Stream[dict[str, NDArray[np.float32]]]) -> None:
    pass


trained(ref.stream(8))
trained(ref.stream())
for element, state in ref.stream().with_state():
    assert_type(element, Row)
    assert_type(state, dict[str, Any])
assert_type(next(ref.stream().epoch(3)), Row)
for epoch in ref.stream().epochs():
    assert_type(epoch.get_state(), dict[str, Any])
    for element in epoch:
        assert_type(element, Row)
assert_type(ref.stream().__iter__(), cachelayer.StreamIterator[Row])
iter(ref.stream()).save("folder")
assert_type(storage.cache([1, 2, 3], "numbers@v1"), DataRef[int])
assert_type(storage.cache(lambda: (n for n in "abc"), "letters@v1"), DataRef[str])
assert_type(storage.cache({"x": np.zeros(3)}, "arrays@v1"), DataRef[Any])


def part(index: int, count: int) -> list[int]:
    return []


@storage.cacheable("rows@in-parts")
def in_parts() -> cachelayer.Sharded[int]:
    return cachelayer.sharded(part, 3)


assert_type(in_parts(), DataRef[int])
assert_type(storage.cache(cachelayer.sharded(part, 3), "numbers@v2"), DataRef[int])
assert_type(cachelayer.wrap(["a", "b"], identity="letters")[0], str)
options: cachelayer.SubmitOptions = {"shard_bytes": 1000, "compression": "zstd"}
storage.cache([1, 2, 3], "numbers@v1", **options)[0]
assert_type(storage.cache([1, 2, 3], "numbers@v1", compression="zstd"), DataRef[int])
storage.append("numbers@v1", "v2", [4], metadata={"from": "here"})
storage.verify("numbers@v1").problems
storage.tag("numbers@v1", "best")
storage.diff(ref, "numbers@v2").same_data
storage.copy(ref, "elsewhere", new="n@v1")
storage.rewrite(ref[1:], "numbers@v4")
ref.stream(8, shuffle=True, seed=1, reshuffle=False, num_epochs=None, shard=(0, 2), start=3, prefetch=0)
assert_type(storage.history("rows"), list[cachelayer.LogEvent])
assert_type(ref.select([1, 2]), DataRef[Row])
assert_type(ref.split({"train": 0.9, "val": 0.1}, seed=0), dict[str, DataRef[Row]])
assert_type(cachelayer.concat([ref, ref]), View[Row])
assert_type(ref.windows("x", 8), View[dict[str, Any]])
assert_type(ref[1:].packed(("x", "y"), 8), cachelayer.Packed)
assert_type(ref.packed("x", 8).stream(8), BatchStream[dict[str, Any], Any])
assert_type(cachelayer.mix([(ref, 3), (ref[:2], 1)]).stream(), Stream[Row])
assert_type(cachelayer.mix([(ref, 3), (ref[:2], 1)]).stream(8), BatchStream[Row, Any])


def flip(row: Row, generator: np.random.Generator) -> list[int]:
    return []


assert_type(ref.stream(seed=1).map(flip, rng=True), Stream[list[int]])
assert_type(ref.stream(8, seed=1).map(flip, rng=True), BatchStream[list[int], Any])
assert_type(ref.stream(8).map(lambda row: 1), BatchStream[int, Any])
assert_type(ref.stream(8).map(lambda row: 1).map_batches(lambda batch: "x"), Stream[Any])


def halved(number: int) -> float:
    return number / 2


def totalled(batch: NDArray[np.float64]) -> float:
    return float(batch.sum())


numbers = storage.cache([1, 2, 3], "numbers@v1")
assert_type(numbers.stream().map(halved), Stream[float])
assert_type(numbers.stream(2).map(halved), BatchStream[float, Any])
assert_type(numbers.stream(2).map(halved).map_batches(totalled), Stream[Any])
assert_type(numbers.stream(2, remainder="pad").map_batches(totalled), Stream[Any])
assert_type(numbers.sample([1, 2, 3], seed=0).stream(2), BatchStream[int, Any])
"""

BAD = """
from typing import assert_type

import cachelayer

storage = cachelayer.Storage("somewhere")


@storage.cacheable("rows@v1")
def rows(count: int) -> list[int]:
    return [1] * count


rows("three")
rows(3, scale=1.0)
rows(3)[0].upper()
rows(3).stream(8, remainder="some")
rows()
rows(count=None)
assert_type(rows(3), cachelayer.DataRef[str])
for number in rows(3).stream():
    number.upper()
storage.cache([1], "a@v", shard_byte=1)
storage.cache([1], "a@v", shard_bytes="1")
storage.cacheable("a@v", shard_byte=1)
storage.append("a@v", new="w", source=[1], shard_byte=1)
storage.submit([1], "a", dataset_version="v")
rows(3).stream(8, shufle=True)
rows(3).stream(seed="1")
cachelayer.mix([(rows(3), 1)]).stream(num_epochs=2)
cachelayer.Storge
cachelayer.Storage(2).fetch("a@v").nothing
cachelayer.ArraySpec("float32", "large")
rows(3).stream(2).map(str.upper)
rows(3).stream(2, seed=0).map(str.upper, rng=True)
rows(3).stream().map(str.upper)
"""


def test_right_uses_keep_their_types_and_wrong_ones_are_errors(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "bad.py").write_text(BAD)
    config = tmp_path / "mypy.ini"
    config.write_text(
        "[mypy]\nstrict = true\nwarn_unused_ignores = false\nignore_missing_imports = true\n"
        # Very large, and not in any signature of ours.
        "[mypy-apache_beam.*,datasets.*,fsspec.*,jax.*,pyarrow.*,ray.*,tensorflow.*,torch.*]\nfollow_imports = skip\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), "good.py", "bad.py"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert found.returncode == 1, found.stdout + found.stderr
    errors = [line.split(":") for line in found.stdout.splitlines() if " error: " in line]
    assert [line for line in errors if line[0] == "good.py"] == []
    assert {int(line[1]) for line in errors if line[0] == "bad.py"} == {14, 15, 16, 17, 18, 19, 20, 22, *range(23, 37)}
