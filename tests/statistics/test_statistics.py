"""Statistics of every leaf, against loops that hold all of it in memory."""

import io
import json
import math
import sys
import tracemalloc
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from samples import examples
from strategies import versions

import cachelayer
from cachelayer import ArraySpec, ImageSpec, InvalidArgumentError, Ragged, RaggedSpec, Sparse
from cachelayer.specs import dtypes, tree
from cachelayer.specs.schema import Schema
from cachelayer.statistics import LeafStats, survey
from cachelayer.statistics.numbers import BINS, VALUES, Histogram, NumberStats, NumberSummary, are_numbers


def built(folder: Path, source: Any, **options: Any) -> cachelayer.DataRef[Any]:
    storage = cachelayer.Storage(folder)
    name = f"v{len(storage.versions('rows')) if storage.datasets() else 0}"
    return storage.submit(source, f"rows@{name}", progress=False, **options)


def leaves(folder: Path, source: Any, **options: Any) -> dict[str, LeafStats]:
    return {leaf.path: leaf for leaf in survey(built(folder, source, **options)).leaves}


def summed(dtype: Any, *batches: Any) -> NumberStats:
    summary = NumberSummary(np.dtype(dtype))
    for batch in batches:
        summary.add(np.asarray(batch, dtype))
    return summary.result()


def values_of(spec: Any, leaf: Any) -> list[Any]:
    if isinstance(leaf, Ragged):
        leaf = leaf.flat_values
    elif isinstance(leaf, Sparse):
        leaf = leaf.values
    if isinstance(leaf, cachelayer.Nullable):
        leaf = leaf.values[leaf.valid]
    return [leaf] if isinstance(leaf, (str, bytes)) else list(np.asarray(leaf).reshape(-1))


def exact(value: Any, dtype: np.dtype[Any]) -> int | float:
    return int(value) if dtypes.number_kind(dtype) in "biu" else float(value)


def in_bins(histogram: Histogram, values: list[int | float]) -> list[int]:
    pairs = list(zip(histogram.edges[:-1], histogram.edges[1:], strict=True))
    return [sum(low <= value < high for value in values) for low, high in pairs]


def check_numbers(stats: NumberStats, values: list[Any], dtype: np.dtype[Any]) -> None:
    with np.errstate(over="ignore"):
        numbers = [exact(value, dtype) for value in values]
    finite = [number for number in numbers if math.isfinite(number)]
    assert stats.count == len(values)
    assert stats.nans == sum(map(math.isnan, numbers))
    assert stats.infinities == sum(map(math.isinf, numbers))
    if not finite:
        assert stats.minimum is stats.maximum is stats.mean is stats.std is stats.histogram is None
        return
    assert (stats.minimum, stats.maximum) == (min(finite), max(finite))
    mean = sum(map(Fraction, finite)) / len(finite)
    variance = sum((Fraction(number) - mean) ** 2 for number in finite) / len(finite)
    # Relative to the largest number, and no finer than floats are.
    slack = Fraction(max(map(abs, finite))) * Fraction(1e-14) + Fraction(5e-324)
    if max(map(abs, finite)) > 1e150:
        return
    assert stats.mean is not None
    assert stats.std is not None
    assert abs(Fraction(stats.mean) - mean) <= slack
    # Squares of numbers below 1e-150 are not floats.
    std = Fraction(stats.std)
    slack += std * Fraction(1e-9) + Fraction(1e-150)
    assert max(std - slack, Fraction(0)) ** 2 <= variance <= (std + slack) ** 2
    assert stats.histogram is not None
    assert sum(stats.histogram.counts) == len(finite)
    assert len(stats.histogram.counts) <= BINS
    if max(map(abs, stats.histogram.edges)) < 1.7e308:
        assert list(stats.histogram.counts) == in_bins(stats.histogram, finite)
    if dtypes.number_kind(dtype) in "biu" and len(set(finite)) <= VALUES:
        assert stats.values == tuple(sorted(Counter(finite).items()))
    else:
        assert stats.values is None


