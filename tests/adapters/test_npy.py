"""``.npy`` and ``.npz`` files that are not what their header says: refused by name, and nothing is published."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from values_across import NoSuchValue, Row, ValuesAcross

import cachelayer
from cachelayer import DataRef
from cachelayer.adapters.npy import from_npy, from_npz
from cachelayer.errors import CacheLayerError

VALUES = np.arange(24, dtype=np.float32).reshape(6, 4)
READ: dict[str, Callable[[Path], Any]] = {"npy": from_npy, "npz": from_npz}


def npy(header: str, data: bytes = b"", version: bytes = b"\1\0") -> bytes:
    """A file with a header of any text."""
    size = "<H" if version == b"\1\0" else "<I"
    return b"\x93NUMPY" + version + struct.pack(size, len(header)) + header.encode("latin1") + data


def described(descr: str = "'<f4'", shape: str = "(6, 4)", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}\n"


def saved(values: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def write(kind: str, data: bytes, folder: Path, compression: int = zipfile.ZIP_STORED) -> Path:
    path = folder / f"x.{kind}"
    if kind == "npy":
        path.write_bytes(data)
    else:
        with zipfile.ZipFile(path, "w", compression) as archive:
            archive.writestr("x.npy", data)
    return path


DATA = VALUES.tobytes()
BROKEN = {
    "text": b"hello, this is no array",
    "an unknown version": npy(described(), DATA, b"\7\0"),
    "a header that is no dict": npy("[1, 2]", DATA),
    "a header that calls": npy("__import__('os')", DATA),
    "a void dtype": npy(described("'|V4'"), DATA),
    "a negative length": npy(described(shape="(-6, 4)"), DATA),
    "more rows than bytes": npy(described(shape="(7, 4)"), DATA),
    "fewer rows than bytes": npy(described(shape="(5, 4)"), DATA),
    "more bytes than 64 bits count": npy(described(shape=f"({2**40}, {2**40})"), DATA),
    "2**40 rows of no bytes": npy(described(shape=f"({2**40}, 0)")),
}


@pytest.mark.parametrize("kind", READ)
@pytest.mark.parametrize("name", BROKEN)
def test_a_header_that_does_not_tell_the_truth_is_refused_by_its_file(name: str, kind: str, tmp_path: Path) -> None:
    path = write(kind, BROKEN[name], tmp_path)
    storage = cachelayer.Storage(tmp_path / "cache")
    with pytest.raises(CacheLayerError) as raised:
        storage.submit(READ[kind](path), "d", "v1")
    assert str(path) in str(raised.value)
    assert not storage.datasets()


@pytest.mark.parametrize("shape", [(7,), (7, 3), (7, 3, 2), (0, 3), (7, 0)])
@pytest.mark.parametrize("dtype", ["<f4", ">i8", "?", "<U3", "M8[ns]"])
def test_rows_in_fortran_order_are_those_of_the_array(shape: Any, dtype: str, tmp_path: Path) -> None:
    values = np.asfortranarray(np.arange(np.prod(shape)).reshape(shape).astype(dtype))
    path = write("npy", saved(values), tmp_path)
    source = from_npy(path)
    assert source.length == shape[0]
    for start, stop in [(0, shape[0]), (shape[0] // 2, shape[0])]:
        rows = [row for batch in source.skipped(start).batches(stop - start) for row in batch.batch]
        np.testing.assert_array_equal(rows, list(values[start:stop]))


def _saved(values: Any, path: Path) -> Any:
    """Save each array of a nested dict as a file, and return the paths of the files."""
    if isinstance(values, dict):
        for name in values:
            (path / name).mkdir(parents=True)
        return {name: _saved(child, path / name) for name, child in values.items()}
    if not isinstance(values, np.ndarray) or values.dtype == object:
        raise NoSuchValue(f"{type(values)} is no array of numbers")
    np.save(path / "x.npy", values, allow_pickle=False)
    return path / "x.npy"


def _npy(ref: DataRef[Any], folder: Path) -> Any:
    if not any(ref.element_spec.values()):
        raise NoSuchValue("there is no array")
    return from_npy(_saved(ref.read(range(len(ref))), folder))


def _npz(ref: DataRef[Any], folder: Path) -> Any:
    arrays = ref.read(range(len(ref)))
    if any(not isinstance(each, np.ndarray) or each.dtype == object for each in arrays.values()):
        raise NoSuchValue("there are other leaves than arrays of numbers")
    np.savez(folder / "x.npz", **arrays)
    return from_npz(folder / "x.npz")


class TestNpyValues(ValuesAcross):
    row = Row("npy", make=_npy)


class TestNpzValues(ValuesAcross):
    row = Row("npz", make=_npz)
