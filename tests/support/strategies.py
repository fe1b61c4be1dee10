"""Hypothesis strategies for element specs and elements, and what it means for two values to be the same."""

from collections import namedtuple
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from cachelayer import ArraySpec, Nullable, Ragged, RaggedSpec, Sparse, SparseSpec
from cachelayer.specs import tree
from cachelayer.specs.spec import LeafSpec, NullableDict, has_values, with_nullable_values
from cachelayer.specs.values import with_flat_values

ML_DTYPES = [
    np.dtype(getattr(ml_dtypes, name))
    for name in dir(ml_dtypes)
    if name.startswith(("bfloat", "float", "int", "uint", "complex", "bcomplex")) and name not in ("finfo", "iinfo")
]
NUMPY_DTYPES = [
    *(np.dtype(char) for char in "?bBhHiIlLqQefdFD"),
    *(np.dtype(name) for name in ("S1", "S5", "<U1", "<U7")),
    *(np.dtype(name) for name in ("M8", "M8[ns]", "M8[25s]", "M8[D]", "m8", "m8[us]", "m8[7ms]")),
]
DTYPES = [*NUMPY_DTYPES, *ML_DTYPES]
TEXTS = ["", "a", "näïve", "雪" * 40, "\ud800", "x\udfff\x00y\x00", "\U0001f9ca"]
BLOBS = [b"", b"\x00", b"\xff\x00", b"abc" * 50, bytes(range(256))]


