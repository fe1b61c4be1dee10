"""Rows of Python values, as JSON, generators and frames of objects hold them: dicts whose lists become arrays.

The first rows decide the element spec; after that the codec stores a value exactly, or refuses it by its leaf.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from cachelayer.adapters.sources.pictures import bytes_of, is_picture
from cachelayer.builds.batches import BATCH_NBYTES
from cachelayer.builds.iterable_source import errors_named, failure_at
from cachelayer.errors import ElementError, InvalidTypeError
from cachelayer.records import tree
from cachelayer.records.codec import codec_for
from cachelayer.records.infer import approximate_nbytes, as_leaf, from_element
from cachelayer.records.spec import ArraySpec, ImageSpec, LeafSpec, RaggedSpec
from cachelayer.records.tree import Tree
from cachelayer.records.values import Ragged

FIRST_ROWS = 256
_QUICK: dict[Any, type] = {
    np.dtype(np.int64): int,
    np.dtype(np.int32): int,
    np.dtype(np.float64): float,
    np.dtype(np.bool_): bool,
}


class Unreadable:
    """Stands for a value that cannot be read, so that the build refuses its record alone.

    Args:
        reason: what is wrong with it.
    """

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __repr__(self) -> str:
        return self._reason


def first_rows(rows: Iterator[Any], most: int = FIRST_ROWS) -> list[Any]:
    """Take as many rows as decide the spec: a batch at most."""
    first: list[Any] = []
    nbytes = 0
    while len(first) < most and nbytes < BATCH_NBYTES:
        with errors_named(failure_at(len(first))):
            try:
                row = next(rows)
            except StopIteration:
                break
        first.append(row)
        nbytes += approximate_nbytes(row)
    return first


def spec_of_rows(rows: Sequence[Any]) -> Tree:
    """Return the element spec that rows show; a leaf that is None in all of them is None."""
    rows = [row for row in rows if not isinstance(row, Unreadable)]
    try:
        return spec_of_values(rows, "")
    except ElementError as error:
        for record, row in enumerate(rows):
            try:
                spec_of_values([row], "")
            except ElementError as own:
                raise own.at(record=record) from own.__cause__
        raise error.at(record=0) from error.__cause__


def spec_of_values(values: Iterable[Any], path: str, depth: int = 0) -> Tree:
    """Return the spec of values that lie within so many levels of lists. The first of them decides their kind."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    first = present[0]
    if isinstance(first, Mapping):
        keys = dict.fromkeys(chain.from_iterable(value for value in present if isinstance(value, Mapping)))
        if depth and not keys:
            hint = "Its length would be lost: leave it out."
            raise ElementError("keys in a dict within a list", "dicts without keys", path=path, hint=hint)
        present = [value for value in present if isinstance(value, Mapping)]
        named = ((tree.builtin(key), [row.get(key) for row in present]) for key in keys)
        return {key: spec_of_values(values, f"{path}[{key!r}]", depth) for key, values in named}
    if _is_list(first) or _is_texts(first):
        items = chain.from_iterable(value for value in present if _is_list(value) or np.ndim(value))
        return spec_of_values(items, path, depth + 1)
    if is_picture(first) and not depth:
        return ImageSpec()
    return _leaf_spec(first, present, path, depth)


def _leaf_spec(first: Any, values: list[Any], path: str, depth: int) -> Tree:
    if hasattr(first, "__array__") and np.ndim(first):
        try:
            array: Any = as_leaf(first)
            own = from_element(array)
        except (InvalidTypeError, ElementError) as error:
            raise ElementError("an array that can be stored", str(error), path=path) from error
        if not depth:
            return ArraySpec(own.dtype, (None,) * array.ndim)
        return _nested_spec(own.dtype, depth + array.ndim)
    first = _as_time(first)
    if isinstance(first, int) and not isinstance(first, bool):
        numbers = [tree.builtin(value) for value in values if isinstance(value, (int, float))]
        numbers = [value for value in numbers if type(value) is not bool]
        is_float = any(type(value) is float for value in numbers)
        dtype: Any = np.float64 if is_float else np.uint64 if max(numbers) >= 2**63 else np.int64
    elif isinstance(first, (str, bytes)):
        dtype = str if isinstance(first, str) else bytes
    else:
        try:
            own = from_element(first)
        except ElementError as error:
            raise ElementError(error.expected, error.got, path=path, hint=error.hint) from error.__cause__
        if not isinstance(own, ArraySpec):
            if depth:
                raise ElementError("a value that arrays hold", tree.describe(first), path=path)
            return own
        dtype = own.dtype
    return _nested_spec(dtype, depth)


def _nested_spec(dtype: Any, depth: int) -> LeafSpec:
    dtype = dtype if isinstance(dtype, type) and dtype in (str, bytes) else np.dtype(dtype)
    shape = (None,) * depth
    return ArraySpec(dtype, shape) if depth < 2 else RaggedSpec(dtype, shape, ragged_rank=depth - 1)


