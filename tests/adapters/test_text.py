"""CSV and JSON lines as sources: values keep their types and all of their digits, or are refused with the record."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import examples

import cachelayer
from cachelayer import ElementError, InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.adapters._csv import Csv
from cachelayer.adapters._files import Files
from cachelayer.adapters._json_lines import JsonLines
from cachelayer.adapters._text import parts_of_text
from cachelayer.adapters.pyarrow import from_csv, from_json


@pytest.fixture
def storage(tmp_path: Path) -> cachelayer.Storage:
    return cachelayer.Storage(tmp_path / "cache")


def rows(path: Path, form: Any) -> list[dict[str, Any]]:
    return [
        row for part in parts_of_text(Files(path), form)() for batch in part.batches(0) for row in batch.to_pylist()
    ]


def csv_rows(folder: Path, text: str | bytes, **options: Any) -> list[dict[str, Any]]:
    path = folder / "rows.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return rows(path, Csv(options.get("read"), options.get("parse"), options.get("convert"), options.get("schema")))


def json_rows(folder: Path, *lines: str | bytes, nbytes: int = 1 << 20) -> list[dict[str, Any]]:
    path = folder / "rows.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return rows(path, JsonLines(nbytes))


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["1", "-2", "0"], [1, -2, 0]),
        (["007", "7"], ["007", "7"]),
        (["+7", "7"], ["+7", "7"]),
        (["1", "", "NA"], [1, None, None]),
        ([str(2**63), "1"], [2**63, 1]),
        ([str(2**63), "-1"], [str(2**63), "-1"]),
        ([str(2**64 - 1)], [2**64 - 1]),
        ([str(2**64), "1"], [str(2**64), "1"]),
        ([str(2**53 + 1), "0.5"], [str(2**53 + 1), "0.5"]),
        ([str(2**53), "0.5"], [float(2**53), 0.5]),
        (["0.1", "1e-3", "-.5"], [0.1, 1e-3, -0.5]),
        (["1.000000000000000056e-01"], [0.1]),
        (["3.14159265358979323846"], ["3.14159265358979323846"]),
        (["1e400", "1"], ["1e400", "1"]),
        (["1e-400", "1"], ["1e-400", "1"]),
        (["0.0", "-0.0"], [0.0, -0.0]),
        (["nan", "1.5", "-inf"], [math.nan, 1.5, -math.inf]),
        (["nan", "inf"], ["nan", "inf"]),
        (["2024-01-02", "2024-01-03"], ["2024-01-02", "2024-01-03"]),
        (["12:30:00"], ["12:30:00"]),
        (["2024-01-02T03:04:05Z"], ["2024-01-02T03:04:05Z"]),
        (["true", "False", ""], [True, False, None]),
        (["0", "true"], ["0", "true"]),
        (["NA", "NA"], ["NA", "NA"]),
        (["1_000"], ["1_000"]),
        (["0x10"], ["0x10"]),
        ([" 7", "8 "], [7, 8]),
        ([" a", "b "], [" a", "b "]),
        (["NA", "UK"], ["NA", "UK"]),
    ],
    ids=repr,
)
def test_csv_columns_have_the_type_that_says_all_that_the_text_said(
    tmp_path: Path, texts: list[str], values: list[Any]
) -> None:
    found = [row["x"] for row in csv_rows(tmp_path, "n,x\n" + "".join(f"0,{text}\n" for text in texts))]
    assert list(map(repr, found)) == list(map(repr, values))


NUMBERS = st.one_of(
    st.integers(-(2**65), 2**65).map(str),
    st.floats().map(repr),
    st.floats(width=32).map(lambda value: f"{value:.9g}"),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str),
    st.from_regex(r"[-+]?[0-9]{0,20}(\.[0-9]{0,20})?([eE][-+]?[0-9]{1,3})?", fullmatch=True),
    st.sampled_from(["", "NA", "nan", "-inf", "true", "FALSE", "007", "-0", "2024-01-02", "ü"]),
)


@given(texts=st.lists(NUMBERS, min_size=1, max_size=4))
@settings(max_examples=examples(150), deadline=None)
def test_any_csv_value_is_its_text_or_the_number_that_is_written_so(texts: list[str]) -> None:
    form, block = Csv(None, None, None, None), pa.record_batch({"x": texts})
    for text, row in zip(texts, form.convert(block, form.schema(block)).to_pylist(), strict=True):
        value = row["x"]
        if isinstance(value, str):
            assert value == text
        elif value is None:
            assert text in ("", "NA")
        elif isinstance(value, bool):
            assert str(value).lower() == text.lower()
        elif isinstance(value, int):
            assert str(value) == text
        elif math.isfinite(value):
            assert f"{value:.40e}"[:20] == f"{float(text):.40e}"[:20]
            digits = len(text.lower().split("e")[0].replace(".", "").lstrip("-0"))
            assert not digits or Decimal(text) in (Decimal(repr(value)), Decimal(f"{value:.{digits - 1}e}"))
        else:
            assert repr(value) == text.lower().replace("infinity", "inf")


@pytest.mark.parametrize(
    ("late", "kind"), [("0.5", "int64"), ("007", "int64"), (str(2**63), "int64"), ("many", "int64"), ("1e0", "int64")]
)
def test_a_csv_value_that_comes_late_is_refused_with_its_record_and_the_fix(
    storage: cachelayer.Storage, tmp_path: Path, late: str, kind: str
) -> None:
    (tmp_path / "0.csv").write_text("n,x\n" + "1,a\n" * 500)
    (tmp_path / "1.csv").write_text("n,x\n" + "1,a\n" * 100 + f"{late},a\n")
    small = pa_csv.ReadOptions(block_size=1000)
    with pytest.raises(ElementError, match=rf"record 600, leaf \['n'\]: expected {kind}.*schema=.*1\.csv") as caught:
        storage.cache(from_csv(tmp_path / "*.csv", read_options=small), "d", "v1")
    assert repr(late) in str(caught.value)
    schema = pa.schema({"n": pa.string(), "x": pa.string()})
    ref = storage.cache(from_csv(tmp_path / "*.csv", schema, read_options=small), "d", "v1")
    assert ref[600] == {"n": late, "x": "a"}


def test_csv_dates_are_dates_only_if_asked_for(storage: cachelayer.Storage, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("day,id\n2024-01-02,007\n")
    assert storage.cache(from_csv(tmp_path / "a.csv"), "d", "v1")[0] == {"day": "2024-01-02", "id": "007"}
    ref = storage.cache(from_csv(tmp_path / "a.csv", pa.schema({"day": pa.date32()})), "d", "v2")
    assert ref[0] == {"day": np.datetime64("2024-01-02")}
    types = pa_csv.ConvertOptions(column_types={"day": pa.date32()})
    ref = storage.cache(from_csv(tmp_path / "a.csv", convert_options=types), "d", "v3")
    assert ref[0] == {"day": np.datetime64("2024-01-02"), "id": "007"}
    with pytest.raises(InvalidArgumentError, match="leave them out of convert_options"):
        from_csv(tmp_path / "a.csv", pa.schema({"day": pa.date32()}), convert_options=types)


def test_a_declared_float_that_is_nan_in_csv_stays_nan(tmp_path: Path) -> None:
    schema = pa.schema({"x": pa.float64()})
    assert list(map(repr, [row["x"] for row in csv_rows(tmp_path, "x\nnan\n1\nNA\n", schema=schema)])) == [
        "nan",
        "1.0",
        "None",
    ]


def test_line_breaks_in_quotes_are_kept_wherever_a_block_ends(tmp_path: Path) -> None:
    file = io.StringIO()
    writer = csv.writer(file)
    texts = [f'{number}, "a"\n\r\n{"x" * (number % 37)}\n' for number in range(200)]
    writer.writerows([["n", "text"], *enumerate(texts)])
    found = csv_rows(tmp_path, file.getvalue(), read=pa_csv.ReadOptions(block_size=256))
    assert [row["text"] for row in found] == texts
    assert [row["n"] for row in found] == list(range(200))


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
def test_a_byte_order_mark_and_windows_line_ends_are_no_values(tmp_path: Path, start: bytes) -> None:
    assert csv_rows(tmp_path, start + b"n,x\r\n1,a\r\n2,b\r\n") == [{"n": 1, "x": "a"}, {"n": 2, "x": "b"}]
    assert json_rows(tmp_path, start + b'{"n": 1}\r\n\r\n{"n": 2}\r') == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress)])
@pytest.mark.parametrize("place", ["local", "memory"])
def test_compressed_text_is_read_wherever_it_lies(
    storage: cachelayer.Storage, tmp_path: Path, suffix: str, pack: Any, place: str
) -> None:
    root = f"memory://text{suffix}" if place == "memory" else str(tmp_path)
    for name, data in (("a.csv", b"n\n1\n2\n"), ("a.jsonl", b'{"n": 1}\n{"n": 2}\n')):
        with fsspec.open(f"{root}/{name}{suffix}", "wb") as file:
            file.write(pack(data))
    schema = pa.schema({"n": pa.int64()})
    sources = [from_csv(f"{root}/a.csv{suffix}"), from_json(f"{root}/a.jsonl{suffix}")]
    sources += [from_csv(f"{root}/a.csv{suffix}", schema), from_json(f"{root}/a.jsonl{suffix}", schema)]
    for number, source in enumerate(sources):
        assert list(storage.cache(source, "d", f"v{number}")) == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("read", [from_csv, from_json])
def test_compressed_text_that_is_cut_short_or_not_named_so_is_refused(
    storage: cachelayer.Storage, tmp_path: Path, read: Any
) -> None:
    text = "n\n" if read is from_csv else ""
    text += "".join(f"{number}\n" if read is from_csv else f'{{"n": {number}}}\n' for number in range(100_000))
    packed = gzip.compress(text.encode())
    (tmp_path / "a.gz").write_bytes(packed[:-2000])
    with pytest.raises(SourceError, match=r"a\.gz .*(OSError|ArrowInvalid)"):
        storage.cache(read(tmp_path / "a.gz"), "d", "v1")
    (tmp_path / "a.txt").write_bytes(packed)
    with pytest.raises((SourceError, ElementError), match=r"a\.txt"):
        storage.cache(read(tmp_path / "a.txt"), "d", "v1")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", r"a\.csv does not parse: ArrowInvalid: Empty CSV file"),
        (b"n,x\n1\n", r"a\.csv .*Expected 2 columns, got 1"),
    ],
)
def test_csv_that_does_not_parse_is_named(
    storage: cachelayer.Storage, tmp_path: Path, text: bytes, reason: str
) -> None:
    (tmp_path / "a.csv").write_bytes(text)
    with pytest.raises(SourceError, match=reason):
        storage.cache(from_csv(tmp_path / "a.csv"), "d", "v1")


def test_csv_columns_that_differ_or_are_named_twice_are_refused(storage: cachelayer.Storage, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,x\n1,a\n")
    (tmp_path / "b.csv").write_text("x,n\na,1\n")
    (tmp_path / "c.csv").write_text("n,n\n1,2\n")
    with pytest.raises(SourceError, match=r"b\.csv: its columns are \['x', 'n'\], not \['n', 'x'\]"):
        storage.cache(from_csv([tmp_path / "a.csv", tmp_path / "b.csv"]), "d", "v1")
    with pytest.raises(InvalidTypeError, match=r"two columns are named \['n'\]"):
        storage.cache(from_csv(tmp_path / "c.csv"), "d", "v1")


def test_a_file_without_rows_tells_no_types(storage: cachelayer.Storage, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,x\n")
    (tmp_path / "b.csv").write_text("n,x\n1,a\n")
    (tmp_path / "a.jsonl").write_text("\n")
    (tmp_path / "b.jsonl").write_text('{"n": 1, "x": "a"}')
    assert list(storage.cache(from_csv(tmp_path / "*.csv"), "d", "v1")) == [{"n": 1, "x": "a"}]
    assert list(storage.cache(from_json(tmp_path / "*.jsonl"), "d", "v2")) == [{"n": 1, "x": "a"}]
    for source in (from_csv(tmp_path / "a.csv"), from_json(tmp_path / "a.jsonl")):
        with pytest.raises(cachelayer.CacheLayerError, match=r"no elements|no records|empty"):
            storage.cache(source, "d", "v3")


def test_json_values_are_those_of_python(tmp_path: Path) -> None:
    records = [
        {"id": 2**63, "day": "2024-01-02T03:04:05Z", "x": 0.1, "in": {"a": [1, 2], "b": None}, "ok": True},
        {"id": 2**64 - 1, "day": "007", "x": 5, "in": {"a": [], "b": "ü\n"}, "ok": None},
        {"id": 0, "day": "", "x": math.inf, "in": {"a": [2**53 + 1]}, "ok": False},
    ]
    found = json_rows(tmp_path, *map(json.dumps, records))
    expected = [{**record, "in": {"a": None, "b": None, **record["in"]}} for record in records]
    assert list(map(repr, found)) == [repr({**record, "x": float(record["x"])}) for record in expected]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=5,
)


def same(found: Any, given: Any) -> bool:
    if isinstance(found, dict):
        given = given or {}
        return set(given) <= set(found) and all(same(found[key], given.get(key)) for key in found)
    if isinstance(found, list):
        return len(found) == len(given) and all(map(same, found, given))
    if isinstance(found, float) and type(given) is int:
        return int(found) == given
    return repr(found) == repr(given)


@given(
    records=st.lists(st.dictionaries(st.sampled_from("xy"), JSON, max_size=2), min_size=1, max_size=3),
    told_by=st.integers(1, 3),
)
@settings(max_examples=examples(150), deadline=None)
def test_any_json_is_kept_or_refused_with_its_record(records: list[dict[str, Any]], told_by: int) -> None:
    form, lines = JsonLines(), [json.dumps(record).encode() for record in records]
    try:
        found = form.convert(lines, form.schema(lines[:told_by])).to_pylist()
    except ElementError as error:
        refused = error.record
    else:
        refused = None
        assert len(found) == len(records)
        assert all(map(same, found, records))
    assert refused in (None, *range(len(records)))


@pytest.mark.parametrize("nbytes", [1, 1 << 20], ids=["late", "first block"])
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"n": 0.5}', r"leaf \['n'\].*(float|double)"),
        ('{"n": "1"}', r"leaf \['n'\].*str"),
        ('{"n": true}', r"leaf \['n'\].*bool"),
        ('{"n": [1]}', r"leaf \['n'\].*list"),
        ('{"n": {"a": 1}}', r"leaf \['n'\].*(dict|struct)"),
        (
            '{"n": 18446744073709551616}',
            r"leaf \['n'\].*expected integers within int64 or uint64, got 18446744073709551616",
        ),
        ('{"n": 1, "n": 2}', "expected each key once in an object, got 'n' twice"),
        ('{"n": 1e400}', "expected a number that float64 holds, got 1e400"),
        ('{"n": 1} trailing', "JSONDecodeError: Extra data"),
        ('{"n": 1', "JSONDecodeError"),
        ("[1]", "one JSON object per line"),
        ("7", "one JSON object per line"),
        (b'{"n": 1, "t": "\xff"}', "(text in UTF-8|the key 't')"),
    ],
)
def test_json_that_does_not_fit_is_refused_with_its_record(
    storage: cachelayer.Storage, tmp_path: Path, line: str | bytes, reason: str, nbytes: int
) -> None:
    data = line if isinstance(line, bytes) else line.encode()
    (tmp_path / "a.jsonl").write_bytes(b'{"n": %d}\n' % (2**53 + 1) * 5 + b"\n" + data + b'\n{"n": 2}\n')
    options = pa_json.ReadOptions(block_size=nbytes)
    with pytest.raises(ElementError, match=rf"record 5[,:].*{reason}.*a\.jsonl"):
        storage.cache(from_json(tmp_path / "a.jsonl", read_options=options), "d", "v1")


def test_a_json_key_that_comes_late_is_refused_and_one_that_is_missing_is_null(
    storage: cachelayer.Storage, tmp_path: Path
) -> None:
    small = pa_json.ReadOptions(block_size=1)
    (tmp_path / "a.jsonl").write_text('{"n": 1, "x": "a"}\n{"n": 2}\n')
    assert list(storage.cache(from_json(tmp_path / "a.jsonl", read_options=small), "d", "v1")) == [
        {"n": 1, "x": "a"},
        {"n": 2, "x": None},
    ]
    (tmp_path / "b.jsonl").write_text('{"n": 1}\n{"n": 2, "x": "a"}\n')
    with pytest.raises(ElementError, match=r"record 1: .*\['n'\].*the key 'x' too.*schema="):
        storage.cache(from_json(tmp_path / "b.jsonl", read_options=small), "d", "v2")
    schema = pa.schema({"x": pa.string()})
    assert list(storage.cache(from_json(tmp_path / "b.jsonl", schema), "d", "v2")) == [{"x": None}, {"x": "a"}]


def test_json_dates_are_dates_only_if_asked_for(storage: cachelayer.Storage, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"when": "2024-01-02", "other": 1}\n')
    assert storage.cache(from_json(tmp_path / "a.jsonl"), "d", "v1")[0]["when"] == "2024-01-02"
    schema = pa.schema({"when": pa.timestamp("s")})
    ref = storage.cache(from_json(tmp_path / "a.jsonl", schema), "d", "v2")
    assert ref[0] == {"when": np.datetime64("2024-01-02T00:00:00", "s")}


def test_json_options_that_need_a_schema_say_so(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{\n"n": 1\n}\n')
    options = pa_json.ParseOptions(newlines_in_values=True)
    with pytest.raises(InvalidArgumentError, match="newlines_in_values needs schema="):
        from_json(tmp_path / "a.json", parse_options=options)
    source = from_json(tmp_path / "a.json", pa.schema({"n": pa.int64()}), parse_options=options)
    assert source.element_spec == {"n": cachelayer.ArraySpec("int64")}


def test_keys_beside_an_explicit_schema_are_refused(storage: cachelayer.Storage, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1, "day": "2024-01-02"}\n')
    options = pa_json.ParseOptions(explicit_schema=pa.schema({"n": pa.int64()}))
    with pytest.raises(ElementError, match=r"record 0: .*unexpected field.*a\.jsonl"):
        storage.cache(from_json(tmp_path / "a.jsonl", parse_options=options), "d", "v1")
