"""Windows over rows of a series: which records each holds, however the rows lie, and what is refused."""

import math
import pickle
import uuid
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from document_views import plain

import cachelayer
from cachelayer import (
    ArraySpec,
    CacheLayerWarning,
    InvalidArgumentError,
    InvalidTypeError,
    JsonSpec,
    NullableDict,
    RaggedSpec,
    SparseSpec,
    Storage,
)
from cachelayer.sequences import record_groups

SPEC = {
    "sensor": ArraySpec(str),
    "place": ArraySpec("int16"),
    "time": ArraySpec("float64"),
    "value": ArraySpec("float32", (2,)),
    "note": {"text": ArraySpec(bytes), "codes": ArraySpec("int32", (None,))},
    "spans": RaggedSpec("int8", (None, None)),
    "words": ArraySpec(str, (None,)),
    "json": JsonSpec(),
    "grid": ArraySpec("int8", (None, 2)),
}


def rows(count: int = 60) -> list[dict[str, Any]]:
    rng = np.random.default_rng(count)
    return [
        {
            "sensor": "cab"[int(rng.integers(0, 3))] if number % 20 else "rare",
            "place": number % 3 - 1,
            "time": float(rng.integers(0, 20)),
            "value": rng.random(2, np.float32),
            "note": {"text": b"x" * (number % 4), "codes": np.arange(number % 5, dtype=np.int32)},
            "json": [None, {"a": number}, [1, "x"], 2.5][number % 4],
            "words": np.array(["é", "b"][: number % 3], object),
            "grid": np.full((number % 4, 2), number, np.int8),
            "spans": cachelayer.Ragged(np.arange(number % 6, dtype=np.int8), np.array([0, number % 3, number % 6])),
        }
        for number in range(count)
    ]


for each in (ROWS := rows()):
    splits = each["spans"].row_splits
    splits[1] = min(splits[1:])


def series_of(elements: list[Any], by: list[str], order: str | None) -> list[list[int]]:
    """The records of each series, by a loop."""
    found: dict[Any, list[int]] = {}
    for number, element in enumerate(elements):
        found.setdefault(tuple(element[name] for name in by), []).append(number)
    return [sorted(found[key], key=lambda n: 0 if order is None else elements[n][order]) for key in sorted(found)]


def windows_of(series: list[list[int]], length: int, stride: int) -> list[list[int]]:
    return [each[at : at + length] for each in series for at in range(0, len(each) - length + 1, stride)]


def spans_of(view: Any) -> list[list[int]]:
    return [[span.record for span in view.sources(number)] for number in range(len(view))]


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> Any:
    storage = Storage(tmp_path_factory.mktemp("series"))
    return storage.cache(ROWS, "rows@v1", element_spec=SPEC, shard_bytes=2000)


@pytest.mark.parametrize("by", [None, "sensor", ["place"], ["sensor", "place"]])
@pytest.mark.parametrize(("order", "length", "stride"), [(None, 3, 1), ("time", 4, 1), ("time", 1, 3), ("time", 5, 7)])
def test_windows_hold_the_records_of_one_series_in_order(
    ref: Any, by: Any, order: str | None, length: int, stride: int
) -> None:
    names = [by] if isinstance(by, str) else by or []
    series = series_of(ROWS, names, order)
    expected = windows_of(series, length, stride)
    rolling = ref.rolling(by=by, order=order, length=length, stride=stride)
    assert spans_of(rolling) == expected
    assert (rolling.series, rolling.short_series) == (len(series), sum(len(each) < length for each in series))
    assert [span.offset for span in rolling.sources(0)] == list(range(length))
    for number, numbers in enumerate(expected):
        assert plain(rolling[number]) == plain(ref.read(numbers))


