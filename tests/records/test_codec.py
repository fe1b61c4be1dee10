"""Elements to records and back, by elements and by batches."""

from collections import OrderedDict, namedtuple
from itertools import permutations
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_reference import filler_of, record_of
from samples import examples
from strategies import DTYPES, bits, random_leaf, same, same_array, same_leaf, specs, versions, with_nulls

from cachelayer import ArraySpec, JsonSpec, Nullable, NullableDict, Ragged, RaggedSpec, Sparse, SparseSpec
from cachelayer.errors import CorruptionError, ElementError, FormatError
from cachelayer.records.codec import Codec, codec_for, codec_named
from cachelayer.records.conform import conform, stacked_rows
from cachelayer.records.spans import Spans
from cachelayer.records.value_conversion import leaf_spec
from cachelayer.specs import tree
from cachelayer.specs.schema import Schema
from cachelayer.specs.spec import LeafSpec, describe_leaf, is_static, without_nulls

Array = np.ndarray[Any, Any]


class _NoNulls:
    def random(self, shape: Any) -> Any:
        return np.zeros(shape)


NO_NULLS: Any = _NoNulls()


def records_of(codec: Codec, elements: list[Any]) -> list[bytes]:
    return codec.encode(codec.columns(elements)).to_list()


def elements_of(codec: Codec, records: list[bytes]) -> list[Any]:
    return codec.elements(codec.decode(Spans.of_bytes(records)))


def batch_of(codec: Codec, records: list[bytes]) -> Any:
    return codec.batch(codec.decode(Spans.of_bytes(records)))


def round_trip(spec: Any, elements: list[Any]) -> list[Any]:
    return elements_of(codec_for(spec), records_of(codec_for(spec), elements))


def all_nullable(spec: Any) -> Any:
    schema = Schema.of(spec)
    return schema.marked(range(len(schema.bits)))


def without_marks(spec: Any) -> Any:
    if isinstance(spec, LeafSpec):
        return without_nulls(spec)
    if isinstance(spec, dict):
        return {key: without_marks(child) for key, child in spec.items()}
    if spec is None:
        return None
    parts = map(without_marks, spec)
    return type(spec)(*parts) if tree.is_namedtuple(spec) else type(spec)(parts)


def shown(value: Any) -> Any:
    """A value of any kind, with its shapes and bits."""
    if isinstance(value, Ragged):
        return [level.tolist() for level in value.nested_row_splits], shown(value.flat_values)
    if isinstance(value, (str, bytes)):
        return value
    if isinstance(value, Nullable):
        return value.valid.tolist(), shown(value.values)
    array = np.asarray(value)
    return str(array.dtype.newbyteorder("<")), array.shape, bits(array)


def check_stack(spec: LeafSpec, rows: list[Any], batch: Any) -> None:
    """Raise unless the rows of a batch are these."""
    if isinstance(spec, SparseSpec):
        shapes = [[dim or 0 for dim in spec.shape], *(row.dense_shape.tolist() for row in rows)]
        assert batch.dense_shape.tolist() == [len(rows), *(max(dims) for dims in zip(*shapes, strict=True))]
        assert batch.indices.tolist() == [[i, *place] for i, row in enumerate(rows) for place in row.indices.tolist()]
        found = np.split(batch.values, np.cumsum([len(row.values) for row in rows])[:-1]) if rows else []
        assert [*map(shown, found)] == [shown(row.values) for row in rows]
        return
    assert len(batch) == len(rows)
    # numpy's scalars of bytes and text have the width of their text.
    scalars = isinstance(batch, np.ndarray) and batch.dtype != object and not spec.nullable_values
    assert [shown(batch[row, ...] if scalars else batch[row]) for row in range(len(rows))] == [*map(shown, rows)]
    values = batch.flat_values if isinstance(batch, Ragged) else batch
    values = values.values if isinstance(values, Nullable) else values
    # Ragged rows of arrays of any shape are objects.
    holds_objects = isinstance(spec, RaggedSpec) and None in spec.shape[spec.ragged_rank + 1 :]
    assert values.dtype == (object if holds_objects or spec.dtype in (bytes, str) else spec.dtype)


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(versions())
def test_records_are_as_the_format_specifies_and_come_back_as_elements_and_stacked(
    version: tuple[Any, list[Any]],
) -> None:
    spec, elements = version
    codec = codec_for(spec)
    records = records_of(codec, elements)
    assert records_of(Codec.of(spec), elements) == [record_of(spec, element) for element in elements]
    found = elements_of(codec, records)
    assert len(found) == len(elements)
    assert all(map(same, elements, found))
    schema = Schema.of(spec)
    stacked, nulls = schema.split(batch_of(codec, records))
    rows = [schema.split(element) for element in elements]
    assert nulls.keys() == {node.path for node in schema.nullable_dicts}
    for node in schema.nullable_dicts:
        absent = [any(path in of_row for path in node.lineage) for _, of_row in rows]
        assert nulls[node.path].tolist() == absent
    for index, (_, leaf) in enumerate(tree.leaves(spec)):
        column, got = [values[index] for values, _ in rows], stacked[index]
        if leaf.nullable:
            assert isinstance(got, Nullable)
            assert got.valid.tolist() == [value is not None for value in column]
            got = got.values
        check_stack(leaf, [_filler(leaf) if value is None else value for value in column], got)


