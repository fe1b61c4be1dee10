"""Shards that are written anew with some records left empty."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader

from cachelayer import ArraySpec, CorruptionError
from cachelayer.arrayrecord.compression import Compression
from cachelayer.arrayrecord.lengths import LengthsFile
from cachelayer.arrayrecord.local_shards import LocalShards, ShardFiles
from cachelayer.arrayrecord.mapping import MappedFile
from cachelayer.arrayrecord.writer import ShardWriter
from cachelayer.builds.erase import write_without
from cachelayer.records.codec import codec_for
from cachelayer.records.frames import Frames

COUNT = 300
VARYING = {"tokens": ArraySpec("int32", (None,)), "text": ArraySpec("str")}
UNIFORM = {"x": ArraySpec("float32", (1000,))}


def elements(spec: Any) -> list[Any]:
    if spec is UNIFORM:
        return [{"x": np.full(1000, number, np.float32)} for number in range(COUNT)]
    return [{"tokens": np.arange(n % 400, dtype=np.int32), "text": "word " * (n % 7)} for n in range(COUNT)]


def writer_of(path: Path, spec: Any, compression: str | None) -> ShardWriter:
    path.mkdir()
    return ShardWriter(path / "s", path / "i", Compression.parse(compression), path / "l", codec_for(spec))


def written(path: Path, spec: Any, compression: str | None) -> tuple[ShardFiles, list[bytes]]:
    codec, writer = codec_for(spec), writer_of(path, spec, compression)
    frames: Frames = codec.encode(codec.columns(elements(spec)), COUNT)
    writer.write(frames)
    stats = writer.finish()
    return ShardFiles(path / "s", path / "i", stats), frames.to_list()


@pytest.mark.parametrize("erased", [[0], [7, 150, 151, COUNT - 1], list(range(COUNT))])
@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("spec", [UNIFORM, VARYING], ids=["uniform", "varying"])
def test_all_other_records_stay_byte_for_byte(
    tmp_path: Path, spec: Any, compression: str | None, erased: list[int]
) -> None:
    source, records = written(tmp_path / "old", spec, compression)
    stats = write_without(source, np.array(erased), writer_of(tmp_path / "new", spec, compression))
    expected = [b"" if number in erased else record for number, record in enumerate(records)]
    files = ShardFiles(tmp_path / "new" / "s", tmp_path / "new" / "i", stats)
    for verify in ("never", "open", "always"):
        read = LocalShards.of_file(nullcontext(files), stats, verify).records(np.arange(COUNT)).copied()
        assert read.to_list() == expected
    stock = ArrayRecordReader(str(files.path))
    assert stock.read_all() == expected
    if len(erased) < COUNT:
        assert stats.record_nbytes is None
    if spec is VARYING:
        raw = MappedFile.open(tmp_path / "new" / "l").buffer
        sums = LengthsFile(COUNT, stats.length_crc32cs, stats.length_totals).check(raw, "l")
        kept = [n for n in range(COUNT) if n not in erased]
        assert np.flatnonzero(np.diff(sums[0])).tolist() == [n for n in kept if n % 400]
        assert stats.length_totals == (sum(n % 400 for n in kept), sum(5 * (n % 7) for n in kept))


def test_a_damaged_record_gets_no_new_checksum(tmp_path: Path) -> None:
    source, records = written(tmp_path / "old", UNIFORM, None)
    raw = bytearray(source.path.read_bytes())
    raw[raw.index(records[100][:64])] ^= 1
    source.path.write_bytes(raw)
    with pytest.raises(CorruptionError, match="record 100"):
        write_without(source, np.array([3]), writer_of(tmp_path / "new", UNIFORM, None))