def test_elements_and_batches_have_the_spec(ref: Any) -> None:
    view = ref.rolling(4, by="sensor", order="time", stride=2)
    assert view.element_spec == {
        "sensor": ArraySpec(str, (4,)),
        "place": ArraySpec("int16", (4,)),
        "time": ArraySpec("float64", (4,)),
        "value": ArraySpec("float32", (4, 2)),
        "note": {"text": ArraySpec(bytes, (4,)), "codes": RaggedSpec("int32", (4, None))},
        "spans": RaggedSpec("int8", (4, None, None), ragged_rank=2),
        "words": RaggedSpec(str, (4, None)),
        "json": JsonSpec(),
        "grid": RaggedSpec("int8", (4, None, 2)),
    }
    elements = list(view)
    again = cachelayer.wrap(elements, identity="windows", element_spec=view.element_spec)
    for numbers in ([3, 0, 3], []):
        batch, expected = view.read(numbers), again.read(numbers)
        assert plain(batch) == plain(expected)
        assert repr(batch) == repr(expected)
    stream = view.stream(3, shuffle=True, seed=1, shard=(1, 3), remainder="keep").map(lambda each: each)
    batches = [plain(again.read(stream.record_numbers(step))) for step in range(len(stream))]
    assert [plain(batch) for batch in stream] == batches
    assert plain(view.read([2], fields=["value"])) == {"value": [plain(elements[2]["value"])]}


def test_a_plan_of_series_is_stored_once_for_all_lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(tmp_path)
    ref: Any = storage.cache(ROWS, "rows@v1", element_spec=SPEC)
    view = ref.rolling(3, by="sensor", order="time")[2:]
    expected = plain(list(view))
    assert len(list(tmp_path.rglob("*.plan"))) == 1
    monkeypatch.setattr(record_groups, "FieldReader", None)
    monkeypatch.setattr(record_groups.RecordGroups, "__post_init__", lambda self: None)
    again: Any = cachelayer.open(view.reference)
    assert (again.digest, plain(list(again))) == (view.digest, expected)
    assert plain(list(pickle.loads(pickle.dumps(view)))) == expected
    assert len(ref.rolling(9, by="sensor", order="time", stride=2)) > 0
    assert len(list(tmp_path.rglob("*.plan"))) == 1


def test_a_damaged_plan_of_series_is_made_again(tmp_path: Path) -> None:
    ref: Any = Storage(tmp_path).cache(ROWS, "rows@v1", element_spec=SPEC)
    expected = spans_of(ref.rolling(3, by="sensor"))
    (path,) = tmp_path.rglob("*.plan")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.warns(CacheLayerWarning, match="made again"):
        assert spans_of(ref.rolling(3, by="sensor")) == expected


