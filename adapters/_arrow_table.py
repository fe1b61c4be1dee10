"""Records as an Arrow table: what the adapters of frames hand out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.dataref import DataRef
from cachelayer.access.numbers import record_numbers
from cachelayer.access.view import View
from cachelayer.adapters._arrow_columns import arrow_array
from cachelayer.adapters._handed import check_ref
from cachelayer.elements import tree
from cachelayer.elements.spec import LeafSpec, RaggedSpec, SparseSpec
from cachelayer.elements.tree import Tree
from cachelayer.errors import InvalidTypeError, MissingDependencyError

try:
    import pyarrow as pa
except ImportError as error:
    raise MissingDependencyError("this needs pyarrow: pip install 'cachelayer[arrow]'") from error


def read_table(ref: View[Any], indices: Sequence[int] | NDArray[Any] | None) -> pa.Table:
    """Records as the rows of a table; all of them where ``indices`` is None. Images and sounds stay files' bytes.

    Raises:
        InvalidTypeError: where elements are no dicts, or for a leaf that Arrow has no type for.
        RecordIndexError: where there is no such record.
    """
    check_ref(ref)
    raw = ref.raw() if isinstance(ref, DataRef) else ref
    spec = raw.element_spec
    if not isinstance(spec, dict):
        raise InvalidTypeError(f"the elements are {tree.describe(spec)}: a frame is made of dicts, one column a key")
    kinds = {name: _type(leaf, f"[{name!r}]") for name, leaf in spec.items()}
    rows = record_numbers(slice(None) if indices is None else indices, len(raw))
    batch = raw.read(rows)
    return pa.table({name: _array(kind, spec[name], batch[name], len(rows)) for name, kind in kinds.items()})


def _type(spec: Tree, path: str) -> pa.DataType:
    if spec is None:
        return pa.null()
    if isinstance(spec, LeafSpec):
        return _leaf_type(spec, path)
    if isinstance(spec, dict) or tree.is_namedtuple(spec):
        return pa.struct([(name, _type(child, f"{path}[{name!r}]")) for name, child in _fields(spec).items()])
    raise InvalidTypeError(f"leaf {path} is {tree.describe(spec)}: a column holds values, lists or dicts")


def _leaf_type(spec: LeafSpec, path: str) -> pa.DataType:
    inner = spec.shape[spec.ragged_rank + 1 :] if isinstance(spec, RaggedSpec) else ()
    unfit = InvalidTypeError(f"leaf {path}: Arrow has no {spec.describe()}: read it with ref.read()")
    if isinstance(spec, SparseSpec) or None in inner:
        raise unfit
    try:
        kind = _value_type(spec.dtype)
    except pa.ArrowException as error:
        raise unfit from error
    for dim in reversed(spec.shape):
        kind = pa.list_(kind, -1 if dim is None else dim)
    return kind


def _value_type(dtype: Any) -> pa.DataType:
    if not isinstance(dtype, np.dtype):
        return pa.string() if dtype is str else pa.binary()
    if dtype.kind in "SU":
        return pa.string() if dtype.kind == "U" else pa.binary()
    return pa.date32() if dtype == np.dtype("M8[D]") else pa.from_numpy_dtype(dtype)


def _array(kind: pa.DataType, spec: Tree, values: Any, rows: int) -> pa.Array:
    if spec is None:
        return pa.nulls(rows)
    if isinstance(spec, LeafSpec):
        return arrow_array(kind, values)
    parts = zip(kind, _fields(spec).values(), _fields(values).values(), strict=True)
    arrays = [_array(field.type, child, part, rows) for field, child, part in parts]
    return pa.StructArray.from_arrays(arrays, fields=list(kind))


def _fields(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else value._asdict()