def _filler(leaf: LeafSpec) -> Any:
    filler = filler_of(leaf)
    return with_nulls(NO_NULLS, leaf, filler) if leaf.nullable_values else filler


def tells_its_spec(leaf: LeafSpec | None) -> bool:
    """Arrays of objects do not say what they hold."""
    return leaf is not None and (isinstance(leaf.dtype, np.dtype) or leaf == ArraySpec(leaf.dtype))


@settings(max_examples=examples(150), deadline=None)
@given(specs(nullable=False), st.integers(0, 2**32))
def test_elements_come_back_under_the_spec_inferred_from_the_first(spec: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    element = tree.map_structure(spec, lambda _, leaf: random_leaf(rng, leaf) if tells_its_spec(leaf) else None)
    inferred = tree.map_structure(element, lambda _, leaf: None if leaf is None else leaf_spec(leaf))
    assert all(map(same, [element] * 2, round_trip(inferred, [element] * 2)))


@settings(max_examples=examples(150), deadline=None)
@given(versions(), st.data())
def test_a_record_written_before_the_first_none_reads_the_same_after_it(
    version: tuple[Any, list[Any]], data: st.DataObject
) -> None:
    spec, elements = version
    strict = Codec.of(without_marks(spec))
    nothing = tree.map_structure(without_marks(spec), lambda _path, _leaf: None)
    written = [*elements, *[nothing] * data.draw(st.integers(0, 2))]
    assert all(map(same, written, elements_of(Codec.of(all_nullable(spec)), records_of(strict, written))))


@settings(max_examples=examples(100), deadline=None)
@given(versions(), st.sampled_from("ab"))
def test_chosen_leaves_read_the_same_as_all_of_them(version: tuple[Any, list[Any]], key: str) -> None:
    spec, elements = version
    codec, count = Codec.of({"a": spec, "b": spec}), len(tree.leaves(spec))
    if count:
        chosen = codec.chosen(range(count) if key == "a" else range(count, 2 * count))
        records = records_of(codec, [{"a": element, "b": element} for element in elements])
        found = [elements_of(chosen, records), [chosen.element(bytearray(record)) for record in records]]
        assert all(same({key: element}, one) for read in found for element, one in zip(elements, read, strict=True))


class Sub(list[Any]):
    pass


class Pair(NamedTuple):
    x: Any
    y: Any


def test_dicts_that_are_none_stand_beside_structures_of_any_classes() -> None:
    int64 = ArraySpec("int64")
    pair = tree.namedtuple_class("Pair", ("x", "y"))(int64, int64)
    meta = {"pair": pair, "two": [int64, int64], "inner": NullableDict(a=int64), "any": JsonSpec()}
    spec = {"meta": NullableDict(meta), "label": ArraySpec("int64", nullable=True), "always": None}
    filled = {"pair": Pair(1, 2), "two": Sub([3, 4]), "inner": {"a": 5}, "any": {"z": None}}
    elements: list[Any] = [
        {"meta": filled, "label": 6, "always": None},
        {"meta": None, "label": None, "always": None},
        OrderedDict(meta=OrderedDict({**filled, "inner": None}), label=7, always=None),
        {"meta": {key: filled[key] for key in ("pair", "two")}, "always": None},
    ]
    codec = codec_for(spec)
    records = records_of(codec, elements)
    assert records == [records_of(codec, [element])[0] for element in elements]
    found = elements_of(codec, records)
    assert [element["label"] for element in found] == [6, None, 7, None]
    assert [element["meta"] and element["meta"]["inner"] for element in found] == [{"a": 5}, None, None, None]
    assert repr(found) == repr([codec.element(bytearray(record)) for record in records])
    batch = batch_of(codec, records)
    assert batch["meta"].valid.tolist() == [True, False, True, True]
    assert batch["meta"].values["inner"].valid.tolist() == [True, False, False, False]
    assert batch["meta"].to_list()[2] == {"pair": (1, 2), "two": [3, 4], "inner": None, "any": {"z": None}}
    assert codec.encode(codec.batch_columns(batch, 4)).to_list() == records
    with pytest.raises(ElementError) as caught:
        codec.columns([elements[0], {**elements[0], "meta": batch["meta"]}])
    assert (caught.value.record, caught.value.path) == (1, "['meta']")


def arrays_in(value: Any) -> list[Array]:
    """Every array that an element hands out."""
    found: list[Array] = []
    for _, leaf in tree.leaf_values(value):
        if isinstance(leaf, Ragged):
            found += [*arrays_in(leaf.flat_values), *leaf.nested_row_splits]
        elif isinstance(leaf, Nullable):
            found += [leaf.values, leaf.valid]
        elif isinstance(leaf, Sparse):
            found += [leaf.indices, leaf.values, leaf.dense_shape]
        elif isinstance(leaf, np.ndarray):
            found.append(leaf)
    return found


def outcome_of(read: Any, record: bytes) -> Any:
    """The element of a record; a text in its place if it is refused."""
    try:
        return read(bytearray(record))
    except (CorruptionError, ValueError):
        return "refused"


@settings(max_examples=examples(300), deadline=None)
@given(versions(), st.data())
@pytest.mark.slow
def test_an_element_read_alone_is_that_of_all_together(version: tuple[Any, list[Any]], data: st.DataObject) -> None:
    spec, elements = version
    codec = Codec.of(spec)
    for element, record in zip(elements, records_of(codec, elements), strict=True):
        assert same(element, codec.element(bytearray(record)))
        leaves = [leaf for _, leaf in tree.leaves(spec)]
        if any(leaf.nullable or (isinstance(leaf.dtype, np.dtype) and leaf.dtype.kind == "U") for leaf in leaves):
            # What a leaf that is None holds is not looked at; numpy itself fails to show a character that is none.
            continue
        damaged = bytearray(record)
        for _ in range(data.draw(st.integers(0, 3))):
            if damaged:
                damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        damaged = damaged[: len(damaged) - data.draw(st.sampled_from((0, 0, 0, 1, 8)))]
        alone = outcome_of(codec.element, damaged)
        together = outcome_of(lambda record: elements_of(codec, [bytes(record)])[0], damaged)
        assert same(alone, together) or alone == together


@settings(max_examples=examples(150), deadline=None)
@given(versions())
def test_writing_into_an_element_changes_no_other(version: tuple[Any, list[Any]]) -> None:
    spec, elements = version
    codec = codec_for(spec)
    records = records_of(codec, elements)
    found = elements_of(codec, records)
    for index, element in enumerate(found):
        for array in arrays_in(element):
            array[...] = b"changed" if array.dtype == object else np.ones((), array.dtype)
        if isinstance(element, (dict, list)):
            element.clear()
        assert all(map(same, elements[index + 1 :], found[index + 1 :]))
    assert all(map(same, elements, elements_of(codec, records)))


@settings(max_examples=examples(100), deadline=None)
@given(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3), st.integers(0, 2**32))
def test_byte_order_and_memory_layout_of_the_input_do_not_matter(dtype: Any, shape: list[int], seed: int) -> None:
    array = random_leaf(np.random.default_rng(seed), ArraySpec(dtype, tuple(shape)))
    swapped = array.astype(dtype.newbyteorder(">"))
    strided = np.repeat(array, 2, axis=-1)[..., ::2] if shape else array
    fortran = np.asfortranarray(array).reshape(shape)
    reversed_twice = array[::-1].copy()[::-1] if shape else array
    for spec in (ArraySpec(dtype, tuple(shape)), ArraySpec(dtype, (None,) * len(shape))):
        codec = Codec.of(spec)
        forms = [array, swapped, strided, fortran, reversed_twice]
        assert len(set(records_of(codec, forms))) == 1
        assert all(same_array(array, found) for found in round_trip(spec, forms))
        stacks = [np.stack([form] * 2) for form in forms[:4]]
        assert len({b"".join(codec.encode(codec.batch_columns(s, 2)).to_list()) for s in stacks}) == 1


