"""Turn one value of a user into what a leaf holds: an array, ``bytes`` or ``str``. And tell its spec.

::

    value                              as_leaf                 leaf_spec
    7                                  array(7)                ArraySpec(int64)
    np.zeros((2, 3), "uint8")          the same array          ArraySpec(uint8, (2, 3))
    a tensor of PyTorch, bfloat16[2]   an array of bfloat16    ArraySpec(bfloat16, (2,))
    "text"                             "text"                  ArraySpec(str)
    {1, 2}                             InvalidTypeError: np.array(sorted(...)) converts it to an array
"""

from __future__ import annotations

import datetime as dt
import sys
from typing import Any

import ml_dtypes
import numpy as np

from cachelayer.errors import InvalidTypeError
from cachelayer.records.video import Video
from cachelayer.specs import tree
from cachelayer.specs.spec import (
    ArraySpec,
    ImageSpec,
    LeafSpec,
    RaggedSpec,
    SparseSpec,
    VideoSpec,
    with_nullable_values,
)
from cachelayer.specs.values import BadValue, NoArray, Nullable, PictureFile, Ragged, Sparse, with_flat_values
from cachelayer.support.arguments import has_other_index

# Types are looked up by name, so that their modules need not be imported.
_REMEDIES = {
    **dict.fromkeys(("bytearray", "memoryview"), "bytes() converts it to bytes"),
    **dict.fromkeys(("set", "frozenset"), "np.array(sorted(...)) converts it to an array"),
    **dict.fromkeys(("range", "array", "list", "deque"), "np.array() converts it to an array"),
    **dict.fromkeys(
        ("date", "timedelta"), "np.datetime64() or np.timedelta64() converts it, str() converts it to a str"
    ),
    "Nullable": "pass unbatch=True to store the rows of a batch, or pass elements instead of batches",
    "Decimal": "float() converts it to a number, str() to a str",
    "Enum": "store its .value or its .name",
    "PurePath": "str() converts it to a str, read_bytes() reads the file",
}

COLUMNS = (
    "frames and tables are sources: concatenate them, or pass cachelayer.sharded(function, count), each part of which "
    "may be one; or give dicts, {name: frame[name].to_numpy() for name in frame}, with unbatch=True"
)
"""What to do with a frame or a table that came as an element, or as a batch."""


def leaf_spec(value: Any) -> LeafSpec:
    """Return the spec of the leaf that a value is."""
    if isinstance(value, PictureFile):
        return ImageSpec(value.mode)
    if isinstance(value, Video):
        return VideoSpec()
    if isinstance(value, Nullable) and isinstance(value.values, np.ndarray) and value.values.shape == value.valid.shape:
        # A batch of scalars, some of them None, looks the same: then the build has unbatch=True.
        return with_nullable_values(leaf_spec(value.values))
    if isinstance(value, Ragged) and isinstance(value.flat_values, Nullable):
        return with_nullable_values(leaf_spec(with_flat_values(value, value.flat_values.values)))
    if isinstance(value, Ragged):
        flat = value.flat_values
        splits = value.nested_row_splits
        if flat.ndim == 0:
            raise InvalidTypeError("the values of a Ragged are a scalar: pass an array of at least one dimension")
        shape = (None, *[None] * len(splits), *flat.shape[1:])
        return RaggedSpec(_array_dtype(flat), shape, ragged_rank=len(splits), splits_dtype=splits[0].dtype)
    if isinstance(value, Sparse):
        return SparseSpec(_array_dtype(value.values), tuple(value.dense_shape.reshape(-1).tolist()))
    array = as_leaf(value)
    if isinstance(array, (bytes, str)):
        return ArraySpec(type(array))
    if isinstance(value, np.ndarray) and value.dtype.kind == "T":
        return ArraySpec(str, value.shape)
    return ArraySpec(array.dtype, array.shape)


