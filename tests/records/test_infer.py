"""Specs from elements, and from what users write for one."""

from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cachelayer import ArraySpec, Ragged, RaggedSpec, Sparse, SparseSpec
from cachelayer.errors import CacheLayerError, ElementError, InvalidArgumentError
from cachelayer.records.infer import declared, infer_spec

Point = namedtuple("Point", ["x", "y"])


@pytest.mark.parametrize(
    ("value", "spec"),
    [
        (True, ArraySpec("bool")),
        (3, ArraySpec("int64")),
        (2**63, ArraySpec("uint64")),
        (1.5, ArraySpec("float64")),
        (1j, ArraySpec("complex128")),
        (b"", ArraySpec(bytes)),
        ("", ArraySpec(str)),
        (np.str_("a"), ArraySpec(str)),
        (np.datetime64("2020-01-01"), ArraySpec("M8[D]")),
        (ml_dtypes.bfloat16(1), ArraySpec("bfloat16")),
        (np.zeros((2, 0), ">i2"), ArraySpec("int16", (2, 0))),
        (np.array(["ab"]), ArraySpec("U2", (1,))),
        (Ragged(np.zeros((3, 2), "f"), np.array([0, 3])), RaggedSpec("f", (None, None, 2))),
        (Ragged(np.zeros(1), np.array([0, 1], np.int32)), RaggedSpec("d", (None, None), splits_dtype=np.dtype("i4"))),
        (Ragged(np.array([b"a"], object), np.array([0, 1])), RaggedSpec(bytes, (None, None))),
        (Sparse(np.zeros((0, 2), np.int64), np.zeros(0), np.array([3, 4])), SparseSpec("float64", (3, 4))),
    ],
    ids=str,
)  # fmt: skip
def test_a_leaf_tells_its_spec(value: Any, spec: Any) -> None:
    assert infer_spec([{"a": value}]) == {"a": spec}


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (np.zeros(2, "V4"), "not stored"),
        (np.zeros(2, [("a", "i4")]), "dict"),
        (np.ma.masked_array([1, 2], [True, False]), "mask"),
        (np.ma.masked, "mask"),
        (2**64, "64 bits"),
        ({1, 2}, "convert"),
        (bytearray(b"a"), "convert"),
        (Ragged(np.array([1, "a"], object), np.array([0, 2])), "object array"),
        (Ragged(np.zeros(2, "V4"), np.array([0, 2])), "not stored"),
        (Ragged(np.zeros(2), np.array([0.0, 2.0])), "int32 or int64"),
        (Ragged(np.array(3.0), np.array([0, 1])), "dimension"),
        (Sparse(np.array([[0]]), np.array([None], object), np.array([1])), "object array"),
        (Sparse(np.zeros((1, 0), np.int64), np.zeros(1), np.zeros(0, np.int64)), "dimension"),
        (Sparse(np.zeros((1, 1), np.int64), np.zeros(1), np.array([-3])), "dimension"),
    ],
    ids=lambda value: repr(value).partition(" at 0x")[0][:60],
)
def test_a_leaf_that_cannot_be_stored_is_named(value: Any, hint: str) -> None:
    with pytest.raises(ElementError, match=hint) as caught:
        infer_spec([{"a": (0, value)}])
    assert caught.value.path == "['a'][1]"


def test_what_is_none_first_is_taken_from_the_first_that_has_it() -> None:
    elements = [
        {"a": None, "b": Point(None, [None, 1])},
        {"a": None, "b": Point(b"x", [None, 1])},
        {"a": {"deep": np.zeros(2)}, "b": Point(None, [None, 1])},
        {"a": None, "b": Point(None, ["s", 1])},
        {"a": object(), "b": None},
    ]
    spec = infer_spec(iter(elements))
    assert spec["a"] == {"deep": ArraySpec("float64", (2,))}
    assert type(spec["b"]).__name__ == "Point"
    assert spec["b"] == (ArraySpec(bytes), [ArraySpec(str), ArraySpec("int64")])