def check_leaf(stats: LeafStats, spec: Any, rows: list[Any]) -> None:
    there = [row for row in rows if row is not None]
    values = [value for row in there for value in values_of(spec, row)]
    there = [row.values if isinstance(row, cachelayer.Nullable) else row for row in there]
    lengths = {length.of: length.numbers for length in stats.lengths}
    assert stats.nulls == len(rows) - len(there)
    dtype = spec.dtype
    if isinstance(dtype, np.dtype) and dtype.kind in "Mm":
        assert stats.numbers is not None
        numbers = [value for value in values if not np.isnat(value)]
        assert stats.numbers.nans == len(values) - len(numbers)
        has_text = np.datetime_data(dtype)[0] != "generic"
        shown = [str(number if has_text else number.view(np.int64)) for number in sorted(numbers)]
        assert stats.numbers.minimum == (shown[0] if shown else None)
    elif are_numbers(dtype):
        assert stats.numbers is not None
        check_numbers(stats.numbers, values, dtype)
    elif dtypes.is_string(dtype) or dtype.kind in "SU":
        assert stats.strings is not None
        assert stats.strings.distinct == len(set(values))
        if rows:
            unit = "bytes" if dtype is bytes or (isinstance(dtype, np.dtype) and dtype.kind == "S") else "characters"
            check_numbers(lengths[unit], list(map(len, values)), np.dtype(np.int64))
    if isinstance(spec, cachelayer.SparseSpec) and rows:
        check_numbers(lengths["values"], [len(row.values) for row in there], np.dtype(np.int64))
    if isinstance(spec, RaggedSpec) and rows:
        inner = [length for row in there for length in np.diff(row.nested_row_splits[0]).tolist()]
        check_numbers(lengths["axis 1"], inner, np.dtype(np.int64))
    elif isinstance(spec, ArraySpec) and None in spec.shape and rows:
        last = max(axis for axis, dim in enumerate(spec.shape) if dim is None)
        check_numbers(lengths[f"axis {last}"], [row.shape[last] for row in there], np.dtype(np.int64))


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(versions())
def test_each_leaf_has_the_statistics_of_a_loop_over_its_values(
    tmp_path_factory: pytest.TempPathFactory, version: Any
) -> None:
    spec, elements = version
    assume(spec is not None)
    ref = built(tmp_path_factory.mktemp("any"), elements, element_spec=spec, allow_empty=True)
    found = survey(ref)
    assert found.records == found.records_read == found.record_nbytes.numbers.count == len(elements)
    columns = zip(*[Schema.of(spec).flatten(element) for element in elements], strict=True)
    rows = list(columns) or [()] * len(found.leaves)
    for leaf, (path, leaf_spec), values in zip(found.leaves, tree.leaves(spec), rows, strict=True):
        assert leaf.path == path
        check_leaf(leaf, leaf_spec, list(values))
    json.dumps(found.to_json(), allow_nan=False)


@settings(deadline=None)
@given(st.sampled_from("bhilBHILef"), st.lists(st.integers(0, 2**64 - 1), max_size=80), st.integers(1, 79))
def test_numbers_are_the_same_however_they_come(char: str, words: list[int], cut: int) -> None:
    values = np.array(words, np.uint64).view(np.uint8).view(char)[: len(words)]
    check_numbers(summed(char, values), list(values), np.dtype(char))
    pieces, whole = summed(char, values[cut:], values[:cut]), summed(char, values)
    assert pieces.histogram == whole.histogram
    check_numbers(pieces, list(values), np.dtype(char))


@settings(deadline=None)
@given(
    st.lists(st.floats(-1e99, 1e99).map(lambda value: value if abs(value) > 1e-99 else 0.0), max_size=40),
    st.floats(-1e99, 1e99),
    st.sampled_from([1.0, 1e-3]),
)
def test_numbers_close_together_and_far_apart_are_exact(values: list[float], centre: float, width: float) -> None:
    near = [centre + width * value for value in np.linspace(-1, 1, 40)]
    for batches in ([near], [near, values], [values, near[:3]]):
        together = [value for batch in batches for value in batch]
        check_numbers(summed("f8", *batches), together, np.dtype("f8"))


