"""Lists of files that are read from their beginnings alone: each file is a part of the build."""

import io
import re
import struct
import tarfile
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import google_crc32c
import pytest
from faults import fault_proxy
from fsspec.implementations.memory import MemoryFileSystem
from servers import Server, new_bucket

import cachelayer
from cachelayer import ElementError, InvalidArgumentError, SourceError, Storage
from cachelayer.adapters.pyarrow import from_csv, from_json, from_parquet
from cachelayer.adapters.sources.files import Files
from cachelayer.adapters.tfrecord import from_tfrecord
from cachelayer.adapters.webdataset import from_webdataset

FILES, ROWS = 4, 60


def csv_of(values: list[str]) -> bytes:
    return "".join(f"{value}\n" for value in ["n", *values]).encode()


def jsonl_of(values: list[str]) -> bytes:
    return "".join(f'{{"n": {value}}}\n' for value in values).encode()


def tar_of(values: list[str]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for number, value in enumerate(values):
            member = tarfile.TarInfo(f"{number}.cls")
            member.size = len(value)
            archive.addfile(member, io.BytesIO(value.encode()))
    return file.getvalue()


def tfrecord_of(values: list[str]) -> bytes:
    def checksum(data: bytes) -> bytes:
        crc = google_crc32c.value(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    def record(data: bytes) -> bytes:
        length = struct.pack("<Q", len(data))
        return length + checksum(length) + data + checksum(data)

    return b"".join(record(value.encode()) for value in values)


FORMATS: dict[str, tuple[Callable[[list[str]], bytes], Callable[[Any], Any], Callable[[Any], int]]] = {
    "csv": (csv_of, from_csv, lambda row: int(row["n"])),
    "jsonl": (jsonl_of, from_json, lambda row: int(row["n"])),
    "tar": (tar_of, from_webdataset, lambda row: int(row["cls"])),
    "tfrecord": (tfrecord_of, from_tfrecord, int),
}


@pytest.fixture(params=FORMATS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def written(kind: str, folder: Path, changed: dict[int, str] | None = None) -> list[Path]:
    """Write files with the numbers from 0 on; some of the numbers are other texts."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number}.{kind}" for number in range(FILES)]
    for number, path in enumerate(paths):
        values = [(changed or {}).get(row, str(row)) for row in range(number * ROWS, (number + 1) * ROWS)]
        path.write_bytes(FORMATS[kind][0](values))
    return paths


def test_processes_and_hosts_build_the_version_of_one_process(kind: str, tmp_path: Path) -> None:
    paths = written(kind, tmp_path / "files")
    _, read, number_of = FORMATS[kind]
    alone = Storage(tmp_path / "alone").cache(read(paths), "d@v1")
    assert list(map(number_of, alone)) == list(range(FILES * ROWS))
    assert [shard.stats.records for shard in alone._base.version.manifest.shards] == [ROWS] * FILES
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Storage(tmp_path / "workers").cache(read(paths), "d@v1", workers=2).digest == alone.digest
    with ThreadPoolExecutor(2) as hosts:
        refs = [
            hosts.submit(Storage(tmp_path / "hosts").cache, read(paths), "d@v1", hosts=(host, 2)) for host in (0, 1)
        ]
        assert {ref.result().digest for ref in refs} == {alone.digest}


class Unsteady(MemoryFileSystem):  # type: ignore[misc]
    """Files in memory that note which of them are read; reading one of them fails when it is opened that often."""

    protocol = "unsteady"
    fails_at: tuple[str, int] | None = None
    read: ClassVar[Counter[str]] = Counter()

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        name = path.rpartition("/")[2]
        Unsteady.read[name] += mode == "rb"
        if mode == "rb" and (name, Unsteady.read[name]) == Unsteady.fails_at:
            raise OSError("the file went away")
        return super()._open(path, mode, **options)


def test_a_build_goes_on_after_the_files_that_it_has_read(kind: str, storage: Storage, tmp_path: Path) -> None:
    fsspec.register_implementation("unsteady", Unsteady, clobber=True)
    urls = []
    for path in written(kind, tmp_path / "files"):
        urls.append(f"unsteady://{kind}/{path.name}")
        with fsspec.open(urls[-1], "wb") as file:
            file.write(path.read_bytes())
    _, read, number_of = FORMATS[kind]
    # Columns of CSV files, and the first lines of JSON, are looked at before a file is read as a part.
    before = int(kind in ("csv", "jsonl"))
    Unsteady.read = Counter()
    Unsteady.fails_at = f"2.{kind}", 1 + before
    with pytest.raises(SourceError, match=f"2.{kind}.*went away"):
        storage.cache(read(urls), "d@v1")
    Unsteady.read = Counter()
    Unsteady.fails_at = None
    ref = storage.cache(read(urls), "d@v1")
    assert list(map(number_of, ref)) == list(range(FILES * ROWS))
    assert [Unsteady.read[f"{number}.{kind}"] for number in (1, 2, 3)] == [before, before + 1, before + 1]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "tar"])
def test_a_row_that_does_not_fit_is_named_by_its_file(kind: str, storage: Storage, tmp_path: Path) -> None:
    read = FORMATS[kind][1]
    spec: Any = None if kind == "tar" else {"n": "int64"}
    place = {"csv": "row 5", "jsonl": "line 6", "tar": "sample '5'"}[kind]
    paths = written(kind, tmp_path / "one", {ROWS + 5: '"x"'})
    ways: list[dict[str, Any]] = [{}, {"max_records": 3 * ROWS}, *([{"workers": 2}] if kind == "csv" else [])]
    for number, options in enumerate(ways):
        with pytest.raises(ElementError, match=rf"1\.{kind}, {place}, record"):
            storage.submit(read(paths), f"d{number}@v1", element_spec=spec, **options)
    paths = written(kind, tmp_path / "two", {ROWS + 5: '"x"', 2 * ROWS + 7: '"y"'})
    with pytest.warns(cachelayer.CacheLayerWarning, match=rf"1\.{kind}, {place}, record 5"):
        ref = storage.submit(read(paths), "skipped@v1", element_spec=spec, on_error="skip")
    left_out = ref.provenance["left_out"]
    assert left_out["records"] == 2
    assert [text.partition(",")[0] for text in left_out["first"]] == ["file 1 of 4: record 5", "file 2 of 4: record 7"]


def test_the_first_records_of_all_files_are_taken(kind: str, storage: Storage, tmp_path: Path) -> None:
    _, read, number_of = FORMATS[kind]
    ref = storage.cache(read(written(kind, tmp_path / "files")), "d@v1", max_records=ROWS + 3)
    assert list(map(number_of, ref)) == list(range(ROWS + 3))


def test_a_folder_stands_for_the_files_in_it(kind: str, storage: Storage, tmp_path: Path) -> None:
    paths = written(kind, tmp_path / "files")
    (tmp_path / "files" / "_SUCCESS").touch()
    (tmp_path / "files" / ".hidden").touch()
    read = FORMATS[kind][1]
    assert storage.cache(read(tmp_path / "files"), "a@v1").digest == storage.cache(read(paths), "b@v1").digest
    (tmp_path / "empty").mkdir()
    for reader in (read, from_parquet):
        with pytest.raises(InvalidArgumentError, match="there is no file"):
            storage.cache(reader(tmp_path / "empty"), "c@v1")


@pytest.mark.parametrize("names", ["pattern", "list", "folder"])
@pytest.mark.parametrize("store", ["gcs", "s3"])
def test_files_of_a_bucket_are_listed_once_before_and_once_after_they_are_read(
    request: pytest.FixtureRequest, storage: Storage, store: str, names: str
) -> None:
    server: Server = request.getfixturevalue(store)
    bucket = new_bucket(server)
    files = [server.url(bucket, f"rows/{number}.jsonl") for number in range(12)]
    for url in files:
        with fsspec.open(url, "wb", **server.storage_options()) as file:
            file.write(jsonl_of(["1", "2"]))
    paths = {"pattern": server.url(bucket, "rows/*.jsonl"), "list": files, "folder": server.url(bucket, "rows")}[names]
    with fault_proxy(server.endpoint) as proxy:
        options = server.storage_options(proxy.endpoint)
        assert len(Files(paths, options).find()) == len(files)
        # Clients ask for an object, and for a folder of its name.
        assert len(proxy.exchanges()) <= (3 * len(files) if names == "list" else 5)
        proxy.forget()
        assert len(storage.cache(from_json(paths, storage_options=options), "d@v1")) == 24
        whole = [each.path for each in proxy.exchanges() if re.search("prefix=rows/(&|$)", each.path)]
    listings = [path for path in whole if not re.search("(max-keys|maxResults)=1(&|$)", path)]
    assert len(listings) == (0 if names == "list" else 2)
