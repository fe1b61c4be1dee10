"""Values that come in from files of rows, written by what writes such files."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from values_across import NoSuchValue, Row, ValuesAcross

from cachelayer import DataRef, ElementError, Ragged, Storage
from cachelayer.adapters.pyarrow import from_csv, from_json


def _scalars(ref: DataRef[Any]) -> list[list[Any]]:
    """The values of the records, none of which has parts."""
    rows = [list(element.values()) for element in ref]
    if any(isinstance(value, (dict, np.ndarray, Ragged)) for row in rows for value in row):
        raise NoSuchValue("there is no scalar")
    return rows


def _declared(ref: DataRef[Any]) -> dict[str, Any]:
    return {"element_spec": ref.element_spec}


def _type_of(spec: Any) -> pa.DataType:
    if spec is None:
        return pa.null()
    if isinstance(spec, dict):
        return pa.struct([(name, _type_of(child)) for name, child in spec.items()])
    if isinstance(spec.dtype, np.dtype) and spec.dtype.kind in "mM" and np.datetime_data(spec.dtype)[1] != 1:
        raise NoSuchValue("Arrow has no such unit")
    try:
        kind = {str: pa.string(), bytes: pa.binary(), np.dtype("M8[D]"): pa.date32()}.get(spec.dtype)
        kind = kind or pa.from_numpy_dtype(spec.dtype)
    except (pa.ArrowException, TypeError) as error:
        raise NoSuchValue from error
    for _ in getattr(spec, "splits", ()) or spec.shape:
        kind = pa.list_(kind)
    return kind


def _csv(ref: DataRef[Any], folder: Path) -> Any:
    rows = _scalars(ref)
    spec = ref.element_spec
    texts = [[_text(value, leaf) for value, leaf in zip(row, spec.values(), strict=True)] for row in rows]
    with (folder / "x.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        try:
            writer.writerows([list(spec), *texts])
        except UnicodeEncodeError as error:
            raise NoSuchValue from error
    return from_csv(folder / "x.csv", pa.schema({name: _type_of(leaf) for name, leaf in spec.items()}))


def _text(value: Any, leaf: Any) -> str:
    if isinstance(value, (bytes, np.complexfloating, np.timedelta64)):
        raise NoSuchValue("CSV has text, numbers and moments")
    if value is None and leaf is not None and leaf.dtype is str:
        raise NoSuchValue("CSV does not tell null from text")
    return "" if value is None else str(value)


def _json(ref: DataRef[Any], folder: Path) -> Any:
    unknown = [name for name, leaf in ref.element_spec.items() if None in getattr(leaf, "shape", ())[1:]]
    if any(isinstance(element[name], np.ndarray) and not len(element[name]) for element in ref for name in unknown):
        raise NoSuchValue("an empty list does not show its inner dimensions")
    lines = (json.dumps(element, default=_plain) for element in ref)
    (folder / "x.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return from_json(folder / "x.jsonl", pa.schema({name: _type_of(leaf) for name, leaf in ref.element_spec.items()}))


def _plain(value: Any) -> Any:
    if isinstance(value, Ragged) and value.flat_values.dtype.kind in "biuf":
        return value.to_list()
    if not isinstance(value, (np.ndarray, np.generic)) or value.dtype.kind not in "biufUO":
        raise NoSuchValue(f"JSON has no {type(value).__name__}")
    return value.tolist()


class TestCsv(ValuesAcross):
    row = Row("csv", make=_csv)


class TestJson(ValuesAcross):
    row = Row("json", make=_json, options=_declared)
    # JSON has one NaN; those that are drawn have signs and payloads.
    test_drawn_values_of_all_dtypes_cross_unchanged = None  # type: ignore[assignment]


@pytest.mark.parametrize("kind", [pa.timestamp("s"), pa.timestamp("ns", "UTC"), pa.date32()])
def test_a_csv_cell_that_is_no_declared_moment_is_refused_by_its_record_and_leaf(kind: Any, tmp_path: Path) -> None:
    zone = "T00:00:00Z" if getattr(kind, "tz", None) else ""
    (tmp_path / "x.csv").write_text(f"x,y\n2020-01-01{zone},1\n2020-01-32{zone},2\n")
    with pytest.raises(ElementError, match=r"record 1, .*x.*2020-01-32"):
        Storage(tmp_path / "a").cache(from_csv(tmp_path / "x.csv", pa.schema({"x": kind})), "d", "v1")
