"""Leaf specs, which describe one leaf of every element."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import DTypeLike

from cachelayer.arguments import explains_options
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.records import dtypes
from cachelayer.records.dtypes import DType

_INT64: np.dtype[Any] = np.dtype(np.int64)
_OF_ALL_LEAVES = ("dtype", "shape", "nullable", "nullable_values")
Shape = tuple[int | None, ...]
IMAGE_MODES: dict[str, tuple[str, tuple[int, ...]]] = {
    "1": ("bool", ()),
    "L": ("uint8", ()),
    "LA": ("uint8", (2,)),
    "RGB": ("uint8", (3,)),
    "RGBA": ("uint8", (4,)),
    "CMYK": ("uint8", (4,)),
    "YCbCr": ("uint8", (3,)),
    "HSV": ("uint8", (3,)),
    "LAB": ("uint8", (3,)),
    "I": ("int32", ()),
    "I;16": ("uint16", ()),
    "F": ("float32", ()),
}
"""The dtype and the channels of each of Pillow's modes that images can be decoded to."""


def _dtype(dtype: DTypeLike | type) -> DType:
    if dtype in (bytes, np.bytes_, "bytes"):
        return bytes
    if dtype in (str, np.str_, "str"):
        return str
    if dtype is None:
        raise InvalidTypeError("None is not a dtype")
    try:
        return dtypes.check(np.dtype(dtype))
    except TypeError as error:
        if isinstance(error, InvalidTypeError):
            raise
        raise InvalidTypeError(f"{dtype!r} is not a dtype") from error


def _shape(shape: Iterable[Any]) -> Shape:
    try:
        dims = tuple(None if dim is None else operator.index(dim) for dim in shape)
    except TypeError as error:
        raise InvalidTypeError(f"a shape is a tuple of integers and None, not {shape!r}") from error
    if any(dim is not None and dim < 0 for dim in dims):
        raise InvalidArgumentError(f"shape {dims} has a negative dimension: write None for an unknown one")
    return dims


@dataclass(frozen=True, repr=False)
class LeafSpec:
    """The description of one leaf of every element.

    Args:
        dtype: a numpy dtype or its name, or ``bytes`` / ``str`` for strings of any length.
        shape: the dimensions; None for one that differs from element to element.
        nullable: whether the leaf may be None.
        nullable_values: whether values within it may be None, which readers get as :class:`cachelayer.Nullable`.
    """

    dtype: DType
    shape: Shape = ()
    nullable: bool = False
    nullable_values: bool = field(default=False, kw_only=True)

    if TYPE_CHECKING:
        # What it takes is wider than what it holds. The subclasses say so again, since each has an __init__ of its own.
        def __init__(
            self,
            dtype: DTypeLike,
            shape: Iterable[int | None] = (),
            nullable: bool = False,
            *,
            nullable_values: bool = False,
        ) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _dtype(self.dtype))
        object.__setattr__(self, "shape", _shape(self.shape))
        if self.nullable_values and not self.has_values:
            raise InvalidArgumentError(
                f"nullable_values of {self.describe()}: only values in an array, or in a ragged one, may be None"
            )

    @property
    def has_values(self) -> bool:
        """True if the leaf has values within it that may be None."""
        return bool(self.shape)

    @property
    def is_static(self) -> bool:
        """True if the leaf has the same number of bytes in every element."""
        return False

    @property
    def takes_none(self) -> bool:
        """True if None is one of the values of the leaf, like any other."""
        return False

    def as_nullable(self) -> Self:
        return replace(self, nullable=True)

    def with_nullable_values(self) -> Self:
        return replace(self, nullable_values=True)

    def without_nulls(self) -> Self:
        """Return the spec of the same leaf that holds no null, for comparison."""
        spec = replace(self, nullable=False)
        return replace(spec, nullable_values=False) if self.nullable_values else spec

    def describe(self) -> str:
        """Return the spec as text for an error message, such as ``uint8[32, 32, 3]``."""
        dims = ", ".join("None" if dim is None else str(dim) for dim in self.shape)
        name = f"{self._dtype_name} or None" if self.nullable_values else self._dtype_name
        return f"{name}[{dims}]" if self.shape else name

    @property
    def _dtype_name(self) -> str:
        is_time = isinstance(self.dtype, np.dtype) and self.dtype.kind in "Mm"
        return np.dtype(self.dtype).name if is_time else dtypes.to_name(self.dtype)

    def __repr__(self) -> str:
        nullable = ", nullable=True" if self.nullable else ""
        nullable += ", nullable_values=True" if self.nullable_values else ""
        shape = f", {self.shape}" if self.shape else ""
        return f"{type(self).__name__}({self._dtype_name}{shape}{nullable})"


