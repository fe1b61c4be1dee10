"""Paths as sources: their names tell which adapter reads them; what cannot be read says what to do."""

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import cachelayer
from cachelayer import Storage
from cachelayer.adapters.pyarrow import from_parquet
from cachelayer.errors import CacheLayerError, InvalidArgumentError, SourceError, StaleVersionWarning

pytestmark = pytest.mark.needs("pyarrow")


def cached(storage: Storage, source: Any, **options: Any) -> Any:
    return storage.cache(source, f"rows@v{len(storage.datasets()) and len(storage.versions('rows'))}", **options)


def rows(folder: Path, name: str = "rows.csv", first: int = 0) -> Path:
    path = folder / name
    path.write_text("number,word\n" + "".join(f"{first + each},w{each}\n" for each in range(4)))
    return path


def test_a_path_is_the_source_of_its_rows(storage: Storage, tmp_path: Path) -> None:
    path = rows(tmp_path)
    for given in (path, str(path), path.as_uri(), tmp_path / "*.csv"):
        assert [int(each["number"]) for each in cached(storage, given)] == [0, 1, 2, 3]
    assert storage.submit(path, "rows@submitted")[0]["word"] == "w0"
    assert len(storage.append("rows@submitted", new="more", source=path)) == 8
    made = storage.cacheable("made@v1")(lambda: path)()
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
        storage.cache(name if "://" in name else str(tmp_path / name), "rows@v1")
    assert storage.datasets() == []


def test_a_version_opens_after_its_files_are_gone_and_shows_that_they_changed(storage: Storage, tmp_path: Path) -> None:
    path = rows(tmp_path)
    storage.cache(path, "rows@v1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        storage.cache(str(path), "rows@v1")
    rows(tmp_path, first=7)
    os.utime(path, (1, 1))
    with pytest.warns(StaleVersionWarning, match="another source"):
        assert len(storage.cache(path, "rows@v1")) == 4
    path.unlink()
    with pytest.warns(cachelayer.errors.CacheLayerWarning, match="without comparing"):
        assert len(storage.cache(path, "rows@v1")) == 4


def test_unbatch_and_a_declared_spec_reach_the_adapter(storage: Storage, tmp_path: Path) -> None:
    path = rows(tmp_path)
    with pytest.raises(CacheLayerError, match="elements already"):
        storage.cache(path, "rows@v1", unbatch=True)
    with pytest.raises(CacheLayerError, match="word"):
        storage.cache(path, "rows@v1", element_spec={"word": np.int32})
    assert storage.cache(path, "rows@v1", element_spec={"number": np.int32})[1]["number"].dtype == np.int32


def test_what_spark_puts_beside_its_data_is_no_data(storage: Storage, tmp_path: Path) -> None:
    spark = tmp_path / "spark"
    (spark / "_delta_log").mkdir(parents=True)
    for number in range(2):
        pq.write_table(pa.table({"a": [number]}), spark / f"part-{number}.snappy.parquet")
    for name in ("_SUCCESS", "_committed_17", "_delta_log/0.json", ".part-0.snappy.parquet.crc"):
        (spark / name).write_text("{}")
    for number, source in enumerate((str(spark), from_parquet(f"{spark}/*"), from_parquet(spark))):
        assert [int(row["a"]) for row in storage.cache(source, f"spark{number}@v1")] == [0, 1]


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.csv.zst"])
def test_text_that_is_compressed_by_zstandard_is_taken_by_its_name(storage: Storage, tmp_path: Path, name: str) -> None:
    text = b'{"a": "1"}\n' if "json" in name else b"a\n1\n"
    (tmp_path / name).write_bytes(zstandard.compress(text))
    assert list(storage.cache(str(tmp_path / name), "rows@v1")) == [{"a": "1"}]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_text_in_another_encoding_is_refused_with_what_to_do(
    storage: Storage, tmp_path: Path, ending: str, encoding: str
) -> None:
    path = tmp_path / f"a.{ending}"
    path.write_bytes(('{"a": 1}\n' if ending == "jsonl" else "a,b\n1,2\n").encode(encoding))
    with pytest.raises(SourceError, match=rf"{path.name}.*UTF-16.*iconv"):
        storage.cache(str(path), f"{ending}-{encoding}@v1")
