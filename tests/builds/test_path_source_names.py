"""Paths as sources: names that careless users pass."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image

import cachelayer
from cachelayer.adapters import folders, npy, pyarrow, webdataset


@pytest.mark.parametrize("text", ["a text that was meant as a record " * 200, "x" * 300 + ".csv", "nul\0.csv"])
def test_a_text_that_cannot_be_a_path_is_refused_in_a_few_lines(tmp_path: Path, text: str) -> None:
    with pytest.raises(cachelayer.InvalidArgumentError, match=text[:3]) as caught:
        cachelayer.Storage(tmp_path).cache(text, "texts@v1")
    assert len(str(caught.value)) < 600


@pytest.mark.needs("pyarrow")
@pytest.mark.parametrize("kind", [str, Path])
def test_a_list_of_files_is_read_like_one(tmp_path: Path, kind: Callable[[Path], Any]) -> None:
    paths = [tmp_path / f"{name}.csv" for name in "ab"]
    for number, path in enumerate(paths):
        path.write_text(f"a\n{number}\n")
    storage = cachelayer.Storage(tmp_path / "storage")
    ref = storage.cache([kind(path) for path in paths], "rows@v1")
    assert [str(row["a"]) for row in ref] == ["0", "1"]
    assert storage.cache(list(map(kind, paths)), "rows@v1", on_change="error").digest == ref.digest
    paths[1].write_text("a\n2\n3\n")
    with pytest.raises(cachelayer.StaleVersionError, match="files"):
        storage.cache([kind(path) for path in paths], "rows@v1", on_change="error")


@pytest.mark.needs("pyarrow")
def test_another_process_builds_from_a_path(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.parquet" for name in "ab"]
    for path in paths:
        pq.write_table(pa.table({"a": [1, 2, 3]}), path)
    storage = cachelayer.Storage(tmp_path / "storage")
    for number, source in enumerate([paths[0], str(paths[0]), paths]):
        ref = storage.cache(source, f"rows-{number}@v1", wait=False)
        expected = storage.cache(source, f"waited-{number}@v1")
        assert [int(row["a"]) for row in ref] == [int(row["a"]) for row in expected]
        assert ref.digest == expected.digest


def test_a_list_of_texts_is_one_of_files_only_if_each_is_a_file(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path / "storage")
    file = tmp_path / "a.txt"
    file.write_text("text")
    assert storage.cache([str(file), "b" * 5000, "nul\0"], "texts@v1")[0] == str(file)
    assert len(storage.cache(["http://a/b.csv", "http://a/c.csv"], "texts@v2")) == 2
    with pytest.raises(cachelayer.InvalidArgumentError, match="absent"):
        storage.cache([tmp_path / "absent.csv", tmp_path / "other.csv"], "texts@v3")
    with pytest.raises(cachelayer.InvalidArgumentError, match=r"a\.txt"):
        storage.cache([file, file], "texts@v3")


@pytest.mark.parametrize("url", ["https://u:SECRET@h/a.csv", "https://h/a.csv?token=SECRET", "s3://k:SECRET@b/a.csv"])
def test_a_url_with_credentials_is_refused_without_showing_them(tmp_path: Path, url: str) -> None:
    with pytest.raises(cachelayer.InvalidArgumentError, match="storage_options") as caught:
        cachelayer.Storage(tmp_path).cache(url, "rows@v1")
    assert "SECRET" not in str(caught.value)


def fill(folder: Path, number: int) -> None:
    """Files of all formats, with the same names and sizes whatever the number is."""
    (folder / "pets" / "dog").mkdir(parents=True)
    pq.write_table(pa.table({"n": [number]}), folder / "x.parquet")
    with pa.ipc.new_file(folder / "x.arrow", pa.schema({"n": pa.int64()})) as file:
        file.write_table(pa.table({"n": [number]}))
    (folder / "x.csv").write_text(f"n\n{number}\n")
    (folder / "x.jsonl").write_text(json.dumps({"n": number}))
    np.save(folder / "x.npy", np.array([number]))
    np.savez(folder / "x.npz", n=np.array([number]))
    with tarfile.open(folder / "x.tar", "w") as tar:
        member = tarfile.TarInfo("1.cls")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"%d" % number))
    writer = ArrayRecordWriter(str(folder / "x.array_record"), "group_size:1")
    writer.write(b"%d" % number)
    writer.close()
    Image.new("RGB", (1, 1), (number, 0, 0)).save(folder / "pets" / "dog" / "0.png")


def number_in(element: Any) -> int:
    if isinstance(element, dict):
        value = next(element[key] for key in ("n", "cls", "image", "data") if key in element)
        pixel = np.asarray(Image.open(io.BytesIO(value))) if isinstance(value, bytes) else np.asarray(value)
        return int(pixel.flat[0])
    return int(element)


READERS: dict[str, Callable[[], Any]] = {
    "path": lambda: "x.parquet",
    "Path": lambda: Path("x.csv"),
    "below": lambda: "./x.jsonl",
    "list": lambda: ["x.csv"],
    "pattern": lambda: "*.jsonl",
    "URL": lambda: "file://x.csv",
    "folder": lambda: "pets",
    "parquet": lambda: pyarrow.from_parquet("x.parquet"),
    "patterns": lambda: pyarrow.from_parquet(["*.parquet"]),
    "ipc": lambda: pyarrow.from_ipc(Path("x.arrow")),
    "csv": lambda: pyarrow.from_csv("x.csv"),
    "json": lambda: pyarrow.from_json("x.jsonl"),
    "npy": lambda: npy.from_npy("x.npy"),
    "npys": lambda: npy.from_npy({"n": Path("x.npy")}),
    "npz": lambda: npy.from_npz("x.npz"),
    "tar": lambda: webdataset.from_webdataset("x.tar"),
    "images": lambda: folders.from_image_folder("pets"),
    "files": lambda: folders.from_files("pets"),
    "array_record": lambda: cachelayer.ArrayRecordDataSource("x.array_record"),
    "array_records": lambda: cachelayer.ArrayRecordDataSource("*.array_record"),
    "range": lambda: cachelayer.ArrayRecordDataSource(["x.array_record[0:1]"]),
}


@pytest.mark.needs("pyarrow", "PIL")
@pytest.mark.parametrize("reader", READERS)
def test_a_relative_path_means_the_folder_in_which_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    for number, name in ((3, "here"), (7, "there")):
        (tmp_path / name).mkdir()
        fill(tmp_path / name, number)
    monkeypatch.chdir(tmp_path / "here")
    source, storage = READERS[reader](), cachelayer.Storage("storage", local_cache="copies")
    if not isinstance(source, str | Path | list):
        monkeypatch.chdir(tmp_path / "there")
        assert [*map(number_in, storage.cache(source, "d@v1"))] == [3]
        assert storage.cache(source, "d@v1", on_change="error")
    else:
        assert [*map(number_in, storage.cache(source, "d@v1"))] == [3]
    monkeypatch.chdir(tmp_path / "here")
    made = storage.cache(READERS[reader], "made@v1")
    monkeypatch.chdir(tmp_path / "there")
    assert [*map(number_in, made)] == [3]
    assert Path(storage.url) == tmp_path / "here/storage"


@pytest.mark.needs("pyarrow", "PIL")
@pytest.mark.parametrize(
    ("reader", "version"),
    [*zip(["path", "patterns", "npy", "images", "array_record", "parquet"], ["given", "made"] * 3, strict=True)],
)
def test_another_process_builds_what_the_path_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str, version: str
) -> None:
    for number, name in ((3, "here"), (7, "there")):
        (tmp_path / name).mkdir()
        fill(tmp_path / name, number)
    monkeypatch.chdir(tmp_path / "here")
    source = READERS[reader]() if version == "given" else READERS[reader]
    ref = cachelayer.Storage(tmp_path / "storage").cache(source, f"d@{version}", wait=False)
    monkeypatch.chdir(tmp_path / "there")
    assert [*map(number_in, ref)] == [3]
    assert ref.digest
    assert [*map(number_in, cachelayer.open(f"{tmp_path}/storage/d@{version}"))] == [3]
