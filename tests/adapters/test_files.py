"""Which files folders and patterns name: links are followed, hidden files left out, folders refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from PIL import Image

import cachelayer
from cachelayer import InvalidArgumentError, SourceError
from cachelayer.adapters.folders import from_files, from_image_folder
from cachelayer.adapters.sources.files import Files


def image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (2, 2)).save(path)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Classes of which the second is a link to a folder elsewhere, among files that others left."""
    root = tmp_path / "pets"
    for name in ("ant", "cat"):
        image(root / name / "0.png")
        (root / name / "._0.png").write_bytes(b"resource fork")
        image(root / name / ".ipynb_checkpoints" / "0-checkpoint.png")
    image(tmp_path / "elsewhere" / "deep" / "1.png")
    (root / "bee").symlink_to(tmp_path / "elsewhere")
    image(root / ".trash" / "9.png")
    (root / ".DS_Store").touch()
    return root


def test_classes_that_are_links_count_and_hidden_files_do_not(tmp_path: Path, pets: Path) -> None:
    ref = cachelayer.Storage(tmp_path / "cache").cache(from_image_folder(pets), "d", "v1")
    assert ref.metadata["classes"] == ["ant", "bee", "cat"]
    assert [int(row["label"]) for row in ref] == [0, 1, 2]


def paths_of(source: Any) -> list[str]:
    return [item["path"] for batch in source.batches(None) for item in batch.items]


def test_files_are_followed_through_links_and_hidden_only_if_the_pattern_says_so(pets: Path) -> None:
    assert paths_of(from_files(pets)) == ["ant/0.png", "bee/deep/1.png", "cat/0.png"]
    assert paths_of(from_files(pets, "*/._*")) == ["ant/._0.png", "cat/._0.png"]
    assert paths_of(from_files(pets, ".trash/*")) == [".trash/9.png"]


def test_a_link_that_leads_back_and_one_to_nothing_are_named(pets: Path) -> None:
    (pets / "ant" / "up").symlink_to(pets)
    with pytest.raises(SourceError, match="ant/up"):
        from_image_folder(pets).length  # noqa: B018
    (pets / "ant" / "up").unlink()
    (pets / "ant" / "gone.png").symlink_to(pets / "nothing")
    with pytest.raises(SourceError, match=r"ant/gone\.png"):
        from_image_folder(pets).length  # noqa: B018


def names(found: Any) -> list[str]:
    return [file.path.rpartition("/")[2] for file in found]


def test_patterns_take_hidden_files_only_if_they_say_the_dot(tmp_path: Path) -> None:
    root = tmp_path / ".home"
    for name in ("b.csv", "a.csv", "._a.csv", ".old/c.csv", "sub/d.csv", "linked.csv"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    assert names(Files(root / "*.csv").find()) == ["a.csv", "b.csv", "linked.csv"]
    assert names(Files(root / "._*.csv").find()) == ["._a.csv"]
    assert names(Files(root / "**" / "*.csv").find()) == ["a.csv", "b.csv", "linked.csv", "d.csv"]
    assert names(Files(root / ".old" / "*.csv").find()) == ["c.csv"]
    assert names(Files([root / "b.csv", root / "*.csv"]).find()) == ["b.csv", "a.csv", "b.csv", "linked.csv"]


def test_a_folder_that_is_named_like_a_file_is_not_left_out_in_silence(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").touch()
    (tmp_path / "b.parquet").mkdir()
    with pytest.raises(InvalidArgumentError, match=r"b\.parquet' is a folder: pass '.*b\.parquet/\*'"):
        Files(tmp_path / "*.parquet").find()
    assert names(Files(tmp_path / "*").find()) == ["a.parquet"]
    with pytest.raises(InvalidArgumentError, match=r"b\.parquet"):
        Files(tmp_path / "b.parquet").find()


@pytest.mark.parametrize("name", ["root/b", "root", "."])
@pytest.mark.parametrize("read", [from_files, from_image_folder])
def test_a_folder_that_may_not_be_read_is_named(name: str, read: Callable[..., Any]) -> None:
    with TemporaryDirectory() as given:
        folder = Path(given)
        folder.chmod(0o755)
        for each in "ab":
            (folder / "root" / each).mkdir(parents=True)
            (folder / "root" / each / "x.png").write_bytes(b"1")
        (folder / name).chmod(0)
        is_root = os.geteuid() == 0
        try:
            if is_root:
                os.seteuid(65534)
            with pytest.raises(SourceError, match="PermissionError"):
                _ = read(folder / "root").length
        finally:
            if is_root:
                os.seteuid(0)
            (folder / name).chmod(0o755)


@pytest.mark.parametrize("url", ["gs://", "gs:///a.csv", "s3://", "s3:// /a.csv", "gcs:// ", "s3a:///*.csv"])
def test_a_url_without_a_bucket_is_refused_at_once(tmp_path: Path, url: str) -> None:
    storage = cachelayer.Storage(tmp_path)
    for use in (
        lambda: Files(url).find(),
        lambda: storage.submit(from_files(url), "d", "v1"),
        lambda: storage.submit(url, "d", "v1"),
        lambda: cachelayer.Storage(url),
        lambda: cachelayer.ArrayRecordDataSource(url),
    ):
        with pytest.raises(InvalidArgumentError, match="names no bucket"):
            use()
