"""Arrays as sources: element i has row i of each array."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.builds.batches import RowBatch, cut, stacked_records
from cachelayer.builds.source import Source
from cachelayer.errors import ElementError, InvalidTypeError
from cachelayer.records.value_conversion import as_leaf, leaf_spec
from cachelayer.specs import tree
from cachelayer.specs.spec import ArraySpec, LeafSpec, as_nullable, with_nullable_values
from cachelayer.specs.tree import Tree
from cachelayer.specs.values import Nullable
from cachelayer.support.arguments import refuse_other_index

_IN_MEMORY = ("__dlpack__", "numpy", "to_numpy")
"""The methods of arrays, tensors and columns that lie in memory."""
_STRINGS = "A column of objects holds str, or bytes, and None: convert the others, or pass a list of elements."


def array_source(arrays: Tree, declared: Tree | None = None) -> Source:
    """Return the source of the rows of arrays.

    An array has dtype object if it holds str, or bytes, and None. ``declared`` says what a column is that holds only
    None.
    """
    columns = tree.map_structure(arrays, _column)
    column_list = tree.leaf_values(columns)
    lengths = {path: len(column) for path, column in column_list}
    if len(set(lengths.values())) > 1:
        raise InvalidTypeError(
            f"arrays of different lengths are not a source: {lengths}. The arrays of a dict or tuple are columns; to "
            "make each array a record, pass a list"
        )
    leaves = {} if declared is None else dict(tree.leaf_values(declared))
    spec = tree.map_structure(columns, lambda path, column: _row_spec(path, column, leaves.get(path)))
    length = next(iter(lengths.values()))
    nbytes = sum(_values(column).nbytes for _, column in column_list)
    rows = RowBatch(columns, length)
    return Source(
        "arrays",
        partial(_read, rows, stacked_records(nbytes / max(1, length), len(column_list))),
        rows.take,
        element_spec=spec,
        length=length,
        starts=range(length),
        nbytes=nbytes,
        # One process makes rows as quickly as several would.
        workers_make="nothing",
    )


def _read(rows: RowBatch, size: int, start: int, stop: int | None) -> Iterator[RowBatch]:
    return cut(rows[start:stop], size)


def columns_of(obj: Any) -> Tree | None:
    """Return the arrays of an object: an array, or a dict or tuple of nothing but arrays; None for anything else.

    Within a dict or tuple, tensors of other frameworks and columns of tables count as arrays.
    """
    if isinstance(obj, np.ndarray):
        # An array of objects holds elements, not a column.
        return obj if obj.ndim and obj.dtype != object else None
    return _nested(obj) if isinstance(obj, (Mapping, tuple)) else None


def _nested(obj: Any) -> Tree | None:
    if isinstance(obj, (Mapping, tuple)):
        parts = [_nested(child) for _, child in tree.children(obj)]
        if not parts or any(part is None for part in parts):
            return None
        if isinstance(obj, Mapping):
            return dict(zip(obj, parts, strict=True))
        cls: Any = type(obj)
        return cls(*parts) if tree.is_namedtuple(obj) else tuple(parts)
    if isinstance(obj, np.ndarray):
        return obj if obj.ndim else None
    is_column = hasattr(obj, "__array__") and len(getattr(obj, "shape", ())) > 0 and not hasattr(obj, "columns")
    # An array in a file has none of these methods: as a column, all of it would be read into memory.
    if not is_column or not any(hasattr(obj, name) for name in _IN_MEMORY):
        return None
    refuse_other_index(f"a column of type {type(obj).__name__}", obj)
    return as_leaf(obj)


def _column(path: str, array: NDArray[Any]) -> NDArray[Any] | Nullable:
    """Return an array as a column of the codec: strings with None among them become a Nullable."""
    if array.dtype.kind not in "OT" or isinstance(array, np.ma.MaskedArray):
        return array
    missing = getattr(array.dtype, "na_object", None)
    items = array.astype(object, copy=False)
    null = np.fromiter((item is None or item is missing for item in items.flat), np.bool_, items.size)
    null = null.reshape(items.shape)
    kinds = set(map(type, items[~null]))
    kind = bytes if kinds and not any(issubclass(each, str) for each in kinds) else str
    if not all(issubclass(each, kind) for each in kinds):
        expected = kind.__name__ if any(issubclass(each, (str, bytes)) for each in kinds) else "str or bytes"
        record, item = next(
            (int(place[0]), items[tuple(place)])
            for place in np.argwhere(~null)
            if not isinstance(items[tuple(place)], kind)
        )
        raise ElementError(expected, tree.describe(item), path=path, record=record, hint=_STRINGS)
    if not null.any():
        return items
    filled = items.copy()
    filled[null] = kind()
    return Nullable(filled, ~null)


def _row_spec(path: str, column: NDArray[Any] | Nullable, declared: LeafSpec | None) -> LeafSpec:
    values = _values(column)
    if values.dtype != object:
        return ArraySpec(leaf_spec(values).dtype, values.shape[1:])
    if isinstance(column, Nullable) and not column.valid.any():
        if declared is not None:
            return as_nullable(declared)
        hint = "Pass element_spec= to say what this leaf is."
        raise ElementError("a value in one of the elements", "None in all of them", path=path, hint=hint)
    # _column has checked that all values have one type, besides the markers of missing strings.
    kind = bytes if values.size and isinstance(values.flat[0], bytes) else str
    spec = ArraySpec(kind, values.shape[1:])
    if not isinstance(column, Nullable):
        return spec
    return as_nullable(spec) if column.valid.ndim == 1 else with_nullable_values(spec)


def _values(column: NDArray[Any] | Nullable) -> NDArray[Any]:
    return column.values if isinstance(column, Nullable) else column