@explains_options
@dataclass(frozen=True, repr=False)
class ArraySpec(LeafSpec):
    """The spec of a dense array, a scalar or a string; a scalar or a string has the shape ``()``."""

    if TYPE_CHECKING:

        def __init__(
            self,
            dtype: DTypeLike,
            shape: Iterable[int | None] = (),
            nullable: bool = False,
            *,
            nullable_values: bool = False,
        ) -> None: ...

    @property
    def is_static(self) -> bool:
        return not dtypes.is_string(self.dtype) and None not in self.shape


@explains_options
@dataclass(frozen=True, repr=False)
class RaggedSpec(LeafSpec):
    """The spec of a ragged array, which readers get as :class:`cachelayer.Ragged`.

    Args:
        shape: the dimensions; None for one that is ragged or unknown.
        ragged_rank: the number of levels of row splits.
        splits_dtype: the dtype of the row splits, int32 or int64.
    """

    ragged_rank: int = 1
    splits_dtype: np.dtype[Any] = _INT64

    if TYPE_CHECKING:

        def __init__(
            self,
            dtype: DTypeLike,
            shape: Iterable[int | None] = (),
            nullable: bool = False,
            ragged_rank: int = 1,
            splits_dtype: DTypeLike = _INT64,
            *,
            nullable_values: bool = False,
        ) -> None: ...

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "splits_dtype", _dtype(self.splits_dtype))
        if not 1 <= self.ragged_rank < len(self.shape):
            raise InvalidArgumentError(
                f"ragged_rank {self.ragged_rank} of shape {self.shape}: it must be at least 1, and less than the "
                "number of dimensions"
            )
        if self.splits_dtype not in (np.dtype(np.int32), np.dtype(np.int64)):
            raise InvalidTypeError(f"row splits are int32 or int64, not {dtypes.to_name(self.splits_dtype)}")

    def describe(self) -> str:
        return f"ragged {super().describe()} with {self.ragged_rank} level(s) of {self.splits_dtype} row splits"


@explains_options
@dataclass(frozen=True, repr=False)
class SparseSpec(LeafSpec):
    """The spec of a sparse array, which readers get as :class:`cachelayer.Sparse`."""

    if TYPE_CHECKING:

        def __init__(self, dtype: DTypeLike, shape: Iterable[int | None] = (), nullable: bool = False) -> None: ...

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.shape:
            raise InvalidArgumentError("the shape of a SparseSpec is (): it must have at least one dimension")

    @property
    def has_values(self) -> bool:
        return False

    def describe(self) -> str:
        return f"sparse {super().describe()}"


@dataclass(frozen=True, repr=False)
class EncodedSpec(LeafSpec, ABC):
    """The spec of a file that is stored as its bytes, and decoded when it is read."""

    dtype: DType = field(default=bytes, init=False)
    shape: Shape = field(default=(), init=False)
    nullable: bool = field(default=False, kw_only=True)
    nullable_values: bool = field(default=False, init=False)

    @property
    @abstractmethod
    def decoded(self) -> ArraySpec:
        """The spec of the decoded leaf."""

    @property
    def options(self) -> dict[str, Any]:
        """The options of the decoding, by name."""
        own = [item.name for item in fields(self) if item.name not in _OF_ALL_LEAVES]
        return {name: getattr(self, name) for name in own}

    def __repr__(self) -> str:
        options = [f"{name}={value!r}" for name, value in self.options.items() if value is not None]
        return f"{type(self).__name__}({', '.join(options + ['nullable=True'] * self.nullable)})"