@settings(max_examples=examples(60), deadline=None)
@given(specs(nullable=False), st.integers(0, 2**32))
def test_a_batch_of_stacked_arrays_gives_the_records_of_its_elements(spec: Any, seed: int) -> None:
    static = tree.map_structure(spec, lambda _, leaf: leaf if leaf is not None and is_static(leaf) else None)
    rng = np.random.default_rng(seed)
    elements = [
        tree.map_structure(static, lambda _, leaf: None if leaf is None else random_leaf(rng, leaf)) for _ in range(3)
    ]
    columns = iter(list(zip(*(Schema.of(static).flatten(element) for element in elements), strict=True)))
    batch = tree.map_structure(static, lambda _, leaf: None if leaf is None else np.stack(next(columns)))
    codec = Codec.of(static)
    assert codec.encode(codec.batch_columns(batch, 3)).to_list() == records_of(codec, elements)


@pytest.mark.parametrize(("narrow", "dtype"), [(np.array(["a", "bc"], "U2"), "U5"), (np.array([b"ab", b"c"]), bytes)])
def test_narrower_strings_fit_into_wider_ones_everywhere(narrow: Array, dtype: Any) -> None:
    wide = narrow.astype(object if dtype is bytes else dtype)
    splits, places = np.array([0, 1, 2]), np.array([[0], [1]])
    pairs: list[tuple[Any, LeafSpec, Any]] = [
        (narrow, ArraySpec(dtype, (2,)), wide),
        (narrow, ArraySpec(dtype, (None,)), wide),
        (Ragged(narrow, splits), RaggedSpec(dtype, (None, None)), Ragged(wide, splits)),
        (Sparse(places, narrow, np.array([3])), SparseSpec(dtype, (3,)), Sparse(places, wide, np.array([3]))),
    ]
    for value, spec, expected in pairs:
        assert same_leaf(expected, round_trip(spec, [value])[0]), spec
    codec = Codec.of(ArraySpec(dtype))
    assert codec.encode(codec.batch_columns(narrow, 2)).to_list() == records_of(codec, list(wide))


