"""Paths as sources: their names tell which adapter reads them; what cannot be read says what to do."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import Storage
from cachelayer.errors import CacheLayerError, InvalidArgumentError, StaleVersionWarning

pytestmark = pytest.mark.needs("pyarrow")


def cached(storage: Storage, source: Any, **options: Any) -> Any:
    return storage.cache(source, "rows", f"v{len(storage.datasets()) and len(storage.versions('rows'))}", **options)


def rows(folder: Path, name: str = "rows.csv", first: int = 0) -> Path:
    path = folder / name
    path.write_text("number,word\n" + "".join(f"{first + each},w{each}\n" for each in range(4)))
    return path


def test_a_path_is_the_source_of_its_rows(storage: Storage, tmp_path: Path) -> None:
    path = rows(tmp_path)
    for given in (path, str(path), path.as_uri(), tmp_path / "*.csv"):
        assert [int(each["number"]) for each in cached(storage, given)] == [0, 1, 2, 3]
    assert storage.submit(path, "rows", "submitted")[0]["word"] == "w0"
    assert len(storage.append("rows@submitted", new="more", source=path)) == 8
    made = storage.cacheable("made", "v1")(lambda: path)()
    assert len(made) == 4


def test_a_folder_is_read_as_what_its_files_are(storage: Storage, tmp_path: Path) -> None:
    from PIL import Image

    for name in ("cat/a.png", "dog/b.PNG"):
        (tmp_path / "pets" / name).parent.mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "pets" / name, "png")
    pets = cached(storage, tmp_path / "pets")
    assert pets.metadata["classes"] == ["cat", "dog"]
    assert pets[1]["image"].shape == (4, 4, 3)
    (tmp_path / "parts").mkdir()
    rows(tmp_path / "parts", "b.csv", 4), rows(tmp_path / "parts", "a.csv")
    assert [int(each["number"]) for each in cached(storage, tmp_path / "parts")] == list(range(8))
    (tmp_path / "named.csv").mkdir()
    rows(tmp_path / "named.csv")
    assert len(cached(storage, tmp_path / "named.csv")) == 4


@pytest.mark.parametrize(
    "name", ["nothing.csv", "nothing", "notes.txt", "here.unknown", "mixed", "empty", "https://a@b/x.csv"]
)
def test_what_no_adapter_reads_is_refused_by_name(storage: Storage, tmp_path: Path, name: str) -> None:
    for each in ("mixed/a.csv", "mixed/b.parquet", "here.unknown", "notes.txt"):
        (tmp_path / each).parent.mkdir(exist_ok=True)
        (tmp_path / each).touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidArgumentError, match=name.rpartition("@")[2]):
        storage.cache(name if "://" in name else str(tmp_path / name), "rows", "v1")
    assert storage.datasets() == []


def test_a_version_opens_after_its_files_are_gone_and_shows_that_they_changed(storage: Storage, tmp_path: Path) -> None:
    path = rows(tmp_path)
    storage.cache(path, "rows", "v1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        storage.cache(str(path), "rows", "v1")
    rows(tmp_path, first=7)
    os.utime(path, (1, 1))
    with pytest.warns(StaleVersionWarning, match="another source"):
        assert len(storage.cache(path, "rows", "v1")) == 4
    path.unlink()
    with pytest.warns(cachelayer.errors.CacheLayerWarning, match="without comparing"):
        assert len(storage.cache(path, "rows", "v1")) == 4


def test_unbatch_and_a_declared_spec_reach_the_adapter(storage: Storage, tmp_path: Path) -> None:
    path = rows(tmp_path)
    with pytest.raises(CacheLayerError, match="elements already"):
        storage.cache(path, "rows", "v1", unbatch=True)
    with pytest.raises(CacheLayerError, match="word"):
        storage.cache(path, "rows", "v1", element_spec={"word": np.int32})
    assert storage.cache(path, "rows", "v1", element_spec={"number": np.int32})[1]["number"].dtype == np.int32
