"""Read records as Arrow columns: arrays of whole batches, never value by value.

Lists of any kind are built as large lists, which pyarrow casts to the type of the column::

    batch   {"a": Ragged [[1, 2], []], "b": Ragged [[3, 4], []]}    a dict of lists
    built   large_list<struct<a, b>>   [[{1, 3}, {2, 4}], []]       lists of dicts, if the column came so
    cast    list<struct<a, b>>, map, fixed_size_list, ...
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.adapters.frameworks.stream_or_ref import check_ref
from cachelayer.adapters.sources.arrow_columns import floats_of
from cachelayer.adapters.sources.arrow_schema import in_own_order, kept_fields
from cachelayer.adapters.sources.arrow_types import as_stored, changed, is_list, type_of, type_of_dtype, within
from cachelayer.errors import InvalidTypeError
from cachelayer.protocols import records_of
from cachelayer.records.selection import record_numbers
from cachelayer.specs import json_text, tree
from cachelayer.specs.values import Nullable, Ragged
from cachelayer.support.extras import packages_of
from cachelayer.support.memory import Ints, splits_of
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


def table_of(schema: pa.Schema, batch: Any, rows: int) -> pa.Table:
    """Return a batch of records as a table of a schema that fits their spec."""
    arrays = [array_of(field, batch[field.name], rows) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def array_of(field: pa.Field, values: Any, rows: int) -> pa.Array:
    """Return the values of a batch as the Arrow array of a field, whose type fits their spec.

    A dict of lists may become lists of structs, and bytes structs of bytes and a path, if the type says so.
    """
    kind = field.type
    path = f"[{field.name!r}]"
    array = _built(kind, values, rows, path)
    try:
        if array.type == kind:
            return in_own_order(field, array)
        stored = array.cast(changed(kind, as_stored))
        # pyarrow casts nothing to a map, and views nothing as a tensor.
        return stored.view(kind) if any(map(kinds.is_map, within(kind))) else stored.cast(kind)
    except pa.ArrowException as error:
        raise _not_held(kind, path) from error


def _built(kind: pa.DataType, values: Any, rows: int, path: str) -> pa.Array:
    """Return values as an array with large lists for lists and maps, and what extension types store."""
    if kinds.is_null(kind):
        return pa.nulls(rows)
    if isinstance(values, list):
        return _json_array(kind, values, path)
    depth = 0
    inner = as_stored(kind)
    while is_list(inner):
        inner = as_stored(inner.value_type)
        depth += 1
    if not kinds.is_struct(inner):
        return _leaf_array(kind, values, path)
    mask = None
    if isinstance(values, Nullable) and isinstance(values.values, dict):
        mask = pa.array(~values.valid)
        values = values.values
    if isinstance(values, dict) or tree.is_namedtuple(values):
        fields = values if isinstance(values, dict) else values._asdict()
        parts = [(fields[field.name], field.type, f"{path}[{field.name!r}]") for field in inner]
    else:
        parts = [(values, pa.binary(), path)]
    arrays = [_built(_in_lists(child, depth), part, rows, at) for part, child, at in parts]
    if not arrays:
        return pa.StructArray.from_buffers(kind, rows, [None])
    return _zipped(inner, depth, arrays, mask, path)


def _json_array(kind: pa.DataType, values: list[Any], path: str) -> pa.Array:
    """Return values of JSON as text; None becomes null."""
    texts = [None if value is None else json_text.text_of(value) for value in values]
    try:
        return pa.array(texts, kind.storage_type)
    except UnicodeEncodeError as error:
        raise _no_utf8(path, error) from error


def _in_lists(kind: pa.DataType, depth: int) -> pa.DataType:
    for _ in range(depth):
        kind = pa.large_list(kind)
    return kind


def _zipped(kind: pa.DataType, depth: int, parts: list[pa.Array], mask: pa.Array | None, path: str) -> pa.Array:
    """Return structs of arrays, or lists of structs of the values of lists that have equal lengths."""
    if not depth:
        # The bytes of a file, whose name is not known.
        is_file = len(parts) < kind.num_fields
        arrays = [*parts, pa.nulls(len(parts[0]), pa.string())] if is_file else parts
        fields = [field.with_type(array.type) for field, array in zip(kind, arrays, strict=True)]
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=parts[0].is_null() if is_file else mask)
    lengths = pc.list_value_length(parts[0])
    if not all(pc.list_value_length(part).equals(lengths) for part in parts):
        raise InvalidTypeError(f"leaf {path} has lists of different lengths, which make no lists of dicts")
    # Lists that are null may have fillers, which flatten() drops.
    inner = _zipped(kind, depth - 1, [part.flatten() for part in parts], None, path)
    splits = splits_of(lengths.fill_null(0).to_numpy())
    return pa.LargeListArray.from_arrays(pa.array(splits), inner, mask=lengths.is_null())


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
        hidden = null_values if splits else nulls
        missing = np.isnat(flat) if hidden is None else np.isnat(flat) & ~hidden
        if missing.any():
            warn(f"leaf {path} holds NaT, which Arrow does not have: it becomes null")
    if isinstance(values, Ragged) and values.row_shapes is not None:
        _warn_of_lost_shapes(values.row_shapes, path)
    if isinstance(kind, pa.FixedShapeTensorType):
        # The numbers of a tensor lie in one list.
        splits = [np.arange(len(splits[0]), dtype=np.int64) * prod(kind.shape)]
    inner = as_stored(kind)
    for _ in splits:
        inner = as_stored(inner.value_type)
    try:
        array = _flat_array(inner, flat, null_values if splits else nulls)
        for level in reversed(splits):
            mask = None if nulls is None or level is not splits[0] else pa.array(nulls)
            array = pa.LargeListArray.from_arrays(pa.array(level, pa.int64()), array, mask=mask)
    except UnicodeEncodeError as error:
        raise _no_utf8(path, error) from error
    except (pa.ArrowException, OverflowError) as error:
        raise _not_held(kind, path) from error
    return array


def _not_held(kind: pa.DataType, path: str) -> InvalidTypeError:
    return InvalidTypeError(
        f"leaf {path} holds values that Arrow's {kind} does not: read it with ref.read(), or store another dtype"
    )


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


def _flat_array(kind: pa.DataType, values: NDArray[Any], nulls: Nulls) -> pa.Array:
    """Return values without lists as an array."""
    if kinds.is_dictionary(kind):
        return _categories(kind, _flat_array(kind.value_type, values, nulls))
    if kinds.is_decimal(kind):
        return _decimals(kind, pa.array(values, mask=nulls))
    return _times(kind, values, nulls) if values.dtype.kind in "mM" else pa.array(values, kind, mask=nulls)


def _categories(kind: pa.DataType, values: pa.Array) -> pa.Array:
    """Return values as a dictionary array, whose dictionary is in ascending order."""
    encoded = values.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary)
    ranks = pc.sort_indices(order).cast(kind.index_type)
    return pa.DictionaryArray.from_arrays(
        ranks.take(encoded.indices), encoded.dictionary.take(order), ordered=kind.ordered
    )


def _decimals(kind: pa.DataType, numbers: pa.Array) -> pa.Array:
    """Return floats, or integers that count units of the last digit, as decimals; raise if a number is none."""
    if kinds.is_integer(numbers.type):
        units = numbers.cast(pa.decimal256(76, 0)).cast(pa.decimal256(kind.precision, 0))
        return units.view(pa.decimal256(kind.precision, kind.scale)).cast(kind)
    floats = numbers.cast(pa.float64())
    if kind.scale < 0:
        # pyarrow's own cast of floats does not round to the nearest ten, or thousand.
        floats = pc.round(floats.cast(pa.decimal256(76, 0)), kind.scale)
    decimals = floats.cast(kind)
    if not floats_of(decimals).cast(numbers.type, safe=False).equals(numbers):
        raise pa.ArrowInvalid(f"a number is no {kind}")
    return decimals


def _times(kind: pa.DataType, values: NDArray[Any], nulls: Nulls) -> pa.Array:
    nulls = np.isnat(values) if nulls is None else nulls | np.isnat(values)
    counts = pa.array(values.view(np.int64), pa.int64(), mask=nulls)
    own: Any = type_of_dtype(values.dtype)
    if type(own) is type(kind) and own.bit_width == 64:
        return counts.view(own).cast(kind)
    return (counts.cast(pa.int32()) if kind.bit_width == 32 else counts).view(kind)
