"""Values that go through an adapter: they arrive as they are, or are refused by name, or a warning says what changes.

A framework is a row of ``FRAMEWORKS``, a value a row of ``VALUES``. A cell of the table that they make is one verdict:
nothing may crash, raise a foreign error, or change a value, dtype, null, order or count in silence.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from cachelayer import ArraySpec, Ragged, Storage
from cachelayer.adapters.huggingface import to_datasets
from cachelayer.adapters.pandas import to_pandas
from cachelayer.adapters.polars import to_polars
from cachelayer.errors import CacheLayerError, CacheLayerWarning, ElementError, InvalidTypeError

Verdict = Literal["equal", "refused", "warned", "unnamed"]
BIG = 2**53 + 1
NS = 2**60 + 1
NAT = np.datetime64("NaT")


@dataclass(frozen=True)
class Framework:
    """What a framework takes and gives.

    Args:
        out: a ref as the framework's object, which is a source again.
        dtypes: those that it has no equal of, with what the docs say they become.
        arrays_too: whether they do so within arrays and dicts.
    """

    out: Callable[[Any], Any]
    dtypes: dict[str, str]
    arrays_too: bool = True


def _dataset(ref: Any) -> Any:
    with TemporaryDirectory() as folder:
        return to_datasets(ref, cache_dir=folder)


FRAMEWORKS = {
    "pandas": Framework(to_pandas, {"<M8[D]": "<M8[ms]"}, arrays_too=False),
    "polars": Framework(to_polars, {"<M8[s]": "<M8[ms]", "<m8[s]": "<m8[ms]"}),
    "datasets": Framework(_dataset, {}),
}

DTYPES = [*"?bBhHiIqQefd", "M8[D]", *(f"{kind}8[{unit}]" for kind in "Mm" for unit in ("s", "ms", "us", "ns"))]


def edges(dtype: str) -> np.ndarray[Any, Any]:
    """The values of a dtype that are most easily changed."""
    kind = np.dtype(dtype).kind
    if kind in "iu":
        word = np.iinfo(dtype)
        return np.array([n for n in (0, 1, word.min, word.max, BIG, 2**63) if word.min <= n <= word.max], dtype)
    if kind == "f":
        limits = np.finfo(dtype)
        return np.array([0.0, -0.0, np.inf, -np.inf, np.nan, limits.max, limits.tiny, limits.smallest_subnormal], dtype)
    if kind in "mM":
        return np.array([0, -1, 1, 10_000] + ([NS, -NS] if "[ns]" in dtype else []), "q").view(dtype)
    return np.array([True, False])


def plain(values: np.ndarray[Any, Any]) -> list[Any]:
    return [*values]


def matrices(values: np.ndarray[Any, Any]) -> list[Any]:
    return [np.stack([values, values[::-1]]), np.stack([values, values])]


NESTINGS: dict[str, Callable[[np.ndarray[Any, Any]], list[Any]]] = {
    "plain": plain,
    "nullable": lambda values: [None, *values],
    "array": lambda values: [values, values[::-1]],
    "array or null": lambda values: [None, values],
    "matrix": matrices,
    "matrix or null": lambda values: [*matrices(values), None],
    "zero-width": lambda values: [values[:0]],
    "zero-width or null": lambda values: [values[:0], None],
    "zero-width within": lambda values: [pair[:, :0] for pair in matrices(values)],
    "zero-width outside": lambda values: [pair[:0] for pair in matrices(values)],
    "dict": lambda values: [{"a": value, "b": {"c": values}} for value in values],
    "dict with nulls": lambda values: [{"a": values[0], "b": None}, {"a": None, "b": values[0]}],
    "ragged": lambda values: [Ragged(values, np.array([0, 1, len(values)])), Ragged(values[:0], np.array([0]))],
}
ROWS = 10


VALUES: dict[str, list[Any]] = {
    "NaT": [np.datetime64(NS, "ns"), np.datetime64("NaT", "ns")],
    "NaT of days": [np.datetime64(1, "D"), np.datetime64("NaT", "D")],
    "NaT of seconds": [np.timedelta64(1, "s"), np.timedelta64("NaT", "s")],
    "NaT or null": [np.datetime64("NaT", "us"), None, np.datetime64(1, "us")],
    "NaT within arrays": [np.array([NS, NAT.view("q")]).view("M8[ns]"), np.array([1, 2]).view("M8[ns]")],
    "NaT of days within arrays": [np.array([1, NAT.view("q")]).view("M8[D]")] * 2,
    "NaT in dicts": [{"t": np.datetime64("NaT", "us")}, {"t": np.datetime64(1, "us")}],
    "far days": [np.datetime64(2**40, "D")],
    "far seconds": [np.datetime64(2**60, "s")],
    "far spans": [np.timedelta64(2**60, "s")],
    "odd units": [np.datetime64(5, "10s")],
    "hours": [np.datetime64(5, "h")],
    "years": [np.datetime64(5, "Y")],
    "no unit": [np.timedelta64(5)],
    "complex": [1j],
    "text": ["", "ä\0b", "x" * 1000],
    "text or null": [None, "", "ä"],
    "text arrays": [np.array(["a", ""], object), np.array(["", "ü"], object)],
    "text of fixed width": [np.str_("ab"), np.str_("a")],
    "lone surrogates": ["fine", "\ud800"],
    "lone surrogates in arrays": [np.array(["fine", "\ud800"], object)],
    "lone surrogates in dicts": [{"s": "\ud800"}],
    "bytes": [b"", b"\xff\0", b"x" * 1000],
    "bytes or null": [b"", None],
    "bytes arrays": [np.array([b"\xff", b""], object)] * 2,
    "empty dicts": [{}, {}, {}],
    "empty dicts in dicts": [{"a": {}, "b": np.int8(1)}, {"a": {}, "b": np.int8(2)}],
    "arrays of any length": [np.arange(2), np.arange(0), np.arange(3)],
    "images": [np.zeros((2, 3), "u1"), np.ones((1, 5), "u1")],
    "images without pixels": [np.zeros((2, 3), "u1"), np.ones((0, 5), "u1")],
    "nothing": [None, None],
}
SPECS: dict[str, Any] = {
    "arrays of any length": ArraySpec("int64", (None,)),
    "images": ArraySpec("uint8", (None, None)),
    "images without pixels": ArraySpec("uint8", (None, None)),
    "text of fixed width": ArraySpec("<U2"),
    "text arrays": ArraySpec(str, (2,)),
    "lone surrogates in arrays": ArraySpec(str, (2,)),
    "bytes arrays": ArraySpec(bytes, (2,)),
    "nothing": None,
}


Verdicts = tuple[Verdict, Verdict | None]
EQUAL: Verdicts = ("equal", "equal")
REFUSED: Verdicts = ("refused", None)
WARNED: Verdicts = ("warned", None)
NO_WAY_BACK: Verdicts = ("equal", "refused")
NOT_IN_ARROW: dict[str, Verdicts] = {"polars": WARNED, "datasets": WARNED}
NOWHERE: dict[str, Verdicts] = {"pandas": REFUSED, "polars": REFUSED, "datasets": REFUSED}
EXPECTED: dict[str, dict[str, Verdicts]] = {
    **{f"NaT{where}": NOT_IN_ARROW for where in ("", " of days", " of seconds", " within arrays", " in dicts")},
    "NaT or null": NOT_IN_ARROW | {"pandas": WARNED},
    "NaT of days within arrays": NOT_IN_ARROW | {"pandas": NO_WAY_BACK},
    **{name: {"polars": REFUSED} for name in ("far seconds", "far spans")},
    **dict.fromkeys(("far days", "odd units", "hours", "years", "no unit", "complex", "lone surrogates"), NOWHERE),
    **{f"lone surrogates in {what}": NOWHERE | {"pandas": NO_WAY_BACK} for what in ("arrays", "dicts")},
    "images": {"pandas": NO_WAY_BACK},
    "images without pixels": NOT_IN_ARROW | {"pandas": NO_WAY_BACK},
}
"""What comes of a value on the way out, and on the way in again; what is not here stays equal."""


def arrived(value: Any, tool: Framework, within: bool = False) -> Any:
    """A value as it comes out of a framework."""
    if isinstance(value, dict):
        return {name: arrived(part, tool, within=True) for name, part in value.items()}
    if isinstance(value, Ragged):
        return Ragged(arrived(value.flat_values, tool, within=True), value.row_splits)
    within = within or isinstance(value, np.ndarray)
    if isinstance(value, (np.generic, np.ndarray)) and (tool.arrays_too or not within):
        value = value.astype(tool.dtypes.get(value.dtype.str, value.dtype))
    if isinstance(value, (np.datetime64, np.timedelta64)) and np.isnat(value) and not within:
        return None
    return str(value) if isinstance(value, np.str_) else value


def assert_same(got: Any, wanted: Any) -> None:
    """Two elements, or leaves, do not differ in anything."""
    if isinstance(wanted, dict):
        assert isinstance(got, dict)
        assert list(got) == list(wanted)
        for name in wanted:
            assert_same(got[name], wanted[name])
    elif isinstance(wanted, Ragged):
        assert isinstance(got, Ragged)
        assert got.row_splits.tolist() == wanted.row_splits.tolist()
        assert_same(got.flat_values, wanted.flat_values)
    elif isinstance(got, Ragged):
        # Lists do not tell arrays of varying dimensions from lists of varying lengths.
        assert (got.to_list(), got.flat_values.dtype) == (wanted.tolist(), wanted.dtype)
    elif isinstance(wanted, (np.ndarray, np.generic)):
        assert got is not None
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        if wanted.dtype == object:
            assert got.tolist() == wanted.tolist()
        else:
            assert got.tobytes() == wanted.tobytes()
    else:
        assert type(got) is type(wanted)
        assert got == wanted


def verdict_of(way: Callable[[], Any]) -> tuple[Verdict, Any]:
    """How something went that is equal if it says nothing; every error and warning is ours, and names the leaf."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found = way()
        except CacheLayerError as error:
            return "refused" if "'x'" in str(error) else "unnamed", error
    if not said:
        return "equal", found
    assert [warning.category for warning in said] == [CacheLayerWarning]
    assert "['x']" in str(said[0].message)
    return "warned", found


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    return Storage(tmp_path_factory.mktemp("values"))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("nesting", NESTINGS)
def test_edges_of_every_dtype_come_out_and_go_in_again_unchanged(
    nesting: str, framework: str, storage: Storage
) -> None:
    tool, columns = FRAMEWORKS[framework], {dtype: NESTINGS[nesting](edges(dtype)) for dtype in DTYPES}
    elements = [{dtype: rows[n % len(rows)] for dtype, rows in columns.items()} for n in range(ROWS)]
    ref = storage.cache(elements, f"{nesting}-in".replace(" ", "-"), "v1")
    # Of 16-bit floats pandas has no column that tells null from NaN, and says so.
    floats = framework == "pandas" and nesting == "nullable"
    with pytest.warns(CacheLayerWarning, match=r"\['e'\] holds null and NaN") if floats else nullcontext():
        frame = tool.out(ref)
    back = storage.cache(frame, f"{nesting}-{framework}".replace(" ", "-"), "v1")
    assert len(back) == ROWS
    for got, wanted in zip(back, elements, strict=True):
        for dtype in set(DTYPES) - ({"e"} if floats else set()):
            assert_same(got[dtype], arrived(wanted[dtype], tool))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", VALUES)