HELD: list[tuple[Any, Any]] = [
    ("uint8", 255), ("int8", -128), ("int64", -(2**63)), ("uint64", 2**64 - 1), ("float32", 2**24),
    ("float64", 0.1), ("float32", 0.1), ("float16", float("inf")), ("float64", float("nan")), ("complex64", 1),
    ("complex64", 1.5), ("complex128", 1j), ("bool", True), ("bfloat16", 3), ("bfloat16", 0.1),
    ("float8_e4m3fn", 0.1), (ml_dtypes.int4, 7), (ml_dtypes.uint4, 15), ("S3", b"abc"),
    ("U3", "\ud800"), ("float8_e5m2", 2.0),
]  # fmt: skip
REFUSED: list[tuple[Any, Any]] = [
    ("uint8", 256), ("uint8", -1), ("int64", 2**63), ("float32", 2**24 + 1), ("float64", 2**53 + 1),
    ("float16", 70000), ("float32", 1e39), ("int64", 1.0), ("bool", 1), ("int64", True), ("float64", 1j),
    ("complex64", 1e39), (ml_dtypes.int4, 8), (ml_dtypes.uint4, -1), (ml_dtypes.float8_e4m3fn, 1e6),
    (ml_dtypes.float4_e2m1fn, 100.0), (ml_dtypes.float4_e2m1fn, float("nan")), ("bfloat16", 257), ("int64", 2**64),
    ("S2", b"abc"), ("S3", b"a\0"), ("U3", "ab\0"), ("int64", "1"), (str, b"a"), (bytes, "a"), (str, 1),
    ("datetime64[s]", 1),
]  # fmt: skip


