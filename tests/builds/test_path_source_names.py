"""Paths as sources: names that careless users pass."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cachelayer


@pytest.mark.parametrize("text", ["a text that was meant as a record " * 200, "x" * 300 + ".csv", "nul\0.csv"])
def test_a_text_that_cannot_be_a_path_is_refused_in_a_few_lines(tmp_path: Path, text: str) -> None:
    with pytest.raises(cachelayer.InvalidArgumentError, match=text[:3]) as caught:
        cachelayer.Storage(tmp_path).cache(text, "texts", "v1")
    assert len(str(caught.value)) < 600


@pytest.mark.needs("pyarrow")
@pytest.mark.parametrize("kind", [str, Path])
def test_a_list_of_files_is_read_like_one(tmp_path: Path, kind: Callable[[Path], Any]) -> None:
    paths = [tmp_path / f"{name}.csv" for name in "ab"]
    for number, path in enumerate(paths):
        path.write_text(f"a\n{number}\n")
    storage = cachelayer.Storage(tmp_path / "storage")
    ref = storage.cache([kind(path) for path in paths], "rows", "v1")
    assert [str(row["a"]) for row in ref] == ["0", "1"]
    assert storage.cache(list(map(kind, paths)), "rows", "v1", on_change="error").digest == ref.digest
    paths[1].write_text("a\n2\n3\n")
    with pytest.raises(cachelayer.StaleVersionError, match="files"):
        storage.cache([kind(path) for path in paths], "rows", "v1", on_change="error")


@pytest.mark.needs("pyarrow")
def test_another_process_builds_from_a_path(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.parquet" for name in "ab"]
    for path in paths:
        pq.write_table(pa.table({"a": [1, 2, 3]}), path)
    storage = cachelayer.Storage(tmp_path / "storage")
    for number, source in enumerate([paths[0], str(paths[0]), paths]):
        ref = storage.cache(source, f"rows-{number}", "v1", wait=False)
        expected = storage.cache(source, f"waited-{number}", "v1")
        assert [int(row["a"]) for row in ref] == [int(row["a"]) for row in expected]
        assert ref.digest == expected.digest


def test_a_list_of_texts_is_one_of_files_only_if_each_is_a_file(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path / "storage")
    file = tmp_path / "a.txt"
    file.write_text("text")
    assert storage.cache([str(file), "b" * 5000, "nul\0"], "texts", "v1")[0] == str(file)
    assert len(storage.cache(["http://a/b.csv", "http://a/c.csv"], "texts", "v2")) == 2
    with pytest.raises(cachelayer.InvalidArgumentError, match="absent"):
        storage.cache([tmp_path / "absent.csv", tmp_path / "other.csv"], "texts", "v3")
    with pytest.raises(cachelayer.InvalidArgumentError, match=r"a\.txt"):
        storage.cache([file, file], "texts", "v3")


@pytest.mark.parametrize("url", ["https://u:SECRET@h/a.csv", "https://h/a.csv?token=SECRET", "s3://k:SECRET@b/a.csv"])
def test_a_url_with_credentials_is_refused_without_showing_them(tmp_path: Path, url: str) -> None:
    with pytest.raises(cachelayer.InvalidArgumentError, match="storage_options") as caught:
        cachelayer.Storage(tmp_path).cache(url, "rows", "v1")
    assert "SECRET" not in str(caught.value)
