"""Shards are ordinary ArrayRecord files: the stock readers read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest
from array_record.python.array_record_data_source import ArrayRecordDataSource
from array_record.python.array_record_module import ArrayRecordReader
from stored import shard_files

import cachelayer
from cachelayer.records.codec import Codec

TEXTS = [b"", b"a", *(b"%d" % n * (n % 50) for n in range(300)), b"x" * 65_536, b"y" * 300_000]
ROWS = [{"image": np.full((8, 9), n % 251, np.uint8), "label": n} for n in range(700)]


@pytest.mark.parametrize("compression", [None, "zstd", "zstd:9"])
def test_plain_bytes_are_stored_as_they_are(tmp_path: Path, compression: str | None) -> None:
    ref = cachelayer.Storage(tmp_path).submit(TEXTS, "d", "v1", compression=compression, shard_bytes=200_000)
    shards = list(map(str, shard_files(ref)))
    assert len(shards) > 1
    with ArrayRecordDataSource(shards) as source:
        assert [source[index] for index in range(len(source))] == TEXTS
    with grain.sources.ArrayRecordDataSource(shards) as source:
        assert list(source.__getitems__(list(range(len(source))))) == TEXTS


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_typed_records_are_the_codecs(tmp_path: Path, compression: str | None) -> None:
    ref = cachelayer.Storage(tmp_path).submit(ROWS, "d", "v1", compression=compression)
    reader = ArrayRecordReader(str(shard_files(ref)[0]))
    assert reader.ok()
    assert reader.num_records() == len(ROWS)
    codec = Codec(ref.element_spec)
    assert reader.read_all() == codec.encode(codec.columns(ROWS), len(ROWS)).to_list()


def test_a_ref_is_a_grain_source(tmp_path: Path) -> None:
    ref: Any = cachelayer.Storage(tmp_path).submit(ROWS, "d", "v1")
    labels = [int(row["label"]) for row in grain.MapDataset.source(ref).shuffle(seed=3)]
    assert sorted(labels) == list(range(len(ROWS)))