def test_python_scalars_take_the_dtype_that_is_declared_and_those_that_would_change_are_refused() -> None:
    for dtype, value in HELD:
        spec = ArraySpec(dtype)
        assert same_array(np.asarray(value).astype(spec.dtype), round_trip(spec, [value])[0]), (dtype, value)
    for dtype, value in REFUSED:
        spec = ArraySpec(dtype)
        good = {"a": random_leaf(np.random.default_rng(0), spec)}
        with pytest.raises(ElementError) as caught:
            codec_for({"a": spec}).columns([good, {"a": value}])
        error = caught.value
        assert (error.record, error.path, error.expected) == (1, "['a']", describe_leaf(spec)), value


Point = namedtuple("Point", ["x", "y"])
INT = ArraySpec("int64")
WRONG: list[tuple[Any, Any, str, str, str]] = [
    # spec, element, path, expected, got
    ({"a": INT}, {"b": 1}, "", "a dict with keys 'a'", "a dict that lacks 'a' and has 'b' besides"),
    ({"a": {"b": INT}}, {"a": {}}, "['a']", "a dict with keys 'b'", "a dict that lacks 'b'"),
    ([INT, INT], [1, 2, 3], "", "a list of 2", "a list of 3"),
    ([INT], (1,), "", "a list of 1", "a tuple of 1"),
    ((INT,), [1], "", "a tuple of 1", "a list of 1"),
    ((INT, INT), Point(1, 2), "", "a tuple of 2", "a Point with fields 'x', 'y'"),
    (Point(INT, INT), (1, 2), "", "a Point with fields 'x', 'y'", "a tuple of 2"),
    (Point(INT, [INT, {"k": INT}]), Point(1, [1, {"k": 1.5}]), ".y[1]['k']", "int64", "float 1.5"),
    ({"a": None}, {"a": 1}, "['a']", "None", "int 1"),
    (INT, np.int32(1), "", "int64", "int32[]"),
    (ArraySpec("float32", (2,)), np.zeros(2), "", "float32[2]", "float64[2]"),
    (ArraySpec("float32", (2, None)), np.zeros((3, 1), "f"), "", "float32[2, None]", "float32[3, 1]"),
    (ArraySpec("float32", (None,)), np.zeros((1, 1), "f"), "", "float32[None]", "float32[1, 1]"),
    (ArraySpec("float32", (None,)), [[1.0]], "", "float32[None]", "lists of 2 levels or more"),
    (ArraySpec("M8[s]"), np.datetime64(1, "ms"), "", "datetime64[s]", "datetime64[ms][]"),
    (ArraySpec("S2", (1,)), np.array([b"abc"]), "", "|S2[1]", "|S3[1]"),
    (ArraySpec(str, ()), np.array(["a", None]), "", "str", "object[2]"),
    (ArraySpec(str, (None,)), np.array(["a", b"b"], object), "", "str[None]", "an array that holds bytes b'b'"),
    (INT, np.array(1, object), "", "int64", "object[]"),
    (INT, object, "", "int64", "type <class 'object'>"),
]


@pytest.mark.parametrize(("spec", "element", "path", "expected", "got"), WRONG)
def test_an_element_that_does_not_fit_is_named(spec: Any, element: Any, path: str, expected: str, got: str) -> None:
    rng = np.random.default_rng(0)
    good = tree.map_structure(spec, lambda _, leaf: None if leaf is None else random_leaf(rng, leaf))
    with pytest.raises(ElementError) as caught:
        codec_for(spec).columns([good, good, element])
    error = caught.value
    assert (error.record, error.path, error.expected, error.got) == (2, path, expected, got)
    assert isinstance(error, ValueError)
    for part in ("record 2", path, expected, got):
        assert part in str(error)