def as_leaf(value: Any) -> np.ndarray[Any, Any] | bytes | str:
    """Return a value as a numpy array, bytes or str; raise if it is none, or would lose something."""
    if isinstance(value, np.ndarray):
        if isinstance(value, np.ma.MaskedArray):
            raise InvalidTypeError("a masked array would lose its mask: use filled(), or None, or a second array")
        # An array of dtype StringDType has its strings outside of its memory.
        return value.astype(object) if value.dtype.kind == "T" else value
    if isinstance(value, (bytes, str)):
        leaf: bytes | str = tree.builtin(value)
        return leaf
    if isinstance(value, (bool, int, float, complex, np.generic)):
        array = np.asarray(tree.builtin(value))
        if array.dtype == object:
            raise InvalidTypeError(f"{value} does not fit into 64 bits")
        return array
    if has_columns(value):
        raise InvalidTypeError(f"a {type(value).__name__} would lose the names of its columns: {COLUMNS}")
    if has_other_index(value):
        raise InvalidTypeError(
            f"a {type(value).__name__} would lose its index: to_dict() keeps it as names, to_numpy() drops it"
        )
    if hasattr(value, "__array__") and not isinstance(value, NoArray):
        kind = getattr(value, "type", getattr(value, "dtype", None))
        if getattr(kind, "tz", getattr(kind, "time_zone", None)) is not None:
            raise InvalidTypeError(f"an array of {kind} would lose its time zone: pass a table or a frame")
        try:
            array = _as_array(value)
        except Exception as error:
            raise InvalidTypeError(f"a {type(value).__name__} does not become an array: {error}") from error
        if array.dtype == object and array.shape == () and isinstance(array.item(), (bytes, str)):
            return as_leaf(array.item())
        return array
    if isinstance(value, BadValue):
        raise InvalidTypeError("Correct it, or leave it out by on_error='skip'.")
    raise InvalidTypeError(
        f"a {type(value).__name__} is not an array, number, bytes, str or None: convert it{_remedy(value)}"
    )


def has_columns(value: Any) -> bool:
    """Return whether a value is a table or a frame, of Arrow, pandas or Polars, which is a source and no element."""
    return hasattr(value, "columns") and hasattr(value, "__array__") and not isinstance(value, np.ndarray)


def _as_array(value: Any) -> np.ndarray[Any, Any]:
    """Return an object that has an array protocol as an array.

    PyTorch does not convert tensors in dtypes of ``ml_dtypes`` to numpy: their bits are converted as integers.
    """
    if type(value).__module__.partition(".")[0] != "torch":
        return np.asarray(value)
    value = value.detach().cpu().resolve_conj().resolve_neg()
    dtype = getattr(ml_dtypes, str(value.dtype).removeprefix("torch."), None)
    if dtype is None:
        return np.asarray(value)
    integers = value.view(getattr(sys.modules["torch"], f"uint{8 * np.dtype(dtype).itemsize}"))
    return np.asarray(integers).view(dtype)


def _remedy(value: Any) -> str:
    """Return how to convert a value to one that can be stored, for an error message."""
    if getattr(value, "tzinfo", None) is not None:
        return ": a table of Arrow or a frame keeps its time zone; .astimezone(UTC).replace(tzinfo=None) makes it UTC"
    for kind in type(value).__mro__:
        if kind.__name__ in _REMEDIES:
            return f": {_REMEDIES[kind.__name__]}"
    if hasattr(value, "__dataclass_fields__"):
        return ": dataclasses.asdict() converts it to a dict"
    if hasattr(value, "__array_interface__"):
        return ": np.asarray() converts it to an array; the file of an image can be stored as bytes, with ImageSpec"
    return ""


def _array_dtype(values: np.ndarray[Any, Any]) -> Any:
    if values.dtype != object:
        return values.dtype
    kinds = {type(item) for item in values.reshape(-1)}
    if kinds in ({bytes}, {str}):
        return kinds.pop()
    raise InvalidTypeError(f"an object array of {sorted(kind.__name__ for kind in kinds) or 'nothing'} is not stored")


def as_time(value: Any) -> Any:
    """Return a date or duration of Python or pandas as numpy's, if that keeps all of it; else the value."""
    convert = getattr(value, "to_datetime64", getattr(value, "to_timedelta64", None))
    if getattr(value, "tzinfo", None) is not None:
        return value
    if convert is not None:
        return convert()
    if isinstance(value, dt.date):
        return np.datetime64(value, "us" if isinstance(value, dt.datetime) else "D")
    return np.timedelta64(value, "us") if isinstance(value, dt.timedelta) else value
