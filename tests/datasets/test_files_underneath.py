"""Files that are replaced or removed under a reader: the old data or a clear error, never wrong bytes."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import CorruptionError

N = 900


@pytest.fixture
def ref(tmp_path: Path) -> Any:
    """A version of three shards or more."""
    return cachelayer.Storage(tmp_path / "a").submit(np.arange(N), "d@v1", shard_bytes=20_000)


def files(root: Path, suffix: str) -> list[Path]:
    """The files of the shards, in the order of their records."""
    shards = cachelayer.Storage(root).fetch("d@v1")._base.version.manifest.shards
    return [root / "d" / f"{shard.file}.{suffix}" for shard in shards]


def other(tmp_path: Path) -> Path:
    """The files of other records of the same sizes."""
    cachelayer.Storage(tmp_path / "b").submit(np.arange(N) + 1_000_000, "d@v1", shard_bytes=20_000)
    return tmp_path / "b"


@pytest.mark.parametrize("change", ["removed", "replaced"])
def test_open_files_keep_their_data(tmp_path: Path, ref: Any, change: str) -> None:
    order = np.random.default_rng(0).permutation(N)
    assert ref.read(order).tolist() == order.tolist()
    theirs = other(tmp_path)
    for suffix in ("array_record", "index"):
        for mine, new in zip(files(tmp_path / "a", suffix), files(theirs, suffix), strict=True):
            mine.unlink() if change == "removed" else new.rename(mine)
    assert ref.read(order).tolist() == order.tolist()
    assert [int(ref[number]) for number in order[:50].tolist()] == order[:50].tolist()


@pytest.mark.parametrize("verify", ["open", "always"])
@pytest.mark.parametrize("replaced", [("array_record",), ("index",), ("array_record", "index")])
def test_files_of_other_records_of_the_same_size_are_found_out(
    tmp_path: Path, ref: Any, replaced: tuple[str, ...], verify: Any
) -> None:
    theirs = other(tmp_path)
    for suffix in replaced:
        for mine, new in zip(files(tmp_path / "a", suffix), files(theirs, suffix), strict=True):
            assert mine.stat().st_size == new.stat().st_size
            shutil.copy(new, mine)
    reopened = cachelayer.Storage(tmp_path / "a", verify=verify).fetch(f"{ref.dataset_id}@{ref.dataset_version}")
    for read in (lambda: reopened.read(np.arange(N)), lambda: reopened[N // 2]):
        with pytest.raises(CorruptionError, match="d/shards/"):
            read()


@pytest.mark.parametrize("suffix", ["array_record", "index"])
def test_files_that_were_cut_are_found_out_before_they_are_mapped(tmp_path: Path, ref: Any, suffix: str) -> None:
    for path in files(tmp_path / "a", suffix):
        path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CorruptionError, match="was cut or replaced"):
        ref.read([0])
