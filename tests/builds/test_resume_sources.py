"""Builds from datasets, files and loaders go on without what was made of them before."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.feather as pa_feather
import pyarrow.parquet as pq
import pytest
from resuming import assert_resumes

import cachelayer
from cachelayer.adapters.pyarrow import from_ipc, from_parquet
from cachelayer.builds.as_source import as_source
from cachelayer.testing.sources import records_of, spec_of

RECORDS = 6000
SHARD_BYTES = 100_000
ROW_GROUP = 700


def row(number: int) -> dict[str, Any]:
    return {"number": number, "payload": bytes([number % 251]) * 200, "list": list(range(number % 3))}


def table(records: int = RECORDS) -> pa.Table:
    return pa.Table.from_pylist([row(number) for number in range(records)])


def parquet(folder: Path) -> Any:
    folder.mkdir(exist_ok=True)
    for number, part in enumerate((slice(0, 2500), slice(2500, RECORDS))):
        pq.write_table(table()[part], folder / f"{number}.parquet", row_group_size=ROW_GROUP)
    return from_parquet(folder / "*.parquet")


def arrow(folder: Path) -> Any:
    folder.mkdir(exist_ok=True)
    for number, part in enumerate((slice(0, 2500), slice(2500, RECORDS))):
        pa_feather.write_feather(table()[part], str(folder / f"{number}.arrow"), chunksize=ROW_GROUP)
    return from_ipc(folder / "*.arrow")


FILES = pytest.mark.parametrize("files", [parquet, arrow])


@FILES
def test_a_build_that_failed_goes_on_to_the_version_of_one_run(files: Callable[[Path], Any], tmp_path: Path) -> None:
    assert_resumes(lambda: files(tmp_path / "files"), tmp_path, RECORDS, SHARD_BYTES)


@FILES
def test_processes_and_hosts_make_the_version_that_one_makes(files: Callable[[Path], Any], tmp_path: Path) -> None:
    source = files(tmp_path / "files")
    others: list[dict[str, Any]] = [{"workers": 2}, {"engine": "processes", "workers": 2}, {"hosts": (0, 1)}]
    refs = [
        cachelayer.Storage(tmp_path / str(number)).cache(source, "d@v1", shard_bytes=SHARD_BYTES, **options)
        for number, options in enumerate([{}, *others])
    ]
    assert len({ref.digest for ref in refs}) == 1
    assert [int(element["number"]) for element in refs[1]] == list(range(RECORDS))
    limited = cachelayer.Storage(tmp_path / "limited").cache(source, "d@v1", max_records=3001, workers=2)
    assert len(limited) == 3001


def test_row_groups_before_the_place_are_not_read(tmp_path: Path) -> None:
    source = as_source(parquet(tmp_path))
    spec = spec_of(source)
    expected = records_of(source, spec)[ROW_GROUP:]
    first = tmp_path / "0.parquet"
    group = pq.ParquetFile(first).metadata.row_group(0)
    with first.open("r+b") as file:
        file.seek(4)
        file.write(b"\xff" * (group.column(0).total_compressed_size // 2))
    damaged = as_source(from_parquet(tmp_path / "*.parquet"))
    with pytest.raises(cachelayer.SourceError):
        records_of(damaged, spec)
    assert records_of(damaged, spec, ROW_GROUP) == expected
    with pytest.raises(cachelayer.InvalidArgumentError, match="record 1"):
        damaged.batches(1)


@pytest.mark.parametrize("make", [lambda rows: rows, datasets.Dataset], ids=["arrow", "datasets"])
def test_a_row_that_does_not_fit_is_named_by_its_number_in_the_whole(
    make: Callable[[Any], Any], storage: cachelayer.Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    lists: list[Any] = [[[1], [2]] for _ in range(12_000)]
    lists[10_050] = [None]
    rows = pa.table({"list": pa.array(lists, pa.list_(pa.list_(pa.int64())))})
    for _ in range(2):
        with pytest.raises(cachelayer.ElementError) as caught:
            storage.cache(make(rows), "d@v1", shard_bytes=100_000)
        assert caught.value.record == 10_050
    assert "resuming after" in capsys.readouterr().err
