"""Arrow's types: what holds text, bytes or lists, what lies within a type, and which stands for a dtype or a spec."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from cachelayer.errors import InvalidTypeError
from cachelayer.specs import tree
from cachelayer.specs.spec import JsonSpec, LeafSpec, RaggedSpec, SparseSpec, describe_leaf
from cachelayer.specs.tree import Tree
from cachelayer.support.extras import packages_of

with packages_of("arrow", "this needs pyarrow"):
    import pyarrow as pa
    import pyarrow.types as kinds


def is_text(kind: pa.DataType) -> bool:
    """Return whether the values of a type are strings, which includes JSON texts."""
    tests = (kinds.is_string, kinds.is_large_string, kinds.is_string_view)
    return isinstance(kind, pa.JsonType) or any(test(kind) for test in tests)


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether the values of a type are bytes."""
    tests = (kinds.is_binary, kinds.is_large_binary, kinds.is_binary_view, kinds.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def is_list(kind: pa.DataType) -> bool:
    """Return whether the values of a type are lists of any kind."""
    tests = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list, kinds.is_list_view, kinds.is_large_list_view)
    return any(test(kind) for test in tests)


def shares_values(kind: pa.DataType) -> bool:
    """Return whether a value of an array of a type may be that of many rows."""
    return bool(kinds.is_dictionary(kind) or kinds.is_run_end_encoded(kind))


def within(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield a type and all types within it."""
    yield kind
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    if isinstance(kind, pa.BaseExtensionType):
        inner = [kind.storage_type]
    elif kinds.is_dictionary(kind):
        inner = [kind.value_type]
    for each in inner:
        yield from within(each)


def changed(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type in which others stand in place of the types in its lists and structs, and of itself at last."""
    if kinds.is_struct(kind):
        kind = pa.struct([field.with_type(changed(field.type, change)) for field in kind])
    elif is_list(kind):
        field = kind.value_field.with_type(changed(kind.value_type, change))
        is_large = kinds.is_large_list(kind) or kinds.is_large_list_view(kind)
        size = kind.list_size if kinds.is_fixed_size_list(kind) else -1
        kind = pa.large_list(field) if is_large else pa.list_(field, size)
    return change(kind)


def as_stored(kind: pa.DataType) -> pa.DataType:
    """Return the type of the same layout that has lists of structs for maps, and what extension types store."""
    if isinstance(kind, pa.BaseExtensionType):
        return as_stored(kind.storage_type)
    if kinds.is_map(kind):
        return changed(pa.list_(pa.struct([kind.key_field, kind.item_field])), as_stored)
    return kind


def are_zoned(kind: pa.DataType) -> list[bool]:
    """Return for each timestamp in a type whether it has a time zone."""
    return [each.tz is not None for each in within(kind) if kinds.is_timestamp(each)]


def dtype_of(kind: pa.DataType, path: str) -> Any:
    """Return the dtype of the values of a type: dates since 1970, times since midnight, instants in UTC; floats for
    decimals.
    """
    if is_text(kind) or is_bytes(kind):
        return str if is_text(kind) else bytes
    if kinds.is_date(kind):
        return np.dtype("M8[D]" if kinds.is_date32(kind) else "M8[ms]")
    if kinds.is_timestamp(kind):
        return np.dtype(f"M8[{kind.unit}]")
    if kinds.is_duration(kind) or kinds.is_time(kind):
        return np.dtype(f"m8[{kind.unit}]")
    if kinds.is_decimal(kind):
        return np.dtype(np.float64)
    if kinds.is_boolean(kind) or kinds.is_integer(kind) or kinds.is_floating(kind):
        # to_pandas_dtype() imports pandas.
        return pa.array([], kind).to_numpy(zero_copy_only=False).dtype
    reason = "it holds only nulls" if kinds.is_null(kind) else "numpy has no such dtype"
    raise InvalidTypeError(f"leaf {path} has Arrow's type {kind}, which is not stored: {reason}; cast it to another")


def type_of_dtype(dtype: Any) -> pa.DataType | None:
    """Return the type of the values of a dtype; None if Arrow has none."""
    if not isinstance(dtype, np.dtype) or dtype.kind in "SU":
        return pa.string() if dtype is str or getattr(dtype, "kind", "") == "U" else pa.binary()
    if dtype.kind in "mM" and np.datetime_data(dtype)[1] != 1:
        # pyarrow would read a unit of 10 seconds as one second.
        return None
    try:
        return pa.date32() if dtype == np.dtype("M8[D]") else pa.from_numpy_dtype(dtype)
    except pa.ArrowException:
        return None


def type_of(spec: Tree, path: str) -> pa.DataType:
    """Return the type of what an element spec describes."""
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
    kind = None if isinstance(spec, SparseSpec) or None in inner else type_of_dtype(spec.dtype)
    if kind is None:
        raise InvalidTypeError(f"leaf {path}: Arrow has no type for {describe_leaf(spec)}: read it with ref.read()")
    kind = kind if spec.timezone is None else pa.timestamp(kind.unit, spec.timezone)
    for dim in reversed(spec.shape):
        kind = pa.list_(kind, -1 if dim is None else dim)
    return kind
