"""The Arrow types that the columns of a source had, where an element spec does not tell them.

A spec has arrays of numbers, text and bytes. The metadata of a version keep that a dict of lists was lists of dicts, a
span of time a time of day, a text a category, or a number a decimal; and the dtypes of pandas. Frames that are made of
it have these types again.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from cachelayer.adapters.sources.arrow_columns import Lists, leaves_of, spec_of
from cachelayer.adapters.sources.arrow_types import changed, is_list, within
from cachelayer.errors import CacheLayerError
from cachelayer.specs import tree
from cachelayer.specs.spec import ARROW_SCHEMA, DECIMAL_DIGITS, LeafSpec, said_of_columns, without_nulls
from cachelayer.specs.tree import Tree
from cachelayer.support.extras import packages_of

with packages_of("arrow", "this needs pyarrow"):
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as kinds

CATEGORIES = b"cachelayer.categories"
"""The key of the categories of an ordered category, in their order, in the metadata of its field."""
PANDAS = b"cachelayer.pandas"
"""The key of the name of a dtype of pandas."""
_ALONE = (
    kinds.is_dictionary,
    kinds.is_time,
    kinds.is_map,
    kinds.is_date64,
    kinds.is_fixed_size_binary,
    kinds.is_decimal,
)


def schema_metadata(schema: pa.Schema, spec: Tree) -> dict[str, Any]:
    """Return the types of columns, for the metadata of a version: none of them if the spec says all."""
    fields = [
        field for field in schema if says_more(field.type) or not {CATEGORIES, PANDAS}.isdisjoint(field.metadata or {})
    ]
    types = {field.name: base64.b64encode(pa.schema([field]).serialize()).decode() for field in fields}
    return ({ARROW_SCHEMA: types} if types else {}) | _decimal_digits(fields, spec)


def _decimal_digits(fields: Iterable[pa.Field], spec: Tree) -> dict[str, Any]:
    """Return how many digits the integers have that stand for decimals, by the paths of their leaves, as metadata."""
    integers = {path for path, leaf in tree.leaves(spec) if getattr(leaf.dtype, "kind", "") in ("i", "u")}
    types = _types_of_leaves(fields)
    digits = {path: kind.scale for path, kind in types.items() if path in integers and kinds.is_decimal(kind)}
    return {DECIMAL_DIGITS: digits} if digits else {}


def _types_of_leaves(fields: Iterable[pa.Field]) -> dict[str, pa.DataType]:
    """Return the type of the values of each leaf, by its path."""
    lists = tree.leaf_values(leaves_of("", Lists(pa.nulls(0, pa.struct(list(fields)))), {}))
    return {path: leaf.values.type for path, leaf in lists}


def kept_fields(metadata: Mapping[str, Any], spec: Mapping[str, Tree]) -> dict[str, pa.Field]:
    """Return the fields that metadata keep, of the columns that still have the spec that their types imply."""
    serialized = said_of_columns(metadata, ARROW_SCHEMA)
    schema = [
        pa.ipc.read_schema(pa.py_buffer(base64.b64decode(serialized[name]))).field(0)
        for name in spec
        if name in serialized
    ]
    fields = [field.with_type(changed(field.type, partial(_written, field))) for field in schema]
    return {field.name: field for field in fields if _implies(field, spec[field.name])}


def _written(field: pa.Field, kind: pa.DataType) -> pa.DataType:
    """Return the type, within that of a field, of arrays that are made: not of one that only stores in another way.

    Categories whose order is not known have none.
    """
    if kinds.is_list_view(kind) or kinds.is_large_list_view(kind):
        return pa.large_list(kind.value_field)
    if kinds.is_dictionary(kind) and note_of(field, CATEGORIES) is None:
        return pa.dictionary(kind.index_type, kind.value_type)
    return kind.value_type if kinds.is_run_end_encoded(kind) else kind


def says_more(kind: pa.DataType) -> bool:
    """Return whether a type tells more of its values than an element spec does."""
    return any(
        isinstance(each, pa.BaseExtensionType)
        or any(test(each) for test in _ALONE)
        or (is_list(each) and any(map(kinds.is_struct, within(each))))
        for each in within(kind)
    )


def with_note(field: pa.Field, key: bytes, note: Any) -> pa.Field:
    """Return a field that keeps a JSON value under a key of its metadata."""
    return field.with_metadata({**(field.metadata or {}), key: json.dumps(note)})


def note_of(field: pa.Field, key: bytes) -> Any:
    """Return the value that a field keeps under a key; None if it keeps none."""
    note = (field.metadata or {}).get(key)
    return None if note is None else json.loads(note)


def with_categories(field: pa.Field, categories: pa.Array) -> pa.Field:
    """Return the field of a column of categories, which keeps them if they have an order, and are text or numbers."""
    values = categories.view(_counts_of(categories.type)).to_pylist()
    is_kept = field.type.ordered and all(isinstance(value, (str, int, float)) for value in values)
    return with_note(field, CATEGORIES, values) if is_kept else field


def in_own_order(field: pa.Field, array: pa.Array) -> pa.Array:
    """Return categories in the order that their field keeps, with those behind that it does not know."""
    note = note_of(field, CATEGORIES)
    if note is None:
        return array
    kind = array.type.value_type
    known = pa.array(note, _counts_of(kind)).view(kind)
    others = array.dictionary.filter(pc.invert(pc.is_in(array.dictionary, known)))
    categories = pa.concat_arrays([known, others])
    places = pc.index_in(array.dictionary, categories).cast(array.type.index_type)
    return pa.DictionaryArray.from_arrays(places.take(array.indices), categories, ordered=True)


def _counts_of(kind: pa.DataType) -> pa.DataType:
    """Return the type of the integers that times are; any other type as it is."""
    return {32: pa.int32(), 64: pa.int64()}[kind.bit_width] if kinds.is_temporal(kind) else kind


def _implies(field: pa.Field, spec: Tree) -> bool:
    try:
        own = tree.leaves(spec_of(pa.struct([field]), {}))
        there = tree.leaves({field.name: spec})
    except CacheLayerError:
        return False
    types = _types_of_leaves([field])
    return len(own) == len(there) and all(
        path == other and _is_like(leaf, wanted, types[path])
        for (path, leaf), (other, wanted) in zip(own, there, strict=True)
    )


def _is_like(own: LeafSpec, wanted: LeafSpec, kind: pa.DataType) -> bool:
    """Return whether a leaf has the values of a type, nulls aside: decimals may be numbers of any dtype."""
    is_number = isinstance(wanted.dtype, np.dtype) and wanted.dtype.kind in "iuf"
    if kinds.is_decimal(kind) and is_number:
        wanted = replace(wanted, dtype=own.dtype)
    return without_nulls(own) == without_nulls(wanted)
