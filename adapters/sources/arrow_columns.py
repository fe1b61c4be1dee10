"""Read Arrow types as element specs, and Arrow arrays as columns of the codec: whole columns, never value by value.

All adapters of packages that use Arrow share this. An error names the leaf; :class:`~cachelayer.builds.batches.Batch`es
are halved after an error, to name the record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.adapters.sources.arrow_types import (
    are_zoned,
    dtype_of,
    is_bytes,
    is_list,
    is_text,
    shares_values,
    within,
)
from cachelayer.errors import ElementError, InvalidTypeError
from cachelayer.records.codec import codec_for
from cachelayer.records.infer import nested_spec, spec_of_source
from cachelayer.records.leaf_codecs import leaf_codec_for
from cachelayer.records.leaf_columns import Column, FlatRows, PartRows
from cachelayer.specs import dtypes, json_text, tree
from cachelayer.specs.schema import either
from cachelayer.specs.spec import (
    ArraySpec,
    EncodedSpec,
    JsonSpec,
    LeafSpec,
    RaggedSpec,
    VideoSpec,
    describe_leaf,
    is_static,
    without_nulls,
)
from cachelayer.specs.tree import Tree
from cachelayer.specs.values import Ragged
from cachelayer.support.extras import packages_of
from cachelayer.support.memory import Ints, splits_of

with packages_of("arrow", "this needs pyarrow"):
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as kinds

_NUMBERS = frozenset(f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)) - {"float8"}
_EXACT_DIGITS = 15
"""Integers of so many digits, and powers of ten up to there, are float64 too."""
Nulls = NDArray[np.bool_] | None


@dataclass(frozen=True)
class FileLeaf:
    """A struct with the bytes and the name of a file, which is one leaf."""

    spec: LeafSpec
    read: Callable[[pa.StructArray], pa.Array]
    """Returns the bytes of each file of such structs."""


FileLeaves = Mapping[str, FileLeaf]
"""The structs that stand for files, by path."""


def spec_of(kind: pa.DataType, files: FileLeaves) -> Tree:
    """Return the spec that a type implies, found in an array of no values; None for the type of nulls."""

    def spec(path: str, lists: Lists) -> LeafSpec | None:
        if path in files and not lists.dims:
            return files[path].spec
        if isinstance(lists.values.type, pa.JsonType) and not lists.dims:
            return JsonSpec()
        kind = lists.values.type
        return None if kinds.is_null(kind) else nested_spec(dtype_of(kind, path), lists.dims, getattr(kind, "tz", None))

    return tree.map_structure(leaves_of("", Lists(pa.nulls(0, kind)), files), spec)


def with_declared(own: Tree, declared: Tree | None) -> Tree:
    """Return the spec of a schema with what a user declares in place of it; raise if that contradicts it.

    Lengths of lists, the decoding of bytes, and the dtypes of numbers may differ, and it may lack keys.
    """
    return spec_of_source("the table", own, declared, _fits)


def _fits(own: Tree, wanted: LeafSpec) -> bool:
    if isinstance(wanted, JsonSpec):
        return True
    if not isinstance(own, LeafSpec):
        return False
    if isinstance(wanted, EncodedSpec):
        return own.dtype in (bytes, str) and not own.shape
    if (
        not (own.dtype == wanted.dtype or _may_be_cast(own.dtype, wanted.dtype))
        or len(own.shape) != len(wanted.shape)
        or own.timezone != wanted.timezone
    ):
        return False
    if not isinstance(wanted, ArraySpec):
        return not wanted.shape or without_nulls(own) == without_nulls(replace(wanted, dtype=own.dtype))
    # Lists of different lengths within lists need row splits, which an ArraySpec does not have.
    return None not in wanted.shape[1:] and all(
        a is None or a == b for a, b in zip(own.shape, wanted.shape, strict=True)
    )


def _plain(array: pa.Array) -> pa.Array:
    """Return the values of an array whose type differs only in how it stores them."""
    kind = array.type
    if kinds.is_dictionary(kind):
        return _plain(array.dictionary_decode())
    if kinds.is_run_end_encoded(kind):
        return _plain(pc.run_end_decode(array))
    if isinstance(array, pa.ExtensionArray) and not isinstance(kind, pa.JsonType):
        return _plain(array.storage)
    if kinds.is_map(kind):
        return array.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
    return array


def _may_be_cast(dtype: Any, into: Any) -> bool:
    """Return whether numbers, or texts of numbers or flags, are stored in another dtype if that holds them."""
    if not isinstance(into, np.dtype):
        return False
    if dtype is str:
        return into.name in _NUMBERS or into.kind == "b"
    return into.name in _NUMBERS and isinstance(dtype, np.dtype) and dtype.kind in "iuf"


def floats_of(decimals: pa.Array) -> pa.Array:
    """Return the float64 that is nearest to each decimal, which pyarrow's own cast is not."""
    kind = decimals.type
    if kind.precision <= _EXACT_DIGITS and kind.scale >= 0:
        # A quotient of two numbers that are exact is rounded once.
        return pc.divide(_units_of(decimals).cast(pa.int64()).cast(pa.float64()), 10.0**kind.scale)
    return decimals.cast(pa.string()).cast(pa.float64())