def test_series_grow_when_records_are_appended_and_lose_those_that_are_erased(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.cache(ROWS[:40], "rows@v1", element_spec=SPEC)
    storage.append("rows@v1", "v2", ROWS[40:])
    old, new = (storage.fetch(f"rows@{version}") for version in ("v1", "v2"))
    assert spans_of(old.rolling(3, by="sensor")) == windows_of(series_of(ROWS[:40], ["sensor"], None), 3, 1)
    assert spans_of(new.rolling(3, by="sensor")) == windows_of(series_of(ROWS, ["sensor"], None), 3, 1)
    storage.erase("rows@v2", records=[5, 7], reason="asked for", grace=0)
    left = [number for number in range(60) if number not in (5, 7)]
    series = series_of([ROWS[number] for number in left], ["sensor"], "time")
    view = storage.fetch("rows@v2").rolling(3, by="sensor", order="time")
    expected = [[left[number] for number in window] for window in windows_of(series, 3, 1)]
    assert spans_of(view) == expected
    assert len(list(view.stream(4))) == -(-len(expected) // 4)


def of_days(sensors: Any, begin: int) -> dict[str, Any]:
    """Rows in the order of their time, one a day."""
    return {
        "sensor": np.array(sensors),
        "time": np.arange(begin, begin + len(sensors)),
        "x": np.arange(len(sensors)) * 0.5,
    }


@pytest.mark.parametrize(
    ("options", "first", "then"),
    [
        ({"order": "time"}, [1] * 9, [1] * 5),
        ({"order": "time", "stride": 2, "max_gap": 1}, [1] * 9, [1] * 4),
        ({"by": "sensor", "order": "time"}, [1, 2, 1, 2, 1, 1, 2, 2, 2], [2, 3, 2, 3, 3]),
        ({"by": "sensor"}, [1] * 9, [4, 4, 3, 4, 3, 3]),
        ({}, [1, 2] * 4, [1]),
    ],
)
def test_a_stream_advances_when_the_last_series_grows_or_later_ones_come(
    tmp_path: Path, options: dict[str, Any], first: list[int], then: list[int]
) -> None:
    storage = Storage(tmp_path)
    storage.cache(of_days(first, 0), "rows@v1")
    storage.append("rows@v1", "v2", of_days(then, len(first)))
    storage.append("rows@v2", "v3", of_days(then, len(first) + len(then)))
    old, *newer = (storage.fetch(f"rows@{version}").rolling(3, **options) for version in ("v1", "v2", "v3"))
    for longer in newer[: 1 if "by" in options else 2]:
        assert spans_of(longer)[: len(old)] == spans_of(old)
        iterator = iter(old.stream(2, shuffle=True, seed=4))
        state = [next(iterator), iterator.get_state()][1]
        iterator.advance_to(longer)
        rest = [batch["time"].tolist() for batch in iterator]
        seen = [
            tuple(window)
            for batch in [old.stream(2, shuffle=True, seed=4)[0]["time"].tolist(), *rest]
            for window in batch
        ]
        assert sorted(seen) == sorted(tuple(window) for window in longer.read(slice(None))["time"].tolist())
        again = iter(old.stream(2, shuffle=True, seed=4))
        again.set_state(state)
        again.advance_to(longer)
        restored = iter(longer.stream(2, shuffle=True, seed=4))
        restored.set_state(again.get_state())
        assert [batch["time"].tolist() for batch in restored] == rest


@pytest.mark.parametrize(
    ("first", "then"),
    [(of_days([1, 2] * 4, 0), of_days([1, 2], 8)), (of_days([1] * 8, 5), of_days([1] * 3, 0))],
    ids=["a series before the last", "earlier times"],
)
def test_a_stream_does_not_advance_if_windows_change_or_move(
    tmp_path: Path, first: dict[str, Any], then: dict[str, Any]
) -> None:
    storage = Storage(tmp_path)
    storage.cache(first, "rows@v1")
    storage.append("rows@v1", "v2", then)
    old, new = (storage.fetch(f"rows@{version}").rolling(3, by="sensor", order="time") for version in ("v1", "v2"))
    iterator = iter(old.stream(2))
    with pytest.raises(InvalidArgumentError, match="series"):
        iterator.advance_to(new)


def test_views_before_and_after_it(ref: Any, tmp_path: Path) -> None:
    chosen = ref.where("time > 5")
    numbers = [number for number, each in enumerate(ROWS) if each["time"] > 5]
    series = [[numbers[n] for n in each] for each in series_of([ROWS[n] for n in numbers], ["sensor"], "time")]
    view = chosen.rolling(2, by="sensor", order="time")
    expected = windows_of(series, 2, 1)
    assert spans_of(view) == expected
    assert spans_of(view[::-2]) == expected[::-2]
    both = cachelayer.concat([view, view[:3]])
    assert spans_of(both) == expected + expected[:3]
    twice = view.rolling(2)
    assert spans_of(twice)[0] == expected[0] + expected[1]
    assert plain(twice[1]["value"]) == [plain(view[1]["value"]), plain(view[2]["value"])]
    joined = cachelayer.concat([ref.fields("sensor", "time"), ref.fields("sensor", "time")[:9]])
    every = series_of(ROWS + ROWS[:9], ["sensor"], "time")
    assert len(joined.rolling(2, by="sensor", order="time")) == len(windows_of(every, 2, 1))
    padded = ref.fields("sensor", "note").padded("note/codes", 6)
    assert padded.rolling(3, by="sensor")[0]["note"]["codes_mask"].shape == (3, 6)
    wrapped = cachelayer.wrap([1, 2, 3], identity="three", element_spec=ArraySpec("int64"))
    assert plain(list(wrapped.rolling(2))) == [[1, 2], [2, 3]]


ORDERS: dict[str, Any] = {
    "int": np.array([3, 1, 2]),
    "uint64": np.array([2**64 - 1, 0, 2**63], np.uint64),
    "bool": np.array([True, False, True]),
    "text": np.array(["b", "a", "aé"], object),
    "bytes": np.array([b"\xff", b"", b"a"], object),
    "fixed text": np.array(["b", "a", "ab"]),
    "bfloat16": np.array([3, 1, 2], ml_dtypes.bfloat16),
    "int4": np.array([3, -1, 2], ml_dtypes.int4),
    "time": np.array(["2026-03-01", "2025-01-01", "2026-01-01"], "M8[D]"),
    "duration": np.array([3, 1, 2], "m8[s]"),
}


@pytest.mark.parametrize("kind", ORDERS)
def test_fields_of_any_one_value_order_and_tell_series_apart(kind: str, tmp_path: Path) -> None:
    ref: Any = Storage(tmp_path).cache({"by": ORDERS[kind], "n": np.arange(3)}, "rows@v1")
    expected = [1, 0, 2] if kind == "bool" else [1, 2, 0]
    assert ref.rolling(3, order="by")[0]["n"].tolist() == expected
    assert [each["n"].tolist()[0] for each in ref.rolling(1, by="by")] == expected


def test_nan_is_one_series(tmp_path: Path) -> None:
    ref: Any = Storage(tmp_path).cache({"by": np.array([math.nan, 1, math.nan, -0.0, 0.0])}, "rows@v1")
    assert spans_of(ref.rolling(2, by="by")) == [[3, 4], [0, 2]]


@pytest.mark.parametrize(
    ("values", "spec", "named"),
    [
        ([1.0, math.nan], ArraySpec("float64"), "record 1 has NaN.*'time == time'"),
        ([math.nan, 1.0, math.nan], ArraySpec("float64"), "record 0 .and 1 more. has NaN.*'time == time'"),
        ([np.datetime64("NaT", "s")], ArraySpec("M8[s]"), "record 0 has NaT.*'time == time'"),
    ],
)
@pytest.mark.parametrize(("name", "condition"), [("time", "time"), ("a b", "`a b`"), ("at/time", "at.time")])
def test_what_has_no_place_in_an_order_is_refused_by_name(
    tmp_path: Path, name: str, condition: str, values: Any, spec: Any, named: str
) -> None:
    def of_name(leaf: Any) -> Any:
        return {"at": {"time": leaf}} if "/" in name else {name: leaf}

    rows = [{**of_name(value), "n": number} for number, value in enumerate(values)]
    ref: Any = Storage(tmp_path).cache(rows, "rows@v1", element_spec={**of_name(spec), "n": ArraySpec("int64")})
    left = named.split("'")[-2].replace("time", condition)
    with pytest.raises(InvalidArgumentError, match=named.partition("'")[0]) as error:
        len(ref.rolling(1, order=name))
    assert repr(left) in str(error.value)
    assert len(ref.where(left)) == sum(value == value for value in values)


@pytest.mark.parametrize(
    ("leaf", "cure"),
    [
        (ArraySpec("int16", nullable=True), "add_columns.*fields"),
        (ArraySpec(str, nullable=True), "add_columns.*fields"),
        (ArraySpec("int8", (None,), nullable=True), "add_columns.*fields"),
        (ArraySpec("float32", (2,), nullable=True), "add_columns.*fields"),
        (ArraySpec("int8", (2,), nullable_values=True), "add_columns.*fields"),
        (ArraySpec("int8", (None,), nullable_values=True), "add_columns.*fields"),
        (RaggedSpec("int8", (None, None), nullable_values=True), "add_columns.*fields"),
        (NullableDict({"in": ArraySpec("int8")}), "fields"),
        (SparseSpec("float32", (4,)), "fields"),
        (ArraySpec("int8", (None, None)), "decoded"),
        (ArraySpec("int8", (2, None)), "fields"),
        (SparseSpec("int8", (None,)), "fields"),
    ],
)
def test_fields_that_do_not_stack_are_refused_by_name(tmp_path: Path, leaf: Any, cure: str) -> None:
    spec = {"n": ArraySpec("int64"), "bad": leaf}
    ref: Any = Storage(tmp_path).cache([], "rows@v1", element_spec=spec, allow_empty=True)
    with pytest.raises(InvalidArgumentError, match=f"'bad(/in)?'.*{cure}"):
        ref.rolling(3)
    assert ref.fields("n").rolling(3).element_spec == {"n": ArraySpec("int64", (3,))}


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"length": 0}, InvalidArgumentError, "length"),
        ({"length": 2, "stride": 0}, InvalidArgumentError, "stride"),
        ({"length": 2.5}, InvalidTypeError, "length"),
        ({"length": 2, "by": 3}, InvalidTypeError, "by"),
        ({"length": 2, "by": "nobody"}, InvalidArgumentError, "nobody"),
        ({"length": 2, "by": "value"}, InvalidArgumentError, "'value'.*one value"),
        ({"length": 2, "order": "note/codes"}, InvalidArgumentError, "'note/codes'.*one value"),
        ({"length": 2, "order": ["time"]}, InvalidTypeError, "order"),
    ],
)
def test_wrong_arguments_are_refused_at_once(ref: Any, arguments: Any, error: Any, named: str) -> None:
    with pytest.raises(error, match=named):
        ref.rolling(**arguments)


