"""Paths as sources: names that careless users pass."""

from pathlib import Path

import pytest

import cachelayer

CSV = "a\n1\n"


@pytest.mark.parametrize("text", ["a text that was meant as a record " * 200, "x" * 300 + ".csv", "nul\0.csv", "nul\0"])
def test_a_text_that_cannot_be_a_path_is_refused_with_the_way_to_store_texts(tmp_path: Path, text: str) -> None:
    with pytest.raises(cachelayer.InvalidArgumentError, match="iterable") as caught:
        cachelayer.Storage(tmp_path).cache(text, "texts", "v1")
    assert len(str(caught.value)) < 400


@pytest.mark.needs("pyarrow")
def test_paths_below_the_home_folder_are_read_like_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "dir.csv").mkdir()
    (tmp_path / "dir.csv" / "part.csv").write_text(CSV)
    (tmp_path / "data.bin").write_text(CSV)
    storage = cachelayer.Storage(tmp_path / "storage")
    assert len(storage.cache("~/dir.csv", "folder", "v1")) == 1
    with pytest.raises(cachelayer.InvalidArgumentError, match="its name does not tell how to read it"):
        storage.cache("~/data.bin", "file", "v1")


@pytest.mark.parametrize(
    "url",
    [
        "https://u:SECRET@host/a.csv",
        "https://host/a.csv?token=SECRET",
        "s3://k:SECRET@bucket/a.csv",
        "ftp://SECRET@h/a",
    ],
)
def test_a_url_with_credentials_is_refused_without_showing_them(tmp_path: Path, url: str) -> None:
    with pytest.raises(cachelayer.InvalidArgumentError, match="storage_options") as caught:
        cachelayer.Storage(tmp_path).cache(url, "rows", "v1")
    assert "SECRET" not in str(caught.value)
