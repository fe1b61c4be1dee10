"""Records as an Arrow table, and the Arrow types of element specs: what the adapters of frames share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from cachelayer.access.view import View
from cachelayer.adapters._arrow_columns import arrow_array, arrow_type
from cachelayer.adapters._handed import check_ref
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
    """Read records as columns; all of them if ``indices`` is None. Images and sounds stay files' bytes.

    Returns:
        For each column its spec, its Arrow type and its values stacked; and the number of rows.

    Raises:
        InvalidTypeError: if elements are no dicts, or for a leaf that Arrow has no type for.
        RecordIndexError: if there is no such record.
    """
    check_ref(ref)
    stored = records_of(ref).stored()
    raw = records_of(ref if stored is None else stored)
    spec = raw.element_spec
    if not isinstance(spec, dict) or not spec:
        described = tree.describe(spec) if spec else "dicts without keys"
        raise InvalidTypeError(f"the elements are {described}: a frame is made of dicts, one column a key")
    types = {name: _type(leaf, f"[{name!r}]") for name, leaf in spec.items()}
    rows = record_numbers(slice(None) if indices is None else indices, len(raw))
    batch = raw.read(rows)
    return {name: (spec[name], kind, batch[name]) for name, kind in types.items()}, len(rows)


def column_array(kind: pa.DataType, spec: Tree, values: Any, rows: int, path: str) -> pa.Array:
    """Return the values of a column as an array of a type, which is that of its spec or one like it.

    Raises:
        InvalidTypeError: for values that Arrow has no place for.
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
    """Return the parts of a dict, or of a named tuple, by their names."""
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
    unfit = InvalidTypeError(f"leaf {path}: Arrow has no {spec.describe()}: read it with ref.read()")
    if isinstance(spec, SparseSpec) or None in inner:
        raise unfit
    try:
        kind = arrow_type(spec.dtype)
    except pa.ArrowException as error:
        raise unfit from error
    for dim in reversed(spec.shape):
        kind = pa.list_(kind, -1 if dim is None else dim)
    return kind
