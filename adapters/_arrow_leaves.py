"""Find the leaves of nested Arrow types: their element specs, and their columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from cachelayer.adapters._arrow_columns import Lists, check_structs, column, dtype_of, leaf_spec
from cachelayer.errors import ElementError, InvalidArgumentError, InvalidTypeError, MissingDependencyError
from cachelayer.records import tree
from cachelayer.records.column import Column
from cachelayer.records.leaf_codecs import leaf_codec
from cachelayer.records.spec import ArraySpec, LeafSpec
from cachelayer.records.tree import Tree

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as kinds
except ImportError as error:
    raise MissingDependencyError("this needs pyarrow: pip install 'cachelayer[arrow]'") from error


def spec_of(kind: pa.DataType, path: str, dims: tuple[int | None, ...] = ()) -> Tree:
    """Return the spec that an Arrow type implies; None for the type of nulls."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return leaf_spec(dtype_of(kind.value_type, path), (*dims, *kind.shape))
    kind = _plain_type(kind)
    if kinds.is_struct(kind):
        names = [field.name for field in kind]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InvalidTypeError(f"two columns are named {path}[{twice!r}]: rename one, or leave it out")
        if dims and not names:
            raise InvalidTypeError(
                f"leaf {path} is a list of structs without fields, so its length would be lost: leave it out"
            )
        return {field.name: spec_of(field.type, f"{path}[{field.name!r}]", dims) for field in kind}
    if _is_list(kind):
        return spec_of(kind.value_type, path, (*dims, kind.list_size if kinds.is_fixed_size_list(kind) else None))
    return None if kinds.is_null(kind) else leaf_spec(dtype_of(kind, path), dims)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values of a type that differs only in how it stores them."""
    if kinds.is_dictionary(kind) or kinds.is_run_end_encoded(kind):
        return _plain_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.JsonType):
        return _plain_type(kind.storage_type)
    if kinds.is_map(kind):
        return pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))
    return kind


def _is_list(kind: pa.DataType) -> bool:
    tests = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list, kinds.is_list_view, kinds.is_large_list_view)
    return any(test(kind) for test in tests)


def leaves_of(path: str, lists: Lists) -> Iterator[tuple[str, Lists]]:
    """Yield the leaves of nested values, each with its path."""
    if isinstance(lists.values.type, pa.FixedShapeTensorType):
        yield path, _tensors(path, lists)
        return
    lists = replace(lists, values=_plain(lists.values))
    kind = lists.values.type
    if kinds.is_struct(kind):
        check_structs(path, lists)
        for field, child in zip(kind, lists.values.flatten(), strict=True):
            yield from leaves_of(f"{path}[{field.name!r}]", replace(lists, values=child))
    elif _is_list(kind):
        yield from leaves_of(path, lists.unnested(path))
    else:
        yield path, lists


def _plain(array: pa.Array) -> pa.Array:
    kind = array.type
    if kinds.is_dictionary(kind):
        return _plain(array.dictionary_decode())
    if kinds.is_run_end_encoded(kind):
        return _plain(pc.run_end_decode(array))
    if isinstance(array, pa.ExtensionArray) and not isinstance(kind, pa.JsonType):
        return _plain(array.storage)
    return array.cast(_plain_type(kind)) if kinds.is_map(kind) else array


def _tensors(path: str, lists: Lists) -> Lists:
    """Return arrays of one shape as nested lists."""
    kind = lists.values.type
    if kind.permutation is not None and list(kind.permutation) != sorted(kind.permutation):
        raise InvalidTypeError(f"leaf {path} has type {kind}, whose axes are permuted: store it in C order")
    flat = replace(lists, values=lists.values.storage).unnested(path)
    *outer, lengths = flat.levels
    levels = [np.full(len(lengths), kind.shape[0])]
    if flat.nulls is not None and not outer:
        levels[0][flat.nulls] = 0
    for dim in kind.shape[1:]:
        levels.append(np.full(int(levels[-1].sum()), dim))
    return Lists(flat.values, (*outer, *levels), flat.nulls)


def column_of(path: str, spec: LeafSpec, lists: Lists) -> Column:
    if not kinds.is_null(lists.values.type):
        return column(path, spec, lists)
    if not lists.levels:
        rows = len(lists.values)
        leaf = leaf_codec(spec)
        filled = leaf.from_rows([leaf.filler()] * rows)
        return Column(filled.fixed, filled.variable, np.ones(rows, np.bool_))
    kind = pa.large_binary() if isinstance(spec.dtype, type) else pa.from_numpy_dtype(spec.dtype)
    return column(path, spec, replace(lists, values=lists.values.cast(kind)))


def check_declared(own: Tree, declared: Tree) -> None:
    """Raise if a declared spec contradicts the schema. Lengths of lists and the decoding of bytes may differ.

    Raises:
        InvalidArgumentError: if structure, dtype or shape differ.
    """
    try:
        own_leaves = tree.flatten_like(declared, own)
    except ElementError as error:
        raise InvalidArgumentError(f"element_spec does not fit these columns: {error}") from error
    for (path, wanted), leaf in zip(tree.leaves(declared), own_leaves, strict=True):
        if leaf is not None and not _fits(leaf, wanted):
            raise InvalidArgumentError(f"element_spec{path} is {wanted!r}, but the column has {leaf!r}")


def _fits(own: Any, wanted: LeafSpec) -> bool:
    if not isinstance(own, LeafSpec) or own.dtype != wanted.dtype or len(own.shape) != len(wanted.shape):
        return False
    if not isinstance(wanted, ArraySpec):
        return not wanted.shape or own.as_nullable() == wanted.as_nullable()
    # Lists of different lengths within lists need row splits, which an ArraySpec does not have.
    return None not in wanted.shape[1:] and all(
        a is None or a == b for a, b in zip(own.shape, wanted.shape, strict=True)
    )
