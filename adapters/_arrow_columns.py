"""Arrow arrays as columns of the codec, and batches as Arrow arrays: whole columns, never value by value.

What the adapters of packages that speak Arrow share.
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
from cachelayer.records.values import Nullable, Ragged
from cachelayer.user_warnings import warn

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as kinds
except ImportError as error:
    raise MissingDependencyError("this needs pyarrow: pip install 'cachelayer[arrow]'") from error

Nulls = NDArray[np.bool_] | None


def is_text(kind: pa.DataType) -> bool:
    """Whether values of a type are strings, JSON texts among them."""
    tests = (kinds.is_string, kinds.is_large_string, kinds.is_string_view)
    return isinstance(kind, pa.JsonType) or any(test(kind) for test in tests)


def is_bytes(kind: pa.DataType) -> bool:
    """Whether values of a type are bytes."""
    tests = (kinds.is_binary, kinds.is_large_binary, kinds.is_binary_view, kinds.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def is_utf8(text: str) -> bool:
    """Return whether UTF-8 can hold a text: it cannot hold half a pair of surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def dtype_of(kind: pa.DataType, path: str) -> Any:
    """The dtype of values of a type: dates since 1970, times since midnight, instants in UTC.

    Raises:
        InvalidTypeError: for types that have none, with the path of the leaf.
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
    reason = "it holds nothing but nulls" if kinds.is_null(kind) else "numpy has no such dtype"
    raise InvalidTypeError(f"leaf {path} is of Arrow's {kind}, which is not stored: {reason}; cast it to another")


def leaf_spec(dtype: Any, dims: tuple[int | None, ...]) -> LeafSpec:
    """The spec of lists within lists, of these lengths; None where lengths differ."""
    unknown = max((axis for axis, dim in enumerate(dims) if dim is None), default=0)
    if unknown == 0:
        return ArraySpec(dtype, dims)
    return RaggedSpec(dtype, ((None,) * (unknown + 1)) + dims[unknown + 1 :], ragged_rank=unknown)


@dataclass(frozen=True, eq=False)
class Lists:
    """Values in lists within lists, one outermost list a row; without lists, one value a row.

    Args:
        values: an array of no nested type.
        levels: for each level of lists, outermost first, the length of each of its lists.
        nulls: bool of shape ``[rows]``, True where the row is null; None where none is.
    """

    values: pa.Array
    levels: tuple[Ints, ...] = ()
    nulls: Nulls = None

    def unnested(self, path: str) -> Lists:
        """The same with the lists that the values are as a level more.

        Raises:
            ElementError: where a list within a list is null.
        """
        nulls = self.nulls if self.levels else nulls_of(self.values)
        if self.levels:
            self.check_whole(path)
        lengths = pc.fill_null(pc.list_value_length(self.values), 0).to_numpy().astype(np.int64)
        return Lists(self.values.flatten(), (*self.levels, lengths), nulls)

    def check_whole(self, path: str) -> None:
        """Raise where a value within a list is null."""
        nulls = nulls_of(self.values)
        if nulls is not None:
            place = int(np.argmax(nulls))
            raise ElementError(
                "values in every place of a list",
                "null",
                path=path,
                record=self.row_of(place, len(self.levels)),
                hint="A leaf may be null as a whole only.",
            )

    def row_of(self, place: int, depth: int) -> int:
        """The row in which the list or value at a place of a level lies."""
        for lengths in self.levels[:depth][::-1]:
            place = int(np.searchsorted(splits_of(lengths), place, side="right")) - 1
        return place


def nulls_of(array: pa.Array) -> Nulls:
    """Where an array is null; None where it never is."""
    if not array.null_count:
        return None
    nulls: NDArray[np.bool_] = pc.is_null(array).to_numpy(zero_copy_only=False)
    return nulls


def check_structs(path: str, lists: Lists) -> None:
    """Raise for a null struct: elements have no null dict, and one of nulls is another value."""
    nulls = nulls_of(lists.values)
    if nulls is not None:
        record = lists.row_of(int(np.argmax(nulls)), len(lists.levels))
        hint = "A dict is never null, its leaves may be: fill it, or make columns of its fields."
        raise ElementError("a struct", "null", path=path, record=record, hint=hint)


def column(path: str, spec: LeafSpec, lists: Lists) -> Column:
    """The column that the codec makes of these values.

    Raises:
        ElementError: if lengths are not those of the spec, a value within a list is null, or text is no UTF-8.
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
    """Raise for text that could not be read again: Arrow checks no strings by itself."""
    values = _storage(lists.values)
    if not is_text(values.type):
        return
    try:
        values.validate(full=True)
    except pa.ArrowInvalid as error:
        place, found = _first_that_is_no_text(values)
        record = lists.row_of(place, len(lists.levels))
        hint = "Mend it, or cast the column to binary, which keeps any bytes."
        raise ElementError("text in UTF-8", found or str(error), path=path, record=record, hint=hint) from error


def _first_that_is_no_text(values: pa.Array) -> tuple[int, str]:
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
    """Strings are kept as their lengths, laid out as numbers are, and the bytes of all."""
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
    """The values, with zeros for nulls."""
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


def arrow_type(dtype: Any) -> pa.DataType:
    """Return the type of values of a dtype.

    Raises:
        pyarrow.ArrowException: if Arrow has none.
    """
    if not isinstance(dtype, np.dtype):
        return pa.string() if dtype is str else pa.binary()
    if dtype.kind in "SU":
        return pa.string() if dtype.kind == "U" else pa.binary()
    if dtype.kind in "mM" and np.datetime_data(dtype)[1] != 1:
        # pyarrow would take 10 seconds for one.
        raise pa.ArrowNotImplementedError(f"no type counts times as {dtype} does")
    return pa.date32() if dtype == np.dtype("M8[D]") else pa.from_numpy_dtype(dtype)


