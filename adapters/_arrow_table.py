"""Read records as Arrow columns, and give element specs Arrow types: all adapters of data frames share this."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from cachelayer.access.view import View
from cachelayer.adapters._arrow_arrays import arrow_array, arrow_type
from cachelayer.adapters._stream_or_ref import check_ref
from cachelayer.errors import InvalidTypeError, MissingDependencyError
from cachelayer.protocols import records_of
from cachelayer.records import tree
from cachelayer.records.spec import LeafSpec, RaggedSpec, SparseSpec
from cachelayer.records.tree import Tree
from cachelayer.records.user_indices import record_numbers

try:
    import pyarrow as pa
except ImportError as error:
    raise MissingDependencyError("this needs pyarrow: pip install 'cachelayer[arrow]'") from error


def read_columns(
    ref: View[Any], indices: Sequence[int] | NDArray[Any] | None
) -> tuple[dict[str, tuple[Tree, pa.DataType, Any]], int]:
    """Read records as columns; all records if ``indices`` is None. Images and sounds stay the bytes of their files.

    Returns:
        The spec, the Arrow type and the stacked values of each column; and the number of rows.

    Raises:
        InvalidTypeError: if elements are not dicts, or if Arrow has no type for a leaf.
        RecordIndexError: if a record does not exist.
    """
    check_ref(ref)
    stored = records_of(ref).stored()
    raw = records_of(ref if stored is None else stored)
    spec = raw.element_spec
    if not isinstance(spec, dict) or not spec:
        described = tree.describe(spec) if spec else "dicts without keys"
        raise InvalidTypeError(f"the elements are {described}: a frame needs dicts, one column for each key")
    types = {name: _type(leaf, f"[{name!r}]") for name, leaf in spec.items()}
    rows = record_numbers(slice(None) if indices is None else indices, len(raw))
    batch = raw.read(rows)
    return {name: (spec[name], kind, batch[name]) for name, kind in types.items()}, len(rows)


def column_array(kind: pa.DataType, spec: Tree, values: Any, rows: int, path: str) -> pa.Array:
    """Return the values of a column as an Arrow array of a type that fits its spec.

    Raises:
        InvalidTypeError: if Arrow cannot hold a value.
    """
    if spec is None:
        return pa.nulls(rows)
    if isinstance(spec, LeafSpec):
        return arrow_array(kind, values, path)
    parts = zip(kind, fields_of(spec).values(), fields_of(values).values(), strict=True)
    arrays = [column_array(field.type, child, part, rows, f"{path}[{field.name!r}]") for field, child, part in parts]
    if not arrays:
        return pa.StructArray.from_buffers(kind, rows, [None])
    return pa.StructArray.from_arrays(arrays, fields=list(kind))


def fields_of(value: Any) -> dict[str, Any]:
    """Return the values of a dict or a named tuple by their names."""
    return value if isinstance(value, dict) else value._asdict()


def _type(spec: Tree, path: str) -> pa.DataType:
    if spec is None:
        return pa.null()
    if isinstance(spec, LeafSpec):
        return _leaf_type(spec, path)
    if isinstance(spec, dict) or tree.is_namedtuple(spec):
        return pa.struct([(name, _type(child, f"{path}[{name!r}]")) for name, child in fields_of(spec).items()])
    raise InvalidTypeError(f"leaf {path} is {tree.describe(spec)}: a column holds values, lists or dicts")


def _leaf_type(spec: LeafSpec, path: str) -> pa.DataType:
    inner = spec.shape[spec.ragged_rank + 1 :] if isinstance(spec, RaggedSpec) else ()
    unfit = InvalidTypeError(f"leaf {path}: Arrow has no type for {spec.describe()}: read it with ref.read()")
    if isinstance(spec, SparseSpec) or None in inner:
        raise unfit
    try:
        kind = arrow_type(spec.dtype)
    except pa.ArrowException as error:
        raise unfit from error
    for dim in reversed(spec.shape):
        kind = pa.list_(kind, -1 if dim is None else dim)
    return kind