def test_no_rows_have_no_windows(tmp_path: Path) -> None:
    ref: Any = Storage(tmp_path).cache([], "rows@v1", element_spec=SPEC, allow_empty=True)
    view = ref.rolling(3, by="sensor", order="time")
    assert (len(view), view.series, list(view.stream(2))) == (0, 0, [])
    assert view.read([])["value"].shape == (0, 3, 2)


def test_blocks_of_windows_are_fetched_once_from_a_bucket(tmp_path: Path) -> None:
    far = Storage(f"memory://{uuid.uuid4().hex}", local_cache_bytes=0)
    refs = [storage.cache(ROWS, "rows@v1", element_spec=SPEC) for storage in (far, Storage(tmp_path))]
    options = {"shuffle": cachelayer.Blocks(records=4, window=2, lanes=2), "seed": 1}
    batches = [
        [plain(batch) for batch in each.rolling(3, by="sensor", order="time").stream(4, **options)] for each in refs
    ]
    assert batches[0] == batches[1]


GAP_TIMES = np.array([0, 1, 2, 10, 11, 12, 0, 5, 6, 7])
GAP_SENSORS = np.array([1] * 6 + [2] * 4)
GAP_ORDERS: dict[str, tuple[Any, float]] = {
    "int": (GAP_TIMES, 1),
    "unsigned": (GAP_TIMES.astype(np.uint8), 1),
    "far apart": (np.where(GAP_TIMES < 10, GAP_TIMES - 2**62, GAP_TIMES + 2**62), 1),
    "float": (GAP_TIMES / 2, 0.5),
    "times": ((GAP_TIMES * 60_000).astype("M8[ms]"), 60),
    "durations": ((GAP_TIMES * 60).astype("m8[s]"), 60),
}