def arrow_array(kind: pa.DataType, values: Any, path: str = "", *, keep_nat: bool = False) -> pa.Array:
    """Return leaves stacked on a leading axis as an Arrow array.

    Args:
        kind: the type: of values, or of lists within lists of them.
        values: an array, a :class:`cachelayer.Ragged` or a :class:`cachelayer.Nullable` of one.
        path: of the leaf.
        keep_nat: if NaT stays the number that numpy has for it; only :func:`column` understands it. By default it
            becomes null, with a warning.

    Raises:
        InvalidTypeError: for values that Arrow has no place for, such as text that is no UTF-8.
    """
    nulls = None
    if isinstance(values, Nullable):
        values, nulls = values.values, ~values.valid
    flat, splits = _levels(values)
    if flat.dtype.kind in "mM" and not keep_nat:
        _warn_of_nat(flat, nulls if not splits else None, path)
    if isinstance(values, Ragged) and values.row_shapes is not None:
        _warn_of_lost_shapes(values.row_shapes, path)
    leaf = _Leaf(path, keep_nat)
    try:
        return _nested(kind, flat, splits, nulls, leaf)
    except (pa.ArrowException, OverflowError) as error:
        raise InvalidTypeError(
            f"leaf {path} holds values that Arrow's {kind} cannot: read it with ref.read(), or store another dtype"
        ) from error


@dataclass(frozen=True)
class _Leaf:
    path: str
    keep_nat: bool


def _warn_of_nat(values: NDArray[Any], nulls: Nulls, path: str) -> None:
    missing = np.isnat(values)
    if nulls is not None:
        missing &= ~nulls
    if missing.any():
        warn(f"leaf {path} holds NaT, which Arrow does not have: it becomes null")


def _warn_of_lost_shapes(shapes: NDArray[Any], path: str) -> None:
    empty = np.cumsum(shapes == 0, axis=1) > 0
    lost = (empty[:, :-1] & (shapes[:, 1:] > 0)).any(axis=1)
    if lost.any():
        shape = shapes[int(np.argmax(lost))].tolist()
        warn(f"leaf {path} holds an array of shape {shape}: lists keep no dimension after one of length 0")


def _levels(values: Any) -> tuple[NDArray[Any], list[Ints]]:
    """The innermost values, one-dimensional, and the splits of each level of lists, outermost first."""
    splits: list[Any] = []
    if isinstance(values, Ragged):
        splits, values = list(values.nested_row_splits), values.flat_values
    count = len(values)
    for dim in values.shape[1:]:
        splits.append(np.arange(count + 1, dtype=np.int64) * dim)
        count *= dim
    return values.reshape(-1), splits


def _nested(kind: pa.DataType, values: NDArray[Any], splits: list[Ints], nulls: Nulls, leaf: _Leaf) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _nested(kind.storage_type, values, splits, nulls, leaf))
    if not splits:
        return _flat_array(kind, values, nulls, leaf)
    inner = _nested(kind.value_type, values, splits[1:], None, leaf)
    mask = None if nulls is None else pa.array(nulls)
    if kinds.is_fixed_size_list(kind):
        if kind.list_size == 0:
            # pyarrow's from_arrays() divides by the size, which ends the process.
            valid = None if nulls is None else pa.array(~nulls).buffers()[1]
            return pa.Array.from_buffers(kind, len(splits[0]) - 1, [valid], children=[inner])
        if nulls is not None:
            # A list of fixed size has its places even where it is null.
            places = splits[0][:-1, None] + np.arange(kind.list_size)
            inner = inner.take(pa.array(places.reshape(-1), mask=nulls.repeat(kind.list_size)))
        return pa.FixedSizeListArray.from_arrays(inner, type=kind, mask=mask)
    cls = pa.LargeListArray if kinds.is_large_list(kind) else pa.ListArray
    offsets = pa.array(splits[0], pa.int64() if kinds.is_large_list(kind) else pa.int32())
    return cls.from_arrays(offsets, inner, type=kind, mask=mask)


def _flat_array(kind: pa.DataType, values: NDArray[Any], nulls: Nulls, leaf: _Leaf) -> pa.Array:
    if values.dtype.kind in "mM":
        return _times(kind, values, nulls, leaf)
    try:
        return pa.array(values, kind, mask=nulls)
    except UnicodeEncodeError as error:
        said = f"leaf {leaf.path} holds text that is no UTF-8, which Arrow's strings are: {ascii(error.object)[:60]}"
        raise InvalidTypeError(f"{said}. Read it with ref.read()") from error


def _times(kind: pa.DataType, values: NDArray[Any], nulls: Nulls, leaf: _Leaf) -> pa.Array:
    if not leaf.keep_nat:
        nulls = np.isnat(values) if nulls is None else nulls | np.isnat(values)
    counts = pa.array(values.view(np.int64), pa.int64(), mask=nulls)
    own = arrow_type(values.dtype)
    if type(own) is type(kind) and own.bit_width == 64 and own.unit != kind.unit:
        # Cast, and not multiplied by hand, so that what does not fit is an error.
        unit = pa.timestamp(kind.unit) if kinds.is_timestamp(kind) else pa.duration(kind.unit)
        counts = pc.cast(counts.view(own), unit).view(pa.int64())
    return (pc.cast(counts, pa.int32()) if kind.bit_width == 32 else counts).view(kind)
