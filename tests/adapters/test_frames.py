"""Frames of pandas and Polars, and what only they or Arrow's tables have: in and out, unchanged or refused by name."""

import datetime as dt
import random
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pandas.testing import assert_frame_equal
from polars.testing import assert_frame_equal as assert_polars_equal
from values_across import Row, ValuesAcross, assert_same
from values_table import BIG, NS

from cachelayer import ArraySpec, ImageSpec, Storage, concat, sharded
from cachelayer.adapters.pandas import to_pandas
from cachelayer.adapters.polars import to_polars
from cachelayer.adapters.pyarrow import from_parquet, to_arrow
from cachelayer.builds.as_source import as_source
from cachelayer.errors import (
    CacheLayerError,
    CacheLayerWarning,
    ElementError,
    InvalidArgumentError,
    InvalidTypeError,
    RecordIndexError,
)
from cachelayer.testing import SourceTests

TEXT = "str" if pd.__version__ >= "3" else "object"
NOON = dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    return Storage(tmp_path_factory.mktemp("values"))


def pandas_frame(count: int) -> pd.DataFrame:
    """Columns of every form, with missing values, of this many rows."""
    i = np.arange(count)
    return pd.DataFrame(
        {
            "id": i,
            "half": np.where(i % 3 == 1, np.nan, i / 2).astype(np.float32),
            "maybe": pd.array([None if n % 5 == 1 else n for n in range(count)], dtype="Int16"),
            "text": pd.Series([None if n % 7 == 3 else f"näme {n}" * (n % 3) for n in range(count)], dtype=TEXT),
            "array": pd.Series([np.arange(n % 4, dtype=np.int8) for n in range(count)], dtype=object),
            "kind": pd.Categorical(["even" if n % 2 == 0 else "odd" for n in range(count)]),
            "arrow": pd.array([None if n % 5 == 2 else n for n in range(count)], dtype="int64[pyarrow]"),
        }
    )


class TestPandas(SourceTests):
    def source(self, count: int, folder: Path) -> Any:
        return pandas_frame(count)

    def element(self, number: int) -> Any:
        return {
            "id": np.int64(number),
            "half": np.float32(np.nan if number % 3 == 1 else number / 2),
            "maybe": None if number % 5 == 1 else np.int16(number),
            "text": None if number % 7 == 3 else f"näme {number}" * (number % 3),
            "array": np.arange(number % 4, dtype=np.int8),
            "kind": "even" if number % 2 == 0 else "odd",
            "arrow": None if number % 5 == 2 else np.int64(number),
        }


class TestStridedPandas(TestPandas):
    def source(self, count: int, folder: Path) -> Any:
        """Every other row of a frame, whose columns then lie apart in memory."""
        doubled = pandas_frame(count).loc[np.repeat(np.arange(count), 2)].reset_index(drop=True)
        strided = doubled[::2]
        strided.index = pd.RangeIndex(count)
        return strided


def polars_frame(count: int) -> pl.DataFrame:
    """Columns of every form, with nulls, of this many rows."""
    i = np.arange(count)
    return pl.DataFrame(
        {
            "id": i,
            "maybe": [None if n % 5 == 1 else n for n in range(count)],
            "text": [None if n % 7 == 3 else f"näme {n}" * (n % 3) for n in range(count)],
            "list": [list(range(n % 4)) for n in range(count)],
            "pair": pl.Series([[n, -n] for n in range(count)], dtype=pl.Array(pl.Int32, 2)),
            "kind": pl.Series(["even" if n % 2 == 0 else "odd" for n in range(count)], dtype=pl.Categorical),
            "inner": [{"x": n, "y": {"z": n % 2 == 0}} for n in range(count)],
        },
        schema_overrides={"maybe": pl.Int16, "text": pl.String, "list": pl.List(pl.Int64)},
    )


class TestPolars(SourceTests):
    def source(self, count: int, folder: Path) -> Any:
        return polars_frame(count)

    def element(self, number: int) -> Any:
        return {
            "id": np.int64(number),
            "maybe": None if number % 5 == 1 else np.int16(number),
            "text": None if number % 7 == 3 else f"näme {number}" * (number % 3),
            "list": np.arange(number % 4),
            "pair": np.array([number, -number], np.int32),
            "kind": "even" if number % 2 == 0 else "odd",
            "inner": {"x": np.int64(number), "y": {"z": np.bool_(number % 2 == 0)}},
        }


class TestLazyPolars(TestPolars):
    seeks = False

    def source(self, count: int, folder: Path) -> Any:
        return polars_frame(count + 10).lazy().filter(pl.col("id") < count)