@pytest.mark.parametrize("kind", GAP_ORDERS)
def test_no_window_reaches_over_a_larger_gap(kind: str, tmp_path: Path) -> None:
    times, max_gap = GAP_ORDERS[kind]
    places = np.random.default_rng(0).permutation(len(GAP_TIMES))
    rows = {"sensor": GAP_SENSORS[places], "time": times[places], "n": GAP_TIMES[places]}
    ref = cachelayer.Storage(tmp_path).submit(rows, "rows@v1")
    windows = ref.rolling(2, by="sensor", order="time", max_gap=max_gap)
    expected = [[0, 1], [1, 2], [10, 11], [11, 12], [5, 6], [6, 7]]
    assert [window["n"].tolist() for window in windows] == expected
    assert windows.short_series == 1
    every = ref.rolling(2, by="sensor", order="time")
    assert len(every) == len(GAP_TIMES) - 2
    assert cachelayer.open(windows.reference).digest == windows.digest != every.digest


@pytest.mark.parametrize("arguments", [{}, {"order": "name"}, {"order": "time", "max_gap": -1}])
def test_a_gap_that_is_no_distance_is_refused(arguments: dict[str, Any], tmp_path: Path) -> None:
    ref = cachelayer.Storage(tmp_path).submit([{"name": "a", "time": 1}], "rows@v1")
    with pytest.raises(cachelayer.InvalidArgumentError, match="max_gap"):
        ref.rolling(2, **{"max_gap": 1, **arguments})