def _units_of(decimals: pa.Array) -> pa.Array:
    """Return how many units of the last digit each decimal has, as a decimal."""
    wide = pa.decimal128
    digits = 38
    if decimals.type.bit_width > 128:
        wide = pa.decimal256
        digits = 76
    return decimals.cast(wide(digits, decimals.type.scale)).view(wide(digits, 0))


def _as_declared(path: str, values: pa.Array, dtype: np.dtype[Any]) -> pa.Array:
    """Return numbers, or texts of numbers or flags, in a dtype; an empty text is null."""
    kind = pa.from_numpy_dtype(dtype)
    if values.type == kind:
        return values
    try:
        if kinds.is_decimal(values.type) and dtype.kind in "iu":
            return _units_of(values).cast(kind)
        if is_text(values.type):
            values = pc.ascii_trim(values.cast(pa.string()), " \t")
            values = pc.if_else(pc.equal(values, ""), pa.scalar(None, pa.string()), values)
        return cast_array(values, kind)
    except pa.ArrowException as error:
        got = repr(values[0].as_py()) if len(values) == 1 else str(error)
        raise ElementError(f"a value that {dtype} holds", got[:80], path=path) from error


def plain_nbytes(array: pa.Array) -> int:
    """Return the bytes that the values of an array take once each row has its own."""
    kind = array.type
    if not any(map(shares_values, within(kind))):
        return int(array.nbytes)
    if isinstance(array, pa.ExtensionArray):
        return plain_nbytes(array.storage)
    if shares_values(kind):
        values = array.dictionary if kinds.is_dictionary(kind) else array.values
        is_string = is_text(values.type) or is_bytes(values.type)
        mean = plain_nbytes(values) // max(1, len(values))
        sizes = pc.binary_length(values).cast(pa.int64()) if is_string else pa.repeat(pa.scalar(mean), len(values))
        if kinds.is_dictionary(kind):
            sizes = sizes.take(array.indices)
        else:
            ends = array.run_ends
            sizes = pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, sizes))[array.offset :][: len(array)]
        return (pc.sum(sizes).as_py() or 0) + 4 * len(array)
    if kinds.is_struct(kind):
        return sum(map(plain_nbytes, array.flatten()))
    return plain_nbytes(_plain(array).flatten()) + 4 * len(array)