def test_numbers_of_any_kind_are_counted_as_they_are() -> None:
    assert summed(np.int8, [-1, 3, -1]).values == ((-1, 2), (3, 1))
    ends = np.iinfo(np.int64)
    stats = summed(np.int64, [ends.min, ends.max], [0])
    assert (stats.minimum, stats.maximum) == (ends.min, ends.max)
    assert stats.values == ((ends.min, 1), (0, 1), (ends.max, 1))
    most = summed(np.uint64, [2**64 - 1, 2**64 - 3])
    assert most.histogram == Histogram((2**64 - 3, 2**64 - 2, 2**64 - 1, 2**64), (1, 0, 1))
    assert [summed(np.int8, np.arange(count)).values is None for count in (VALUES, VALUES + 1)] == [False, True]
    bools = summed(np.bool_, [True, False], [True])
    assert (bools.values, bools.minimum) == (((False, 1), (True, 2)), False)
    for dtype in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2):
        stats = summed(dtype, [0.5, np.nan, np.inf, -np.inf, -2])
        assert (stats.count, stats.nans, stats.infinities) == (5, 1, 2)
        assert (stats.minimum, stats.maximum, stats.mean) == (-2, 0.5, -0.75)
    # Signaling NaNs, and times without a unit.
    stats = summed("f4", np.array([0x7F800001, 0x3F800000], np.uint32).view("f4"))
    assert (stats.nans, stats.minimum) == (1, 1.0)
    for dtype in ("M8", "m8"):
        stats = summed(dtype, np.array([3, 5], np.int64).view(dtype))
        assert (stats.minimum, stats.maximum) == ("3", "5")
    normal = np.random.default_rng(0).standard_normal(10_000)
    histogram = summed("f8", *np.split(normal, 10)).histogram
    assert histogram is not None
    assert BINS / 2 <= len(histogram.counts) <= BINS


def test_lengths_strings_and_nulls_are_told_of(tmp_path: Path) -> None:
    rows = [{"name": "a" * n, "x": np.zeros((n % 5, 2), np.float32), "y": n % 3 or None} for n in (1, 4, 9, 9, 2)]
    rows += [{"name": "b" * 300, "x": np.zeros((0, 2), np.float32), "y": None}]
    spec = {"name": ArraySpec(str), "x": ArraySpec("float32", (None, 2)), "y": ArraySpec("int64", nullable=True)}
    name, x, y = leaves(tmp_path, rows[:5], element_spec=spec).values()
    assert (name.lengths[0].of, name.lengths[0].longest, name.lengths[0].numbers.mean) == ("characters", 2, 5)
    assert (x.lengths[0].of, x.lengths[0].longest, x.lengths[0].numbers.maximum) == ("axis 0", 1, 4)
    assert name.strings is not None
    assert (name.strings.distinct, name.strings.common[0]) == (4, ("a" * 9, 2))
    assert y.numbers is not None
    assert (y.nulls, y.numbers.count, y.numbers.mean) == (2, 3, 4 / 3)
    (long, *_) = leaves(tmp_path, rows, element_spec=spec).values()
    assert long.strings is not None
    assert long.strings.distinct is None


@pytest.mark.needs("PIL")
def test_encoded_images_are_told_of_by_their_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    files = []
    for size, form in (((4, 6), "PNG"), ((10, 6), "JPEG")):
        file = io.BytesIO()
        Image.new("RGB", size).save(file, form)
        files.append(file.getvalue())
    ref = built(tmp_path, [*files, b"nothing"], element_spec=ImageSpec(), validate=False)
    (leaf,) = survey(ref).leaves
    assert [(lengths.of, lengths.numbers.values) for lengths in leaf.lengths[1:]] == [
        ("width", ((0, 1), (4, 1), (10, 1))),
        ("height", ((0, 1), (6, 2))),
    ]
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert [lengths.of for lengths in survey(ref).leaves[0].lengths] == ["bytes"]


def test_a_sample_is_of_different_records_and_always_the_same(tmp_path: Path) -> None:
    ref = built(tmp_path, [{"x": np.int64(n)} for n in range(1000)])
    found = survey(ref, records=20)
    assert (found.records, found.records_read) == (1000, 20)
    numbers = found.leaves[0].numbers
    assert numbers is not None
    assert numbers.values is not None
    assert len(numbers.values) == 20
    assert numbers.values[-1][0] - numbers.values[0][0] > 500
    assert survey(ref, records=20) == found
    assert survey(ref, records=5000) == survey(ref)
    with pytest.raises(InvalidArgumentError, match="records"):
        survey(ref, records=0)