RAGGED = RaggedSpec("float32", (None, None), ragged_rank=1)
TWO = np.array([0, 2])
FLOATS = np.zeros(2, "f")


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        (RAGGED, FLOATS),
        (RAGGED, Ragged(np.zeros(2), TWO)),
        (RAGGED, Ragged(FLOATS, np.array([0, 1]))),
        (RAGGED, Ragged(FLOATS, np.array([1, 2]))),
        (RAGGED, Ragged(FLOATS, np.array([0, 2, 1, 2]))),
        (RAGGED, Ragged(FLOATS, np.array([], np.int64))),
        (RAGGED, Ragged(FLOATS, np.array([[0, 2]]))),
        (RAGGED, Ragged(FLOATS, np.array([0, 2], np.int32))),
        (RAGGED, Ragged([1.0, 2.0], TWO)),  # type: ignore[arg-type]
        (RAGGED, Ragged(np.array(["a", None], object), TWO)),
        (RAGGED, Ragged(Ragged(FLOATS, TWO), np.array([0, 1]))),
        (RAGGED, Ragged(np.zeros((2, 1), "f"), TWO)),
        (RaggedSpec("float32", (3, None)), Ragged(FLOATS, TWO)),
        (SparseSpec("float32", (3,)), FLOATS),
        (SparseSpec("float32", (3,)), Sparse(np.array([[0]]), np.zeros(1), np.array([3]))),
        (SparseSpec("float32", (3,)), Sparse(np.array([[0], [1]]), np.zeros(1, "f"), np.array([3]))),
        (SparseSpec("float32", (3,)), Sparse(np.array([[0]]), np.zeros(1, "f"), np.array([4]))),
        (SparseSpec("float32", (3,)), Sparse(np.array([[0]]), np.zeros(1, "f"), np.array([3, 3]))),
        (SparseSpec("float32", (3,)), Sparse(np.array([[0.0]]), np.zeros(1, "f"), np.array([3]))),
        (SparseSpec("float32", (3,)), Sparse(np.array([[3]]), np.zeros(1, "f"), np.array([3]))),
        (SparseSpec("float32", (3,)), Sparse(np.array([[-1]]), np.zeros(1, "f"), np.array([3]))),
        (SparseSpec("float32", (None,)), Sparse(np.array([[0]]), np.zeros(1, "f"), np.array([-3]))),
        (SparseSpec("float32", (None,)), Sparse([[0]], [1.0], [3])),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_a_ragged_or_sparse_that_does_not_fit_is_named(spec: LeafSpec, value: Any) -> None:
    good = random_leaf(np.random.default_rng(0), spec)
    with pytest.raises(ElementError) as caught:
        Codec.of((spec,)).columns([(good,), (value,)])
    assert (caught.value.record, caught.value.path, caught.value.expected) == (1, "[0]", describe_leaf(spec))


def test_dimensions_beyond_32_bits_are_refused() -> None:
    huge = np.empty((2**32, 0), np.uint8)
    with pytest.raises(ElementError, match="record 1"):
        Codec.of(ArraySpec("uint8", (None, None))).columns([np.empty((1, 0), np.uint8), huge])
    with pytest.raises(ElementError, match="record 0"):
        Codec.of(RaggedSpec("uint8", (None, None, 0))).columns([Ragged(huge, np.array([0, 2**32]))])


def test_a_batch_that_does_not_fit_is_named() -> None:
    codec = Codec.of({"a": ArraySpec("uint8", (2,))})
    for wrong in (np.zeros((3, 2), "i4"), np.zeros((3, 3), "u1"), np.zeros(3, "u1")):
        with pytest.raises(ElementError) as caught:
            codec.batch_columns({"a": wrong}, 1)
        assert (caught.value.path, caught.value.expected) == ("['a']", "uint8[2]")


