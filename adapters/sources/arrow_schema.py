"""The Arrow types that the columns of a source had, where an element spec does not tell them.

A spec has arrays of numbers, text and bytes. The metadata of a version keep that a dict of lists was lists of dicts, a
span of time a time of day, or a text a category. Frames that are made of it have these types again.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from cachelayer.adapters.sources.arrow_columns import is_list, spec_of
from cachelayer.errors import CacheLayerError
from cachelayer.specs import tree
from cachelayer.specs.spec import without_nulls
from cachelayer.specs.tree import Tree
from cachelayer.support.extras import packages_of

with packages_of("arrow", "this needs pyarrow"):
    import pyarrow as pa
    import pyarrow.types as kinds

METADATA = "arrow_schema"
_CATEGORIES = b"cachelayer.categories"
_ALONE = (
    kinds.is_dictionary,
    kinds.is_time,
    kinds.is_map,
    kinds.is_date64,
    kinds.is_fixed_size_binary,
)


def schema_metadata(schema: pa.Schema) -> dict[str, str]:
    """Return the types of columns, for the metadata of a version: none of them if the spec says all."""
    fields = [field for field in schema if says_more(field.type)]
    return {METADATA: base64.b64encode(pa.schema(fields).serialize()).decode()} if fields else {}


def kept_fields(metadata: Mapping[str, Any], spec: Mapping[str, Tree]) -> dict[str, pa.Field]:
    """Return the fields that metadata keep, of the columns that still have the spec that their types imply."""
    serialized = metadata.get(METADATA)
    if serialized is None:
        return {}
    fields = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(serialized)))
    return {field.name: field for field in fields if field.name in spec and _implies(field, spec[field.name])}


def says_more(kind: pa.DataType) -> bool:
    """Return whether a type tells more of its values than an element spec does."""
    if isinstance(kind, pa.BaseExtensionType) or any(test(kind) for test in _ALONE):
        return True
    inner = kind
    while is_list(inner):
        inner = inner.value_type
    if inner is not kind and kinds.is_struct(inner):
        return True
    return any(says_more(kind.field(number).type) for number in range(kind.num_fields))


def with_categories(field: pa.Field, categories: Sequence[Any]) -> pa.Field:
    """Return the field of an ordered category, with its categories in their order."""
    return field.with_metadata({_CATEGORIES: json.dumps(list(categories))})


def categories_of(field: pa.Field) -> list[Any] | None:
    """Return the categories that a field keeps, in their order; None if it keeps none."""
    categories = (field.metadata or {}).get(_CATEGORIES)
    return None if categories is None else list(json.loads(categories))


def _implies(field: pa.Field, spec: Tree) -> bool:
    try:
        own = tree.leaves(spec_of(pa.struct([field]), {}))
        there = tree.leaves({field.name: spec})
    except CacheLayerError:
        return False
    return len(own) == len(there) and all(
        path == other and without_nulls(leaf) == without_nulls(wanted)
        for (path, leaf), (other, wanted) in zip(own, there, strict=True)
    )
