"""Files that change while they are read end the build by name, whatever their format, and nothing is published."""

from __future__ import annotations

import gzip
import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import cachelayer
from cachelayer import SourceError
from cachelayer.adapters.folders import from_files
from cachelayer.adapters.npy import from_npy, from_npz
from cachelayer.adapters.pyarrow import from_csv, from_ipc, from_json, from_parquet
from cachelayer.adapters.webdataset import from_webdataset

ROWS = 3000
TABLE = pa.table({"x": range(ROWS)})


def write_tar(path: Path) -> None:
    (path.parent / "0.txt").write_text("a")
    with tarfile.open(path, "w") as archive:
        archive.add(path.parent / "0.txt", "0.txt")


FORMATS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "csv": (lambda path: path.write_text("x\n" + "1\n" * ROWS), from_csv),
    "csv.gz": (lambda path: path.write_bytes(gzip.compress(b"x\n" + b"1\n" * ROWS)), from_csv),
    "jsonl": (lambda path: path.write_text('{"x": 1}\n' * ROWS), from_json),
    "json with schema": (
        lambda path: path.write_text('{"x": 1}\n' * ROWS),
        lambda path: from_json(path, pa.schema({"x": pa.int64()})),
    ),
    "parquet": (lambda path: pq.write_table(TABLE, path, row_group_size=100), from_parquet),
    "arrow": (lambda path: pa.feather.write_feather(TABLE, path, chunksize=100), from_ipc),
    "tar": (write_tar, from_webdataset),
    "npz": (lambda path: np.savez(path, x=np.arange(ROWS)), from_npz),
    "npy": (lambda path: np.save(path, np.arange(ROWS)), from_npy),
    "file": (lambda path: path.write_bytes(b"x"), lambda path: from_files(path.parent, "x.*")),
}


def touch(path: Path) -> None:
    os.utime(path, ns=(0, 0))


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\n" * 8)


CHANGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "written anew": (touch, "was written again"),
    "longer": (grow, "has .* bytes, not"),
    "gone": (Path.unlink, "is gone|changed while they were read"),
}


class Changed:
    """A source that does something to its file when the last of its batches was given."""

    def __init__(self, source: Any, change: Callable[[], Any]) -> None:
        self.source = source
        self.change = change
        self.kind, self.length, self.element_spec = source.kind, source.length, source.element_spec

    def file_facts(self) -> Any:
        return self.source.file_facts()

    def batches(self, limit: int | None) -> Iterator[Any]:
        yield from self.source.batches(limit)
        self.change()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", FORMATS)
def test_a_file_that_changes_while_it_is_read_ends_the_build_by_name(name: str, change: str, tmp_path: Path) -> None:
    write, read = FORMATS[name]
    path = tmp_path / f"x.{name.split()[0].replace('json', 'jsonl').replace('jsonll', 'jsonl')}"
    write(path)
    storage = cachelayer.Storage(tmp_path / "cache")
    spoil, reason = CHANGES[change]
    with pytest.raises(SourceError, match=reason) as raised:
        storage.submit(Changed(read(path), lambda: spoil(path)), "d", "v1")
    assert str(path.parent) in str(raised.value)
    assert not storage.datasets()


def test_a_remote_file_that_changes_while_it_is_read_ends_the_build() -> None:
    with fsspec.open("memory://changing/x.csv", "wt") as file:
        file.write("x\n1\n")

    def change() -> None:
        with closing(fsspec.open("memory://changing/x.csv", "wt").open()) as file:
            file.write("x\n1\n2\n")

    storage = cachelayer.Storage("memory://changing/cache")
    with pytest.raises(SourceError, match=r"memory://.*x\.csv changed while it was read: it has 6 bytes, not 4"):
        storage.submit(Changed(from_csv("memory://changing/x.csv"), change), "d", "v1")


def test_a_file_that_comes_while_others_are_read_is_none_of_them(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    source = Changed(from_csv(tmp_path / "*.csv"), lambda: (tmp_path / "b.csv").write_text("x\n2\n"))
    assert len(cachelayer.Storage(tmp_path / "cache").submit(source, "d", "v1")) == 1
