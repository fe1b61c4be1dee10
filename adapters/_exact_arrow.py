"""Cast Arrow arrays to types that hold exactly the same values, or raise."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds


class NotExactError(Exception):
    """The type cannot hold the values; the message says why."""


def exactly(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast an array to a type; values and nulls stay the same.

    Numbers may become wider or narrower, and integers may become floats, if no value changes. Nulls fit any type. The
    fields of structs may come in any order; missing fields become null.

    Raises:
        NotExactError: if the type cannot hold the values.
    """
    own = array.type
    if own == kind:
        return array
    if kinds.is_null(own):
        return pa.nulls(len(array), kind)
    if kinds.is_struct(own) and kinds.is_struct(kind):
        return _struct(array, kind)
    if kinds.is_list(own) and kinds.is_list(kind):
        inner = exactly(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, inner, type=kind, mask=pc.is_null(array))
    if not _may_hold(own, kind):
        raise NotExactError(f"{own} is not {kind}")
    try:
        cast = pc.cast(array, kind, safe=True)
    except pa.ArrowException as error:
        raise NotExactError(str(error)) from error
    if kinds.is_floating(own) and not pc.all(_same(array, pc.cast(cast, own))).as_py():
        raise NotExactError(f"{kind} cannot hold every value of {own}")
    return cast


def _may_hold(own: pa.DataType, kind: pa.DataType) -> bool:
    if kinds.is_timestamp(own) and kinds.is_timestamp(kind):
        return bool(own.tz == kind.tz)
    if kinds.is_integer(own):
        return bool(kinds.is_integer(kind) or kinds.is_floating(kind))
    return any(is_kind(own) and is_kind(kind) for is_kind in (kinds.is_floating, kinds.is_duration))


def _same(one: pa.Array, other: pa.Array) -> pa.Array:
    return pc.or_(pc.equal(one, other), pc.is_nan(one))


def _struct(array: pa.Array, kind: pa.DataType) -> pa.Array:
    parts = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
    more = parts.keys() - {field.name for field in kind}
    if more:
        raise NotExactError(f"there is no field {sorted(more)[0]!r} in {kind}")
    children = [exactly(parts.get(field.name, pa.nulls(len(array))), field.type) for field in kind]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=pc.is_null(array))