class TestChunkedPolars(TestPolars):
    def source(self, count: int, folder: Path) -> Any:
        frame = polars_frame(count)
        return pl.concat([frame[: count // 3], frame[count // 3 : count // 2], frame[count // 2 :]], rechunk=False)


class TestPandasValues(ValuesAcross):
    row = Row("pandas", out=to_pandas)


class TestPolarsValues(ValuesAcross):
    row = Row("polars", out=to_polars)
    needs: ClassVar = {"JSON": "polars>=2"}  # Older ones warn that they do not know its type.


TENSORS = pa.fixed_shape_tensor(pa.int8(), [2, 2])
INVALID = pa.array([b"fine", b"\xff\xfe", b"", b"fine"]).view(pa.string())
INVALID_TEXT = r"record {}, leaf .*x.*UTF-8"
NATIVE: dict[str, tuple[Any, list[Any] | str]] = {
    "invalid text": (INVALID, INVALID_TEXT.format(1)),
    "invalid views": (
        pa.array([b"fine", b"\xff" * 99], pa.binary_view()).view(pa.string_view()),
        INVALID_TEXT.format(1),
    ),
    "invalid text in lists": (
        pa.ListArray.from_arrays(pa.array([0, 0, 1, 4], pa.int32()), INVALID),
        INVALID_TEXT.format(2),
    ),
    "invalid text in structs": (
        pa.StructArray.from_arrays([INVALID], ["s"]),
        r"record 1, leaf \['x'\]\['s'\]: .*UTF-8",
    ),
    "invalid text in dictionaries": (
        pa.DictionaryArray.from_arrays([0, 0, 1], INVALID),
        r"record 2, leaf \['x'\]: .*UTF-8",
    ),
    "invalid JSON": (pa.ExtensionArray.from_storage(pa.json_(), INVALID), r"record 0, leaf \['x'\]: .*JSON"),
    "surrogates": (pa.array([b"\xed\xa0\x80"]).view(pa.string()), r"record 0, leaf \['x'\]: .*UTF-8"),
    "null over invalid text": (pa.array([b"a", None]).view(pa.string()), ["a", None]),
    "zero-width lists": (pa.array([[], None], pa.list_(pa.int8(), 0)), [np.zeros(0, "i1"), None]),
    "zero-width tensors": (
        pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.int8(), (3, 0)), pa.array([[], []], pa.list_(pa.int8(), 0))
        ),
        [np.zeros((3, 0), "i1")] * 2,
    ),
    "empty structs": (pa.array([{}, {}], pa.struct([])), [{}, {}]),
    "empty structs or null": (
        pa.array([{}, None], pa.struct([])),
        r"record 1, leaf \['x'\]: expected a struct, got null",
    ),
    "null structs": (
        pa.array([{"a": 1, "b": {"c": 2}}, None, {"a": None, "b": None}]),
        [{"a": np.int64(1), "b": {"c": np.int64(2)}}, None, {"a": None, "b": None}],
    ),
    "null structs within lists": (
        pa.array([[{"a": 1}], [], [{"a": 1}, None]]),
        r"record 2, leaf \['x'\]: expected a struct, got null",
    ),
    "structs of nulls": (pa.array([{"a": None}, {"a": 1}]), [{"a": None}, {"a": np.int64(1)}]),
    "lists of empty structs": (
        pa.array([[{}], []], pa.list_(pa.struct([]))),
        r"leaf \['x'\].*its length would be lost",
    ),
    "run-end": (pc.run_end_encode(pa.array([5, 5, 6])), [np.int64(n) for n in (5, 5, 6)]),
    "bytes of fixed width": (pa.array([b"ab", b"cd"], pa.binary(2)), [b"ab", b"cd"]),
    "times of day": (pa.array([7], pa.time32("ms")), [np.timedelta64(7, "ms")]),
    "tensors or null": (
        pa.ExtensionArray.from_storage(TENSORS, pa.array([[1, 2, 3, 4], None], TENSORS.storage_type)),
        [np.array([[1, 2], [3, 4]], "i1"), None],
    ),
    "decimals": (pa.array([Decimal("1.5"), None]), [np.float64(1.5), None]),
    "months": (pa.array([pa.scalar((1, 2, 3), pa.month_day_nano_interval())]), r"leaf \['x'\] .*month_day"),
    "2^64 - 1": (pa.array([2**64 - 1, None], pa.uint64()), [np.uint64(2**64 - 1), None]),
    "pandas: big-endian": (pd.Series(np.array([1, 2], ">i4")), [np.int32(1), np.int32(2)]),
    "pandas: NaN in lists": (pd.Series([[1.0, np.nan]]), [np.array([1, np.nan])]),
    "pandas: null dicts": (pd.Series([None, {"a": 1}, None]), [None, {"a": np.int64(1)}, None]),
    "pandas: surrogates in strings": (
        pd.Series(["fine", None, "\ud800"], dtype="string[python]"),
        r"record 2, leaf \['x'\]: expected text in UTF-8",
    ),
    "pandas: Timestamps": (
        pd.Series([pd.Timestamp(NS), None, pd.Timestamp("2020").as_unit("s")], dtype=object),
        [np.datetime64(NS, "ns"), None, np.datetime64("2020", "ns")],
    ),
    "pandas: Timestamps in lists": (pd.Series([[pd.Timestamp(NS)]]), [np.array([NS]).view("M8[ns]")]),
    "pandas: matrices": (pd.Series([np.eye(2), None, np.ones((0, 2))]), [np.eye(2), None, np.ones((0, 2))]),
    "pandas: far apart": (
        pd.Series([pd.Timestamp(NS), pd.Timestamp(10**11, unit="s")], dtype=object),
        "record 1, leaf .*x",
    ),
    "polars: zero-width": (pl.Series([[], None], dtype=pl.Array(pl.Int8, 0)), [np.zeros(0, "i1"), None]),
    "pandas: text or missing": (pd.Series(["a", None, np.nan], dtype=object), ["a", None, None]),
    "polars: times of day": (pl.Series([dt.time(0, 0, 1)]), [np.timedelta64(10**9, "ns")]),
}
WITHOUT_ARROW = [
    pd.Series([NOON], dtype=object),
    pd.Series([[NOON]], dtype=object),
    pd.Series([Decimal("1.25"), 1.5], dtype=object),
    pd.Series(pd.period_range("2020", periods=1)),
    pd.Series(pd.interval_range(0, 1)),
    pd.Series(pd.arrays.SparseArray([0, 1])),
    pd.Series([1j]),
    pd.Series([object()]),
    pd.Series([{1}]),
    pl.Series([{1}], dtype=pl.Object),
    pl.Series([1], dtype=pl.Int128),
]
NATIVE |= {f"refused {number}": (column, "'x'") for number, column in enumerate(WITHOUT_ARROW)}


def framed(column: Any) -> Any:
    if isinstance(column, pl.Series):
        return pl.DataFrame({"x": column})
    return pd.DataFrame({"x": column}) if isinstance(column, pd.Series) else pa.table({"x": column})


NEEDS = {"invalid views": [pytest.mark.needs("pyarrow>=24")]}


@pytest.mark.parametrize("name", [pytest.param(name, marks=NEEDS.get(name, ())) for name in NATIVE])
def test_what_only_a_framework_has_goes_in_unchanged_or_is_refused(name: str, storage: Storage, tmp_path: Path) -> None:
    column, wanted = NATIVE[name]
    if isinstance(wanted, str):
        with pytest.raises((ElementError, InvalidTypeError), match=wanted):
            Storage(tmp_path).submit(framed(column), "refused@v1")
        assert Storage(tmp_path).datasets() == []
        return
    elements = list(storage.submit(framed(column), "".join(filter(str.isalnum, name)), "native"))
    assert len(elements) == len(wanted)
    for got, value in zip(elements, wanted, strict=True):
        assert_same(got["x"], value)


SKIPPED = {
    "a table": pa.table({"x": INVALID, "y": pa.array([[[3]], [[2]], [None], [[0]]])}),
    "a frame": pd.DataFrame({"x": pd.Series(["fine", "\ud800", "fine"], dtype="string[python]")}),
}


@pytest.mark.parametrize("name", SKIPPED)
def test_rows_that_do_not_fit_are_left_out_and_the_others_kept(name: str, storage: Storage) -> None:
    with pytest.warns(CacheLayerWarning, match="record 1,"):
        ref = storage.submit(SKIPPED[name], name.replace(" ", "-"), "skipped", on_error="skip")
    assert [element["x"] for element in ref] == ["fine", "fine"]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_without_pyarrow_frames_say_what_they_need_and_other_sources_go_on(library: str, tmp_path: Path) -> None:
    code = (
        "import importlib.abc, sys\n"
        "class NoPyarrow(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'pyarrow': raise ModuleNotFoundError('no pyarrow', name=name)\n"
        "sys.meta_path.insert(0, NoPyarrow())\n"
        f"import {library} as library, cachelayer\n"
        f"storage = cachelayer.Storage({str(tmp_path)!r})\n"
        "print(len(storage.cache([1, 2, 3], 'list', 'v1')))\n"
        "try:\n    storage.cache(library.DataFrame({'x': [1]}), 'frame', 'v1')\n"
        "except ImportError as error:\n    print(error)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert found[0] == "3"
    assert "cachelayer[" in found[1]


@pytest.mark.parametrize(
    ("ordinary", "odd"),
    [
        *[("a", 1), (1, 1.5), (True, 1), ([1], "a"), (b"a", [1]), (1, 2**70), (-1, 2**63), ([1], [2**53 + 1, 0.5])],
        *[([[1]], [[1], None]), ({"a": 1}, {"b": 1}), (np.zeros(2), np.zeros((2, 4)))],
    ],
)
def test_an_object_that_does_not_fit_is_refused_by_record_and_column(ordinary: Any, odd: Any, tmp_path: Path) -> None:
    column = pd.Series([*[ordinary] * 5000, odd, ordinary], dtype=object)
    with pytest.raises(ElementError, match=r"record 5000, leaf .*bad"):
        Storage(tmp_path).cache(pd.DataFrame({"ok": 1, "bad": column}), "d@v1")


def test_frames_come_out_as_they_went_in(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    for back, frame in ((to_pandas, pandas_frame(50)), (to_polars, polars_frame(50))):
        ref: Any = storage.cache(frame, frame.__module__.partition(".")[0], "v1")
        if isinstance(frame, pd.DataFrame):
            expected: Any = frame
            assert_frame_equal(back(ref), expected)
            some = expected.iloc[[49, 3, 3]].reset_index(drop=True)
            # Categories that no row has are not known.
            assert_frame_equal(back(ref, [-1, 3, 3]), some.assign(kind=some["kind"].cat.remove_unused_categories()))
            assert_frame_equal(back(ref[10:20]), expected[10:20].reset_index(drop=True))
        else:
            expected = frame
            assert_polars_equal(back(ref), expected)
            assert_polars_equal(back(ref, [-1, 3, 3]), expected[[49, 3, 3]])
            assert_polars_equal(back(ref[10:20]), expected[10:20])
        assert len(back(ref, [])) == 0
        with pytest.raises(RecordIndexError):
            back(ref, [50])


KEPT: dict[str, pa.Array] = {
    "lists of structs": pa.array([[{"a": 1, "b": ["x"]}, {"a": 2, "b": []}], [], [{"a": 3, "b": ["y", "z"]}]]),
    "lists of lists of structs": pa.array([[[{"a": 1}], []], [], [[{"a": 2}, {"a": 3}]]]),
    "times": pa.array([dt.time(1, 2, 3, 4), None, dt.time(23)], pa.time64("us")),
    "times of seconds": pa.array([dt.time(1, 2, 3), dt.time(), dt.time(23)], pa.time32("s")),
    "times in structs": pa.array([{"t": dt.time(1), "n": 1}, {"t": None, "n": 2}, {"t": dt.time(2), "n": None}]),
    "categories": pa.array(["b", "a", None]).dictionary_encode(),
    "categories of numbers": pa.array([3, 1, 3]).dictionary_encode(),
    "categories in structs": pa.array(
        [{"k": "x"}, {"k": "y"}, {"k": "x"}], pa.struct([("k", pa.dictionary(pa.int8(), "str"))])
    ),
    "maps": pa.array([[("k", 1), ("l", 2)], [], [("m", 3)]], pa.map_(pa.string(), pa.int64())),
    "maps in lists": pa.array([[[("k", 1)], []], [], [[("m", 3)]]], pa.list_(pa.map_(pa.string(), pa.int64()))),
    "lists of two structs": pa.array(
        [[{"a": [1], "b": 2}, {"a": [], "b": 3}], None, [{"a": [4, 5], "b": 6}] * 2],
        pa.list_(pa.struct([("a", pa.list_(pa.int8())), ("b", pa.int8())]), 2),
    ),
    "maps in maps": pa.array(
        [[("k", [("l", 1)])], [], [("m", [])]], pa.map_(pa.string(), pa.map_(pa.string(), pa.int8()))
    ),
    "ordered categories": pa.DictionaryArray.from_arrays([1, 0, None], ["low", "high", "best"], ordered=True),
    "milliseconds of days": pa.array([dt.date(2020, 1, 1), None, dt.date(1969, 1, 1)], pa.date64()),
    "bytes of fixed width": pa.array([b"ab", None, b"cd"], pa.binary(2)),
    "tensors": pa.ExtensionArray.from_storage(TENSORS, pa.array([[1, 2, 3, 4]] * 3, TENSORS.storage_type)),
    "decimals": pa.array([Decimal("1.10"), None, Decimal("-20.00")], pa.decimal128(5, 2)),
    "lists of decimals": pa.array([[Decimal("0.1"), None], [], [Decimal("-7.3")]], pa.list_(pa.decimal128(3, 1))),
    "decimals in structs": pa.array([{"d": Decimal(3)}, None, {"d": None}], pa.struct([("d", pa.decimal128(38, 0))])),
}


@pytest.mark.parametrize("name", KEPT)
def test_columns_come_out_with_the_types_of_arrow_that_they_came_with(
    name: str, storage: Storage, tmp_path: Path
) -> None:
    column = KEPT[name]
    table = pa.table({"x": column, "id": [0, 1, 2]})
    ref: Any = storage.cache(table, "".join(filter(str.isalpha, name)), "kept")
    again = to_arrow(ref)
    assert again.schema == table.schema
    assert again["x"].to_pylist() == column.to_pylist()
    assert to_arrow(ref.fields("x"), [2, 0])["x"].to_pylist() == [column[2].as_py(), column[0].as_py()]
    mapped = to_pandas(ref, types_mapper=pd.ArrowDtype)
    assert mapped["x"].dtype == pd.ArrowDtype(column.type)
    if name != "tensors":
        assert to_polars(ref)["x"].to_list() == pl.DataFrame(table)["x"].to_list()
        assert to_polars(ref)["x"].dtype == pl.DataFrame(table)["x"].dtype
    # A column of another spec has the type that this implies.
    texts = storage.cache([{"x": "not that"}], "".join(filter(str.isalpha, name)), "other", metadata=ref.metadata)
    assert to_arrow(texts)["x"].to_pylist() == ["not that"]


DECIMALS = [
    pa.decimal128(5, 2),
    pa.decimal128(38, 10),
    pa.decimal128(38, 37),
    pa.decimal128(20, -3),
    pa.decimal256(60, 30),
    pa.decimal128(10, 0),
]


@pytest.mark.parametrize("kind", DECIMALS, ids=str)
def test_a_decimal_is_the_nearest_float_and_comes_back_as_a_decimal(kind: pa.DataType, storage: Storage) -> None:
    rng = random.Random(7)
    digits = [rng.randrange(1, kind.precision + 1) for _ in range(500)]
    texts = [f"{rng.randrange(-(10**n) + 1, 10**n)}E{-kind.scale}" for n in digits]
    values = [None if number % 9 == 4 else Decimal(text) for number, text in enumerate(texts)]
    table = pa.table({"x": pa.array(values, kind)})
    ref: Any = storage.cache(table, f"d{kind.precision}@s{kind.scale + 3}")
    assert [element["x"] for element in ref] == [None if value is None else float(value) for value in values]
    again = to_arrow(ref)["x"].to_pylist()
    assert to_arrow(ref).schema == table.schema
    for value, back, count in zip(values, again, digits, strict=True):
        assert value is None if back is None else float(back) == float(value)
        assert count > 15 or back == value


def test_decimals_are_integers_of_their_last_digit_if_the_spec_says_so(storage: Storage) -> None:
    values = [Decimal("92233720368547758.07"), None, Decimal("-0.01")]
    columns = {"x": pa.array(values, pa.decimal128(38, 2)), "y": pa.array([values[:1], [], values[2:]])}
    table = pa.table(columns)
    spec: Any = {"x": "int64", "y": ArraySpec("int64", (None,))}
    ref: Any = storage.cache(table, "units@v1", element_spec=spec)
    assert [element["x"] for element in ref] == [2**63 - 1, None, -1]
    assert to_arrow(ref) == table
    assert ref.metadata["decimal_digits"] == {"['x']": 2, "['y']": 2}
    longer: Any = storage.append("units@v1", "v2", table)
    assert to_arrow(longer) == pa.concat_tables([table, table])
    tenths = pa.table({"x": pa.array([Decimal("0.1")]), "y": columns["y"][:1]})
    with pytest.raises(InvalidArgumentError, match=r"\['x'\].*2 digits"):
        storage.append("units@v1", "v3", tenths)
    numbers: Any = storage.cache([{"x": 1}], "whole@v1", element_spec={"x": "int64"})
    with pytest.raises(InvalidArgumentError, match=r"\['x'\].*no digits"):
        storage.append(numbers, "v2", table.select(["x"])[:1])
    with pytest.raises(InvalidArgumentError, match=r"\['x'\].*2 in units@v1 and no in whole@v1"):
        concat([ref.fields("x"), numbers])
    assert concat([ref, longer]).metadata["decimal_digits"] == ref.metadata["decimal_digits"]
    for name, scale, declared in (("x", 3, "int64"), ("y", 1, "int8")):
        large = pa.table({name: pa.array([Decimal(0), values[0]], pa.decimal128(38, scale + 1))})
        with pytest.raises(ElementError, match=rf"record 1, leaf \['{name}'\].*int"):
            storage.cache(large, f"large-{name}@v1", element_spec={name: declared})


def test_numbers_that_are_no_decimals_are_not_rounded_to_them(storage: Storage) -> None:
    cents: Any = storage.cache(pa.table({"x": pa.array([Decimal("1.10")])}), "cents@v1")
    for value in (0.125, 1e300, float("nan")):
        floats: Any = storage.cache([{"x": value}], f"floats@v{value}".replace("+", ""), metadata=cents.metadata)
        with pytest.raises(InvalidTypeError, match=r"\['x'\].*decimal"):
            to_arrow(floats)


def test_pandas_gives_back_the_dtypes_that_came_in(storage: Storage) -> None:
    arrow = {"int16": [1, 2, 3], "large_string": ["a", "b", "c"], "bool_": [True, False, True], "date32": [0, 1, 2]}
    numbers = ("Int8", "Int64", "UInt16", "Float32", "Float64", "int8", "float32", "bool")
    frame = pd.DataFrame({name: pd.array([1, 0, 1]).astype(name) for name in (*numbers, "boolean", "string")})
    for name, values in arrow.items():
        kind = getattr(pa, name)()
        frame[f"arrow {name}"] = pd.Series(pd.arrays.ArrowExtensionArray(pa.array(values, kind)))
    frame["lists"] = pd.Series([[1], [], [2, 3]], dtype=pd.ArrowDtype(pa.list_(pa.int8())))
    frame["decimals"] = [Decimal("1.5"), None, Decimal("-2.25")]
    with_nulls = frame.copy()
    with_nulls.loc[1, ["Int8", "boolean", "Float32", "string", "arrow int16"]] = pd.NA
    for number, each in enumerate((frame, with_nulls)):
        ref: Any = storage.cache(each, f"dtypes@v{number}")
        assert_frame_equal(to_pandas(ref), each)
        assert_frame_equal(to_pandas(ref, [2]), each[2:].reset_index(drop=True))
    assert to_arrow(ref)["decimals"].to_pylist() == frame["decimals"].tolist()
    assert ref[0]["decimals"] == 1.5


def test_columns_keep_their_types_beside_others_that_come_later(storage: Storage) -> None:
    frame = pd.DataFrame({"i": pd.array([1, 2], "Int8"), "d": [Decimal("1.10"), Decimal("2.25")]})
    frame["scale"] = pd.Categorical(["a", "b"], ordered=True)
    more = pd.DataFrame({"j": pd.array([1, None], "Int16"), "e": [Decimal("0.5"), None]})
    storage.cache(frame, "typed@v1")
    assert_frame_equal(to_pandas(storage.add_columns("typed@v1", "added", more)), frame.join(more))
    longer: Any = storage.append("typed@v1", "longer", frame[["i"]], fill={"d": None, "scale": "a"})
    assert to_pandas(longer).dtypes.equals(frame.dtypes)
    assert to_arrow(longer)["d"].to_pylist() == [*frame["d"], None, None]
    # What takes the place of a column has none of its types.
    anew = {"d": np.array([110, 225]), "i": np.array([3, 4], np.int8)}
    replaced: Any = storage.add_columns("typed@v1", "replaced", anew, replace=True)
    assert to_arrow(replaced)["d"].to_pylist() == [110, 225]
    assert to_pandas(replaced)["i"].dtype == np.int8
    cents = storage.cache(pa.table({"d": frame["d"]}), "typed-cents@v1", element_spec={"d": "int64"})
    counts = storage.add_columns("typed-cents@v1", "counts", {"d": np.array([7, 8])}, replace=True)
    assert "decimal_digits" in cents.metadata
    assert not counts.metadata["decimal_digits"]


@pytest.mark.parametrize("metadata", [{"decimal_digits": 2}, {"arrow_schema": "mine"}, {"huggingface_features": [1]}])
def test_metadata_of_the_user_may_have_any_names(tmp_path: Path, metadata: dict[str, Any]) -> None:
    storage = Storage(tmp_path)
    storage.cache([{"n": 1}], "d@v1", metadata=metadata)
    longer: Any = storage.append("d@v1", "longer", [{"n": 2}])
    wider: Any = storage.add_columns("d@v1", "wider", {"m": np.array([3])})
    assert longer.metadata == wider.metadata == metadata
    assert to_arrow(longer).to_pylist() == [{"n": 1}, {"n": 2}]
    assert len(concat([longer, longer])) == 4


def test_lists_of_another_layout_come_out_as_lists(storage: Storage) -> None:
    lists = pa.array([[{"a": 1}], [], [{"a": 2}]], pa.list_view(pa.struct([("a", pa.int64())])))
    ref: Any = storage.cache(pa.table({"x": lists}), "views@v1")
    assert to_arrow(ref)["x"].to_pylist() == to_polars(ref)["x"].to_list() == lists.to_pylist()


@pytest.mark.parametrize(
    "categories",
    [["low", "mid", "high"], [2.5, 1.5], pd.to_datetime(["2021-01-01", "2020-01-01"]).tz_localize("Asia/Tokyo")],
    ids=str,
)
def test_ordered_categories_keep_their_order(categories: Any, tmp_path: Path) -> None:
    scale = pd.CategoricalDtype(categories, ordered=True)
    frame = pd.DataFrame({"scale": pd.Categorical([categories[1], None, categories[0]], dtype=scale)})
    store = Storage(tmp_path)
    ref: Any = store.cache(frame, "pandas@v1")
    assert_frame_equal(to_pandas(ref), frame)
    assert_frame_equal(to_pandas(store.cache(to_arrow(ref), "arrow@v1")), frame)
    # Of a file of another library, the order is not known, and none is claimed.
    frame.to_parquet(tmp_path / "scale.parquet")
    file = store.cache(from_parquet(tmp_path / "scale.parquet"), "parquet@v1")
    assert not getattr(to_pandas(file)["scale"].dtype, "ordered", False)


@pytest.mark.needs("pyarrow>=23")
def test_frames_keep_their_categories_and_times(storage: Storage) -> None:
    frame = pd.DataFrame({"kind": pd.Categorical([3, 1, 3])})
    assert_frame_equal(to_pandas(storage.cache(frame, "kind@pandas")), frame)
    others = pl.DataFrame(
        {
            "enum": pl.Series(["a", None, "b"], dtype=pl.Enum(["c", "b", "a"])),
            "enums": pl.Series([["a"], [], ["b", "a"]], dtype=pl.List(pl.Enum(["b", "a"]))),
            "category": pl.Series(["u", "v", "u"], dtype=pl.Categorical),
            "time": [dt.time(1, 2, 3), None, dt.time(4)],
            "structs": [[{"a": 1}], [], [{"a": 2}, {"a": 3}]],
            "inner": pl.Series([{"e": "a"}] * 3, dtype=pl.Struct({"e": pl.Enum(["b", "a"])})),
        }
    )
    ref: Any = storage.cache(others, "categories@polars")
    assert_polars_equal(to_polars(ref), others)
    assert to_pandas(ref)["time"].tolist() == others["time"].to_list()
    assert to_pandas(ref)["structs"].tolist() == others["structs"].to_list()
    assert to_pandas(ref)["category"].dtype == "category"
    odd = storage.cache(pa.table({"t": pa.array([1], pa.time64("ns"))}), "nanoseconds@v1")
    with pytest.raises(InvalidTypeError, match="types_mapper"):
        to_pandas(odd)
    assert to_polars(odd)["t"].to_physical().to_list() == [1]


# Older ones have objects for text, of which no rows show the dtype, and no unsigned categories.
@pytest.mark.needs("pandas>=3", "pyarrow>=23")
def test_a_frame_without_rows_keeps_its_columns(storage: Storage) -> None:
    table = pa.table({"id": pa.array([], pa.int64()), "pair": pa.array([], pa.list_(pa.int16(), 2))})
    for frame in (pandas_frame(3).drop(columns=["array"])[:0], polars_frame(3).clear(), table):
        ref: Any = storage.cache(frame, type(frame).__module__.partition(".")[0], "empty", allow_empty=True)
        assert len(ref) == 0
        columns = list(table.column_names if frame is table else frame.columns)
        assert [*to_pandas(ref)] == to_polars(ref).columns == columns


def test_integers_stay_integers_beside_nulls_and_images_are_their_files(storage: Storage) -> None:
    rows = [{"x": {"a": np.int64(BIG)}, "image": b"not decoded"}, {"x": {"a": None}, "image": b""}]
    spec = {"x": {"a": ArraySpec("int64", nullable=True)}, "image": ImageSpec("RGB")}
    ref = storage.submit(rows, "within@v1", element_spec=spec, validate=False)
    for frame in (to_pandas(ref), to_pandas(ref, [0]), to_pandas(concat([ref.raw()]))):
        assert_same(frame["x"][0], rows[0]["x"])
        assert frame["image"][0] == b"not decoded"


@pytest.mark.parametrize("element", [1, {"x": (1, 2)}, {"x": np.complex64(1)}], ids=str)
def test_elements_that_make_no_columns_are_refused(element: Any, tmp_path: Path) -> None:
    ref: Any = Storage(tmp_path).cache([element] * 2, "d@v1")
    for back in (to_pandas, to_polars):
        with pytest.raises(InvalidTypeError, match=r"needs dicts|\['x'\]"):
            back(ref)


def test_a_column_of_nothing_but_none_needs_a_spec(storage: Storage) -> None:
    frame = pd.DataFrame({"x": [1, 2], "y": pd.Series([None, None], dtype=object)})
    with pytest.raises(InvalidArgumentError, match=r"\['y'\]"):
        storage.cache(frame, "d@v1")
    ref = storage.cache(frame, "d@v1", element_spec={"x": ArraySpec("int64"), "y": ArraySpec("float32")})
    assert ref[1] == {"x": 2, "y": None}


NO_UTF8 = pa.schema([pa.field(b"\xff", pa.int64())])
FRAMES: dict[str, tuple[Any, str]] = {
    "rows as batches": (pa.table({"x": [1]}), "unbatch=True"),
    "rows of pandas as batches": (pd.DataFrame({"x": [1]}), "unbatch=True"),
    "rows of Polars as batches": (pl.DataFrame({"x": [1]}), "unbatch=True"),
    "pandas without columns": (pd.DataFrame(index=range(3)), "no columns"),
    "Polars without columns": (pl.DataFrame(), "no columns"),
    "a lazy frame without columns": (pl.LazyFrame(), "no columns"),
    "an index with a name": (pd.DataFrame({"x": [1]}, pd.Index([3], name="id")), "reset_index"),
    "an index of text": (pd.DataFrame({"x": [1]}, pd.Index(["a"])), "reset_index"),
    "an index of two levels": (pd.DataFrame({"x": [1]}, pd.MultiIndex.from_tuples([(1, 2)])), "reset_index"),
    "an index in another order": (pd.DataFrame({"x": [1, 2]}, [1, 0]), "reset_index"),
    "an index with gaps": (pd.DataFrame({"x": [1, 2, 3]})[::2], "reset_index"),
    "an index of days": (pd.DataFrame({"x": [1]}, pd.to_datetime(["2020"])), "reset_index"),
    "columns that are numbers": (pd.DataFrame([[1, 2]]), r"frame\.columns"),
    "columns of two levels": (pd.DataFrame([[1]], columns=pd.MultiIndex.from_tuples([("a", "b")])), "'b'"),
    "a name that is no UTF-8": (pa.Table.from_arrays([pa.array([1])], schema=NO_UTF8), r"UTF-8: b'\\xff'"),
    "a column that is there twice": (pd.DataFrame([[1, 2]], columns=["a", "a"]), r"\['a'\]"),
    "a lazy cast that fails": (pl.LazyFrame({"x": ["1", "two"]}).select(pl.col("x").cast(pl.Int64)), "two"),
    "a lazy column that is not there": (pl.LazyFrame({"x": [1]}).select("y"), "ColumnNotFoundError"),
    "a lazy column of 128 bits": (pl.LazyFrame({"x": pl.Series([1], dtype=pl.Int128)}), "column 'x'"),
}


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_of_which_something_would_be_lost_is_refused(name: str, storage: Storage) -> None:
    frame, reason = FRAMES[name]
    with pytest.raises(CacheLayerError, match=reason):
        storage.cache(frame, "refused@v1", unbatch="batches" in name)


def test_a_lazy_frame_is_computed_when_it_is_built_and_no_sooner(storage: Storage) -> None:
    asked: list[int] = []

    def counted(frame: pl.DataFrame) -> pl.DataFrame:
        asked.append(frame.height)
        return frame

    source = pl.LazyFrame({"x": [1, 2, 3]}).map_batches(counted, schema={"x": pl.Int64})
    as_source(source)
    assert asked == []
    assert len(storage.cache(source, "lazy@v1")) == 3
    assert asked == [3]


ZONES = ["UTC", "Europe/Paris", "+05:30"]


def zoned(zone: str | None, unit: str = "us") -> pa.Table:
    """Times of a zone in every place of a table: columns, lists, structs, categories."""
    kind = pa.timestamp(unit, zone)
    times = (
        pa.array([NOON.replace(tzinfo=None), None, dt.datetime(1900, 1, 1)], pa.timestamp(unit))
        .view("int64")
        .view(kind)
    )
    structs = pa.StructArray.from_arrays([times, pa.array([1, 2, 3])], ["time", "n"])
    return pa.table(
        {
            "n": [0, 1, 2],
            "time": times,
            "list": pa.ListArray.from_arrays([0, 2, 2, 3], times),
            "pair": pa.FixedSizeListArray.from_arrays(pa.concat_arrays([times, times]), 2),
            "struct": structs,
            "structs": pa.ListArray.from_arrays([0, 2, 2, 3], structs),
            "category": times.dictionary_encode(),
        }
    )


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", ZONES)
def test_times_of_a_zone_come_back_with_it(zone: str, unit: str, tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    table = zoned(zone, unit)
    ref = storage.cache(table, "zoned@v1")
    assert ref.element_spec["time"] == ArraySpec(f"M8[{unit}]", nullable=True, timezone=zone)
    assert ref[0]["time"] == np.datetime64(NOON.replace(tzinfo=None))
    assert to_arrow(ref).schema == table.schema
    assert to_arrow(ref).to_pylist() == table.to_pylist()
    frame = to_pandas(ref)
    assert_frame_equal(frame[["time"]], table.select(["time"]).to_pandas())
    assert frame["category"].cat.categories.dtype == frame["time"].dtype
    assert frame["struct"][0]["time"] == frame["list"][0][0] == frame["structs"][0][0]["time"] == frame["time"][0]
    again = storage.cache(frame[["time", "category"]], "zoned@frame")
    assert (
        to_arrow(again).schema.types
        == table.select(["time", "category"])
        .cast(
            pa.schema(
                {"time": table.schema.field("time").type, "category": to_arrow(again).schema.field("category").type}
            )
        )
        .schema.types
    )
    plain_columns = ref.fields("n", "time", "list", "struct")
    if zone.startswith("+"):
        with pytest.raises(InvalidTypeError, match=r"\['time'\]: Polars has no time zone '\+05:30'"):
            to_polars(plain_columns)
        return
    polars = to_polars(plain_columns)
    assert polars.schema["time"] == pl.Datetime("ms" if unit == "s" else unit, zone)  # type: ignore[arg-type]
    for name, source in (("eager", polars), ("lazy", polars.lazy())):
        assert_polars_equal(to_polars(storage.cache(source, f"zoned@{name}")), polars)


def test_a_zone_does_not_mix_with_another_or_with_none(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    tables = {zone: zoned(zone).select(["n", "time"]) for zone in (None, "UTC", "Europe/Paris")}
    refs = {zone: storage.cache(table, f"rows@v{n}") for n, (zone, table) in enumerate(tables.items())}
    assert len({ref.digest for ref in refs.values()}) == 3
    others: list[Any] = [tables[None], tables["Europe/Paris"], tables[None].to_pandas(), pl.DataFrame(tables[None])]
    others += [tables["UTC"].to_pylist(), tables[None].to_pylist(), [{"n": 1, "time": np.datetime64(1, "us")}]]
    others += [{"n": np.arange(2), "time": np.arange(2).view("M8[us]")}, refs[None], refs["Europe/Paris"].stream()]
    for number, other in enumerate(others):
        with pytest.raises(CacheLayerError, match="time"):
            storage.append("rows@v1", new=f"a{number}", source=other)
    for number, other in enumerate((tables["UTC"], tables["UTC"].to_pylist(), refs["UTC"])):
        with pytest.raises(CacheLayerError, match="time"):
            storage.append("rows@v0", new=f"b{number}", source=other)
    for number, source in enumerate((tables["UTC"], refs["UTC"], refs["UTC"].stream(), tables["UTC"].to_pandas())):
        assert len(storage.append("rows@v1", new=f"c{number}", source=source)) == 6
    for pair in ((None, "UTC"), ("UTC", "Europe/Paris")):
        one, other = (refs[zone] for zone in pair)
        with pytest.raises(CacheLayerError, match=r"\['time'\]"):
            concat([one, other])
        changes: Any = storage.diff(one.reference, other.reference).rows
        assert (changes.same, changes.changed.count) == (1, 2)
        with pytest.raises(CacheLayerError, match="convert one"):
            storage.diff(one.reference, other.reference, key="time")
        columns = tables[pair[1]].rename_columns(["other", "time"])
        with pytest.raises(CacheLayerError, match="convert one"):
            storage.add_columns(one.reference, new="joined", columns=columns, on="time")
        spec = {"time": ArraySpec("M8[us]", timezone=pair[0])}
        with pytest.raises(CacheLayerError, match="datetime64"):
            storage.cache(tables[pair[1]], "declared@v1", element_spec=spec)
    both = storage.add_columns("rows@v0", new="both", columns=tables["UTC"].select(["time"]).rename_columns(["zoned"]))
    assert to_arrow(both).schema.field("zoned").type == pa.timestamp("us", "UTC")
    for condition in ("time == zoned", "zoned > '2020-01-01'", "time > '2020-01-01T00:00+01:00'"):
        with pytest.raises(InvalidArgumentError, match="time"):
            both.where(condition)
    for condition in ("zoned == '2020-01-01T12:00Z'", "zoned in ['2020-01-01T13:30+01:30', '1700-01-01T00:00-05:00']"):
        assert [row["n"] for row in both.where(condition)] == [0]


@pytest.mark.parametrize(
    "values",
    [
        [NOON],
        [pd.Timestamp(NOON)],
        {"x": pd.Series([NOON])},
        {"x": pd.DatetimeIndex([NOON])},
        {"x": pl.Series([NOON])},
        [{"x": pl.Series([NOON])}],
        [{"x": pa.array([NOON], pa.timestamp("us", "UTC"))}],
        [{"x": dt.time(1, tzinfo=dt.UTC)}],
    ],
    ids=["datetime", "Timestamp", "Series", "DatetimeIndex", "polars", "polars in elements", "Arrow", "time"],
)
def test_values_that_would_lose_their_zone_are_refused(values: Any, storage: Storage) -> None:
    with pytest.raises(CacheLayerError):
        storage.cache(values, "lost@v1")
    spec = {"x": ArraySpec("M8[us]", timezone="UTC")}
    with pytest.raises(ElementError, match="datetime"):
        storage.cache([{"x": NOON.replace(tzinfo=None)}], "lost@v1", element_spec=spec)


BY_PLACE: dict[str, Any] = {
    "select": lambda _, ref, values: ref.select(values > 2),
    "exclude": lambda _, ref, values: ref.exclude((values > 2).astype("boolean")),
    "read": lambda _, ref, values: ref.read((values > 2).astype(object)),
    "to_pandas": lambda _, ref, values: to_pandas(ref, values > 2),
    "where": lambda _, ref, values: ref.where(lambda columns: values > columns["x"].mean()),
    "sample": lambda _, ref, values: ref.sample(values, seed=0),
    "keep": lambda storage, _, values: storage.derive("rows@v1", new="a", keep=values > 2),
    "a function": lambda storage, _, values: storage.derive("rows@v1", new="b", keep=lambda _: values > 2),
    "left out": lambda storage, _, values: storage.derive("rows@v1", new="c", exclude=values > 2),
    "erased": lambda storage, _, values: storage.erase("rows@v1", records=values > 4, reason="asked"),
    "a series": lambda storage, _, values: storage.cache(values, "series@v1"),
    "columns": lambda storage, _, values: storage.cache({"y": values}, "columns@v1"),
    "appended": lambda storage, _, values: storage.append("rows@v1", new="d", source=values.to_frame("x")),
    "added": lambda storage, _, values: storage.add_columns("rows@v1", new="e", columns={"y": values}),
    "within": lambda storage, _, values: storage.add_columns("rows@v1", new="f", columns={"y": {"z": values}}),
    "a frame": lambda storage, _, values: storage.add_columns("rows@v1", new="g", columns=values.to_frame("y")),
    "a batch": lambda storage, _, values: storage.cache([{"y": values}], "batch@v1", unbatch=True),
    "of batches": lambda storage, _, values: storage.add_columns(
        "rows@v1", new="h", columns=lambda _: {"y": values}, batched=True
    ),
}


@pytest.mark.parametrize("name", BY_PLACE)
def test_values_in_another_order_than_the_records_are_refused(name: str, tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    values = pd.Series(np.arange(6), name="x")
    ref = storage.cache(values.to_frame(), "rows@v1")
    for wrong in (values[::-1], values.set_axis([*range(1, 7)]), values.rename_axis("id")):
        with pytest.raises(CacheLayerError, match=r"index .* is not 0 to 5.*reset_index"):
            BY_PLACE[name](storage, ref, wrong)
    BY_PLACE[name](storage, ref, values[::-1].sort_index())


def test_numbers_of_records_may_have_any_index(storage: Storage) -> None:
    ref = storage.cache(pd.DataFrame({"x": [3, 4, 5]}), "numbers@v1")
    assert ref.select(pd.Series([2, 0], index=[7, 5])).read([0, 1])["x"].tolist() == [5, 3]


FRAMES_OF_ELEMENTS: list[Callable[[], Any]] = [
    lambda: pd.DataFrame({"a": [1, 2]}),
    lambda: pl.DataFrame({"a": [1, 2]}),
    lambda: pa.table({"a": [1, 2]}),
    lambda: pa.table({"a": [1, 2]}).to_batches()[0],
]


@pytest.mark.parametrize("frame", FRAMES_OF_ELEMENTS, ids=["pandas", "polars", "table", "batch"])
@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("unbatch", [False, True])
def test_a_frame_among_elements_never_loses_its_columns(
    frame: Callable[[], Any], unbatch: bool, declared: bool, storage: Storage
) -> None:
    spec = ArraySpec("int64", (None, None)) if declared else None
    for source in ([frame(), frame()], [{"x": frame()}]):
        inner = {"x": spec} if spec and isinstance(source[0], dict) else spec
        with pytest.raises(ElementError, match="sharded"):
            storage.cache(source, "refused@v1", unbatch=unbatch, element_spec=inner)


def test_rows_of_pandas_never_lose_the_names_of_their_values(storage: Storage) -> None:
    frame = pd.DataFrame({"a": [1, 2], "b": [3, 4]})
    with pytest.raises(ElementError, match="to_dict"):
        storage.cache([row for _, row in frame.iterrows()], "refused@v1")
    assert storage.cache([row.to_dict() for _, row in frame.iterrows()], "named_rows@v1")[1] == {"a": 2, "b": 4}
    assert storage.cache([frame["a"], frame["b"]], "rows_of_pandas@v1")[1].tolist() == [3, 4]


@pytest.mark.parametrize("workers", [1, 2])
def test_parts_whose_decimals_have_other_digits_are_refused_as_integers(workers: int, storage: Storage) -> None:
    def part(number: int, _: int) -> Any:
        return prices(number, 1 + number)

    def prices(number: int, digits: int) -> Any:
        return pa.table({"price": pa.array([Decimal("1.5") + number] * 2, pa.decimal128(9, digits))})

    spec = {"price": ArraySpec("int64")}
    with pytest.raises(InvalidArgumentError, match=r"part 1 of 2.*price"):
        storage.cache(sharded(part, 2), "refused@v1", element_spec=spec, workers=workers)
    assert storage.cache(sharded(part, 2), f"floats@v{workers}", workers=workers)[3] == {"price": 2.5}
    alike = sharded(lambda number, _: prices(number, 1), 2)
    assert storage.cache(alike, f"alike@v{workers}", element_spec=spec).read(slice(None))["price"].tolist() == [
        15,
        15,
        25,
        25,
    ]


def test_decimals_of_hugging_face_come_back_as_decimals(storage: Storage) -> None:
    table = pa.table({"price": pa.array([Decimal("1.5"), None], pa.decimal128(9, 2)), "n": [1, 2]})
    ref = storage.cache(datasets.Dataset(table), "prices@v1")
    assert ref.read(slice(None))["price"].values[0] == 1.5
    assert ref.to_arrow() == table
