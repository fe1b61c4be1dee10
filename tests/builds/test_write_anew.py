"""Shards that are written anew with some records left empty."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader

from cachelayer import ArraySpec, CorruptionError, Storage
from cachelayer.arrayrecord.lengths import LengthsFile
from cachelayer.arrayrecord.local_shards import LocalShards, ShardFiles
from cachelayer.arrayrecord.mapping import MappedFile
from cachelayer.builds.erase import write_anew
from cachelayer.builds.shard_pipeline import shard_target
from cachelayer.objects import paths
from cachelayer.versions.shard_table import ShardFile
from cachelayer.versions.stored_version import StoredVersion

COUNT = 300
VARYING = {"tokens": ArraySpec("int32", (None,)), "text": ArraySpec("str")}
UNIFORM = {"x": ArraySpec("float32", (1000,))}


def elements(spec: Any) -> list[Any]:
    if spec is UNIFORM:
        return [{"x": np.full(1000, number, np.float32)} for number in range(COUNT)]
    return [{"tokens": np.arange(n % 400, dtype=np.int32), "text": "word " * (n % 7)} for n in range(COUNT)]


def version_of(folder: Path, spec: Any, compression: str | None = None) -> StoredVersion:
    ref = Storage(folder).submit(elements(spec), "d@v1", element_spec=spec, compression=compression)
    return ref._base.version


def written(version: StoredVersion, erased: list[int]) -> ShardFile:
    (shard,) = version.manifest.shards
    with shard_target(version.folder, None, 0) as target:
        return write_anew(version, version.manifest.rows, shard, np.array(erased), target)


def records_in(version: StoredVersion, shard: ShardFile, verify: Any = "always") -> list[bytes]:
    with version.local_file(shard) as path:
        files = nullcontext(ShardFiles(path, Path(paths.index_of(str(path))), shard.stats))
        return LocalShards.of_file(files, shard.stats, verify).records(np.arange(COUNT)).packed_copy().to_list()


@pytest.mark.parametrize("erased", [[0], [7, 150, 151, COUNT - 1], list(range(COUNT))])
@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("spec", [UNIFORM, VARYING], ids=["uniform", "varying"])
def test_all_other_records_stay_byte_for_byte(
    tmp_path: Path, spec: Any, compression: str | None, erased: list[int]
) -> None:
    version = version_of(tmp_path, spec, compression)
    records = records_in(version, version.manifest.shards[0])
    shard = written(version, erased)
    expected = [b"" if number in erased else record for number, record in enumerate(records)]
    for verify in ("never", "open", "always"):
        assert records_in(version, shard, verify) == expected
    stats = shard.stats
    with version.local_file(shard) as path:
        assert ArrayRecordReader(str(path)).read_all() == expected
    if len(erased) < COUNT:
        assert stats.record_nbytes is None
    if spec is VARYING:
        raw = MappedFile.open(Path(paths.lengths_of(str(path)))).buffer
        sums = LengthsFile(COUNT, stats.length_crc32cs, stats.length_totals).check(raw, "l")
        kept = [n for n in range(COUNT) if n not in erased]
        assert np.flatnonzero(np.diff(sums[0])).tolist() == [n for n in kept if n % 400]
        assert stats.length_totals == (sum(n % 400 for n in kept), sum(5 * (n % 7) for n in kept))


def test_a_damaged_record_gets_no_new_checksum(tmp_path: Path) -> None:
    version = version_of(tmp_path, UNIFORM)
    (shard,) = version.manifest.shards
    with version.local_file(shard) as path:
        raw = bytearray(path.read_bytes())
        raw[raw.index(records_in(version, shard)[100][:64])] ^= 1
        path.write_bytes(raw)
    with pytest.raises(CorruptionError, match="record 100"):
        written(version, [3])
