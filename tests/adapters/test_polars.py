"""Polars itself: frames in and out, their types, and what is refused."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from pages import run_page
from polars.testing import assert_frame_equal
from source_conformance import SourceConformance

from cachelayer import ArraySpec, RaggedSpec, Storage
from cachelayer.adapters.polars import as_source, to_polars
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, RecordIndexError, SourceError


def numbers(count: int) -> pl.DataFrame:
    """Columns of every form, with nulls, of this many rows."""
    i = np.arange(count)
    return pl.DataFrame(
        {
            "id": i,
            "half": (i / 2).astype(np.float32),
            "maybe": [None if n % 5 == 1 else n for n in range(count)],
            "text": [None if n % 7 == 3 else f"näme {n}" * (n % 3) for n in range(count)],
            "blob": [bytes([n % 256]) * (n % 40) for n in range(count)],
            "list": [list(range(n % 4)) for n in range(count)],
            "pair": pl.Series([[n, -n] for n in range(count)], dtype=pl.Array(pl.Int32, 2)),
            "kind": pl.Series(["even" if n % 2 == 0 else "odd" for n in range(count)], dtype=pl.Categorical),
            "inner": [{"x": n, "y": {"z": n % 2 == 0}} for n in range(count)],
            "day": [dt.date(2020, 1, 1) + dt.timedelta(days=n) for n in range(count)],
        },
        schema_overrides={"maybe": pl.Int16, "text": pl.String, "list": pl.List(pl.Int64)},
    )


class TestConformance(SourceConformance):
    def source(self, count: int, folder: Path) -> Any:
        return numbers(count)

    def element(self, number: int) -> Any:
        return {
            "id": np.int64(number),
            "half": np.float32(number / 2),
            "maybe": None if number % 5 == 1 else np.int16(number),
            "text": None if number % 7 == 3 else f"näme {number}" * (number % 3),
            "blob": bytes([number % 256]) * (number % 40),
            "list": np.arange(number % 4),
            "pair": np.array([number, -number], np.int32),
            "kind": "even" if number % 2 == 0 else "odd",
            "inner": {"x": np.int64(number), "y": {"z": np.bool_(number % 2 == 0)}},
            "day": np.datetime64("2020-01-01") + number,
        }


class TestLazyConformance(TestConformance):
    seeks = False

    def source(self, count: int, folder: Path) -> Any:
        return numbers(count + 10).lazy().filter(pl.col("id") < count)


class TestChunkedConformance(TestConformance):
    def source(self, count: int, folder: Path) -> Any:
        frame = numbers(count)
        return pl.concat([frame[: count // 3], frame[count // 3 : count // 2], frame[count // 2 :]], rechunk=False)


def cached(folder: Path, frame: Any, **options: Any) -> Any:
    return Storage(folder / "cache").submit(frame, "d", "v1", **options)


@pytest.mark.parametrize(
    ("column", "spec"),
    [
        (pl.Series([1, 2], dtype=pl.UInt8), ArraySpec("uint8")),
        (pl.Series([1.0, 2.0], dtype=pl.Float16), ArraySpec("float16")),
        (pl.Series([True, None]), ArraySpec("bool", nullable=True)),
        (pl.Series(["a", "b"], dtype=pl.Enum(["b", "a"])), ArraySpec(str)),
        (pl.Series([dt.datetime(2020, 1, 1)] * 2), ArraySpec("M8[us]")),
        (pl.Series([dt.timedelta(1), None], dtype=pl.Duration("ms")), ArraySpec("m8[ms]", nullable=True)),
        (pl.Series([dt.time(1)] * 2), ArraySpec("m8[ns]")),
        (pl.Series([[1.0], None]), ArraySpec("float64", (None,), nullable=True)),
        (pl.Series([["a", "b"], []]), ArraySpec(str, (None,))),
        (pl.Series([[[1], [2, 3]], []]), RaggedSpec("int64", (None, None))),
        (pl.Series([[[1, 2]], []], dtype=pl.List(pl.Array(pl.Int8, 2))), ArraySpec("int8", (None, 2))),
        (pl.Series([[[1, 2]]] * 2, dtype=pl.Array(pl.Int8, (1, 2))), ArraySpec("int8", (1, 2))),
    ],
)
def test_types_are_kept(tmp_path: Path, column: pl.Series, spec: Any) -> None:
    frame = pl.DataFrame({"x": column})
    ref = cached(tmp_path, frame)
    assert ref.element_spec == {"x": spec}
    back = to_polars(ref)["x"]
    dtype = {pl.Enum: pl.String, pl.Time: pl.Duration("ns")}.get(type(column.dtype), column.dtype)
    assert back.dtype == dtype
    assert back.to_list() == column.cast(dtype).to_list()


def test_a_frame_without_rows_keeps_its_columns(tmp_path: Path) -> None:
    ref = cached(tmp_path, numbers(3).clear(), allow_empty=True)
    assert len(ref) == 0
    assert to_polars(ref).columns == numbers(1).columns


def test_frames_come_out_as_they_went_in(tmp_path: Path) -> None:
    ref = cached(tmp_path, numbers(50))
    expected = numbers(50).with_columns(pl.col("kind").cast(pl.String))
    assert_frame_equal(to_polars(ref), expected)
    assert_frame_equal(to_polars(ref, [-1, 3, 3]), expected[[49, 3, 3]])
    assert_frame_equal(to_polars(ref[10:20]), expected[10:20])
    assert_frame_equal(to_polars(ref, []), expected.clear())
    with pytest.raises(RecordIndexError):
        to_polars(ref, [50])


def test_elements_that_make_no_columns_are_refused(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    with pytest.raises(InvalidTypeError, match="a frame needs dicts"):
        to_polars(storage.submit([1, 2], "scalars", "v1"))
    with pytest.raises(InvalidTypeError, match=r"\['x'\]"):
        to_polars(storage.submit([{"x": (1, 2)}], "tuples", "v1"))
    with pytest.raises(InvalidTypeError, match=r"\['x'\]"):
        to_polars(storage.submit([{"x": np.complex64(1)}], "complex", "v1"))


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pl.Series([dt.datetime(2020, 1, 1)], dtype=pl.Datetime("us", "Europe/Paris")), "convert_time_zone"),
        (pl.Series([Decimal("1.25")]), r"cast\(pl.Float64\)"),
        (pl.Series([{1}], dtype=pl.Object), "numbers, strings, lists or structs"),
        (pl.Series([1], dtype=pl.Int128), r"cast\(pl.Int64\)"),
        (pl.Series([[Decimal("1.25")]]), r"in lists, is Decimal.*cast\(pl.Float64\)"),
        (pl.Series([{"a": Decimal("1.25")}]), r"field 'a', is Decimal.*cast\(pl.Float64\)"),
    ],
)
@pytest.mark.parametrize("lazy", [False, True])
def test_types_that_would_not_come_back_are_refused_by_name(column: pl.Series, said: str, lazy: bool) -> None:
    frame = pl.DataFrame({"ok": [1], "bad": column})
    with pytest.raises(InvalidTypeError, match=rf"column 'bad'.*{said}.*drop\(\)"):
        as_source(frame.lazy() if lazy else frame)


@pytest.mark.parametrize("frame", [pl.DataFrame(), pl.LazyFrame()])
def test_a_frame_without_columns_is_refused(frame: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="the frame has no columns"):
        as_source(frame)


def test_a_lazy_frame_that_fails_says_so(tmp_path: Path) -> None:
    broken = pl.LazyFrame({"x": ["1", "two"]}).select(pl.col("x").cast(pl.Int64))
    with pytest.raises(SourceError, match="two"):
        cached(tmp_path, broken)
    with pytest.raises(SourceError, match="ColumnNotFoundError"):
        cached(tmp_path, pl.LazyFrame({"x": [1]}).select("y"))


def test_a_lazy_frame_is_computed_when_it_is_built_and_no_sooner(tmp_path: Path) -> None:
    asked: list[int] = []

    def counted(frame: pl.DataFrame) -> pl.DataFrame:
        asked.append(frame.height)
        return frame

    source = pl.LazyFrame({"x": [1, 2, 3]}).map_batches(counted, schema={"x": pl.Int64})
    as_source(source)
    assert asked == []
    assert len(cached(tmp_path, source)) == 3
    assert asked == [3]


def test_the_page_is_right() -> None:
    run_page("frames.md")