@pytest.mark.parametrize(
    ("values", "spec"),
    [
        ([np.zeros(2), np.zeros(3)], ArraySpec("float64", (None,))),
        ([np.zeros((2, 3)), np.zeros((5, 3))], ArraySpec("float64", (None, 3))),
        ([np.zeros((2, 3)), None, np.zeros((5, 4))], ArraySpec("float64", (None, None))),
        ([np.zeros(2), np.zeros(3, "f")], ArraySpec("float64", (2,))),
        ([np.zeros(2), np.zeros((2, 2))], ArraySpec("float64", (2,))),
        ([np.zeros(2), object()], ArraySpec("float64", (2,))),
        ([np.zeros(2), [0.0]], ArraySpec("float64", (2,))),
        ([[1, 2], [1]], ArraySpec("int64", (None,))),
        ([[], [1], [2.5]], ArraySpec("float64", (None,))),
        ([None, [], ["a", "b"]], ArraySpec(str, (None,))),
        ([[[1], []], []], RaggedSpec("int64", (None, None))),
        ([[1, "a"], [2, "b"]], [ArraySpec("int64"), ArraySpec(str)]),
        ([[np.zeros(2), 1]], [ArraySpec("float64", (2,)), ArraySpec("int64")]),
        ([Sparse(np.zeros((0, 1), np.int64), np.zeros(0), np.array([n])) for n in (3, 4)],
         SparseSpec("float64", (None,))),
        ([Ragged(np.zeros((3, n), "f"), np.array([0, 3])) for n in (2, 5)], RaggedSpec("f", (None, None, None))),
    ],
)  # fmt: skip
def test_dimensions_that_differ_in_the_first_elements_are_unknown(values: list[Any], spec: Any) -> None:
    assert infer_spec({"a": value} for value in values) == {"a": spec}


def test_sixty_four_elements_tell_the_spec_or_those_of_sixteen_mebibytes_but_at_least_two() -> None:
    def drawn(sizes: list[int]) -> tuple[Any, int]:
        elements = iter([np.zeros(size, np.uint8) for size in sizes])
        return infer_spec(elements).shape, len(sizes) - len(list(elements))

    assert drawn([1] * 63 + [2] * 9) == ((None,), 64)
    assert drawn([1] * 64 + [2] * 9) == ((1,), 64)
    assert drawn([1, 1 << 24, 2]) == ((None,), 2)
    assert drawn([1 << 24, 2, 2]) == ((None,), 2)
    assert infer_spec([]) is None


def test_a_later_leaf_that_cannot_be_stored_is_named_with_its_record_and_whole_path() -> None:
    with pytest.raises(ElementError) as caught:
        infer_spec([{"a": Point(0, [None])}, {"a": Point(0, [{"b": object()}])}])
    assert (caught.value.record, caught.value.path) == (1, "['a'].y['b']")


def test_users_write_specs_as_they_like() -> None:
    tensor = SimpleNamespace(shape=(None, 3), dtype=SimpleNamespace(as_numpy_dtype=np.float32))
    text = SimpleNamespace(shape=(), dtype=SimpleNamespace(as_numpy_dtype=object))
    written = {
        "spec": ArraySpec("int8", (None,)), "dtype": np.dtype(">f4"), "name": "uint8", "type": int, "text": str,
        "raw": bytes, "ml": ml_dtypes.bfloat16, "named": "bfloat16", "tensor": tensor, "string": text, "none": None,
        "np": np.float16, "nested": (float, [bool]), "strings": "str", "blobs": "bytes",
    }  # fmt: skip
    assert declared(written) == {
        "spec": ArraySpec("int8", (None,)), "dtype": ArraySpec("float32"), "name": ArraySpec("uint8"),
        "type": ArraySpec("int64"), "text": ArraySpec(str), "raw": ArraySpec(bytes), "ml": ArraySpec("bfloat16"),
        "named": ArraySpec("bfloat16"), "tensor": ArraySpec("float32", (None, 3)), "string": ArraySpec(bytes),
        "none": None, "np": ArraySpec("float16"), "nested": (ArraySpec("float64"), [ArraySpec("bool")]),
        "strings": ArraySpec(str), "blobs": ArraySpec(bytes),
    }  # fmt: skip


@pytest.mark.parametrize("wrong", [object, "no such dtype", 3, {1}, "O", "V3", np.dtype([("a", "i4")])], ids=str)
def test_a_declared_spec_that_cannot_be_names_its_place(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"element_spec\['a'\]\[0\]"):
        declared({"a": [wrong]})


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        *((ArraySpec, ("uint8", shape)) for shape in ((-1,), ("a",), 3)),
        *((ArraySpec, (dtype,)) for dtype in ("object", None)),
        *((RaggedSpec, ("uint8", (None, None), False, rank)) for rank in (0, 2)),
        *((RaggedSpec, ("uint8", (None, None), False, 1, splits)) for splits in ("uint32", "x")),
        (RaggedSpec, ("uint8", (None,))),
        (SparseSpec, ("uint8",)),
    ],
)
def test_a_leaf_spec_that_cannot_be_is_refused(kind: Any, arguments: Any) -> None:
    with pytest.raises(CacheLayerError) as caught:
        kind(*arguments)
    assert isinstance(caught.value, (ValueError, TypeError))
