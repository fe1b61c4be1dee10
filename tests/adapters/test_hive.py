"""Folders named ``key=value`` above Parquet files are columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pyarrow.parquet as pq
import pytest

import cachelayer
from cachelayer import ElementError, InvalidArgumentError, SourceError
from cachelayer.adapters.pyarrow import from_parquet, partition_of


@pytest.fixture
def storage(tmp_path: Path) -> cachelayer.Storage:
    return cachelayer.Storage(tmp_path / "cache")


@pytest.fixture
def hive(tmp_path: Path) -> Path:
    """Written by pyarrow, with a null and names that need escapes."""
    table = pa.table({"n": [1, 2, 3, 4], "year": [2024, 2024, 2025, 2025], "code": ["007", "a b/c", "7", None]})
    schema = pa.schema([("year", pa.int64()), ("code", pa.string())])
    pa_dataset.write_dataset(
        table, tmp_path / "hive", format="parquet", partitioning=pa_dataset.partitioning(schema, flavor="hive")
    )
    return tmp_path / "hive"


def rows(ref: Any) -> set[Any]:
    return {tuple(row.items()) for row in ref}


def test_partitions_are_columns_of_text_that_keep_zeros_and_nulls(storage: cachelayer.Storage, hive: Path) -> None:
    ref = storage.cache(from_parquet(hive / "*" / "*" / "*.parquet"), "d", "v1")
    expected = [(1, "2024", "007"), (2, "2024", "a b/c"), (3, "2025", "7"), (4, "2025", None)]
    assert rows(ref) == {(("n", n), ("year", year), ("code", code)) for n, year, code in expected}


def test_a_schema_casts_partitions_and_columns_choose_them(storage: cachelayer.Storage, hive: Path) -> None:
    schema = pa.schema({"year": pa.int16(), "n": pa.int64()})
    ref = storage.cache(from_parquet(hive / "**" / "*.parquet", schema=schema), "d", "v1")
    assert rows(ref) == {(("year", year), ("n", n)) for year, n in [(2024, 1), (2024, 2), (2025, 3), (2025, 4)]}
    assert ref.element_spec["year"] == cachelayer.ArraySpec("int16")
    for version, columns in (("v2", ["code", "n"]), ("v3", ["code"]), ("v4", ["n"])):
        ref = storage.cache(from_parquet(hive / "**" / "*.parquet", columns), "d", version)
        assert len(ref) == 4
        assert list(ref[0]) == columns
    wrong = pa.schema({"code": pa.int64()})
    with pytest.raises(ElementError, match="'a b/c'"):
        storage.cache(from_parquet(hive / "**" / "*.parquet", schema=wrong), "d", "v5")


def test_a_column_of_the_file_is_taken_before_its_folder(storage: cachelayer.Storage, tmp_path: Path) -> None:
    (tmp_path / "n=5").mkdir()
    pq.write_table(pa.table({"n": [1]}), tmp_path / "n=5" / "a.parquet")
    assert list(storage.cache(from_parquet(tmp_path / "n=5" / "a.parquet"), "d", "v1")) == [{"n": np.int64(1)}]


def test_files_of_other_partitions_are_refused(storage: cachelayer.Storage, hive: Path) -> None:
    pq.write_table(pa.table({"n": [1]}), hive / "year=2024" / "stray.parquet")
    with pytest.raises(SourceError, match=r"the schema changes at .*its columns are"):
        storage.cache(from_parquet(hive / "**" / "*.parquet"), "d", "v1")


def test_only_folders_right_above_a_file_are_partitions() -> None:
    assert partition_of("/run=5/data/a=1/b=x%20y/0.parquet") == {"a": "1", "b": "x y"}
    assert partition_of("/run=5/data/0.parquet") == {}
    assert partition_of("bucket/a=/=b/c==d/k=1.parquet") == {"c": "=d"}
    with pytest.raises(InvalidArgumentError, match="a=2"):
        partition_of("/a=1/a=2/0.parquet")
