"""Values that only a framework has go in unchanged, or are refused by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from values_across import assert_same
from values_table import BIG, NS

from cachelayer import Storage
from cachelayer.adapters.pandas import to_pandas
from cachelayer.errors import CacheLayerWarning, ElementError, InvalidArgumentError, InvalidTypeError


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    return Storage(tmp_path_factory.mktemp("values"))


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
    "invalid JSON": (pa.ExtensionArray.from_storage(pa.json_(), INVALID), r"record 1, leaf \['x'\]: .*UTF-8"),
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
        pa.array([{"a": None}, None], pa.struct([("a", pa.int8())])),
        r"record 1, leaf \['x'\]: expected a struct, got null.*its leaves may be",
    ),
    "null structs within structs": (
        pa.array([{"a": {"b": 1}}, {"a": None}]),
        r"record 1, leaf \['x'\]\['a'\]: expected a struct, got null",
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
    "2^64 - 1": (pa.array([2**64 - 1, None], pa.uint64()), [np.uint64(2**64 - 1), None]),
    "pandas: big integers": (pd.Series([2**64 - 1, 0], dtype=object), [np.uint64(2**64 - 1), np.uint64(0)]),
    "pandas: big-endian": (pd.Series(np.array([1, 2], ">i4")), [np.int32(1), np.int32(2)]),
    "pandas: big-endian arrays": (pd.Series([np.array([1, 2], ">i4")]), [np.array([1, 2], "i4")]),
    "pandas: NaN in arrays": (pd.Series([np.array([1, np.nan])]), [np.array([1, np.nan])]),
    "pandas: NaN in lists": (pd.Series([[1.0, np.nan]]), [np.array([1, np.nan])]),
    "pandas: NaN in dicts": (pd.Series([{"a": np.nan}]), [{"a": np.float64(np.nan)}]),
    "pandas: null dicts": (pd.Series([{"a": 1}, None]), "record 1, .*x"),
    "polars: null structs": (pl.Series([{"a": 1}, None]), r"record 1, leaf \['x'\]: expected a struct, got null"),
    "pandas: surrogates": (pd.Series(["fine", "\ud800"], dtype=object), ["fine", "\ud800"]),
    "pandas: surrogates in strings": (
        pd.Series(["fine", None, "\ud800"], dtype="string[python]"),
        r"record 2, leaf \['x'\]: expected text in UTF-8",
    ),
    "pandas: surrogates in lists": (
        pd.Series([["a"], ["\ud800"]]),
        [np.array(["a"], object), np.array(["\ud800"], object)],
    ),
    "pandas: surrogates in dicts": (pd.Series([{"a": "\ud800"}]), [{"a": "\ud800"}]),
    "pandas: integers among numbers": (pd.Series([[1, 0.5]]), [np.array([1, 0.5])]),
    "pandas: Timestamps": (
        pd.Series([pd.Timestamp(NS), None, pd.Timestamp("2020").as_unit("s")], dtype=object),
        [np.datetime64(NS, "ns"), None, np.datetime64("2020", "ns")],
    ),
    "pandas: Timedeltas": (pd.Series([pd.Timedelta(NS)], dtype=object), [np.timedelta64(NS, "ns")]),
    "pandas: Timestamps in lists": (pd.Series([[pd.Timestamp(NS)]]), [np.array([NS]).view("M8[ns]")]),
    "pandas: numpy's moments": (pd.Series([np.datetime64(NS, "ns")], dtype=object), [np.datetime64(NS, "ns")]),
    "pandas: empty dicts": (pd.Series([{}, {}]), [{}, {}]),
    "pandas: matrices": (pd.Series([np.eye(2), None, np.ones((0, 2))]), [np.eye(2), None, np.ones((0, 2))]),
    "pandas: far apart": (
        pd.Series([pd.Timestamp(NS), pd.Timestamp(10**11, unit="s")], dtype=object),
        "record 1, leaf .*x",
    ),
    "polars: empty structs": (pl.Series([{}, {}]), [{}, {}]),
    "polars: zero-width": (pl.Series([[], None], dtype=pl.Array(pl.Int8, 0)), [np.zeros(0, "i1"), None]),
}


def framed(column: Any) -> Any:
    if isinstance(column, pl.Series):
        return pl.DataFrame({"x": column})
    return pd.DataFrame({"x": column}) if isinstance(column, pd.Series) else pa.table({"x": column})


@pytest.mark.parametrize("name", NATIVE)
def test_what_only_a_framework_has_goes_in_unchanged_or_is_refused(name: str, storage: Storage, tmp_path: Path) -> None:
    column, wanted = NATIVE[name]
    if isinstance(wanted, str):
        with pytest.raises((ElementError, InvalidTypeError), match=wanted):
            Storage(tmp_path).submit(framed(column), "refused", "v1")
        assert Storage(tmp_path).datasets() == []
        return
    elements = list(storage.submit(framed(column), "".join(filter(str.isalnum, name)), "native"))
    assert len(elements) == len(wanted)
    for got, value in zip(elements, wanted, strict=True):
        assert_same(got["x"], value)


def test_rows_of_a_table_that_do_not_fit_are_left_out_and_the_others_kept(storage: Storage) -> None:
    lists = pa.array([[0], [None], [2], [3]])
    with pytest.warns(CacheLayerWarning, match="record 1,"):
        ref = storage.submit(pa.table({"x": INVALID, "y": lists[::-1]}), "skipped", "v1", on_error="skip")
    assert [(element["x"], element["y"].tolist()) for element in ref] == [("fine", [3]), ("fine", [0])]


def test_rows_of_a_frame_with_surrogates_are_left_out_and_the_others_kept(storage: Storage) -> None:
    frame = pd.DataFrame({"x": pd.Series(["fine", "\ud800", None], dtype="string[python]")})
    with pytest.warns(CacheLayerWarning, match="record 1,"):
        ref = storage.submit(frame, "skipped-strings", "v1", on_error="skip")
    assert [element["x"] for element in ref] == ["fine", None]


def test_integers_within_dicts_and_arrays_do_not_depend_on_the_rows_that_are_asked_for(storage: Storage) -> None:
    rows = [{"x": {"a": np.int64(BIG), "b": np.array([BIG])}}, {"x": {"a": None, "b": None}}]
    ref = storage.submit(rows, "nullable-within", "v1")
    for frame in (to_pandas(ref), to_pandas(ref, [0])):
        assert_same(frame["x"][0], rows[0]["x"])


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


@pytest.mark.parametrize("frame", [pd.DataFrame({"x": [1]}), pl.DataFrame({"x": [1]}), pa.table({"x": [1]})], ids=type)
def test_rows_are_no_batches(frame: Any, storage: Storage) -> None:
    with pytest.raises(InvalidArgumentError, match="unbatch=True"):
        storage.cache(frame, "batches", "v1", unbatch=True)
