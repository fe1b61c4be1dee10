"""Whatever a source does to an object after it gave it changes nothing of what is stored."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cachelayer import ArraySpec, Ragged, Sparse, Storage
from cachelayer.builds.batches import snapshot
from cachelayer.builds.source import as_source
from cachelayer.records.codec import codec_for
from cachelayer.records.infer import from_element

RECORDS = 4
Pair = namedtuple("Pair", ["first", "second"])


class Like:
    """What other packages have in place of an array: numpy sees its memory."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.memory, dtype=dtype)


def _torch() -> tuple[Any, Any]:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(3)
    return tensor, lambda number: tensor.fill_(number)


def _pandas() -> tuple[Any, Any]:
    pandas = pytest.importorskip("pandas")
    memory = np.zeros(3)
    return pandas.Series(memory, copy=False), lambda number: memory.fill(number)


def _array(make: Callable[[Any], Any], dtype: Any = np.int64, shape: Any = 3) -> Callable[[], tuple[Any, Any]]:
    def made() -> tuple[Any, Any]:
        memory = np.zeros(shape, dtype)
        return make(memory), lambda number: memory.fill(number)

    return made


def _strings() -> tuple[Any, Any]:
    strings = np.array(["", ""], object)
    return strings, lambda number: strings.fill(f"record {number}")


def _fixed_strings() -> tuple[Any, Any]:
    strings = np.array([b"        ", b"        "])
    return strings, lambda number: strings.fill(b"record %d" % number)


LEAVES: dict[str, Callable[[], tuple[Any, Callable[[int], Any]]]] = {
    "array": _array(lambda memory: memory),
    "view": _array(lambda memory: memory[::2]),
    "array of no dimension": _array(lambda memory: memory, shape=()),
    "big-endian": _array(lambda memory: memory, ">i4"),
    "read-only view": _array(lambda memory: np.lib.stride_tricks.as_strided(memory, writeable=False)),
    "matrix": _array(lambda memory: memory.view(np.matrix), shape=(2, 2)),
    "memory of a bytearray": lambda: (
        lambda memory: (np.frombuffer(memory, np.uint8), lambda number: memory.__setitem__(0, number))
    )(bytearray(3)),
    "ragged": _array(lambda memory: Ragged(memory, np.array([0, 1, 3]))),
    "nested ragged": _array(lambda memory: Ragged(Ragged(memory, np.array([0, 1, 3])), np.array([0, 2]))),
    "splits of a ragged": lambda: (
        lambda splits: (Ragged(np.arange(9), splits), lambda number: splits.__setitem__(1, number))
    )(np.array([0, 0, 9])),
    "sparse": _array(lambda memory: Sparse(np.array([[0], [1], [2]]), memory, np.array([9]))),
    "indices of a sparse": lambda: (
        lambda indices: (Sparse(indices, np.ones(1), np.array([9])), lambda number: indices.fill(number))
    )(np.zeros((1, 1), np.int64)),
    "an object with __array__": _array(Like),
    "an object with __array__ of no dimension": _array(Like, shape=()),
    "a torch tensor": _torch,
    "a pandas column": _pandas,
    "strings": _strings,
    "strings of a width": _fixed_strings,
}


def encoded(leaf: Any) -> bytes:
    """The record of a leaf by itself."""
    spec = ArraySpec(str, (2,)) if isinstance(leaf, np.ndarray) and leaf.dtype.hasobject else from_element(leaf)
    codec = codec_for(spec)
    return codec.encode(codec.columns([leaf]), 1).buffer.tobytes()


@pytest.mark.parametrize("leaf", LEAVES)
def test_objects_that_a_source_uses_again_are_stored_as_they_were(leaf: str) -> None:
    value, write = LEAVES[leaf]()
    element = {"a": [UserDict(b=Pair((value,), OrderedDict(c="text")))]}
    expected = []

    def reusing() -> Iterator[Any]:
        for number in range(RECORDS):
            write(number)
            expected.append(encoded(value))
            yield element

    (batch,) = as_source(reusing()).batches(None)
    assert [encoded(_leaf_of(item)) for item in batch.items] == expected  # type: ignore[attr-defined]
    assert len(set(expected)) == RECORDS


def test_a_copy_of_a_ragged_keeps_the_shapes_of_its_rows() -> None:
    codec = codec_for(ArraySpec("int64", (None, None)))
    rows = [np.zeros((0, 3), np.int64), np.ones((2, 3), np.int64), np.zeros((4, 0), np.int64)]
    images = codec.batch(codec.columns(rows))
    copied = snapshot({"x": [images]})["x"][0]
    # The splits alone do not tell how wide an array without rows is.
    images.row_shapes[:] = 0
    assert [row.shape for row in copied] == [(0, 3), (2, 3), (4, 0)]
    assert [row.tolist() for row in copied] == [row.tolist() for row in rows]


def _leaf_of(item: Any) -> Any:
    """The first leaf of an element."""
    while isinstance(item, (dict, list, tuple)):
        item = next(iter(item.values())) if isinstance(item, dict) else item[0]
    return item


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.filterwarnings("ignore:workers=2:cachelayer.CacheLayerWarning")
def test_batches_that_a_source_uses_again_are_stored_as_they_were(tmp_path: Path, workers: int) -> None:
    def reusing() -> Iterator[Any]:
        memory = np.zeros((3, 2))
        batch = {"x": memory, "r": Ragged(memory.reshape(-1), np.array([0, 2, 4, 6]))}
        for number in range(4):
            memory.fill(number)
            yield batch

    ref = Storage(tmp_path).cache(reusing, "d", "v1", unbatch=True, workers=workers)
    assert [row["x"].tolist() for row in ref] == [[n, n] for n in range(4) for _ in range(3)]
    assert [row["r"].tolist() for row in ref] == [[n, n] for n in range(4) for _ in range(3)]


def test_what_cannot_be_stored_is_left_to_the_encoder() -> None:
    class Broken:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            raise RuntimeError("it lies on another device")

    for value in (Broken(), {1, 2}, bytearray(b"a"), object()):
        assert snapshot(value) is value
    masked = np.ma.masked_array([1, 2], [True, False])
    assert isinstance(snapshot(masked), np.ma.MaskedArray)


def test_a_structure_that_fails_names_the_record(tmp_path: Path) -> None:
    class Lazy(UserDict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise OSError("the file is gone")

    with pytest.raises(Exception, match="record 1"):
        Storage(tmp_path).cache([{"x": 1}, Lazy(x=1)], "d", "v1")