@dataclass(frozen=True, eq=False)
class Lists:
    """Values in nested lists, one outermost list for each row; without lists, one value for each row."""

    values: pa.Array
    """The values within all lists."""
    levels: tuple[Ints, ...] = ()
    """For each level of lists, outermost first, the length of each of its lists."""
    nulls: Nulls = None
    """In which rows the outermost lists, or structs around them, are null; None if no row is null."""
    dims: tuple[int | None, ...] = ()
    """For each level, the length that the type says all lists have, or None."""
    dicts: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    """In which rows structs around the lists are null, by their paths."""

    def of(self, values: pa.Array) -> Lists:
        """Return other values within the same lists."""
        return replace(self, values=values)

    def within(self, structs: pa.StructArray, path: str) -> Lists:
        """Return these values with the nulls of structs that they are fields of, which are at a path."""
        nulls = _nulls_of(structs)
        if nulls is None or self.levels or not path:
            return self
        return replace(self, nulls=either(self.nulls, nulls), dicts={**self.dicts, path: nulls})

    @property
    def row_nulls(self) -> Nulls:
        """In which rows there is no value, because it, or a struct around it, is null."""
        return self.nulls if self.levels else either(self.nulls, _nulls_of(self.values))

    @property
    def splits(self) -> Ints:
        """The start of the values of each row, and the end of the last row."""
        splits = splits_of(self.levels[0])
        for lengths in self.levels[1:]:
            splits = splits_of(lengths)[splits]
        return splits

    def unnested(self, path: str) -> Lists:
        """Return these values with one more level of lists: the values must be lists."""
        if self.levels:
            self.check_whole(path)
        nulls = self.row_nulls
        lengths = pc.fill_null(pc.list_value_length(self.values), 0).to_numpy().astype(np.int64)
        dim = self.values.type.list_size if kinds.is_fixed_size_list(self.values.type) else None
        return Lists(self.values.flatten(), (*self.levels, lengths), nulls, (*self.dims, dim), self.dicts)

    def check_whole(self, path: str) -> None:
        """Raise if a list within a list is null."""
        if self.values.null_count:
            hint = "A value in a list may be null, a list in it may not: make it empty, or declare JsonSpec()."
            raise ElementError("a list in every place of a list", "null", path=path, hint=hint)


def leaves_of(path: str, lists: Lists, files: FileLeaves, whole: Collection[str] = ()) -> Tree:
    """Return the leaves of nested values, in the structure of an element; values at ``whole`` paths are one leaf."""
    if path in whole:
        return lists
    kind = lists.values.type
    if isinstance(kind, pa.BaseExtensionType) and hasattr(kind, "shape"):
        order = getattr(kind, "permutation", None) or ()
        if list(order) != sorted(order):
            raise InvalidTypeError(f"leaf {path} has type {kind}, whose axes are permuted: store it in C order")
        arrays = leaves_of(path, lists.of(lists.values.storage), files, whole)
        return replace(arrays, dims=(*lists.dims, *kind.shape))
    lists = lists.of(_plain(lists.values))
    kind = lists.values.type
    if is_list(kind):
        return leaves_of(path, lists.unnested(path), files, whole)
    if not kinds.is_struct(kind):
        return lists
    if path in files:
        return lists.of(files[path].read(lists.values))
    names = [field.name for field in kind]
    if len(set(names)) < len(names) or (lists.levels and not names):
        reason = "two fields of one name" if names else "no fields in a list, so that its length would be lost"
        raise InvalidTypeError(f"leaf {path} has {reason}, of {names}: rename one, or leave it out")
    if (lists.levels or not names) and lists.values.null_count:
        hint = "A dict in a list, or one without keys, is never null: fill it, or declare JsonSpec()."
        raise ElementError("a struct", "null", path=path, hint=hint)
    inner = lists.within(lists.values, path)
    children = zip(names, lists.values.flatten(), strict=True)
    return {name: leaves_of(f"{path}[{name!r}]", inner.of(child), files, whole) for name, child in children}


def in_dtype_of(path: str, spec: LeafSpec, lists: Lists) -> Lists:
    """Return numbers, or texts of numbers or flags, in the dtype of their leaf, and other values as they are."""
    values = _stored(lists.values)
    dtype = spec.dtype
    if isinstance(spec, JsonSpec) or kinds.is_null(values.type) or not isinstance(dtype, np.dtype):
        return lists
    is_flag_in_text = dtype == np.dtype(bool) and is_text(values.type)
    if dtype.name not in _NUMBERS and not is_flag_in_text:
        return lists
    if is_text(values.type):
        _check_text(path, values)
    return lists.of(_as_declared(path, values, dtype))