@explains_options
@dataclass(frozen=True, repr=False)
class ImageSpec(EncodedSpec):
    """The bytes of an image file, decoded when they are read.

    Args:
        mode: Pillow's mode that pixels are converted to: ``"RGB"`` gives uint8 ``[height, width, 3]``, ``"L"`` gives
            uint8 ``[height, width]``, ``"I;16"`` gives uint16 ``[height, width]``.
    """

    mode: str = "RGB"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode not in IMAGE_MODES:
            raise InvalidArgumentError(f"mode {self.mode!r} of an image: it must be one of {', '.join(IMAGE_MODES)}")

    @property
    def decoded(self) -> ArraySpec:
        dtype, channels = IMAGE_MODES[self.mode]
        return ArraySpec(np.dtype(dtype), (None, None, *channels), self.nullable)

    def describe(self) -> str:
        return f"the bytes of an image file ({self.mode})"

    def sized(self, size: ImageSize) -> SizedImageSpec:
        """Return the spec of the same files, decoded to images of one size."""
        return SizedImageSpec(self.mode, size, nullable=self.nullable)


@dataclass(frozen=True)
class ImageSize:
    """The size to which a reader has images decoded.

    Args:
        height, width: the size in pixels.
        crop: whether to cut off what makes the proportions differ, at both sides alike; else the image is stretched.
    """

    height: int
    width: int
    crop: bool = False


@dataclass(frozen=True, repr=False)
class SizedImageSpec(ImageSpec):
    """The bytes of an image file, decoded to an image of a size that the reader chose. No manifest holds it."""

    size: ImageSize = field(default=ImageSize(1, 1))

    @property
    def decoded(self) -> ArraySpec:
        spec = super().decoded
        return replace(spec, shape=(self.size.height, self.size.width, *spec.shape[2:]))


@explains_options
@dataclass(frozen=True, repr=False)
class AudioSpec(EncodedSpec):
    """The bytes of a sound file, decoded to float32 between -1 and 1 when they are read.

    Args:
        sampling_rate: in Hz; files with another rate are resampled. None keeps the rate of each file.
        channels: 1 gives float32 ``[frames]``, the mean of a file's channels. A larger number gives
            ``[frames, channels]``, and every file must have that many. None gives ``[frames, <channels of the file>]``.
    """

    sampling_rate: int | None = None
    channels: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in self.options.items():
            if value is not None and (type(value) is not int or value < 1):
                raise InvalidArgumentError(f"{name} {value!r} of a sound: pass a positive integer, or None")

    @property
    def decoded(self) -> ArraySpec:
        return ArraySpec(np.dtype(np.float32), (None,) if self.channels == 1 else (None, self.channels), self.nullable)

    def describe(self) -> str:
        return "the bytes of a sound file"


@explains_options
@dataclass(frozen=True, repr=False)
class JsonSpec(LeafSpec):
    """Any value of JSON, which may differ from element to element: chat messages, annotations, calls of tools.

    Elements have the value: dicts with str keys, lists, str, numbers, bools and None. A batch has a list of values. It
    is stored as canonical text, so the keys of a dict come back sorted. NaN, infinities, integers beyond 64 bits and
    keys that are no str are refused.

    Examples:
        >>> storage = cachelayer.Storage(folder)
        >>> rows = [{"calls": [{"name": "add", "arguments": {"a": 1}}]}, {"calls": None}]
        >>> ref = storage.cache(rows, "chats", "v1", element_spec={"calls": cachelayer.JsonSpec()})
        >>> ref[0]["calls"][0]["arguments"]
        {'a': 1}
    """

    dtype: DType = field(default=str, init=False)
    shape: Shape = field(default=(), init=False)
    nullable: bool = field(default=False, init=False)
    nullable_values: bool = field(default=False, init=False)

    @property
    def takes_none(self) -> bool:
        return True

    def as_nullable(self) -> Self:
        return self

    def without_nulls(self) -> Self:
        return self

    def describe(self) -> str:
        return "a JSON value"

    def __repr__(self) -> str:
        return "JsonSpec()"


class NullableDict(dict[str, Any]):
    """The spec of a dict that may be None: in batches it is a :class:`cachelayer.Nullable` of the dict.

    Examples:
        >>> spec = {"meta": cachelayer.NullableDict(lang=cachelayer.ArraySpec(str))}
        >>> storage = cachelayer.Storage(folder)
        >>> storage.cache([{"meta": {"lang": "de"}}, {"meta": None}], "rows", "v1").element_spec == spec
        True
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NullableDict) and super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __repr__(self) -> str:
        return f"NullableDict({super().__repr__()})"
