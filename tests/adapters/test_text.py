"""CSV and JSON lines as sources: values keep their types and all of their digits, or are refused with the record."""

import csv
import io
import json
import math
import re
import warnings
from collections.abc import Callable
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from samples import examples
from values_across import assert_same

import cachelayer
from cachelayer import ElementError, InvalidArgumentError, InvalidTypeError, SourceError, Storage
from cachelayer.adapters.pyarrow import from_csv, from_json
from cachelayer.errors import CacheLayerError

CSV = b"x,y\n1,a\n2,b\n"
JSON = b'{"x": 1, "y": "a"}\n{"x": 2, "y": "b"}\n'
FLOATS = {"float16": pa.float16(), "float32": pa.float32(), "float64": pa.float64()}
DECLARED = pa.schema({"x": pa.int64(), "y": pa.string()})
READ: dict[str, Callable[..., Any]] = {"csv": from_csv, "jsonl": from_json}
DATA = {"csv": CSV, "jsonl": JSON}
ELEMENTS = [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}]
NUMBER = count()


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    return Storage(tmp_path_factory.mktemp("cache"))


def rows(storage: Storage, source: Any, **options: Any) -> list[dict[str, Any]]:
    return list(storage.submit(source, f"d{next(NUMBER)}@v1", **options))


