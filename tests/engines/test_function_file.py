"""Large arrays reach the processes of this host without a copy for each."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer.engines import Processes
from cachelayer.engines.function_file import FunctionFile, read_function

ROWS = 3 << 17
FEW = 200_000
"""Bytes of a file that holds no large array."""


class Reads:
    """A task that holds arrays and tells what it sees of them."""

    def __init__(self, **arrays: Any) -> None:
        self.arrays = arrays

    def __call__(self, number: int) -> Any:
        return {name: (type(each).__name__, each[number], each.flags.writeable) for name, each in self.arrays.items()}


class Writes(Reads):
    def __call__(self, number: int) -> Any:
        self.arrays["x"][:] = number
        return float(self.arrays["x"].mean())


def returned(task: Any) -> tuple[Any, int]:
    """What a process unpickles that has inherited the file, and the size of the file."""
    file = FunctionFile(task, "the task")
    nbytes = os.fstat(file.fileno()).st_size
    try:
        return read_function(os.dup(file.fileno())), nbytes
    finally:
        file.close()


def large() -> Any:
    return np.arange(ROWS, dtype=np.float64)


@pytest.mark.slow
def test_arrays_in_memory_are_shared_by_all_processes() -> None:
    x = large()
    x.flags.writeable = False
    task = Reads(x=x, y=np.asfortranarray(x.reshape(3, -1)), z=large())
    found = dict(enumerate(Processes(2).run(Reads(x=x, z=large()), [5, 5])))
    assert found[0] == found[1] == {"x": ("ndarray", 5.0, False), "z": ("ndarray", 5.0, True)}
    for name, array in returned(task)[0].arrays.items():
        np.testing.assert_array_equal(array, task.arrays[name])
        assert array.flags.aligned


@pytest.mark.slow
def test_what_a_process_writes_stays_its_own() -> None:
    x = large()
    assert sorted(Processes(2).run(Writes(x=x), [1, 2, 3])) == [1.0, 2.0, 3.0]
    np.testing.assert_array_equal(x, large())


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_arrays_in_files_are_sent_as_their_places(tmp_path: Path, mode: Any) -> None:
    np.save(tmp_path / "x.npy", large())
    x = np.load(tmp_path / "x.npy", mmap_mode=mode)
    task = Reads(whole=x, later=x[1001:], plain=np.asarray(x[7:]), turned=x.reshape(3, -1).T)
    other, nbytes = returned(task)
    assert nbytes < FEW
    for name, array in other.arrays.items():
        np.testing.assert_array_equal(array, task.arrays[name])
        assert type(array) is type(task.arrays[name])
        assert array.flags.writeable == (mode == "r+")


@pytest.mark.parametrize("replaced", [True, False])
def test_arrays_whose_file_is_gone_or_another_are_copied(tmp_path: Path, replaced: bool) -> None:
    np.save(tmp_path / "x.npy", large())
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    np.save(tmp_path / "y.npy", large() + 1)
    if replaced:
        (tmp_path / "y.npy").rename(tmp_path / "x.npy")
    else:
        (tmp_path / "x.npy").unlink()
    np.testing.assert_array_equal(returned(Reads(x=x))[0].arrays["x"], large())


def test_what_was_written_into_a_private_map_is_sent(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", large())
    x = np.load(tmp_path / "x.npy", mmap_mode="c")
    x[ROWS // 2] = -1
    np.testing.assert_array_equal(returned(Reads(x=x))[0].arrays["x"], x)


@pytest.mark.parametrize("array", [np.arange(10), np.array(["a"] * 10, object), large()[::2], np.zeros(0)], ids=str)
def test_other_arrays_arrive_as_they_are(array: Any) -> None:
    np.testing.assert_array_equal(returned(Reads(x=array))[0].arrays["x"], array)


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.slow
def test_processes_build_from_large_arrays(tmp_path: Path, mapped: bool) -> None:
    np.save(tmp_path / "x.npy", large().reshape(-1, 512))
    x = np.load(tmp_path / "x.npy", mmap_mode="r" if mapped else None)
    source = {"x": x, "n": np.arange(len(x))}
    assert len(pickle.dumps(source)) > x.nbytes
    storage = cachelayer.Storage(tmp_path / "s")
    ref = storage.submit(source, "d", "v1", engine="processes", workers=2, shard_bytes=x.nbytes // 3)
    assert ref.digest == storage.submit(source, "d", "v2", shard_bytes=x.nbytes // 3).digest