def random_array(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """An array of any bits that its dtype can have, NaNs with payloads among them; of bytes or str, an object array."""
    count = int(np.prod(shape, dtype=np.int64))
    if dtype in (bytes, str):
        choices = BLOBS if dtype is bytes else TEXTS
        items = np.empty(count, object)
        items[:] = [choices[i] for i in rng.integers(0, len(choices), count)]
        return items.reshape(shape)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind == "U":
        return rng.integers(0, 0x110000, count * dtype.itemsize // 4, np.uint32).view(dtype).reshape(shape)
    raw = rng.integers(0, 256, count * dtype.itemsize, np.uint8)
    if dtype.name.startswith(("int", "uint", "float4", "float6")) and dtype.kind == "V":
        bits = int("".join(filter(str.isdigit, dtype.name.partition("_")[0])))
        if dtype.name.startswith("float"):
            raw &= np.uint8((1 << bits) - 1)
        else:
            raw = (rng.integers(0, 1 << bits, count) - ((1 << bits >> 1) if dtype.name[0] == "i" else 0)).astype(dtype)
    return raw.view(dtype).reshape(shape)


def random_shape(rng: np.random.Generator, shape: tuple[int | None, ...]) -> tuple[int, ...]:
    return tuple(int(rng.integers(0, 4)) if dim is None else dim for dim in shape)


def random_leaf(rng: np.random.Generator, spec: LeafSpec) -> Any:
    """A value that fits a leaf spec."""
    shape = random_shape(rng, spec.shape)
    if isinstance(spec, RaggedSpec):
        splits, rows = [], shape[0]
        for _ in range(spec.ragged_rank):
            splits.append(np.cumsum([0, *rng.integers(0, 4, rows)]).astype(spec.splits_dtype))
            rows = int(splits[-1][-1])
        return Ragged.from_nested(random_array(rng, spec.dtype, (rows, *shape[spec.ragged_rank + 1 :])), tuple(splits))
    if isinstance(spec, SparseSpec):
        count = int(rng.integers(0, 4)) if 0 not in shape else 0
        indices = np.column_stack([rng.integers(0, max(dim, 1), count) for dim in shape]).astype(np.int64)
        return Sparse(indices, random_array(rng, spec.dtype, (count,)), np.array(shape, np.int64))
    array = random_array(rng, spec.dtype, shape)
    return array.item() if spec.dtype in (bytes, str) and shape == () else array


def with_nulls(rng: np.random.Generator, spec: LeafSpec, value: Any) -> Any:
    """A value some of whose values are null, with fillers in their places."""
    if isinstance(value, Ragged):
        return with_flat_values(value, with_nulls(rng, spec, value.flat_values))
    valid = rng.random(value.shape) < 0.6
    zeros = np.full(value.shape, spec.dtype(), object) if isinstance(spec.dtype, type) else np.zeros_like(value)
    return Nullable(np.where(valid, value, zeros).astype(value.dtype), valid)


# Made once: most of an example's time would else go into making strategies and validating them.
LEAF_DTYPES = st.sampled_from([*DTYPES, bytes, str])
DIMS = st.integers(0, 3)
MAYBE = st.one_of(DIMS, st.none())
SHAPES = st.lists(DIMS, max_size=3)
OPEN_SHAPES = st.lists(MAYBE, max_size=3)
SPARSE_SHAPES = st.lists(MAYBE, min_size=1, max_size=3)
INNER_SHAPES = st.lists(MAYBE, max_size=2)
RANKS = st.integers(1, 3)
SPLITS = st.sampled_from([np.int32, np.int64])
KINDS = st.integers(0, 4)
SEEDS = st.integers(0, 2**32)


@st.composite
def leaf_specs(draw: st.DrawFn, *, nullable: bool = True) -> LeafSpec:
    dtype = draw(LEAF_DTYPES)
    options = {"nullable": draw(st.booleans())} if nullable else {}
    spec: LeafSpec
    match draw(KINDS):
        case 0:
            rank = draw(RANKS)
            shape = (draw(MAYBE), *[None] * rank, *draw(INNER_SHAPES))
            spec = RaggedSpec(dtype, shape, ragged_rank=rank, splits_dtype=np.dtype(draw(SPLITS)), **options)
        case 1:
            spec = SparseSpec(dtype, tuple(draw(SPARSE_SHAPES)), **options)
        case 2:
            spec = ArraySpec(dtype, tuple(draw(OPEN_SHAPES)), **options)
        case _:
            spec = ArraySpec(dtype, tuple(draw(SHAPES)), **options)
    return with_nullable_values(spec) if nullable and has_values(spec) and draw(st.booleans()) else spec


KEYS = st.one_of(st.text(max_size=4), st.sampled_from(["image", "label", "", "a b", "0", "\ud800", "self", "'"]))
NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9]{0,5}x", fullmatch=True)
FIELDS = st.lists(NAMES, unique=True, max_size=3)


@st.composite
def namedtuples(draw: st.DrawFn, children: st.SearchStrategy[Any]) -> Any:
    fields = draw(FIELDS)
    return namedtuple(draw(NAMES), fields)(*[draw(children) for _ in fields])


def trees(leaves: st.SearchStrategy[Any], *, nullable: bool = False) -> st.SearchStrategy[Any]:
    """Any nested structure, empty ones too."""

    def extend(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        lists = st.lists(children, max_size=3)
        dicts: Any = st.dictionaries(KEYS, children, max_size=3)
        if nullable:
            dicts = st.builds(lambda of, is_nullable: NullableDict(of) if is_nullable else of, dicts, st.booleans())
        return st.one_of(dicts, lists, lists.map(tuple), namedtuples(children))

    return st.recursive(leaves, extend, max_leaves=6).map(_without_marks_of_nothing)


def _without_marks_of_nothing(spec: Any, *, is_root: bool = True) -> Any:
    """A spec in which dicts without leaves, and the root, are never None."""
    if isinstance(spec, dict):
        children = {key: _without_marks_of_nothing(child, is_root=False) for key, child in spec.items()}
        is_marked = isinstance(spec, NullableDict) and not is_root and tree.leaves(spec)
        return NullableDict(children) if is_marked else children
    if isinstance(spec, (tuple, list)):
        parts = [_without_marks_of_nothing(child, is_root=False) for child in spec]
        return type(spec)(*parts) if tree.is_namedtuple(spec) else type(spec)(parts)
    return spec


@cache
def specs(*, nullable: bool = True) -> st.SearchStrategy[Any]:
    leaves = st.one_of(leaf_specs(nullable=nullable), leaf_specs(nullable=nullable), st.none())
    return trees(leaves, nullable=nullable)


@st.composite
def versions(draw: st.DrawFn, max_rows: int = 4) -> tuple[Any, list[Any]]:
    """An element spec, and elements that fit it, with None in some leaves, values and dicts that are nullable."""
    spec = draw(specs())
    rng = np.random.default_rng(draw(SEEDS))
    return spec, [_element(rng, spec) for _ in range(draw(st.integers(0, max_rows)))]


def _element(rng: np.random.Generator, spec: Any) -> Any:
    if isinstance(spec, LeafSpec):
        if spec.nullable and rng.random() < 0.4:
            return None
        value = random_leaf(rng, spec)
        return with_nulls(rng, spec, value) if spec.nullable_values else value
    if isinstance(spec, dict):
        if isinstance(spec, NullableDict) and rng.random() < 0.3:
            return None
        return {key: _element(rng, child) for key, child in spec.items()}
    if spec is None:
        return None
    parts = [_element(rng, child) for child in spec]
    return type(spec)(*parts) if tree.is_namedtuple(spec) else type(spec)(parts)


def bits(array: np.ndarray[Any, Any]) -> Any:
    """The bytes of an array that mean something, or its objects."""
    if array.dtype == object:
        return [(type(item), item) for item in array.reshape(-1)]
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


def same_array(one: Any, other: Any) -> bool:
    """Return whether two arrays, or scalars, have the same dtype, shape and bits."""
    if isinstance(other, (np.str_, np.bytes_)) and one.dtype.kind == other.dtype.kind:
        other = np.asarray(other).astype(one.dtype)  # numpy's own scalars have the width of their text
    one, other = np.asarray(one), np.asarray(other)
    little = one.dtype.newbyteorder("<") == other.dtype.newbyteorder("<")
    return little and one.shape == other.shape and bits(one) == bits(other)


def same_leaf(one: Any, other: Any) -> bool:
    """Return whether two leaves are equal in kind, dtypes, shapes and bits."""
    if isinstance(one, Nullable):
        alike = isinstance(other, Nullable) and one.valid.tolist() == other.valid.tolist()
        return alike and same_array(one.values, other.values)
    if one is None or isinstance(one, (bytes, str)):
        return type(one) is type(other) and one == other
    if isinstance(one, Ragged):
        if not isinstance(other, Ragged) or len(one.nested_row_splits) != len(other.nested_row_splits):
            return False
        splits = all(map(same_array, one.nested_row_splits, other.nested_row_splits))
        return splits and same_leaf(one.flat_values, other.flat_values)
    if isinstance(one, Sparse):
        parts = ("indices", "values", "dense_shape")
        return isinstance(other, Sparse) and all(same_array(getattr(one, p), getattr(other, p)) for p in parts)
    return isinstance(other, (np.ndarray, np.generic)) and same_array(one, other)


def same(one: Any, other: Any) -> bool:
    """Return whether two elements are equal in structure, order of keys, names of fields and leaves."""
    if isinstance(one, dict):
        keys = isinstance(other, dict) and list(one) == list(other)
        return keys and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)):
        if tree.is_namedtuple(one):
            alike = type(one).__name__ == type(other).__name__ and one._fields == getattr(other, "_fields", None)
        else:
            alike = type(one) is type(other)
        return alike and len(one) == len(other) and all(map(same, one, other))
    return same_leaf(one, other)