@pytest.mark.parametrize("text", ["007", "1", "", "NA", "nan", "3.14159265358979323846", " a", "2024-01-02", "ü"])
def test_csv_without_a_schema_is_text(storage: Storage, tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text(f"n,x\n0,{text}\n")
    assert rows(storage, from_csv(tmp_path / "a.csv")) == [{"n": "0", "x": text}]


def test_csv_has_the_types_that_are_declared(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("day,id,x,ok\n2024-01-02,007, 1.5,true\n,8 ,nan,\n")
    kinds = {"day": pa.date32(), "id": pa.int8(), "x": pa.float32(), "ok": pa.bool_()}
    day, *rest = rows(storage, from_csv(tmp_path / "a.csv", pa.schema(kinds)))
    assert day == {"day": np.datetime64("2024-01-02"), "id": 7, "x": 1.5, "ok": True}
    assert [(row["day"], row["id"], math.isnan(row["x"]), row["ok"]) for row in rest] == [(None, 8, True, None)]
    types = pa_csv.ConvertOptions(column_types={"day": pa.date32()})
    assert rows(storage, from_csv(tmp_path / "a.csv", convert_options=types))[0]["id"] == "007"
    with pytest.raises(InvalidArgumentError, match="convert_options"):
        from_csv(tmp_path / "a.csv", pa.schema(kinds), convert_options=types)
    with pytest.raises(InvalidArgumentError, match="true_values"):
        from_csv(tmp_path / "a.csv", convert_options=pa_csv.ConvertOptions(true_values=["ja"]))
    (tmp_path / "b.csv").write_text("x;y\n1,5;1\n NA ; 2 \n")
    options = pa_csv.ConvertOptions(decimal_point=",", column_types={"x": pa.float64(), "y": pa.uint8()})
    source = from_csv(tmp_path / "b.csv", convert_options=options, parse_options=pa_csv.ParseOptions(delimiter=";"))
    assert rows(storage, source) == [{"x": 1.5, "y": 1}, {"x": None, "y": 2}]


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
@settings(max_examples=examples(20), deadline=None, suppress_health_check=[*HealthCheck])
@given(number=NUMBERS, kind=st.sampled_from(sorted(FLOATS)))
@example(number="9007199254740993", kind="float64")
@example(number="16777217", kind="float32")
@example(number="2049", kind="float16")
@example(number="18446744073709551616", kind="float32")
@example(number="1e400", kind="float64")
@example(number="1e-400", kind="float64")
@example(number="1e39", kind="float32")
@example(number="0." + "0" * 400 + "1", kind="float64")
@example(number="1" + "0" * 400, kind="float64")
@example(number="0.14285714285714285", kind="float64")
def test_a_declared_float_stands_for_its_number_or_is_refused_by_record(
    storage: Storage, name: str, number: str, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("numbers") / f"a.{name}"
    path.write_text(f"x,y\n1,\n{number},\n" if name == "csv" else f'{{"x": 1}}\n{{"x": {number}}}\n')
    try:
        found = rows(storage, READ[name](path, pa.schema({"x": FLOATS[kind]})))[1]["x"]
    except ElementError as error:
        assert error.record == 1  # noqa: PT017
        # What underflows in the declared dtype may be refused too, and an integer of JSON that 64 bits do not hold.
        is_long = name == "jsonl" and number.lstrip("-").isdigit() and not -(2**63) <= int(number) < 2**64
        assert not stands_for(number, kind) or is_long or abs(float(number)) < float(np.finfo(kind).tiny)
    else:
        # A declared float takes the nearest number that it has.
        assert stands_for(number, kind) or name == "csv" or kind != "float64"
        assert found == np.dtype(kind).type(number)


@pytest.mark.parametrize(
    ("kind", "good", "stored", "bad"),
    [
        *((pa.int8(), "1", np.int8(1), bad) for bad in ("x", "1.5", "300", "-129", "1e2", "+-1")),
        (pa.timestamp("s"), "2020-01-01", np.datetime64("2020-01-01", "s"), "2020-01-32"),
        (pa.timestamp("ns", "UTC"), "2020-01-01T00:00:00Z", np.datetime64("2020-01-01", "ns"), "2020-01-32T00:00:00Z"),
        (pa.date32(), "2020-01-01", np.datetime64("2020-01-01"), "2020-01-32"),
    ],
    ids=str,
)
def test_a_csv_cell_is_its_declared_value_or_is_refused_by_record_and_leaf(
    storage: Storage, kind: Any, good: str, stored: Any, bad: str, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(f"x\n{good}\n\n{bad}\n{good}\n")
    source = from_csv(tmp_path / "a.csv", pa.schema({"x": kind}))
    with pytest.raises(ElementError, match=rf"a\.csv.*record 2, .*x.*{re.escape(bad)}"):
        rows(storage, source)
    with pytest.warns(cachelayer.CacheLayerWarning, match="1 of 4"):
        first, empty, last = rows(storage, source, on_error="skip")
    assert empty == {"x": None}
    for row in (first, last):
        assert_same(row["x"], stored)


def test_an_empty_line_is_an_empty_cell_where_there_is_one_column(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"x\n\n1\r\n\r\n2\n")
    (tmp_path / "b.csv").write_bytes(b"x,y\n\n1,2\n\n")
    assert [row["x"] for row in rows(storage, from_csv(tmp_path / "a.csv"))] == ["", "1", "", "2"]
    quoted = pa_csv.ParseOptions(quote_char=False)
    assert len(rows(storage, from_csv(tmp_path / "a.csv", parse_options=quoted))) == 4
    assert rows(storage, from_csv(tmp_path / "b.csv")) == [{"x": "1", "y": "2"}]


@pytest.mark.parametrize("block_size", [64, 1 << 20])
def test_a_quotation_mark_within_a_text_is_part_of_it_and_one_that_is_not_closed_is_refused(
    storage: Storage, tmp_path: Path, block_size: int
) -> None:
    read = pa_csv.ReadOptions(block_size=block_size)
    filler = "0,a\n" * 30
    for texts in (['5" pipe'], ['5" pipe', '2"'], ['"a"" b"', '5"']):
        (tmp_path / "a.csv").write_text("n,x\n" + filler + "".join(f"1,{text}\n" for text in texts))
        found = rows(storage, from_csv(tmp_path / "a.csv", read_options=read))[30:]
        assert [row["x"] for row in found] == [text.replace('"a"" b"', 'a" b') for text in texts]
    for bad in ('"ab', '5" pipe\n2,"ab', '"'):
        for end in ("", "\n", "\n2,c\n"):
            (tmp_path / "a.csv").write_text(f"n,x\n{filler}1,{bad}{end}")
            with pytest.raises(SourceError, match=r"^\S*a\.csv"):
                rows(storage, from_csv(tmp_path / "a.csv", read_options=read))


@pytest.mark.parametrize(("kind", "text"), [("float32", "1e-60"), ("float64", "-0.1e-400"), ("float16", "0.000000001")])
def test_a_number_that_would_become_0_is_refused(storage: Storage, tmp_path: Path, kind: str, text: str) -> None:
    (tmp_path / "a.csv").write_text(f"x,y\n0.0,a\n0e9,b\n{text},c\n")
    source = from_csv(tmp_path / "a.csv", convert_options=pa_csv.ConvertOptions(column_types={"x": FLOATS[kind]}))
    with pytest.raises(ElementError, match=r"^\S*a\.csv.*record 2, .*'x'"):
        rows(storage, source)


def test_line_breaks_in_quotes_are_kept_wherever_a_block_ends(storage: Storage, tmp_path: Path) -> None:
    file = io.StringIO()
    texts = [f'{number}, "a"\n\r\n{"x" * (number % 37)}\n' for number in range(200)]
    csv.writer(file).writerows([["n", "text"], *enumerate(texts)])
    (tmp_path / "a.csv").write_bytes(file.getvalue().encode())
    found = rows(storage, from_csv(tmp_path / "a.csv", read_options=pa_csv.ReadOptions(block_size=256)))
    assert [row["text"] for row in found] == texts


@pytest.mark.parametrize("declared", [False, True])
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
    storage: Storage, name: str, change: Callable[[bytes], bytes], declared: bool, tmp_path: Path
) -> None:
    path = tmp_path / f"a.{name}"
    path.write_bytes(change(DATA[name]))
    found = rows(storage, READ[name](path, DECLARED if declared else None))
    assert [{"x": int(row["x"]), "y": row["y"]} for row in found] == ELEMENTS


def test_csv_columns_that_differ_or_are_named_twice_are_refused(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,x\n1,a\n")
    (tmp_path / "b.csv").write_text("x,n\na,1\n")
    (tmp_path / "c.csv").write_text("n,x,n\n1,2,3\n")
    with pytest.raises(SourceError, match=r"b\.csv"):
        rows(storage, from_csv([tmp_path / "a.csv", tmp_path / "b.csv"]))
    with pytest.raises(InvalidTypeError, match="'n'"):
        rows(storage, from_csv(tmp_path / "c.csv"))
    assert rows(storage, from_csv(tmp_path / "c.csv", pa.schema({"x": pa.int64()}))) == [{"x": 2}]


def test_a_file_without_rows_tells_no_types(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,x\n")
    (tmp_path / "b.csv").write_text("n,x\n1,a\n")
    (tmp_path / "a.jsonl").write_text("\n")
    (tmp_path / "b.jsonl").write_text('{"n": "1", "x": "a"}')
    for name, read in READ.items():
        assert rows(storage, read(tmp_path / f"*.{name}")) == [{"n": "1", "x": "a"}]
        with pytest.raises(CacheLayerError):
            rows(storage, read(tmp_path / f"a.{name}"))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=5,
)


def same(found: Any, given: Any) -> bool:
    """Return whether an element holds what JSON held: dicts in lists as dicts of lists, and null for missing keys."""
    if isinstance(found, dict):
        if isinstance(given, list):
            return all(same(child, [row.get(key) for row in given]) for key, child in found.items())
        given = given or {}
        return set(given) <= set(found) and all(same(found[key], given.get(key)) for key in found)
    if isinstance(found, (cachelayer.Nullable, cachelayer.Ragged)):
        found = found.to_list()
    found = found.tolist() if isinstance(found, (np.ndarray, np.generic)) else found
    if isinstance(found, list):
        return len(found) == len(given) and all(map(same, found, given))
    return int(found) == given if isinstance(found, float) and type(given) is int else repr(found) == repr(given)


@given(records=st.lists(st.dictionaries(st.sampled_from("xy"), JSON_VALUES, max_size=2), min_size=1, max_size=3))
@settings(max_examples=examples(50), deadline=None, suppress_health_check=[*HealthCheck])
def test_any_json_is_kept_or_refused(
    storage: Storage, records: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("json") / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    try:
        with warnings.catch_warnings():
            # A field whose structure changes is JSON.
            warnings.simplefilter("ignore", cachelayer.CacheLayerWarning)
            found = rows(storage, from_json(path))
    except ElementError as error:
        assert error.record in range(len(records))  # noqa: PT017
    else:
        assert len(found) == len(records)
        assert all(map(same, found, records))


@pytest.mark.parametrize("schema", [None, pa.schema({"n": pa.int64()})], ids=["found", "declared"])
@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"n": 0.5}', "'n'.*(float|int)"),
        (b'{"n": "1"}', "'n'.*str"),
        (b'{"n": true}', "'n'.*bool"),
        (b'{"n": [1]}', "'n'.*list"),
        (b'{"n": {"a": 1}}', "'n'.*dict"),
        (b'{"n": 18446744073709551616}', "'n'.*18446744073709551616"),
        (b'{"n": 1, "n": 2}', "'n'.*twice"),
        (b'{"n": 1e400}', "1e400"),
        (b'{"n": 1} trailing', "Extra data"),
        (b'{"n": 1', "JSONDecodeError"),
        (b"[1]", "object"),
        (b"null", "object"),
        (b'{"n": 1, "t": "\xff"}', "UnicodeDecodeError"),
        (b"[" * 100_000, "Recursion"),
        (b'{"n": ' + b"9" * 5000 + b"}", "digits"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_json_that_does_not_fit_is_refused_with_its_record_or_left_out(
    storage: Storage, tmp_path: Path, line: bytes, said: str, schema: Any
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n": %d}\n' % (2**53 + 1) * 5 + b"\n" + line + b'\n{"n": 2}\n')
    with pytest.raises(ElementError, match=rf"(?s)^\S*a\.jsonl, line [17], record [05][,:].*{said}") as error:
        rows(storage, from_json(path, schema))
    assert "BadValue" not in str(error.value)
    if b"0.5" in line and schema is None:
        return  # a float among the first numbers makes all of them floats
    with pytest.warns(cachelayer.CacheLayerWarning, match="1 of 7"):
        assert [row["n"] for row in rows(storage, from_json(path, schema), on_error="skip")] == [2**53 + 1] * 5 + [2]


def test_a_json_key_that_comes_late_is_refused_and_other_keys_than_those_of_a_schema_are_not_read(
    storage: Storage, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n' * 5000 + '{"n": 2, "x": "a"}\n')
    with pytest.raises(ElementError, match=r"record 5000.*'x'"):
        rows(storage, from_json(tmp_path / "a.jsonl"))
    assert rows(storage, from_json(tmp_path / "a.jsonl", pa.schema({"x": pa.string()})))[-2:] == [
        {"x": None},
        {"x": "a"},
    ]
    with pytest.raises(ElementError, match=r"record 5000, .*'x'.*str"):
        rows(storage, from_json(tmp_path / "a.jsonl", pa.schema({"x": pa.timestamp("s")})))


@pytest.mark.parametrize("line", ["[1, 2]", '{"x": 1, "x": 2}', "nothing"])
def test_json_lines_of_which_none_can_be_read_are_refused_by_file_and_line(
    storage: Storage, tmp_path: Path, line: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"\n{line}\n{line}\n")
    with pytest.raises(ElementError, match=r"a\.jsonl, line 2"):
        storage.submit(from_json(path), "unreadable@v1")


class CountedFiles(MemoryFileSystem):  # type: ignore[misc]
    """Files in memory that count how often they are opened for reading."""

    protocol = "counted"
    opened = 0

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        CountedFiles.opened += mode == "rb"
        return super()._open(path, mode, **options)


@pytest.mark.parametrize("kind", READ)
def test_lines_that_are_left_out_are_named_by_their_place_and_their_file_is_read_no_more_often(
    storage: Storage, kind: str
) -> None:
    fsspec.register_implementation("counted", CountedFiles, clobber=True)
    opened = []
    form = {"csv": "{},\n", "jsonl": '{{"n": {}}}\n'}[kind]
    wrong = {"csv": "x", "jsonl": '"x"'}[kind]
    for bad in (0, 1000):
        values = [wrong if number % 3 == 1 and number < bad else number for number in range(3000)]
        text = ("n,\n" if kind == "csv" else "") + "".join(map(form.format, values))
        with fsspec.open(f"counted://{kind}-{bad}", "w") as file:
            file.write(text)
        CountedFiles.opened = 0
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            source = READ[kind](f"counted://{kind}-{bad}", pa.schema({"n": pa.int64()}))
            ref = storage.submit(source, f"places-{kind}@v{bad}", on_error="skip")
        opened.append(CountedFiles.opened)
    place = "row 1, record 1" if kind == "csv" else "line 2, record 1"
    assert f"counted://{kind}-1000, {place}, leaf ['n']" in str(said[0].message)
    assert len(ref.provenance["left_out"]["first"]) == 10
    assert opened[0] == opened[1]


def test_a_line_may_be_longer_than_what_is_read_at_once(storage: Storage, tmp_path: Path) -> None:
    texts = ["a" * (5 << 20), "b", "c" * (3 << 20)]
    lines = "\n".join(json.dumps({"t": text}) for text in texts)
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + lines.encode())
    assert [row["t"] for row in rows(storage, from_json(tmp_path / "a.jsonl"))] == texts
