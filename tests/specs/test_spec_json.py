"""Element specs as JSON, and the names of dtypes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from samples import examples
from strategies import DTYPES, specs

from cachelayer import ArraySpec, AudioSpec, ImageSpec, RaggedSpec, SparseSpec, Storage
from cachelayer.errors import FormatError, InvalidArgumentError, InvalidTypeError
from cachelayer.specs import dtypes, spec_json, tree


def shape_of(spec: Any) -> Any:
    """A spec with names and order spelled out, for comparison: namedtuples are equal to tuples, dicts have no order."""
    if isinstance(spec, dict):
        return ("dict", [(key, shape_of(child)) for key, child in spec.items()])
    if isinstance(spec, (tuple, list)):
        return (type(spec).__name__, getattr(spec, "_fields", ()), [shape_of(child) for child in spec])
    return spec


@settings(max_examples=examples(200), deadline=None)
@given(specs())
@pytest.mark.slow
def test_specs_come_back_from_json_exactly(spec: Any) -> None:
    node = json.loads(json.dumps(spec_json.to_json(spec)))
    assert shape_of(spec_json.from_json(node)) == shape_of(spec)
    assert spec_json.to_json(spec_json.from_json(node)) == node


@pytest.mark.parametrize("dtype", [*DTYPES, bytes, str], ids=str)
def test_dtypes_come_back_from_their_names_in_either_byte_order(dtype: Any) -> None:
    assert dtypes.from_name(dtypes.to_name(dtype)) == dtype
    if dtype not in (bytes, str):
        assert dtypes.to_name(dtype.newbyteorder(">")) == dtypes.to_name(dtype)
        assert dtypes.check(dtype.newbyteorder(">")) == dtype


ARRAY = {"kind": "array", "dtype": "uint8", "shape": [3]}


@pytest.mark.parametrize(
    "node",
    [
        None, [], "array", 3, {}, {"kind": "set", "items": []}, {"kind": "array"}, {**ARRAY, "dtype": "object"},
        {**ARRAY, "dtype": "uint7"}, {**ARRAY, "dtype": 3}, {**ARRAY, "dtype": "V3"}, {**ARRAY, "dtype": "i4,i4"},
        {**ARRAY, "shape": [True]}, {**ARRAY, "shape": [1.0]}, {"kind": "sparse", "dtype": "uint8", "shape": [True]},
        {"kind": "ragged", "dtype": "uint8", "shape": [None, True], "ragged_rank": 1, "splits_dtype": "int64"},
        {"kind": "ragged", "dtype": "uint8", "shape": [None, None], "ragged_rank": True, "splits_dtype": "int64"},
        {"kind": "audio", "sampling_rate": True, "channels": 1}, {"kind": "audio", "sampling_rate": 8e3, "channels": 1},
        {"kind": "audio", "sampling_rate": 8000, "channels": 1.0}, {"kind": "image", "mode": ["L"]},
        {**ARRAY, "shape": [-1]}, {**ARRAY, "shape": ["a"]}, {**ARRAY, "shape": 3}, {"kind": "dict", "items": [3]},
        {"kind": "dict", "items": [["a"]]}, {"kind": "dict", "items": [[1, ARRAY]]}, {"kind": "tuple"},
        {"kind": "namedtuple", "name": "a b", "items": []},
        {"kind": "namedtuple", "name": "A", "items": [["class", ARRAY]]},
        {"kind": "ragged", "dtype": "uint8", "shape": [None], "ragged_rank": 1, "splits_dtype": "int64"},
        {"kind": "ragged", "dtype": "uint8", "shape": [None, None], "ragged_rank": 1, "splits_dtype": "float32"},
        {"kind": "ragged", "dtype": "uint8", "shape": [None, None], "ragged_rank": "1", "splits_dtype": "int64"},
        {"kind": "video", "mode": "RGB"}, {"kind": "video", "nullable": 1},
        {"kind": "sparse", "dtype": "uint8", "shape": []}, {**ARRAY, "nullable": "yes"},
        {"kind": "dict", "items": [["a", ARRAY], ["a", ARRAY]]}, {**ARRAY, "shape": [2**62]},
        {**ARRAY, "shape": [2**62, 0]}, {**ARRAY, "shape": [None, 2**32]}, {**ARRAY, "dtype": "str", "shape": [2**30]},
        {"kind": "ragged", "dtype": "int64", "shape": [None, None, 2**29], "ragged_rank": 1, "splits_dtype": "int64"},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_spec_is_refused(node: Any) -> None:
    with pytest.raises(FormatError):
        spec_json.from_json(node)


@pytest.mark.parametrize("shape", [(2**32,), (2**62, 0), (None, 2**32)])
def test_a_leaf_that_would_not_be_read_back_is_not_written(tmp_path: Path, shape: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="bytes"):
        Storage(tmp_path).submit([], "d@v1", element_spec=ArraySpec("uint8", shape), allow_empty=True)


@pytest.mark.parametrize(
    ("node", "named"),
    [
        ({**ARRAY, "hint": "jpeg"}, "newer release"),
        ({"kind": "list", "items": [], "name": "a"}, "newer release"),
        ({**ARRAY, "dtype": "float3_e1m1fn"}, "float3_e1m1fn"),
    ],
)
def test_what_a_newer_release_added_to_a_spec_is_refused_by_name(node: Any, named: str) -> None:
    with pytest.raises(FormatError, match=named):
        spec_json.from_json(node)


@pytest.mark.parametrize("number", [True, np.True_, 1.0, np.float64(1), "1"])
@pytest.mark.parametrize(
    "make",
    [
        lambda number: ArraySpec("int8", (number,)),
        lambda number: SparseSpec("int8", [number]),
        lambda number: RaggedSpec("int8", (None, number)),
        lambda number: RaggedSpec("int8", (None, None), ragged_rank=number),
        lambda number: AudioSpec(sampling_rate=number),
        lambda number: AudioSpec(channels=number),
    ],
)
def test_integers_of_specs_are_no_flags_floats_or_texts(make: Any, number: Any) -> None:
    with pytest.raises(InvalidTypeError):
        make(number)


def test_numbers_and_flags_of_numpy_in_specs_are_written_as_those_of_python() -> None:
    ours = [ArraySpec("int8", (np.int64(2),)), AudioSpec(np.int64(8000), np.int8(1)), ImageSpec("L", upright=np.False_)]  # type: ignore[arg-type]
    plain = [ArraySpec("int8", (2,)), AudioSpec(8000, 1), ImageSpec("L", upright=False)]
    assert json.dumps(spec_json.to_json(ours)) == json.dumps(spec_json.to_json(plain))


@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble])
def test_floats_that_are_others_on_other_machines_are_refused(dtype: Any) -> None:
    with pytest.raises(InvalidTypeError, match=np.dtype(dtype).name):
        ArraySpec(dtype)


def test_only_leaves_of_moments_have_a_time_zone_and_only_theirs_is_written() -> None:
    zoned = ArraySpec("M8[us]", (None,), timezone="Europe/Berlin")
    node = {"kind": "array", "dtype": "<M8[us]", "shape": [None], "timezone": "Europe/Berlin"}
    assert spec_json.to_json(zoned) == node
    assert spec_json.from_json(node) == zoned != ArraySpec("M8[us]", (None,))
    assert "timezone" not in spec_json.to_json(ArraySpec("M8[us]"))
    assert repr(zoned) == "ArraySpec(datetime64[us, Europe/Berlin], (None,))"
    for dtype in ("int64", "M8[D]", "m8[s]", "str"):
        with pytest.raises(InvalidArgumentError, match="timezone"):
            ArraySpec(dtype, timezone="UTC")


def test_a_spec_in_json_reads_like_this() -> None:
    spec = {"b": RaggedSpec("f", (None, None), splits_dtype=np.dtype("int32")), "a": (None, [ArraySpec(str)])}
    assert spec_json.to_json(spec) == {
        "kind": "dict",
        "items": [
            ["b", {"kind": "ragged", "dtype": "float32", "shape": [None, None],
                   "ragged_rank": 1, "splits_dtype": "int32"}],
            ["a", {"kind": "tuple", "items": [{"kind": "none"}, {"kind": "list", "items": [
                {"kind": "array", "dtype": "str", "shape": []}]}]}],
        ],
    }  # fmt: skip
    assert tree.leaves(spec)[1] == ("['a'][1][0]", ArraySpec(str))
