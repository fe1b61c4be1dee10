"""Values that cross Arrow's tables and files."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
from values_across import NoSuchValue, Row, ValuesAcross

from cachelayer import CacheLayerError, CacheLayerWarning, DataRef
from cachelayer.adapters.frameworks.arrow_arrays import read_columns, to_arrow
from cachelayer.adapters.pyarrow import from_ipc, from_parquet


def _table(ref: DataRef[Any], _: Path | None = None) -> pa.Table:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            schema, batch, rows = read_columns(ref, None)
            return pa.table({f.name: to_arrow(f.type, batch[f.name], rows, f"[{f.name!r}]") for f in schema})
        except (CacheLayerError, CacheLayerWarning) as error:
            raise NoSuchValue from error


def _reader(ref: DataRef[Any], _: Path) -> pa.RecordBatchReader:
    return _table(ref).to_reader(max_chunksize=1)


def _parquet(ref: DataRef[Any], folder: Path) -> Any:
    try:
        pyarrow.parquet.write_table(_table(ref), folder / "x.parquet", row_group_size=2)
        # pyarrow writes null lists of fixed size, and lists of none, that it does not read.
        pyarrow.parquet.read_table(folder / "x.parquet")
    except pa.ArrowException as error:
        raise NoSuchValue from error
    return from_parquet(folder / "x.parquet")


def _feather(ref: DataRef[Any], folder: Path) -> Any:
    pyarrow.feather.write_feather(_table(ref), str(folder / "x.arrow"))
    return from_ipc(folder / "x.arrow")


class TestTables(ValuesAcross):
    row = Row("pyarrow", make=_table)


class TestReaders(ValuesAcross):
    row = Row("pyarrow_reader", make=_reader)


class TestParquet(ValuesAcross):
    row = Row("parquet", make=_parquet)


class TestFeather(ValuesAcross):
    row = Row("feather", make=_feather)
