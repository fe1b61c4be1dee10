"""Shards are ordinary ArrayRecord files: the stock readers read them."""

from pathlib import Path

import grain
import numpy as np
import pytest
from array_record.python.array_record_data_source import ArrayRecordDataSource
from stored import shard_files

import cachelayer
from cachelayer.records.codec import Codec

TEXTS = [b"", b"a", *(b"%d" % n * (n % 50) for n in range(300)), b"x" * 65_536, b"y" * 300_000]
ROWS = [{"image": np.full((8, 9), n % 251, np.uint8), "label": n} for n in range(700)]


@pytest.mark.parametrize("compression", [None, "zstd", "zstd:9"])
def test_stock_readers_read_plain_bytes_as_they_are_and_typed_records_as_the_codecs(
    tmp_path: Path, compression: str | None
) -> None:
    storage = cachelayer.Storage(tmp_path)
    plain = storage.submit(TEXTS, "plain@v1", compression=compression, shard_bytes=200_000)
    typed = storage.submit(ROWS, "typed@v1", compression=compression)
    codec = Codec.of(typed.element_spec)
    assert len(shard_files(plain)) > 1
    for ref, expected in ((plain, TEXTS), (typed, codec.encode(codec.columns(ROWS)).to_list())):
        shards = list(map(str, shard_files(ref)))
        for stock in (ArrayRecordDataSource, grain.sources.ArrayRecordDataSource):
            with stock(shards) as source:
                assert list(source.__getitems__(list(range(len(source))))) == expected
