"""Convert Arrow arrays to columns of the codec: whole columns, never value by value.

All adapters of packages that use Arrow share this.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import ElementError, InvalidTypeError, MissingDependencyError
from cachelayer.records import dtypes
from cachelayer.records.column import Column, Flat
from cachelayer.records.leaf_codecs import DenseLeaf
from cachelayer.records.memory import Ints, splits_of
from cachelayer.records.ragged_sparse_codecs import RaggedLeaf
from cachelayer.records.spec import ArraySpec, LeafSpec, RaggedSpec

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as kinds
except ImportError as error:
    raise MissingDependencyError("this needs pyarrow: pip install 'cachelayer[arrow]'") from error

Nulls = NDArray[np.bool_] | None


def is_text(kind: pa.DataType) -> bool:
    """Return whether the values of a type are strings, which includes JSON texts."""
    tests = (kinds.is_string, kinds.is_large_string, kinds.is_string_view)
    return isinstance(kind, pa.JsonType) or any(test(kind) for test in tests)


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether the values of a type are bytes."""
    tests = (kinds.is_binary, kinds.is_large_binary, kinds.is_binary_view, kinds.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def is_utf8(text: str) -> bool:
    """Return whether UTF-8 can encode a text: it cannot encode a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def dtype_of(kind: pa.DataType, path: str) -> Any:
    """Return the dtype of the values of a type: dates since 1970, times since midnight, instants in UTC.

    Raises:
        InvalidTypeError: if no dtype stands for the type; names the path of the leaf.
    """
    if is_text(kind):
        return str
    if is_bytes(kind):
        return bytes
    if kinds.is_date(kind):
        return np.dtype("M8[D]" if kinds.is_date32(kind) else "M8[ms]")
    if kinds.is_timestamp(kind):
        return np.dtype(f"M8[{kind.unit}]")
    if kinds.is_duration(kind) or kinds.is_time(kind):
        return np.dtype(f"m8[{kind.unit}]")
    if kinds.is_boolean(kind) or kinds.is_integer(kind) or kinds.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype())
    reason = "it holds only nulls" if kinds.is_null(kind) else "numpy has no such dtype"
    raise InvalidTypeError(f"leaf {path} has Arrow's type {kind}, which is not stored: {reason}; cast it to another")


def leaf_spec(dtype: Any, dims: tuple[int | None, ...]) -> LeafSpec:
    """Return the spec of nested lists. ``dims`` has the length of the lists at each level, None if lengths differ."""
    unknown = max((axis for axis, dim in enumerate(dims) if dim is None), default=0)
    if unknown == 0:
        return ArraySpec(dtype, dims)
    return RaggedSpec(dtype, ((None,) * (unknown + 1)) + dims[unknown + 1 :], ragged_rank=unknown)


@dataclass(frozen=True, eq=False)
class Lists:
    """Values in nested lists, one outermost list for each row; without lists, one value for each row.

    Args:
        values: an array whose type is not nested.
        levels: for each level of lists, outermost first, the length of each of its lists.
        nulls: bool of shape ``[rows]``, True for rows that are null; None if no row is null.
    """

    values: pa.Array
    levels: tuple[Ints, ...] = ()
    nulls: Nulls = None

    def unnested(self, path: str) -> Lists:
        """Return these values with one more level of lists: the values must be lists.

        Raises:
            ElementError: if a list within a list is null.
        """
        nulls = self.nulls if self.levels else nulls_of(self.values)
        if self.levels:
            self.check_whole(path)
        lengths = pc.fill_null(pc.list_value_length(self.values), 0).to_numpy().astype(np.int64)
        return Lists(self.values.flatten(), (*self.levels, lengths), nulls)

    def check_whole(self, path: str) -> None:
        """Raise if a value within a list is null."""
        nulls = nulls_of(self.values)
        if nulls is not None:
            place = int(np.argmax(nulls))
            raise ElementError(
                "values in every place of a list",
                "null",
                path=path,
                record=self.row_of(place, len(self.levels)),
                hint="Only a whole leaf may be null.",
            )

    def row_of(self, place: int, depth: int) -> int:
        """Return the row that holds the list or value at a place of a level."""
        for lengths in self.levels[:depth][::-1]:
            place = int(np.searchsorted(splits_of(lengths), place, side="right")) - 1
        return place


def nulls_of(array: pa.Array) -> Nulls:
    """Return a mask of the nulls of an array; None if it has no null."""
    if not array.null_count:
        return None
    nulls: NDArray[np.bool_] = pc.is_null(array).to_numpy(zero_copy_only=False)
    return nulls


def check_structs(path: str, lists: Lists) -> None:
    """Raise if a struct is null: an element has no null dict, and a dict of nulls would be another value."""
    nulls = nulls_of(lists.values)
    if nulls is not None:
        record = lists.row_of(int(np.argmax(nulls)), len(lists.levels))
        hint = "A dict is never null, but its leaves may be: fill it, or make a column of each field."
        raise ElementError("a struct", "null", path=path, record=record, hint=hint)


def column(path: str, spec: LeafSpec, lists: Lists) -> Column:
    """Return these values as a column of the codec.

    Raises:
        ElementError: if a length differs from the spec, a value within a list is null, or text is not UTF-8.
    """
    _check_text(path, lists)
    if not lists.levels:
        nulls = nulls_of(lists.values)
        if dtypes.is_string(spec.dtype):
            return Column((), (_strings(lists.values),), nulls)
        return Column((_numbers(lists.values, np.dtype(spec.dtype)),), (), nulls)
    lists.check_whole(path)
    _check_lengths(path, spec, lists)
    made = _string_lists(spec, lists) if dtypes.is_string(spec.dtype) else _number_lists(spec, lists)
    return Column(made.fixed, made.variable, lists.nulls)


def _check_text(path: str, lists: Lists) -> None:
    """Raise if text is not UTF-8, which could not be read again: Arrow does not check strings by itself."""
    values = _storage(lists.values)
    if not is_text(values.type):
        return
    try:
        values.validate(full=True)
    except pa.ArrowInvalid as error:
        place, shown = _first_invalid_text(values)
        record = lists.row_of(place, len(lists.levels))
        hint = "Correct it, or cast the column to binary, which keeps any bytes."
        raise ElementError("text in UTF-8", shown or str(error), path=path, record=record, hint=hint) from error


def _first_invalid_text(values: pa.Array) -> tuple[int, str]:
    for place, raw in enumerate(pc.cast(values, pa.large_binary()).to_pylist()):
        try:
            (raw or b"").decode()
        except UnicodeDecodeError:
            return place, f"{raw[:40]!r}" + (f" ... of {len(raw)} bytes" if len(raw) > 40 else "")
    return 0, ""


def _check_lengths(path: str, spec: LeafSpec, lists: Lists) -> None:
    for depth, (dim, lengths) in enumerate(zip(spec.shape, lists.levels, strict=True)):
        wrong = lengths != dim if dim is not None else np.zeros(len(lengths), np.bool_)
        if depth == 0 and lists.nulls is not None:
            wrong = wrong & ~lists.nulls
        if wrong.any():
            place = int(np.argmax(wrong))
            got = f"a list of {lengths[place]} at depth {depth}"
            raise ElementError(spec.describe(), got, path=path, record=lists.row_of(place, depth))


def _number_lists(spec: LeafSpec, lists: Lists) -> Column:
    return _ragged(spec, lists) if isinstance(spec, RaggedSpec) else _dense(spec, lists)


def _string_lists(spec: LeafSpec, lists: Lists) -> Column:
    """Return a column of strings: their lengths, laid out like numbers, and the bytes of all strings."""
    strings = _strings(lists.values)
    numbers = replace(spec, dtype=np.dtype(np.uint32))
    made = _number_lists(numbers, replace(lists, values=pa.array(strings.lengths.astype(np.uint32))))
    if numbers.is_static:
        lengths = made.fixed[0]
        made = Column((), (Flat(lengths.reshape(-1), np.arange(len(lengths) + 1) * prod(lengths.shape[1:])),))
    counts = made.variable[-1]
    return Column(made.fixed, (*made.variable, Flat(strings.values, splits_of(counts.values)[counts.splits])))


def _dense(spec: LeafSpec, lists: Lists) -> Column:
    lengths, inner = lists.levels[0], [dim or 0 for dim in spec.shape[1:]]
    rows, values = len(lengths), _numbers(lists.values, np.dtype(spec.dtype))
    if spec.shape[0] is not None and lists.nulls is not None:
        # A null row of known shape holds zeros, or empty strings.
        filled = np.zeros((rows, prod(dim or 0 for dim in spec.shape)), values.dtype)
        filled[~lists.nulls] = values.reshape(np.count_nonzero(~lists.nulls), filled.shape[1])
        values, lengths = filled.reshape(-1), np.full(rows, spec.shape[0])
    if spec.is_static:
        return Column((values.reshape(rows, *spec.shape),))
    shapes = np.column_stack([lengths, np.tile(np.array(inner, np.int64), (rows, 1))])
    return DenseLeaf(spec).from_parts(shapes, Flat(values, splits_of(lengths * prod(inner))))


def _ragged(spec: RaggedSpec, lists: Lists) -> Column:
    splits, levels = splits_of(lists.levels[0]), []
    for depth, lengths in enumerate(lists.levels[1:], start=1):
        if depth <= spec.ragged_rank:
            levels.append(Flat(lengths, splits))
        splits = splits_of(lengths)[splits]
    inner = np.array(spec.shape[spec.ragged_rank + 1 :], np.int64)
    rows = np.broadcast_to(inner, (len(lists.levels[0]), len(inner)))
    values = _numbers(lists.values, np.dtype(spec.dtype))
    return RaggedLeaf(spec).from_parts(levels, rows, Flat(values, splits))


def _storage(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _strings(array: pa.Array) -> Flat:
    array = pc.cast(_storage(array), pa.large_binary())
    if array.null_count:
        array = pc.fill_null(array, b"")
    _, offsets, data = array.buffers()
    splits = np.frombuffer(offsets, np.int64)[array.offset :][: len(array) + 1] if len(array) else np.zeros(1, np.int64)
    flat = np.frombuffer(data or b"", np.uint8)
    return Flat(flat[splits[0] : splits[-1]], splits - splits[0])


def _numbers(array: pa.Array, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the values, with zeros for nulls."""
    if dtype == np.bool_:
        flags: NDArray[Any] = pc.fill_null(array, False).to_numpy(zero_copy_only=False)
        return flags
    if dtype.kind in "mM":
        stored = np.dtype(f"i{array.type.bit_width // 8}")
        return _buffer(array, stored).astype(np.int64).view(dtype)
    return _buffer(array, dtype)


def _buffer(array: pa.Array, dtype: np.dtype[Any]) -> NDArray[Any]:
    values = np.frombuffer(array.buffers()[1] or b"", dtype)[array.offset :][: len(array)]
    nulls = nulls_of(array)
    if nulls is not None:
        values = values.copy()
        values[nulls] = 0
    return values
