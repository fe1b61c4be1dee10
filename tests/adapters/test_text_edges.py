"""What CSV and JSON lines hold at their edges: numbers of declared types, ends of files, compression, broken rows."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zipfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from samples import examples

import cachelayer
from cachelayer import ElementError, InvalidTypeError, SourceError
from cachelayer.adapters.pyarrow import from_csv, from_json
from cachelayer.errors import CacheLayerError

CSV = b"x,y\n1,a\n2,b\n"
JSON = b'{"x": 1, "y": "a"}\n{"x": 2, "y": "b"}\n'
TYPES = {"float16": pa.float16(), "float32": pa.float32(), "float64": pa.float64()}
DECLARED = pa.schema({"x": pa.int64(), "y": pa.string()})
READ: dict[str, Callable[..., Any]] = {"csv": from_csv, "jsonl": from_json}


def rows(source: Any) -> list[dict[str, Any]]:
    return [row for part in source._parts() for batch in part.batches(0) for row in batch.to_pylist()]


def texts(name: str, value: str) -> str:
    return f"x,y\n{value},\n" if name == "csv" else f'{{"x": {value}, "y": null}}\n'


def stands_for(text: str, kind: str) -> bool:
    """Return whether a float of this kind may stand for a number as it is written; integers must be exact."""
    with np.errstate(over="ignore", under="ignore"):
        stored = np.dtype(kind).type(text)
    if np.isinf(stored) or (not stored and Decimal(text)):
        return False
    return "." in text or "e" in text or Decimal(text) == Decimal(float(stored))


NUMBERS = st.one_of(
    st.integers(-(2**65), 2**65).map(str),
    st.integers(0, 66).flatmap(lambda power: st.sampled_from([str(2**power - 1), str(2**power + 1), str(-(2**power))])),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.tuples(st.integers(1, 99), st.integers(-420, 420)).map(lambda pair: f"{pair[0]}e{pair[1]}"),
)


@pytest.mark.parametrize("name", READ)
@settings(max_examples=examples(60), deadline=None)
@given(number=NUMBERS, kind=st.sampled_from(sorted(TYPES)))
@example(number="9007199254740993", kind="float64")
@example(number="16777217", kind="float32")
@example(number="16777217.0", kind="float32")
@example(number="2049", kind="float16")
@example(number="1e400", kind="float64")
@example(number="1e-400", kind="float64")
@example(number="1e-400", kind="float32")
@example(number="1e39", kind="float32")
@example(number="0." + "0" * 400 + "1", kind="float64")
@example(number="0." + "0" * 60 + "1", kind="float32")
@example(number="0." + "0" * 29 + "1e-20", kind="float32")
@example(number="1" + "0" * 400, kind="float64")
@example(number="0.14285714285714285", kind="float64")
@example(number="70000", kind="float16")
def test_a_declared_float_stands_for_its_number_or_is_refused_by_record_and_column(
    name: str, number: str, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # pyarrow makes no 16-bit floats of JSON.
    assume((name, kind) != ("jsonl", "float16"))
    path = tmp_path_factory.mktemp("numbers") / f"a.{name}"
    path.write_text(texts(name, "1") + (texts(name, number) if name == "jsonl" else f"{number},\n"))
    source = READ[name](path, pa.schema({"x": TYPES[kind]}))
    if stands_for(number, kind):
        assert rows(source)[1]["x"] == float(np.dtype(kind).type(number))
    else:
        with pytest.raises(ElementError, match=rf"record 1.*\['x'\].*{path.name}|record 1.*float64 holds"):
            rows(source)


@pytest.mark.parametrize("value", ["x", "1.5", "300", "-129", "1e2", "+-1"])
def test_a_declared_integer_that_is_none_is_refused_by_record_and_column(value: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"x\n1\n\n2\n{value}\n3\n")
    with pytest.raises(ElementError, match=r"record 2, leaf \['x'\]: expected int8"):
        rows(from_csv(tmp_path / "a.csv", pa.schema({"x": pa.int8()})))


def test_a_declared_number_has_the_decimal_point_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x;y\n1,5;1\n NA ; 2 \n")
    options = pa_csv.ConvertOptions(decimal_point=",", column_types={"x": pa.float64(), "y": pa.uint8()})
    source = from_csv(tmp_path / "a.csv", convert_options=options, parse_options=pa_csv.ParseOptions(delimiter=";"))
    assert rows(source) == [{"x": 1.5, "y": 1}, {"x": None, "y": 2}]


@pytest.mark.parametrize(
    "line",
    [
        b"null",
        b"1",
        b"[1]",
        b'{"x": 1} {"x": 2}',
        b'{"x": 1}{"x": 2}',
        b'{"x": 1, "x": 2}',
        b'{"x": 1',
        b'{"x": 1},',
        b"\0\0",
        b'{"x": "a"}',
        b'{"y": "\\ud800"}',
        b'{"\\ud800": 1}',
        b"[" * 100_000,
        b'{"x": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda line: line[:20].decode(),
)
@pytest.mark.parametrize("schema", [None, DECLARED], ids=["found", "declared"])
def test_a_line_that_is_no_such_object_is_refused_by_its_record(line: bytes, schema: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(JSON + b"\n" + line + b"\n" + JSON)
    with pytest.raises(ElementError, match=r"record 2.*a\.jsonl"):
        rows(from_json(tmp_path / "a.jsonl", schema))


def test_objects_may_go_over_several_lines_if_that_is_asked_for(tmp_path: Path) -> None:
    options = pa_json.ParseOptions(newlines_in_values=True)
    path = tmp_path / "a.jsonl"
    path.write_text('{\n "x": 1,\n "y": "}{"\n}\n{"x": 2}\n\n{"x":\n3}')
    assert [row["x"] for row in rows(from_json(path, DECLARED, parse_options=options))] == [1, 2, 3]
    path.write_text('{\n "x": 1\n}\nnull\n')
    with pytest.raises(ElementError, match="record 1: expected one JSON object"):
        rows(from_json(path, DECLARED, parse_options=options))
    path.write_text('{\n "x": 1\n}\n{"x": \n')
    with pytest.raises(ElementError, match="record 1"):
        rows(from_json(path, DECLARED, parse_options=options))


@pytest.mark.parametrize("schema", [None, DECLARED], ids=["found", "declared"])
@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: data.replace(b"\n", b"\n\n"),
        lambda data: data + b"\n\n",
    ],
    ids=["no last line break", "CRLF", "byte order mark", "empty lines", "empty lines at the end"],
)
@pytest.mark.parametrize("name", READ)
def test_how_lines_end_changes_no_value(
    name: str, change: Callable[[bytes], bytes], schema: Any, tmp_path: Path
) -> None:
    path = tmp_path / f"a.{name}"
    path.write_bytes(change(CSV if name == "csv" else JSON))
    assert rows(READ[name](path, schema)) == [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}]


@pytest.mark.parametrize("schema", [None, DECLARED], ids=["found", "declared"])
@pytest.mark.parametrize("name", READ)
def test_zeros_at_the_end_and_utf_16_are_refused_by_name(name: str, schema: Any, tmp_path: Path) -> None:
    path = tmp_path / f"a.{name}"
    data = CSV if name == "csv" else JSON
    for wrong in (data + b"\0" * 100, data.decode().encode("utf-16")):
        path.write_bytes(wrong)
        with pytest.raises(CacheLayerError, match=path.name):
            rows(READ[name](path, schema))


@pytest.mark.parametrize(
    ("text", "is_closed"),
    [
        ('x,y\n1,"ab\n2,c\n', False),
        ('x,y\n1,"ab', False),
        ('x,y\n1,"ab""', False),
        ('x,y\n1,"', False),
        ('x,y\n1,"ab\n"\n', True),
        ('x,y\n1,"a""b"', True),
        ('x,y\n1,5" pipe\n', True),
        ('"x",y\n1,"5"" pipe"\n2,6"\n', True),
    ],
)
def test_a_csv_file_that_ends_within_quotes_is_refused(text: str, is_closed: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for start in (b"", b"\xef\xbb\xbf"):
        path.write_bytes(start + text.encode())
        if is_closed:
            assert rows(from_csv(path))
        else:
            with pytest.raises(SourceError, match=r"a\.csv ends within quotes"):
                rows(from_csv(path))


def test_a_declared_csv_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y,x\n1,2,3\n")
    with pytest.raises(InvalidTypeError, match=r"two columns are named \['x'\]"):
        rows(from_csv(tmp_path / "a.csv", pa.schema({"x": pa.int64()})))
    assert rows(from_csv(tmp_path / "a.csv", pa.schema({"y": pa.int64()}))) == [{"y": 2}]


def test_a_csv_row_that_is_too_long_says_which_option_takes_it(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x\n1\n" + "a" * 3000 + "\n")
    with pytest.raises(SourceError, match=r"a\.csv has a row of more than the 1,000 bytes.*block_size=16000"):
        rows(from_csv(path, read_options=pa_csv.ReadOptions(block_size=1000)))
    assert len(rows(from_csv(path, read_options=pa_csv.ReadOptions(block_size=16000)))) == 2


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress)])
def test_compressed_files_may_have_members_and_must_be_whole(
    name: str, suffix: str, compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    data = CSV if name == "csv" else JSON
    path = tmp_path / f"a.{name}{suffix.upper()}"
    head, tail = data[: len(data) // 2], data[len(data) // 2 :]
    path.write_bytes(compress(head) + compress(tail))
    assert len(rows(READ[name](path))) == 2
    whole = compress(data)
    for wrong in (b"", whole[:-1], whole[:-9], whole[: len(whole) // 2], whole + b"\0" * 10, whole + b"more"):
        path.write_bytes(wrong)
        with pytest.raises(SourceError, match=path.name):
            rows(READ[name](path))


@pytest.mark.parametrize("name", READ)
def test_a_compressed_file_whose_name_does_not_say_so_is_refused_with_the_fix(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{name}"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", b"1")
    for data, fix in (
        (gzip.compress(CSV), "name end in .gz"),
        (bz2.compress(CSV), "name end in .bz2"),
        (pa.compress(CSV, "zstd", asbytes=True), "name end in .zst"),
        (lzma.compress(CSV), "xz file: decompress it"),
        (path.read_bytes(), "zip file: decompress it"),
    ):
        path.write_bytes(data)
        with pytest.raises(SourceError, match=fix):
            rows(READ[name](path))


@pytest.mark.parametrize("ending", [".br", ".BR", ".lzma", ".snappy"])
@pytest.mark.parametrize("name", READ)
def test_a_file_whose_name_says_a_compression_that_is_not_read_is_refused(
    name: str, ending: str, tmp_path: Path
) -> None:
    path = tmp_path / f"a.{name}{ending}"
    path.write_bytes(CSV if name == "csv" else b'{"x": 1}\n')
    with pytest.raises(SourceError, match=rf"{ending.lower()} files are not read: decompress it"):
        rows(READ[name](path))


@pytest.mark.parametrize("kind", [pa.float16(), pa.list_(pa.float16()), pa.list_(pa.int8(), 2), pa.duration("s")])
def test_a_declared_type_that_json_is_not_read_as_is_named_with_the_fix(kind: pa.DataType, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"w": 1, "x": null}\n' * 3)
    with pytest.raises(cachelayer.InvalidTypeError, match=r"leaf \['x'\].*declare another, such as float32") as raised:
        rows(from_json(path, pa.schema({"w": pa.int8(), "x": kind})))
    assert "Correct the line" not in str(raised.value)


TEXTS = {
    "csv": (b"x,y\n" + b"a,1\n" * 3 + b"\xff,2\nc,3\n", from_csv),
    "json": (b'{"x": "a", "y": 1}\n' * 3 + b'{"x": "\xff", "y": 2}\n{"x": "c", "y": 3}\n', from_json),
    "json lists": (b'{"x": ["a"], "y": 1}\n' * 3 + b'{"x": ["\xff"], "y": 2}\n{"x": ["c"], "y": 3}\n', from_json),
    "json dicts": (
        b'{"x": {"z": "a"}, "y": 1}\n' * 3 + b'{"x": {"z": "\xff"}, "y": 2}\n{"x": {"z": "c"}, "y": 3}\n',
        from_json,
    ),
}


@pytest.mark.parametrize("schema", [None, pa.schema({"x": pa.string(), "y": pa.int64()})])
@pytest.mark.parametrize("name", TEXTS)
def test_a_row_of_text_that_is_no_utf_8_is_refused_by_its_record_or_left_out(
    name: str, schema: Any, tmp_path: Path
) -> None:
    data, read = TEXTS[name]
    if schema is not None and name not in ("csv", "json"):
        schema = None
    path = tmp_path / "a"
    path.write_bytes(data)
    storage = cachelayer.Storage(tmp_path / "cache")
    with pytest.raises(cachelayer.ElementError, match=r"record 3, leaf \['x'\].*: expected text in UTF-8"):
        storage.submit(read(path, schema), "d", "v1")
    with pytest.warns(cachelayer.CacheLayerWarning, match="1 of 5 records were left out"):
        ref = storage.submit(read(path, schema), "d", "v1", on_error="skip")
    assert [element["y"] for element in ref] == [1, 1, 1, 3]


def test_a_late_csv_value_of_a_number_that_is_no_utf_8_is_refused_by_its_record(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"x\n" + b"1000000000\n" * 100_000 + b"\xff\n")
    with pytest.raises(cachelayer.ElementError, match=r"record 100000, leaf \['x'\].*got '\\\\xff'"):
        cachelayer.Storage(tmp_path / "cache").submit(from_csv(path), "d", "v1")
