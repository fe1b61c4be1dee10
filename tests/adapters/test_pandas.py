"""pandas itself: frames in and out, their types, and what is refused."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal
from source_conformance import SourceConformance

from cachelayer import ArraySpec, ImageSpec, RaggedSpec, Storage, concat
from cachelayer.adapters.pandas import as_source, to_pandas
from cachelayer.errors import ElementError, InvalidArgumentError, InvalidTypeError, RecordIndexError


def numbers(count: int) -> pd.DataFrame:
    """Columns of every form, with missing values, of this many rows."""
    i = np.arange(count)
    return pd.DataFrame(
        {
            "id": i,
            "half": np.where(i % 3 == 1, np.nan, i / 2).astype(np.float32),
            "maybe": pd.array([None if n % 5 == 1 else n for n in range(count)], dtype="Int16"),
            "text": pd.array([None if n % 7 == 3 else f"näme {n}" * (n % 3) for n in range(count)], dtype="str"),
            "blob": pd.Series([bytes([n % 256]) * (n % 40) for n in range(count)], dtype=object),
            "array": pd.Series([np.arange(n % 4, dtype=np.int8) for n in range(count)], dtype=object),
            "kind": pd.Categorical(["even" if n % 2 == 0 else "odd" for n in range(count)]),
            "flag": i % 2 == 0,
            "day": np.datetime64("2020-01-01", "s") + i,
            "arrow": pd.array([None if n % 5 == 2 else n for n in range(count)], dtype="int64[pyarrow]"),
        }
    )


class TestConformance(SourceConformance):
    def source(self, count: int, folder: Path) -> Any:
        return numbers(count)

    def element(self, number: int) -> Any:
        return {
            "id": np.int64(number),
            "half": np.float32(np.nan if number % 3 == 1 else number / 2),
            "maybe": None if number % 5 == 1 else np.int16(number),
            "text": None if number % 7 == 3 else f"näme {number}" * (number % 3),
            "blob": bytes([number % 256]) * (number % 40),
            "array": np.arange(number % 4, dtype=np.int8),
            "kind": "even" if number % 2 == 0 else "odd",
            "flag": np.bool_(number % 2 == 0),
            "day": np.datetime64("2020-01-01", "s") + number,
            "arrow": None if number % 5 == 2 else np.int64(number),
        }


class TestStridedConformance(TestConformance):
    def source(self, count: int, folder: Path) -> Any:
        """Every other row of a frame, whose columns then lie apart in memory, and whose index has gaps."""
        doubled = numbers(count).loc[np.repeat(np.arange(count), 2)].reset_index(drop=True)
        return doubled[::2]


def cached(folder: Path, frame: Any, **options: Any) -> Any:
    return Storage(folder / "cache").submit(frame, "d", "v1", **options)


@pytest.mark.parametrize(
    ("column", "spec"),
    [
        (pd.Series([1, 2], dtype="uint8"), ArraySpec("uint8")),
        (pd.Series([1, 2], dtype="float16"), ArraySpec("float16")),
        (pd.Series([True, None], dtype="boolean"), ArraySpec("bool", nullable=True)),
        (pd.Series([1.5, None], dtype="Float32"), ArraySpec("float32", nullable=True)),
        (pd.Series([1, None], dtype="UInt64"), ArraySpec("uint64", nullable=True)),
        (pd.Series([1.5, None], dtype="float64"), ArraySpec("float64")),
        (pd.Series(["a", None], dtype="str"), ArraySpec(str, nullable=True)),
        (pd.Series(["a", "b"], dtype="string"), ArraySpec(str)),
        (pd.Series(["a", None, np.nan], dtype=object), ArraySpec(str, nullable=True)),
        (pd.Series([b"a", None], dtype=object), ArraySpec(bytes, nullable=True)),
        (pd.Series([1, None, 2], dtype=object), ArraySpec("int64", nullable=True)),
        (pd.Series([dt.date(2020, 1, 1)], dtype=object), ArraySpec("M8[D]")),
        (pd.Series(pd.to_datetime(["2020-01-01", None])).astype("M8[ns]"), ArraySpec("M8[ns]", nullable=True)),
        (pd.Series(pd.to_timedelta(["1s"])).astype("m8[ms]"), ArraySpec("m8[ms]")),
        (pd.Series([[1.0], [], None], dtype=object), ArraySpec("float64", (None,), nullable=True)),
        (pd.Series([["a", "b"], []], dtype=object), ArraySpec(str, (None,))),
        (pd.Series([[[1], [2, 3]], []], dtype=object), RaggedSpec("int64", (None, None))),
        (pd.Series([{"a": 1, "b": {"c": "x"}}], dtype=object), {"a": ArraySpec("int64"), "b": {"c": ArraySpec(str)}}),
    ],
)
def test_types_are_kept(tmp_path: Path, column: pd.Series[Any], spec: Any) -> None:
    ref = cached(tmp_path, pd.DataFrame({"x": column}))
    assert ref.element_spec == {"x": spec}
    missing = column.isna() if getattr(spec, "nullable", False) else [False] * len(column)
    assert [element["x"] is None for element in ref] == list(missing)


def test_a_frame_without_rows_keeps_its_columns(tmp_path: Path) -> None:
    frame = numbers(3).drop(columns=["blob", "array"])[:0]
    ref = cached(tmp_path, frame, allow_empty=True)
    assert len(ref) == 0
    assert to_pandas(ref).columns.tolist() == frame.columns.tolist()


def test_frames_come_out_as_they_went_in(tmp_path: Path) -> None:
    ref = cached(tmp_path, numbers(50))
    expected = numbers(50).astype({"kind": "str", "arrow": "Int64"})
    assert_frame_equal(to_pandas(ref), expected)
    assert_frame_equal(to_pandas(ref, [-1, 3, 3]), expected.iloc[[49, 3, 3]].reset_index(drop=True))
    assert_frame_equal(to_pandas(ref[10:20]), expected[10:20].reset_index(drop=True))
    with pytest.raises(RecordIndexError):
        to_pandas(ref, [50])


def test_images_come_out_as_the_bytes_of_their_files(tmp_path: Path) -> None:
    frame = pd.DataFrame({"image": pd.Series([b"not decoded"], dtype=object)})
    ref = cached(tmp_path, frame, element_spec={"image": ImageSpec("RGB")})
    for records in (ref, concat([ref]), concat([ref.raw()])):
        assert to_pandas(records)["image"].tolist() == [b"not decoded"]


@pytest.mark.parametrize(
    "column",
    [
        pd.Series([dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]),
        pd.Series([dt.datetime(2020, 1, 1, tzinfo=dt.UTC)], dtype=object),
        pd.Series([[dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]], dtype=object),
        pd.Series(pd.to_datetime(["2020"], utc=True)).astype("category"),
        pd.Series([Decimal("1.25")], dtype=object),
        pd.Series([{"a": Decimal("1.25")}], dtype=object),
        pd.Series(pd.period_range("2020", periods=1)),
        pd.Series(pd.interval_range(0, 1)),
        pd.Series(pd.arrays.SparseArray([0, 1])),
        pd.Series([1j]),
        pd.Series([object()]),
        pd.Series([{1}]),
    ],
)
def test_columns_that_would_not_come_back_are_refused_by_name(column: pd.Series[Any]) -> None:
    with pytest.raises((InvalidTypeError, ElementError), match="bad"):
        as_source(pd.DataFrame({"ok": 1, "bad": column}))


@pytest.mark.parametrize(
    ("ordinary", "odd"),
    [
        *[("a", 1), (1, 1.5), ("a", b"a"), (True, 1), ([1], "a"), (b"a", [1])],
        *[(1, 2**70), (-1, 2**63), ([1], [1, "a"]), ([1], [2**53 + 1, 0.5]), ([1], [1, None])],
        *[({"a": 1}, {"a": "x"}), ({"a": 1}, {"b": 1}), ({"a": 1}, {})],
        (np.zeros(2), np.zeros((2, 4))),
        (np.array([1]), np.array([1.5])),
        (np.datetime64(1, "s"), np.datetime64(1, "ns")),
    ],
)
def test_an_object_that_does_not_fit_is_refused_by_record_and_column(ordinary: Any, odd: Any, tmp_path: Path) -> None:
    column = pd.Series([*[ordinary] * 500, odd, ordinary], dtype=object)
    with pytest.raises(ElementError, match=r"record 500, leaf .*bad"):
        cached(tmp_path, pd.DataFrame({"ok": 1, "bad": column}))


def test_a_frame_without_columns_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="the frame has no columns"):
        as_source(pd.DataFrame(index=range(3)))


def test_a_column_of_nothing_but_none_needs_a_spec(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1, 2], "y": pd.Series([None, None], dtype=object)})
    with pytest.raises(InvalidArgumentError, match=r"\['y'\]"):
        cached(tmp_path, frame)
    ref = cached(tmp_path, frame, element_spec={"x": ArraySpec("int64"), "y": ArraySpec("float32")})
    assert ref[1] == {"x": 2, "y": None}


@pytest.mark.parametrize(
    "index",
    [
        pd.Index([3, 4], name="id"),
        pd.Index(["a", "b"]),
        pd.MultiIndex.from_tuples([(1, 2), (3, 4)]),
        pd.to_datetime(["2020", "2021"]),
    ],
)
def test_an_index_that_holds_something_is_never_dropped_in_silence(index: Any) -> None:
    frame = pd.DataFrame({"x": [1, 2]}, index=index)
    with pytest.raises(InvalidArgumentError, match="reset_index"):
        as_source(frame)
    source = as_source(frame.reset_index(drop=True))
    assert source is not None
    assert source.length == 2


def test_names_of_columns_are_str_and_differ(tmp_path: Path) -> None:
    with pytest.raises(InvalidTypeError, match=r"frame\.columns"):
        as_source(pd.DataFrame([[1, 2]]))
    with pytest.raises(InvalidTypeError, match="'b'"):
        as_source(pd.DataFrame([[1]], columns=pd.MultiIndex.from_tuples([("a", "b")])))
    with pytest.raises(InvalidTypeError, match=r"\['a'\]"):
        cached(tmp_path, pd.DataFrame([[1, 2]], columns=["a", "a"]))
