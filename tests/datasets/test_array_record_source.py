"""Our data source and array_record's, over the same files: the same records."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest
from array_record.python.array_record_data_source import ArrayRecordDataSource as Stock
from array_record.python.array_record_module import ArrayRecordWriter
from samples import pairwise

import cachelayer
from cachelayer import ArrayRecordDataSource

SIZES = [0, 1, 23, 24, 25, 127, 128, 16_383, 16_384, 65_535, 65_536, 65_537, 300_000, 0, 7, *range(100, 400, 3), 0]
RECORDS = [np.random.default_rng(size).integers(0, 4, size, dtype=np.uint8).tobytes() for size in SIZES]
CODECS = ["uncompressed", "zstd:3", "brotli:3", "snappy"]


def write(path: Path, options: str, records: list[bytes] = RECORDS) -> Path:
    writer = ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    return path


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("codec", "group", "verify"),
    pairwise([*CODECS, "transpose:true,uncompressed", "transpose:true,zstd"], [1, 2, 7, 1000], ["open", "always"]),
)
def test_the_same_records_as_the_stock_reader(tmp_path: Path, codec: str, group: int, verify: Any) -> None:
    path = write(tmp_path / "a.array_record", f"group_size:{group},{codec}")
    mine = ArrayRecordDataSource(str(path), verify=verify)
    with Stock(str(path)) as stock:
        assert len(mine) == len(stock) == len(RECORDS)
        keys = np.random.default_rng(0).integers(0, len(RECORDS), 60).tolist()
        assert mine.__getitems__(keys) == list(stock.__getitems__(keys))
        for key in keys[:12]:
            assert mine[key] == stock[key]
    assert list(mine) == RECORDS
    assert mine[-1] == RECORDS[-1]
    assert mine.__getitems__([-2, 0]) == [RECORDS[-2], RECORDS[0]]
    assert mine.__getitems__([]) == []


@dataclass
class Instruction:
    filename: str
    skip: int
    take: int
    examples_in_shard: int


def test_files_parts_and_instructions_are_one_sequence(tmp_path: Path) -> None:
    records = [b"%d" % number for number in range(30)]
    for number in range(3):
        write(tmp_path / f"f-{number}", "group_size:1", records[number * 10 : number * 10 + 10])
    names = [str(tmp_path / f"f-{number}") for number in range(3)]
    assert list(ArrayRecordDataSource(names)) == records
    assert list(ArrayRecordDataSource(str(tmp_path / "f-*"))) == records
    assert list(ArrayRecordDataSource(tmp_path / "f-1")) == records[10:20]
    parts = [f"{names[2]}[3:5]", Instruction(names[0], 8, 2, 10), Path(names[1])]
    source = ArrayRecordDataSource(parts)
    assert list(source) == list(Stock(parts)) == [*records[23:25], *records[8:10], *records[10:20]]
    assert source.__getitems__([13, 0, 2]) == [records[19], records[23], records[8]]


def test_an_empty_file_has_no_records(tmp_path: Path) -> None:
    source = ArrayRecordDataSource(write(tmp_path / "a", "group_size:1", []))
    assert (len(source), list(source), source.__getitems__([])) == (0, [], [])
    with pytest.raises(IndexError):
        source[0]


def test_it_is_told_by_its_contents(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "group_size:1,uncompressed", [b"a" * 100] * 1000)
    other = write(tmp_path / "b", "group_size:1,uncompressed", [b"a" * 100] * 1000)
    first = repr(ArrayRecordDataSource(path))
    assert repr(ArrayRecordDataSource(other)) == first
    assert repr(ArrayRecordDataSource(f"{path}[0:5]")) != first
    write(path, "group_size:1,uncompressed", [b"b" * 100] * 1000)
    assert repr(ArrayRecordDataSource(path)) != first
    assert str(tmp_path) not in first
    assert repr(ArrayRecordDataSource(write(tmp_path / "c", "group_size:1,brotli")))


def test_it_survives_pickling_closing_and_threads(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "group_size:1,uncompressed")
    source = pickle.loads(pickle.dumps(ArrayRecordDataSource(path)))
    with source:
        assert source[5] == RECORDS[5]
    assert source[6] == RECORDS[6]
    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(source.__getitem__, range(len(RECORDS)))) == RECORDS


def test_it_is_a_grain_source(tmp_path: Path) -> None:
    source: Any = ArrayRecordDataSource(write(tmp_path / "a", "group_size:1"))
    assert sorted(grain.MapDataset.source(source).shuffle(seed=1)) == sorted(RECORDS)
    sampler = grain.samplers.SequentialSampler(len(source), grain.sharding.NoSharding())
    assert list(grain.DataLoader(data_source=source, sampler=sampler, worker_count=0)) == RECORDS


def test_the_readers_options_of_array_record_are_accepted_and_others_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "group_size:1,uncompressed")
    options = {"readahead_buffer_size": "0", "index_storage_option": "offloaded"}
    for source in (ArrayRecordDataSource(path, options), ArrayRecordDataSource(path, reader_options=options)):
        assert list(pickle.loads(pickle.dumps(source))) == RECORDS
    with pytest.raises(cachelayer.InvalidArgumentError, match="readahead_bufer_size"):
        ArrayRecordDataSource(path, reader_options={"readahead_bufer_size": "0"})
    with pytest.raises(cachelayer.InvalidTypeError, match="reader_options"):
        ArrayRecordDataSource(path, reader_options="index_storage_option:offloaded")  # type: ignore[arg-type]


def test_bad_input_is_a_clear_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a", "group_size:1,uncompressed")
    source = ArrayRecordDataSource(path)
    for key in (len(RECORDS), -len(RECORDS) - 1):
        with pytest.raises(IndexError, match=str(len(RECORDS))):
            source[key]
        with pytest.raises(cachelayer.RecordIndexError):
            source.__getitems__([0, key])
    with pytest.raises(cachelayer.StorageError, match="missing"):
        ArrayRecordDataSource(tmp_path / "missing")
    with pytest.raises(cachelayer.StorageError, match="none-"):
        ArrayRecordDataSource(str(tmp_path / "none-*"))
    with pytest.raises(cachelayer.InvalidArgumentError, match=r"a\[0:1000\]"):
        ArrayRecordDataSource(f"{path}[0:1000]")[0]
    for paths in ([], 3, None):
        with pytest.raises(ValueError, match="paths"):
            ArrayRecordDataSource(paths)  # type: ignore[arg-type]
    whole = path.read_bytes()
    for damaged in (whole[:-65_536], whole[:100], b"", b"x" * len(whole)):
        path.write_bytes(damaged)
        with pytest.raises(cachelayer.CorruptionError):
            ArrayRecordDataSource(path)
    flipped = bytearray(whole)
    flipped[200_000] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(cachelayer.CorruptionError):
        list(ArrayRecordDataSource(path, verify="always"))
