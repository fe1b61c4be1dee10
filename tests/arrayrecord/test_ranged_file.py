"""ArrayRecord files in object stores: the same records as on local disk, by the ranges that they take."""

import pickle
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from faults import fault_proxy
from servers import Server, new_bucket

from cachelayer import ArrayRecordDataSource, CorruptionError, FormatError, InvalidArgumentError, StorageError
from cachelayer.objects.open_store import open_store

SIZES = [0, 1, 127, 128, 16_384, 65_535, 65_536, 65_537, 300_000, 0, 7, *range(100, 400, 3), 0]
RECORDS = [np.random.default_rng(size).integers(0, 4, size, dtype=np.uint8).tobytes() for size in SIZES]


def written(path: Path, options: str, records: list[bytes] = RECORDS) -> bytes:
    writer = ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    return path.read_bytes()


@pytest.fixture
def memory() -> str:
    """The URL of an empty folder."""
    return f"memory://{uuid.uuid4().hex}"


@pytest.mark.parametrize("options", ["1,uncompressed", "2,zstd:3", "7,uncompressed", "1000,zstd:3"])
def test_the_same_records_as_on_local_disk(tmp_path: Path, memory: str, options: str) -> None:
    open_store(memory).put("a.array_record", written(tmp_path / "a", f"group_size:{options}"))
    source = ArrayRecordDataSource(f"{memory}/a.array_record")
    keys = np.random.default_rng(0).integers(-len(RECORDS), len(RECORDS), 200).tolist()
    assert source.__getitems__(keys) == [RECORDS[key] for key in keys]
    assert list(source) == RECORDS
    assert source[-2] == RECORDS[-2]
    again = pickle.loads(pickle.dumps(source))
    assert again[5] == RECORDS[5]
    assert repr(again) == repr(source)


def test_a_long_footer_is_fetched_whole(tmp_path: Path, memory: str) -> None:
    records = [b"%d" % number for number in range(60_000)]
    raw = written(tmp_path / "a", "group_size:1,uncompressed", records)
    open_store(memory).put("a", raw)
    source = ArrayRecordDataSource(f"{memory}/a")
    assert len(source) == 60_000
    assert source.__getitems__([0, 59_999, 31_234]) == [b"0", b"59999", b"31234"]


def test_files_parts_and_globs_are_one_sequence(tmp_path: Path, memory: str) -> None:
    store = open_store(memory)
    for name in "abc":
        records = [f"{name}{number}".encode() for number in range(10)]
        store.put(f"train-{name}.array_record", written(tmp_path / name, "group_size:1", records))
    store.put("other", b"")
    source = ArrayRecordDataSource([f"{memory}/train-*.array_record", f"{memory}/train-a.array_record[2:4]"])
    assert len(source) == 32
    assert source.__getitems__([0, 9, 10, 29, 30, 31]) == [b"a0", b"a9", b"b0", b"c9", b"a2", b"a3"]


@pytest.mark.parametrize("codec", ["brotli:3", "snappy", "transpose:true,zstd"])
def test_what_only_the_stock_reader_reads_is_refused_by_name(tmp_path: Path, memory: str, codec: str) -> None:
    open_store(memory).put("a", written(tmp_path / "a", f"group_size:3,{codec}"))
    with pytest.raises(FormatError, match="a"):
        ArrayRecordDataSource(f"{memory}/a")[0]


def test_what_is_not_there_or_not_whole_is_refused_by_name(tmp_path: Path, memory: str) -> None:
    store, raw = open_store(memory), written(tmp_path / "a", "group_size:1")
    for name, damaged in (("cut", raw[:-1000]), ("short", raw[:100]), ("zeros", bytes(len(raw)))):
        store.put(name, damaged)
        with pytest.raises(CorruptionError, match=name):
            ArrayRecordDataSource(f"{memory}/{name}")
    for name in ("none", "none-*"):
        with pytest.raises(StorageError, match=f"{memory}/none"):
            ArrayRecordDataSource(f"{memory}/{name}")
    store.put("whole", raw)
    with pytest.raises(InvalidArgumentError, match="verify"):
        ArrayRecordDataSource(f"{memory}/whole", verify="always")


def test_the_footer_is_fetched_once_and_a_batch_in_one_round_trip(tmp_path: Path, server: Server) -> None:
    bucket = new_bucket(server)
    url = server.url(bucket, "files")
    open_store(url, server.storage_options()).put("a", written(tmp_path / "a", "group_size:1"))
    with fault_proxy(server.endpoint) as proxy:
        options = server.storage_options(proxy.endpoint)
        source: Any = ArrayRecordDataSource(f"{url}/a", storage_options=options)
        opened = len(proxy.exchanges())
        assert opened <= 3
        keys = np.random.default_rng(0).permutation(len(RECORDS)).tolist()
        assert source.__getitems__(keys) == [RECORDS[key] for key in keys]
        assert all(exchange.method == "GET" for exchange in proxy.exchanges()[opened:])
        assert len(proxy.exchanges()) - opened <= len(RECORDS)