def column_of(path: str, spec: LeafSpec, lists: Lists) -> Column:
    """Return the values of a leaf, which are in its dtype, as a column of the codec."""
    if isinstance(spec, JsonSpec):
        return _json_column(path, lists.values)
    values = _stored(lists.values)
    is_null = kinds.is_null(values.type)
    if is_text(values.type):
        _check_text(path, values)
    is_name = isinstance(spec, EncodedSpec) and is_text(values.type)
    if isinstance(spec, VideoSpec) or is_name or (is_null and not lists.levels):
        # Names of files are read, and videos indexed.
        return _column_by_value(path, spec, values.to_pylist())
    if is_null:
        values = values.cast(pa.large_binary() if isinstance(spec.dtype, type) else pa.from_numpy_dtype(spec.dtype))
    if not lists.levels:
        is_string = dtypes.is_string(spec.dtype)
        return Column((_strings(values) if is_string else _numbers(values, np.dtype(spec.dtype)),))
    # The values of a tensor lie in one list.
    levels = lists.levels if len(lists.levels) == len(spec.shape) else lists.levels[:-1]
    for depth, (dim, lengths) in enumerate(zip(spec.shape, levels, strict=False)):
        wrong = np.zeros(len(lengths), np.bool_) if dim is None else lengths != dim
        if depth == 0 and lists.nulls is not None:
            wrong &= ~lists.nulls
        if wrong.any():
            got = f"a list of {lengths[np.argmax(wrong)]} at depth {depth}"
            raise ElementError(describe_leaf(spec), got, path=path)
    if dtypes.is_string(spec.dtype):
        return Column(_string_lists(spec, _strings(values), lists), _null_values(spec, lists))
    stacked = _stacked(spec, _numbers(values, np.dtype(spec.dtype)), lists)
    return Column(leaf_codec_for(spec).encode_batch(stacked), _null_values(spec, lists))


def _null_values(spec: LeafSpec, lists: Lists) -> FlatRows | None:
    """Return which of the values in lists are null; None if none is."""
    nulls = _nulls_of(lists.values)
    if nulls is None:
        return None
    if not is_static(spec):
        return FlatRows(nulls, lists.splits)
    # Of arrays of known shape, a row that is null has its values too.
    rows = len(lists.levels[0])
    size = prod(dim or 0 for dim in spec.shape)
    every = np.zeros((rows, size), np.bool_)
    every[slice(None) if lists.nulls is None else ~lists.nulls] = nulls.reshape(-1, size)
    return FlatRows(every.reshape(-1), np.arange(rows + 1, dtype=np.int64) * size)


def _json_column(path: str, values: pa.Array) -> Column:
    """Return values as JSON; texts are JSON text."""
    values = _stored(_plain(values))
    if is_text(values.type):
        _check_text(path, values)
    items = values.to_pylist()
    if is_text(values.type):
        for row, text in enumerate(items):
            try:
                items[row] = None if text is None else json_text.value_of_any(text)
            except InvalidTypeError as error:
                hint = "Declare a str, or correct the text."
                raise ElementError("JSON text", f"{text[:60]!r}, {error}", path=path, record=row, hint=hint) from error
    return _column_by_value(path, JsonSpec(), items)


def _column_by_value(path: str, spec: LeafSpec, values: list[Any]) -> Column:
    try:
        return codec_for(spec).columns(values).leaves[0]
    except ElementError as error:
        raise error.at(path=path) from error.__cause__


