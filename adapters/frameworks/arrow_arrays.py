"""Read records as Arrow columns: types for element specs, and arrays of whole batches, never value by value."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.adapters.frameworks.stream_or_ref import check_ref
from cachelayer.adapters.sources.arrow_columns import is_list
from cachelayer.adapters.sources.arrow_schema import kept_fields
from cachelayer.adapters.sources.decimals import decimals_of
from cachelayer.errors import InvalidTypeError
from cachelayer.protocols import records_of
from cachelayer.records.selection import record_numbers
from cachelayer.specs import json_text, tree
from cachelayer.specs.spec import JsonSpec, LeafSpec, RaggedSpec, SparseSpec, describe_leaf
from cachelayer.specs.tree import Tree
from cachelayer.specs.values import Nullable, Ragged
from cachelayer.support.extras import packages_of
from cachelayer.support.memory import Ints
from cachelayer.support.user_warnings import warn
from cachelayer.views.view import View

with packages_of("arrow", "this needs pyarrow"):
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as kinds

Nulls = NDArray[np.bool_] | None


def read_columns(ref: View[Any], indices: Sequence[int] | NDArray[Any] | None) -> tuple[pa.Schema, Any, int]:
    """Read records as columns; all records if ``indices`` is None. Images and sounds stay the bytes of their files.

    Return the Arrow types that the columns came with, where they still fit; the batch, and its number of rows.
    """
    check_ref(ref)
    records = records_of(ref)
    stored = records.undecoded()
    raw = records if stored is None else stored
    spec = raw.element_spec
    if not isinstance(spec, dict) or not spec:
        described = tree.describe(spec) if spec else "dicts without keys"
        raise InvalidTypeError(f"the elements are {described}: a frame needs dicts, one column for each key")
    kept = kept_fields(raw.info.metadata, spec)
    schema = pa.schema([kept.get(name) or pa.field(name, type_of(leaf, f"[{name!r}]")) for name, leaf in spec.items()])
    rows = record_numbers(ref._rows_of(slice(None) if indices is None else indices), len(raw))
    return schema, raw.batch(rows), len(rows)


def table_of(ref: View[Any], indices: Sequence[int] | NDArray[Any] | None) -> pa.Table:
    """Return records as a table; all records if ``indices`` is None."""
    schema, batch, rows = read_columns(ref, indices)
    arrays = [array_of(field.type, batch[field.name], rows, f"[{field.name!r}]") for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def type_of(spec: Tree, path: str) -> pa.DataType:
    """Return the Arrow type of an element spec."""
    if spec is None:
        return pa.null()
    if isinstance(spec, dict) or tree.is_namedtuple(spec):
        fields = spec if isinstance(spec, dict) else spec._asdict()
        return pa.struct([(name, type_of(child, f"{path}[{name!r}]")) for name, child in fields.items()])
    if not isinstance(spec, LeafSpec):
        raise InvalidTypeError(f"leaf {path} is {tree.describe(spec)}: a column holds values, lists or dicts")
    if isinstance(spec, JsonSpec):
        return pa.json_()
    inner = spec.shape[spec.ragged_rank + 1 :] if isinstance(spec, RaggedSpec) else ()
    kind = None if isinstance(spec, SparseSpec) or None in inner else _scalar_type(spec.dtype)
    if kind is None:
        raise InvalidTypeError(f"leaf {path}: Arrow has no type for {describe_leaf(spec)}: read it with ref.read()")
    kind = kind if spec.timezone is None else pa.timestamp(kind.unit, spec.timezone)
    for dim in reversed(spec.shape):
        kind = pa.list_(kind, -1 if dim is None else dim)
    return kind


def _scalar_type(dtype: Any) -> pa.DataType | None:
    if not isinstance(dtype, np.dtype) or dtype.kind in "SU":
        return pa.string() if dtype is str or getattr(dtype, "kind", "") == "U" else pa.binary()
    if dtype.kind in "mM" and np.datetime_data(dtype)[1] != 1:
        # pyarrow would read a unit of 10 seconds as one second.
        return None
    try:
        return pa.date32() if dtype == np.dtype("M8[D]") else pa.from_numpy_dtype(dtype)
    except pa.ArrowException:
        return None


def array_of(kind: pa.DataType, values: Any, rows: int, path: str) -> pa.Array:
    """Return the values of a batch as an Arrow array of a type that fits its spec.

    A dict of lists may become lists of structs, and bytes structs of bytes and a path, if the type says so.
    """
    if kinds.is_null(kind):
        return pa.nulls(rows)
    if isinstance(values, list):
        return _json_array(kind, values, path)
    if kinds.is_map(kind):
        entries = array_of(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])), values, rows, path)
        keys, items = entries.values.flatten()
        return pa.MapArray.from_arrays(entries.offsets, keys, items, type=kind, mask=entries.is_null())
    lists = []
    inner = kind
    while is_list(inner):
        lists.append(inner)
        inner = inner.value_type
    if not kinds.is_struct(inner):
        return _leaf_array(kind, values, path)
    valid = None
    if isinstance(values, Nullable) and isinstance(values.values, dict):
        values, valid = values.values, values.valid
    if isinstance(values, dict) or tree.is_namedtuple(values):
        fields = values if isinstance(values, dict) else values._asdict()
        parts = [(fields[field.name], field.type, f"{path}[{field.name!r}]") for field in inner]
    else:
        parts = [(values, pa.binary(), path)]
    arrays = [array_of(_within(lists, child), part, rows, at) for part, child, at in parts]
    zipped = _zipped(kind, arrays, rows, path)
    return zipped if valid is None else pa.StructArray.from_arrays(arrays, fields=list(kind), mask=pa.array(~valid))


def _json_array(kind: pa.DataType, values: list[Any], path: str) -> pa.Array:
    """Return values of JSON as text; None becomes null."""
    texts = [None if value is None else json_text.text_of(value) for value in values]
    try:
        stored = pa.array(texts, kind.storage_type)
    except UnicodeEncodeError as error:
        raise _no_utf8(path, error) from error
    return pa.ExtensionArray.from_storage(kind, stored)


def _within(lists: list[pa.DataType], kind: pa.DataType) -> pa.DataType:
    for outer in reversed(lists):
        size = outer.list_size if kinds.is_fixed_size_list(outer) else -1
        kind = pa.large_list(kind) if kinds.is_large_list(outer) else pa.list_(kind, size)
    return kind


def _zipped(kind: pa.DataType, parts: list[pa.Array], rows: int, path: str) -> pa.Array:
    """Return structs of arrays, or lists of structs of the values of lists that have equal lengths."""
    if kinds.is_struct(kind):
        if not parts:
            return pa.StructArray.from_buffers(kind, rows, [None])
        if len(parts) == kind.num_fields:
            return pa.StructArray.from_arrays(parts, fields=list(kind))
        files = [parts[0], pa.nulls(len(parts[0]), pa.string())]
        return pa.StructArray.from_arrays(files, fields=list(kind), mask=parts[0].is_null())
    first = parts[0]
    if not all(pc.list_value_length(part).equals(pc.list_value_length(first)) for part in parts):
        raise InvalidTypeError(f"leaf {path} has lists of different lengths, which make no lists of dicts")
    inner = _zipped(kind.value_type, [part.values for part in parts], 0, path)
    if kinds.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(inner, kind.list_size, mask=first.is_null())
    return type(first).from_arrays(first.offsets, inner, mask=first.is_null())


def _leaf_array(kind: pa.DataType, values: Any, path: str) -> pa.Array:
    nulls = None
    null_values = None
    if isinstance(values, Nullable) and values.valid.ndim == 1:
        values, nulls = values.values, ~values.valid
    flat, splits = _levels(values)
    if isinstance(flat, Nullable):
        null_values = ~flat.valid.reshape(-1)
        flat = flat.values.reshape(-1)
    if flat.dtype.kind in "mM":
        hidden = nulls if not splits else null_values
        missing = np.isnat(flat) if hidden is None else np.isnat(flat) & ~hidden
        if missing.any():
            warn(f"leaf {path} holds NaT, which Arrow does not have: it becomes null")
    if isinstance(values, Ragged) and values.row_shapes is not None:
        _warn_of_lost_shapes(values.row_shapes, path)
    try:
        return _nested(kind, flat, splits, nulls, null_values)
    except UnicodeEncodeError as error:
        raise _no_utf8(path, error) from error
    except (pa.ArrowException, OverflowError) as error:
        raise InvalidTypeError(
            f"leaf {path} holds values that Arrow's {kind} does not: read it with ref.read(), or store another dtype"
        ) from error


def _no_utf8(path: str, error: UnicodeEncodeError) -> InvalidTypeError:
    text = ascii(error.object)[:60]
    return InvalidTypeError(
        f"leaf {path} holds text that is not UTF-8, as Arrow's strings are: {text}. Read it with ref.read()"
    )


def _warn_of_lost_shapes(shapes: NDArray[Any], path: str) -> None:
    empty = np.cumsum(shapes == 0, axis=1) > 0
    lost = (empty[:, :-1] & (shapes[:, 1:] > 0)).any(axis=1)
    if lost.any():
        shape = shapes[int(np.argmax(lost))].tolist()
        warn(f"leaf {path} holds an array of shape {shape}: lists keep no dimension after one of length 0")


def _levels(values: Any) -> tuple[Any, list[Ints]]:
    """Return the innermost values, one-dimensional or a Nullable, and the splits of each level, outermost first."""
    splits: list[Any] = []
    if isinstance(values, Ragged):
        splits = list(values.nested_row_splits)
        values = values.flat_values
    count = len(values)
    for dim in (values.valid if isinstance(values, Nullable) else values).shape[1:]:
        splits.append(np.arange(count + 1, dtype=np.int64) * dim)
        count *= dim
    return values if isinstance(values, Nullable) else values.reshape(-1), splits


def _nested(
    kind: pa.DataType, values: NDArray[Any], splits: list[Ints], nulls: Nulls, null_values: Nulls = None
) -> pa.Array:
    if isinstance(kind, pa.FixedShapeTensorType):
        # The numbers of a tensor lie in one list.
        splits = [np.arange(len(splits[0]), dtype=np.int64) * prod(kind.shape)]
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _nested(kind.storage_type, values, splits, nulls, null_values))
    if kinds.is_dictionary(kind) and not splits:
        return _categories(kind, _nested(kind.value_type, values, splits, nulls))
    if kinds.is_decimal(kind) and not splits:
        return decimals_of(kind, values, nulls)
    if not splits:
        return _times(kind, values, nulls) if values.dtype.kind in "mM" else pa.array(values, kind, mask=nulls)
    inner = _nested(kind.value_type, values, splits[1:], None if splits[1:] else null_values, null_values)
    mask = None if nulls is None else pa.array(nulls)
    if kinds.is_fixed_size_list(kind):
        if kind.list_size == 0:
            # pyarrow's from_arrays() divides by the size, which ends the process.
            valid = None if nulls is None else pa.array(~nulls).buffers()[1]
            return pa.Array.from_buffers(kind, len(splits[0]) - 1, [valid], children=[inner])
        if nulls is not None:
            # A list of fixed size takes up its places even if it is null.
            places = splits[0][:-1, None] + np.arange(kind.list_size)
            inner = inner.take(pa.array(places.reshape(-1), mask=nulls.repeat(kind.list_size)))
        return pa.FixedSizeListArray.from_arrays(inner, type=kind, mask=mask)
    cls = pa.LargeListArray if kinds.is_large_list(kind) else pa.ListArray
    offsets = pa.array(splits[0], pa.int64() if kinds.is_large_list(kind) else pa.int32())
    return cls.from_arrays(offsets, inner, type=kind, mask=mask)


def _categories(kind: pa.DataType, values: pa.Array) -> pa.Array:
    """Return values as a dictionary array, whose dictionary is in ascending order."""
    encoded = values.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary)
    ranks = pc.sort_indices(order).cast(kind.index_type)
    return pa.DictionaryArray.from_arrays(
        ranks.take(encoded.indices), encoded.dictionary.take(order), ordered=kind.ordered
    )


def _times(kind: pa.DataType, values: NDArray[Any], nulls: Nulls) -> pa.Array:
    nulls = np.isnat(values) if nulls is None else nulls | np.isnat(values)
    counts = pa.array(values.view(np.int64), pa.int64(), mask=nulls)
    own: Any = _scalar_type(values.dtype)
    if type(own) is type(kind) and own.bit_width == 64 and own.unit != kind.unit:
        # A cast raises if a time does not fit; a multiplication would overflow.
        unit = pa.timestamp(kind.unit) if kinds.is_timestamp(kind) else pa.duration(kind.unit)
        counts = pc.cast(counts.view(own), unit).view(pa.int64())
    return (pc.cast(counts, pa.int32()) if kind.bit_width == 32 else counts).view(kind)