def test_a_sample_takes_its_own_memory_and_no_erased_record(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path)
    ref = storage.submit({"x": np.arange(100_000)}, "d@v1")
    ref.stats(records=100)
    tracemalloc.start()
    assert ref.stats(records=100).records_read == 100
    assert tracemalloc.get_traced_memory()[1] < 8 * len(ref)
    tracemalloc.stop()
    gone = ref.stream(100, shuffle=True, seed=0).record_numbers(0)[::2]
    left = storage.erase("d@v1", records=gone.tolist(), reason="r")
    stats = left.stats(records=100)
    assert stats.records_read == 100
    assert stats.leaves[0].nulls == 0
    assert left.stats().records_read == 100_000 - len(gone)


def test_views_and_versions_made_from_others_have_statistics_of_what_they_keep(tmp_path: Path) -> None:
    ref = built(tmp_path, [{"x": "y" * n} for n in range(100)], shard_bytes=2000)
    found = survey(ref[90:10:-10])
    (length,) = found.leaves[0].lengths
    assert length.numbers.values == tuple((n, 1) for n in range(20, 100, 10))
    assert length.longest == found.record_nbytes.longest == 0
    kept = survey(cachelayer.Storage(tmp_path).derive("rows@v0", "kept", keep=[25, 3, 11]))
    assert kept.records == kept.record_nbytes.numbers.count == 3
    assert kept.leaves[0].lengths[0].numbers.values == ((3, 1), (11, 1), (25, 1))


def test_values_are_counted_by_field(tmp_path: Path) -> None:
    spec = {"label": ArraySpec("int64", nullable=True), "meta": {"lang": ArraySpec(str)}, "x": ArraySpec("int64", (2,))}
    rows = [
        {"label": n % 3 or None, "meta": {"lang": "de" if n % 5 else "en"}, "x": np.zeros(2, int)} for n in range(20)
    ]
    ref = built(tmp_path, rows, element_spec=spec)
    assert ref.count_by("label") == {None: 7, 1: 7, 2: 6}
    assert list(ref[1:].count_by("meta/lang").items()) == [("de", 16), ("en", 3)]
    assert ref.stats() == survey(ref)
    for field in ("x", "y", "meta"):
        with pytest.raises(InvalidArgumentError, match=field):
            ref.count_by(field)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_sizes_of_records_come_from_the_indices(tmp_path: Path, compression: str | None) -> None:
    rows = [bytes(7 * n) for n in range(60)]
    ref = built(tmp_path, rows, compression=compression, shard_bytes=4096)
    sizes = ref.stored_nbytes(range(60)).tolist()
    assert sizes == [len(row) for row in rows] if compression is None else max(sizes) < 60
    assert ref[::-1].stored_nbytes([0, -1, 5]).tolist() == [sizes[59], sizes[0], sizes[54]]


def test_statistics_show_names_first_and_whole(storage: cachelayer.Storage) -> None:
    name = "a_field_with_a_name_that_is_as_long_as_a_line_of_a_terminal_and_longer_than_that_by_a_few"
    ref = storage.cache([{name: n, "w": "abc"[: n % 3]} for n in range(30)], "d@v1", progress=False)
    lines = str(ref.stats()).splitlines()
    assert lines[0] == "d@v1: 30 records"
    place = lines.index(f"{name}  int64")
    assert lines[place + 1].startswith("    0 to 29, mean 14.5, std 8.655  █")
    table = ref.stats()._repr_html_()
    assert f"<strong>{name}</strong>" in table
    assert ">0 to 29, mean 14.5, std 8.655</td>" in table


@pytest.mark.parametrize("kind", ["M8[s]", "m8[s]"])
def test_missing_times_are_named_as_such_in_ragged_fields_too(tmp_path: Path, kind: str) -> None:
    times = np.array(["NaT", 5], kind) if kind == "m8[s]" else np.array(["NaT", "2026-01-02"], kind)
    source = [Ragged(times, np.array([0, 1, 2]))]
    shown = str(built(tmp_path, source, element_spec=RaggedSpec(kind, (None, None))).stats())
    assert "1 NaT" in shown