def test_plain_bytes_are_stored_as_they_are_and_hold_no_none_unless_it_is_declared() -> None:
    codec = codec_for(ArraySpec(bytes))
    records = [b"", b"\x00", b"abc", bytes(100_000)]
    assert codec.name == "bytes/1"
    assert records_of(codec, records) == elements_of(codec, records) == batch_of(codec, records).tolist() == records
    with pytest.raises(ElementError, match=r"record 1.*nullable=True"):
        records_of(codec, [b"a", None])
    assert round_trip(ArraySpec(bytes, nullable=True), [b"a", None, b""]) == [b"a", None, b""]


@settings(max_examples=examples(150), deadline=None)
@given(versions(), st.data())
def test_a_record_of_another_length_is_refused(version: tuple[Any, list[Any]], data: st.DataObject) -> None:
    spec, elements = version
    codec = Codec.of(spec)
    records = records_of(codec, elements)
    if not records:
        return
    row = data.draw(st.integers(0, len(records) - 1))
    change = data.draw(st.integers(-len(records[row]), 16).filter(bool))
    records[row] = records[row][:change] if change < 0 else records[row] + bytes(change)
    with pytest.raises(CorruptionError):
        codec.decode(Spans.of_bytes(records))


def test_a_codec_of_a_newer_release_is_refused() -> None:
    assert codec_named("typed/1", INT).name == "typed/1"
    assert codec_named("bytes/1", ArraySpec(bytes)).name == "bytes/1"
    with pytest.raises(FormatError, match="typed/2"):
        codec_named("typed/2", INT)


NUMBERS = [
    True, 0, -1, 255, 2**24 + 1, 2**63, 2**64, 0.0, -0.0, -4.0, 0.1, 1e-50, 448.0, 464.0, 65510.0, 1e39, float("nan"),
    -float("inf"), 1j, np.uint8(3), np.int64(-4), np.float32(0.5), np.bool_(True), np.array(7), np.array(7, ">i8"),
    np.array(0.5, np.float16), "1", b"1", None, np.zeros(1, np.int64), np.longdouble(1) / 3,
    np.datetime64("2020-01-01"), np.timedelta64(5), np.timedelta64(5, "s"), ml_dtypes.bfloat16(1), ml_dtypes.int4(1),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_at_once_are_what_they_are_one_by_one(dtype: Any) -> None:
    spec = ArraySpec(dtype)
    for rows in ([], *([each] * like for each in NUMBERS for like in (1, 3)), *map(list, permutations(NUMBERS, 2))):
        stacked = stacked_rows(rows, np.dtype(spec.dtype), ())
        if stacked is not None:
            one_by_one = np.empty(len(rows), spec.dtype)
            for index, row in enumerate(rows):
                one_by_one[index] = conform(spec, row, index)
            assert stacked.dtype == spec.dtype
            assert same_array(stacked, one_by_one), rows


@pytest.mark.parametrize("dtype", [np.dtype(">i4"), np.dtype(">U3"), np.dtype("M8[ns]").newbyteorder(">")], ids=str)
def test_ragged_and_sparse_normalise_byte_order(dtype: Any) -> None:
    values = np.arange(3).astype(dtype) if dtype.kind != "U" else np.array(["a", "bc", "def"], dtype)
    ragged = Ragged(values, np.array([0, 1, 3], ">i8"))
    sparse = Sparse(np.array([[0], [1], [2]], ">i8"), values, np.array([4], ">i8"))
    for value in (ragged, sparse):
        found = round_trip(leaf_spec(value), [value, value])[1]
        assert same_leaf(value, found)
        assert all(part.dtype.isnative for part in arrays_in(found))


@pytest.mark.parametrize("batch", [{"a": np.array(["x"], object)}, (np.zeros(2), np.zeros(2))], ids=str)
def test_a_structure_in_place_of_the_rows_of_a_leaf_is_refused(batch: Any) -> None:
    for spec in (ArraySpec(str), ArraySpec("float64", (2,)), ArraySpec("float64", (None,))):
        with pytest.raises(ElementError):
            codec_for(spec).batch_columns(batch, 1)