def test_values_come_out_and_go_in_again_equal_refused_or_with_a_warning(
    name: str, framework: str, storage: Storage
) -> None:
    tool, identity = FRAMEWORKS[framework], name.replace(" ", "-")
    options = {"element_spec": {"x": SPECS[name]}} if name in SPECS else {}
    ref = storage.cache([{"x": value} for value in VALUES[name]], identity, "v1", **options)
    out, frame = verdict_of(lambda: tool.out(ref))
    back: Verdict | None = None
    again: Any = None
    if out != "refused":
        assert len(frame) == len(VALUES[name])
    if out == "equal":
        options = {"element_spec": {"x": SPECS[name]}} if SPECS.get(name, 0) is None else {}
        back, again = verdict_of(lambda: list(storage.cache(frame, f"{identity}-{framework}", "v1", **options)))
        if back == "equal":
            assert len(again) == len(VALUES[name])
            for got, wanted in zip(again, VALUES[name], strict=True):
                assert_same(got["x"], arrived(wanted, tool))
    assert (out, back) == EXPECTED.get(name, {}).get(framework, EQUAL), (frame, again)


INVALID = pa.array([b"fine", b"\xff\xfe", b"", b"fine"]).view(pa.string())
NATIVE: dict[str, tuple[Any, list[Any] | str]] = {
    "invalid text": (INVALID, r"record 1, leaf \['x'\]: expected text in UTF-8, got b'\\xff\\xfe'.*cast"),
    "invalid views": (
        pa.array([b"fine", b"\xff" * 99], pa.binary_view()).view(pa.string_view()),
        r"record 1, leaf \['x'\]: .*of 99 bytes",
    ),
    "invalid text in lists": (
        pa.ListArray.from_arrays(pa.array([0, 0, 1, 4], pa.int32()), INVALID),
        r"record 2, leaf \['x'\]: expected text in UTF-8",
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
    "lists of empty structs": (
        pa.array([[{}], []], pa.list_(pa.struct([]))),
        r"leaf \['x'\].*nothing keeps its length",
    ),
    "2^64 - 1": (pa.array([2**64 - 1, None], pa.uint64()), [np.uint64(2**64 - 1), None]),
    "pandas: big integers": (pd.Series([2**64 - 1, 0], dtype=object), [np.uint64(2**64 - 1), np.uint64(0)]),
    "pandas: big-endian": (pd.Series(np.array([1, 2], ">i4")), [np.int32(1), np.int32(2)]),
    "pandas: big-endian arrays": (pd.Series([np.array([1, 2], ">i4")]), [np.array([1, 2], "i4")]),
    "pandas: NaN in arrays": (pd.Series([np.array([1, np.nan])]), [np.array([1, np.nan])]),
    "pandas: NaN in lists": (pd.Series([[1.0, np.nan]]), [np.array([1, np.nan])]),
    "pandas: NaN in dicts": (pd.Series([{"a": np.nan}, None]), [{"a": np.float64(np.nan)}, {"a": None}]),
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
    "pandas: categories with a time zone": (
        pd.Series(pd.to_datetime(["2020"], utc=True)).astype("category"),
        "tz_convert",
    ),
    "pandas: far apart": (
        pd.Series([pd.Timestamp(NS), pd.Timestamp(10**11, unit="s")], dtype=object),
        r"column 'x' is object, which is not stored: .*without overflow",
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
    with pytest.warns(CacheLayerWarning, match="2 of 4 records were left out.*record 1, leaf"):
        ref = storage.submit(pa.table({"x": INVALID, "y": lists[::-1]}), "skipped", "v1", on_error="skip")
    assert [(element["x"], element["y"].tolist()) for element in ref] == [("fine", [3]), ("fine", [0])]


def test_integers_within_dicts_and_arrays_do_not_depend_on_the_rows_that_are_asked_for(storage: Storage) -> None:
    rows = [{"x": {"a": np.int64(BIG), "b": np.array([BIG])}}, {"x": {"a": None, "b": None}}]
    ref = storage.submit(rows, "nullable-within", "v1")
    for frame in (to_pandas(ref), to_pandas(ref, [0])):
        assert_same(frame["x"][0], rows[0]["x"])