def _is_texts(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim > 0 and value.dtype.kind in "OSUT"


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and not tree.is_namedtuple(value)


def packer(spec: Tree, *, fill: bool = False) -> Callable[[Any], Any]:
    """Return a function that turns a value of a row into what the codec takes for its spec.

    Lists of dicts become dicts of lists, nested lists become Ragged, times become numpy's, and pictures files. What
    does not fit the spec stays as it is: the codec refuses it.

    Args:
        spec: the spec of the value.
        fill: whether a key that a dict lacks stands for None.
    """
    if isinstance(spec, dict):
        return partial(_packed_dict, {key: packer(child, fill=fill) for key, child in spec.items()}, fill)
    if isinstance(spec, RaggedSpec):
        return partial(_packed_ragged, spec)
    if isinstance(spec, ArraySpec) and isinstance(spec.dtype, np.dtype) and spec.dtype.kind in "mM":
        return partial(_packed_times, spec)
    if isinstance(spec, ArraySpec) and len(spec.shape) > 1:
        return partial(_packed_dense, spec)
    if isinstance(spec, ArraySpec) and len(spec.shape) == 1 and spec.dtype in _QUICK:
        return partial(_packed_numbers, spec.dtype, _QUICK[spec.dtype])
    return bytes_of if isinstance(spec, ImageSpec) else _same


def _same(value: Any) -> Any:
    return value


def _packed_dict(parts: dict[str, Callable[[Any], Any]], fill: bool, value: Any) -> Any:
    if value is None and fill:
        value = {}
    if isinstance(value, Mapping):
        missing = dict.fromkeys(parts) if fill else {}
        return {key: parts.get(key, _same)(child) for key, child in {**missing, **value}.items()}
    if _is_list(value) and all(isinstance(row, Mapping) for row in value):
        keys = dict.fromkeys(chain(parts, *value))
        if fill or all(row.keys() == keys.keys() for row in value):
            return {key: parts.get(key, _same)([row.get(key) for row in value]) for key in keys}
    return value


def _packed_numbers(dtype: Any, kind: type, value: Any) -> Any:
    """Return an array for a list of numbers of Python, which takes the codec many times longer."""
    if not _is_list(value) or set(map(type, value)) != {kind}:
        return value
    try:
        return np.array(value, dtype)
    except OverflowError:
        return value


def _packed_dense(spec: ArraySpec, value: Any) -> Any:
    """Return an array for an empty list, which does not show its inner dimensions, and for a list of arrays."""
    if not _is_list(value):
        return value
    if not value and spec.shape[0] in (0, None):
        return np.zeros([dim or 0 for dim in spec.shape], spec.dtype if isinstance(spec.dtype, np.dtype) else object)
    arrays = [np.asarray(as_leaf(item)) for item in value if hasattr(item, "__array__")]
    alike = len(arrays) == len(value) and len({(array.shape, array.dtype) for array in arrays}) == 1
    return np.stack(arrays) if alike and arrays[0].dtype == spec.dtype else value


def _packed_times(spec: ArraySpec, value: Any) -> Any:
    if _is_list(value):
        items = [_packed_times(spec, item) for item in value]
        return _packed_dense(spec, items) if len(spec.shape) > 1 else items
    dtype: np.dtype[Any] = spec.dtype  # type: ignore[assignment]
    time = _as_time(value)
    if not isinstance(time, (np.datetime64, np.timedelta64)) or time.dtype.kind != dtype.kind or time.dtype == dtype:
        return time
    with np.errstate(all="ignore"):
        exact = time.astype(dtype)
    return exact if exact.astype(time.dtype) == time or np.isnat(time) else value


def _as_time(value: Any) -> Any:
    """Return a time of Python or pandas as numpy's, if that keeps all of it; else the value."""
    convert = getattr(value, "to_datetime64", getattr(value, "to_timedelta64", None))
    if getattr(value, "tzinfo", None) is not None:
        return value
    if convert is not None:
        return convert()
    if isinstance(value, dt.date):
        return np.datetime64(value, "us" if isinstance(value, dt.datetime) else "D")
    return np.timedelta64(value, "us") if isinstance(value, dt.timedelta) else value


def _packed_ragged(spec: RaggedSpec, value: Any) -> Any:
    if isinstance(value, Ragged) or value is None:
        return value
    splits, rows = [], value
    for _ in range(spec.ragged_rank):
        if not _is_list(rows) and not np.ndim(rows):
            return value
        rows = [as_leaf(row) if hasattr(row, "__array__") else row for row in rows]
        if not all(_is_list(row) or np.ndim(row) for row in rows):
            return value
        splits.append(np.cumsum([0, *map(len, rows)]).astype(spec.splits_dtype))
        if rows and all(isinstance(row, np.ndarray) and row.dtype == rows[0].dtype for row in rows):
            rows = np.concatenate(rows)
        else:
            rows = [item for row in rows for item in row]
    inner = spec.shape[spec.ragged_rank :]
    if isinstance(rows, np.ndarray) and rows.ndim == len(inner) == 1 and rows.dtype == spec.dtype:
        return Ragged.from_nested(rows, tuple(splits))
    flat = ArraySpec(spec.dtype, inner)
    try:
        codec = codec_for({"x": flat})
        [element] = codec.elements(codec.columns([{"x": packer(flat)(rows)}]), 1)
    except ElementError:
        return value
    return Ragged.from_nested(element["x"], tuple(splits))