def _stored(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _string_lists(spec: LeafSpec, strings: FlatRows, lists: Lists) -> tuple[PartRows, ...]:
    """Return the parts of lists of strings: their lengths, laid out like numbers, and the bytes of all strings."""
    numbers = replace(spec, dtype=np.dtype(np.uint32))
    *others, counts = leaf_codec_for(numbers).encode_batch(_stacked(numbers, strings.lengths.astype(np.uint32), lists))
    if isinstance(counts, np.ndarray):
        others = [np.tile(np.array(counts.shape[1:], np.uint32), (len(counts), 1))]
        counts = FlatRows(counts.reshape(-1), np.arange(len(counts) + 1) * prod(counts.shape[1:]))
    elif not others:
        others = [counts.lengths.astype(np.uint32).reshape(-1, 1)]
    return (*others, counts, FlatRows(strings.values, splits_of(counts.values)[counts.splits]))


def _stacked(spec: LeafSpec, flat: NDArray[Any], lists: Lists) -> NDArray[Any] | Ragged:
    """Return the values of nested lists stacked on a leading axis."""
    if None not in spec.shape:
        # A null row of known shape holds zeros.
        present = slice(None) if lists.nulls is None else ~lists.nulls
        shape = [dim or 0 for dim in spec.shape]
        rows = np.zeros((len(lists.levels[0]), *shape), flat.dtype)
        rows[present] = flat.reshape(len(rows[present]), *shape)
        return rows
    rank = spec.ragged_rank if isinstance(spec, RaggedSpec) else 0
    dtype = spec.splits_dtype if isinstance(spec, RaggedSpec) else np.int64
    splits = [splits_of(lengths) for lengths in lists.levels[: rank + 1]]
    values = flat.reshape(int(splits[-1][-1]), *spec.shape[rank + 1 :])
    return Ragged.from_nested(values, (splits[0], *(each.astype(dtype) for each in splits[1:])))


def _nulls_of(array: pa.Array) -> Nulls:
    return pc.is_null(array).to_numpy(zero_copy_only=False) if array.null_count else None


def _check_text(path: str, values: pa.Array) -> None:
    """Raise if text is not UTF-8, which could not be read again: Arrow does not check strings by itself."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid as error:
        shown = repr(pc.cast(values, pa.large_binary())[0].as_py()) if len(values) == 1 else str(error)
        hint = "Correct it, or cast the column to binary, which keeps any bytes."
        raise ElementError("text in UTF-8", shown[:80], path=path, hint=hint) from error


def _strings(array: pa.Array) -> FlatRows:
    array = pc.cast(array, pa.large_binary())
    if array.null_count:
        array = pc.fill_null(array, b"")
    _, offsets, data = array.buffers()
    splits = np.frombuffer(offsets, np.int64)[array.offset :][: len(array) + 1] if len(array) else np.zeros(1, np.int64)
    flat = np.frombuffer(data or b"", np.uint8)
    return FlatRows(flat[splits[0] : splits[-1]], splits - splits[0])


def _numbers(array: pa.Array, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the values, with zeros for nulls."""
    if dtype == np.bool_:
        flags: NDArray[Any] = pc.fill_null(array, False).to_numpy(zero_copy_only=False)
        return flags
    stored = np.dtype(f"i{array.type.bit_width // 8}") if dtype.kind in "mM" else dtype
    values = np.frombuffer(array.buffers()[1] or b"", stored)[array.offset :][: len(array)]
    nulls = _nulls_of(array)
    if nulls is not None:
        values = np.where(nulls, np.zeros((), stored), values)
    return values.astype(np.int64).view(dtype) if dtype.kind in "mM" else values


def _is_rounded(kind: pa.DataType, into: pa.DataType) -> bool:
    return bool(kinds.is_decimal(kind) and kinds.is_floating(into))


def cast_array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array in a type, if each value stays the same; only floats may be rounded to narrower ones."""
    if kinds.is_null(kind) and array.null_count == len(array):
        return pa.nulls(len(array))
    before, after = are_zoned(array.type), are_zoned(kind)
    if len(before) == len(after) and before != after:
        raise pa.ArrowInvalid("times with a time zone and times without do not mix: convert the column first")
    if _is_rounded(array.type, kind):
        array = floats_of(array)
    elif any(map(_is_rounded, within(array.type), within(kind))):
        raise pa.ArrowInvalid("leave decimals in structs and lists decimals in schema=: they are stored as floats")
    # Text that is not UTF-8 passes here: the check of all text refuses it later.
    cast = pc.cast(array, options=pc.CastOptions(kind, allow_invalid_utf8=is_bytes(array.type) and is_text(kind)))
    if kinds.is_floating(kind) and (kinds.is_floating(array.type) or is_text(array.type)):
        infinite = pc.is_inf(cast.cast(pa.float64()))
        if is_text(array.type):
            named = pc.match_substring_regex(array, "^[+-]?inf(inity)?$", ignore_case=True)
        else:
            named = pc.is_inf(array.cast(pa.float64()))
        if pc.any(pc.and_(infinite, pc.invert(named))).as_py():
            raise pa.ArrowInvalid(f"the number is too large for {kind}")
        is_zero = pc.equal(cast.cast(pa.float64()), 0.0)
        if is_text(array.type) and pc.any(is_zero).as_py():
            has_digit = pc.match_substring_regex(array, "^[^eE]*[1-9]")
            if pc.any(pc.and_(is_zero, has_digit)).as_py():
                raise pa.ArrowInvalid(f"the number is too small for {kind}, which would make it 0")
        return cast
    # A date loses the time of a moment, and a flag is any number but 0.
    may_lose = (kinds.is_boolean(kind) or kinds.is_temporal(kind)) and not is_text(array.type)
    if may_lose and not pc.all(pc.equal(pc.cast(cast, array.type), array)).as_py():
        raise pa.ArrowInvalid(f"{kind} would change the value")
    return cast
