"""Arrays reach the processes of this host as they are, and those in files without a copy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer.engines import Processes

pytestmark = pytest.mark.slow

ROWS = 3 << 17


class Arrays:
    """A task that holds arrays and returns copies of them, their types, and whether they can be written to."""

    def __init__(self, **arrays: Any) -> None:
        self.arrays = arrays

    def __call__(self, _number: int) -> Any:
        return {name: (np.array(each), type(each), each.flags.writeable) for name, each in self.arrays.items()}


class Writes(Arrays):
    """A task that writes into an array."""

    def __call__(self, number: int) -> Any:
        self.arrays["x"][:] = number
        return float(self.arrays["x"].mean())


class IsMapped(Arrays):
    """A task that returns whether its array lies in a map of the file ``x.npy``."""

    def __call__(self, _number: int) -> bool:
        [array] = self.arrays.values()
        address = array.__array_interface__["data"][0]
        for line in Path("/proc/self/maps").read_text().splitlines():
            first, _, last = line.split()[0].partition("-")
            if int(first, 16) <= address < int(last, 16):
                return "x.npy" in line
        return False


def large() -> Any:
    return np.arange(ROWS, dtype=np.float64)


def assert_arrive(**arrays: Any) -> None:
    [received] = Processes(1).run(Arrays(**arrays), [0])
    for name, array in arrays.items():
        values, kind, is_writeable = received[name]
        np.testing.assert_array_equal(values, array)
        assert (kind, is_writeable) == (type(array), array.flags.writeable)


def test_arrays_arrive_as_they_are() -> None:
    fixed = large()
    fixed.flags.writeable = False
    assert_arrive(
        large=large(),
        fixed=fixed,
        by_columns=np.asfortranarray(large().reshape(3, -1)),
        small=np.arange(10),
        objects=np.array(["a"] * 10, object),
        every_second=large()[::2],
        empty=np.zeros(0),
    )


def test_what_a_process_writes_stays_its_own() -> None:
    x = large()
    assert sorted(Processes(2).run(Writes(x=x), [1, 2, 3])) == [1.0, 2.0, 3.0]
    np.testing.assert_array_equal(x, large())


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_arrays_in_files_are_mapped_by_each_process(tmp_path: Path, mode: Any) -> None:
    np.save(tmp_path / "x.npy", large())
    x = np.load(tmp_path / "x.npy", mmap_mode=mode)
    arrays = {"whole": x, "later": x[1001:], "reshaped": x.reshape(3, -1)}
    assert_arrive(**arrays)
    [sent] = Processes(1).run(Arrays(every_second=x[::2]), [0])
    np.testing.assert_array_equal(sent["every_second"][0], x[::2])
    for array in arrays.values():
        assert list(Processes(1).run(IsMapped(x=array), [0])) == [True]


def test_what_was_written_into_a_private_map_is_sent(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", large())
    x = np.load(tmp_path / "x.npy", mmap_mode="c")
    x[ROWS // 2] = -1
    assert_arrive(x=x)


def test_processes_build_from_an_array_in_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", large().reshape(-1, 512))
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    source, options = {"x": x, "n": np.arange(len(x))}, {"shard_bytes": x.nbytes // 3}
    storage = cachelayer.Storage(tmp_path / "s")
    ref = storage.submit(source, "d@v1", engine="processes", workers=2, **options)
    assert ref.digest == storage.submit(source, "d@v2", **options).digest
