"""Leaf specs: what one leaf of every element is.

An element spec is a structure of dicts, lists and tuples, like the elements, with a leaf spec at each leaf::

    element   {"image": <PNG file>,      "boxes": float32[7, 4],                    "meta": None}
    spec      {"image": ImageSpec("L"),  "boxes": ArraySpec("float32", (None, 4)),  "meta": NullableDict(...)}

============  ====================================  ============================================
leaf spec     an element has                        a batch has
============  ====================================  ============================================
ArraySpec     an array, scalar, bytes or str        an array; a Ragged if dimensions are unknown
RaggedSpec    a Ragged                              a Ragged of one more level
SparseSpec    a Sparse                              a Sparse of one more dimension
ImageSpec     an array of pixels                    a Ragged
AudioSpec     an array of samples                   a Ragged
VideoSpec     a Video                               an array of objects: a Video for each row
JsonSpec      any value of JSON                     a list of such values
============  ====================================  ============================================

A batch has a Nullable of these if the leaf, or a value within it, may be None. A batch of Raggeds whose inner
dimensions are unknown is an array of objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.specs import dtypes
from cachelayer.specs.dtypes import DType
from cachelayer.support.arguments import boolean, explains_options, integer, is_choice

_INT64: np.dtype[Any] = np.dtype(np.int64)
_OF_ALL_LEAVES = ("dtype", "shape", "nullable", "nullable_values", "timezone")
_MOMENTS = ("<M8[s]", "<M8[ms]", "<M8[us]", "<M8[ns]")
Shape = tuple[int | None, ...]
L = TypeVar("L", bound="LeafSpec")
IMAGE_MODES: dict[str, tuple[str, tuple[int, ...]]] = {
    "1": ("bool", ()),
    "L": ("uint8", ()),
    "P": ("uint8", ()),
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
DECIMAL_DIGITS = "decimal_digits"
"""The key in the metadata of how many digits after the point the integers have that stand for decimals, by leaf."""
ARROW_SCHEMA = "arrow_schema"
"""The key in the metadata of the Arrow types that columns had, by their names."""
FEATURES = "huggingface_features"
"""The key in the metadata of the features that columns had, by their names."""


def said_of_columns(metadata: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return what metadata have under one of these keys; nothing if it is something else, which a user has given."""
    said = metadata.get(key)
    return said if isinstance(said, dict) else {}


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
        dims = tuple(None if dim is None else integer("a dimension", dim) for dim in shape)
    except TypeError as error:
        raise InvalidTypeError(f"a shape is a tuple of integers and None, not {shape!r}") from error
    if any(dim is not None and dim < 0 for dim in dims):
        raise InvalidArgumentError(f"shape {dims} has a negative dimension: write None for an unknown one")
    return dims


@dataclass(frozen=True, repr=False)
class LeafSpec:
    """The description of one leaf of every element."""

    dtype: DType
    """A numpy dtype or its name; ``bytes`` or ``str`` for strings of any length."""
    shape: Shape = ()
    """The dimensions; None for a dimension that differs from element to element."""
    nullable: bool = False
    """Whether the leaf may be None."""
    nullable_values: bool = field(default=False, kw_only=True)
    """Whether values within the leaf may be None; readers get the leaf as a :class:`cachelayer.Nullable`."""
    timezone: str | None = field(default=None, kw_only=True)
    """The time zone that moments are of, such as ``"Europe/Berlin"``; readers get them as ``datetime64`` in UTC."""

    if TYPE_CHECKING:
        # The arguments have wider types than the fields, which type checkers learn from no dataclass. Each subclass is
        # a dataclass with an __init__ of its own, so each repeats this.
        def __init__(
            self,
            dtype: DTypeLike,
            shape: Iterable[int | None] = (),
            nullable: bool = False,
            *,
            nullable_values: bool = False,
            timezone: str | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _dtype(self.dtype))
        object.__setattr__(self, "shape", _shape(self.shape))
        object.__setattr__(self, "nullable", boolean("nullable", self.nullable))
        object.__setattr__(self, "nullable_values", boolean("nullable_values", self.nullable_values))
        if self.timezone is not None and not (isinstance(self.timezone, str) and np.dtype(self.dtype).str in _MOMENTS):
            raise InvalidArgumentError(
                f"timezone {self.timezone!r} of {self.dtype}: a name, for datetime64[s, ms, us, ns]"
            )
        if self.nullable_values and not has_values(self):
            raise InvalidArgumentError(
                f"nullable_values of {describe_leaf(self)}: only values in an array, or in a ragged one, may be None"
            )

    def __repr__(self) -> str:
        nullable = ", nullable=True" if self.nullable else ""
        nullable += ", nullable_values=True" if self.nullable_values else ""
        shape = f", {self.shape}" if self.shape else ""
        return f"{type(self).__name__}({_dtype_name(self)}{shape}{nullable})"


@explains_options
@dataclass(frozen=True, repr=False)
class ArraySpec(LeafSpec):
    """The spec of a dense array, a scalar or a string; a scalar or a string has the shape ``()``.

    Examples:
        >>> spec = {"tokens": cachelayer.ArraySpec("int32", (None,)), "label": cachelayer.ArraySpec("int64")}
        >>> rows = [{"tokens": [5, 6], "label": 1}, {"tokens": [], "label": 0}]
        >>> ref = cachelayer.Storage(folder).cache(rows, "texts@v1", element_spec=spec)
        >>> ref[0]
        {'tokens': array([5, 6], dtype=int32), 'label': np.int64(1)}
        >>> ref.read([0, 1])["tokens"].to_list()  # a dimension that differs: a Ragged in batches
        [[5, 6], []]
    """

    if TYPE_CHECKING:

        def __init__(
            self,
            dtype: DTypeLike,
            shape: Iterable[int | None] = (),
            nullable: bool = False,
            *,
            nullable_values: bool = False,
            timezone: str | None = None,
        ) -> None: ...


@explains_options
@dataclass(frozen=True, repr=False)
class RaggedSpec(LeafSpec):
    """The spec of a ragged array, which readers get as :class:`cachelayer.Ragged`.

    In its shape, None is a dimension that is ragged or unknown. ``(None, None)`` are rows of any lengths.

    Examples:
        >>> spec = {"boxes": cachelayer.RaggedSpec("int32", (None, None))}
        >>> rows = [{"boxes": [[1, 2], [3]]}, {"boxes": [[], [4]]}]
        >>> ref = cachelayer.Storage(folder).cache(rows, "boxes@v1", element_spec=spec)
        >>> ref[0]["boxes"].to_list(), ref[0]["boxes"].row_splits.tolist()
        ([[1, 2], [3]], [0, 2, 3])
        >>> ref.read([0, 1])["boxes"].to_list()
        [[[1, 2], [3]], [[], [4]]]
    """

    ragged_rank: int = 1
    """The number of levels of row splits."""
    splits_dtype: np.dtype[Any] = _INT64
    """The dtype of the row splits: int32 or int64."""

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
            timezone: str | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "splits_dtype", _dtype(self.splits_dtype))
        object.__setattr__(self, "ragged_rank", integer("ragged_rank", self.ragged_rank))
        if not 1 <= self.ragged_rank < len(self.shape):
            raise InvalidArgumentError(
                f"ragged_rank {self.ragged_rank} of shape {self.shape}: it must be at least 1, and less than the "
                "number of dimensions"
            )
        if self.splits_dtype not in (np.dtype(np.int32), np.dtype(np.int64)):
            raise InvalidTypeError(f"row splits are int32 or int64, not {dtypes.to_name(self.splits_dtype)}")


@explains_options
@dataclass(frozen=True, repr=False)
class SparseSpec(LeafSpec):
    """The spec of a sparse array, which readers get as :class:`cachelayer.Sparse`.

    Examples:
        >>> words = cachelayer.Sparse([[2], [7]], [1.0, 3.0], [10])  # 1.0 at place 2 of 10, 3.0 at place 7
        >>> spec = {"words": cachelayer.SparseSpec("float64", (10,))}
        >>> ref = cachelayer.Storage(folder).cache([{"words": words}], "texts@v1", element_spec=spec)
        >>> ref[0]["words"].to_dense().tolist()
        [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 3.0, 0.0, 0.0]
    """

    if TYPE_CHECKING:

        def __init__(self, dtype: DTypeLike, shape: Iterable[int | None] = (), nullable: bool = False) -> None: ...

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.shape:
            raise InvalidArgumentError("the shape of a SparseSpec is (): it must have at least one dimension")


@dataclass(frozen=True, repr=False)
class EncodedSpec(LeafSpec):
    """The spec of a file that is stored as its bytes, and decoded when it is read."""

    dtype: DType = field(default=bytes, init=False)
    shape: Shape = field(default=(), init=False)
    nullable: bool = field(default=False, kw_only=True)
    nullable_values: bool = field(default=False, init=False)
    timezone: str | None = field(default=None, init=False)

    def __repr__(self) -> str:
        options = [f"{name}={value!r}" for name, value in options_of(self).items() if value is not None]
        return f"{type(self).__name__}({', '.join(options + ['nullable=True'] * self.nullable)})"


@explains_options
@dataclass(frozen=True, repr=False)
class ImageSpec(EncodedSpec):
    r"""The spec of images: records store the bytes of image files, and readers get them decoded.

    An element that is cached may hold the bytes of the file, or the path or URL of the file.

    Examples:
        >>> import io, numpy as np, PIL.Image
        >>> PIL.Image.fromarray(np.full((2, 3), 7, np.uint8)).save(folder / "gray.png")
        >>> rows = [{"image": folder / "gray.png"}]
        >>> spec = {"image": cachelayer.ImageSpec("L")}
        >>> ref = cachelayer.Storage(folder / "cache").cache(rows, "images@v1", element_spec=spec)
        >>> ref[0]["image"].tolist(), ref.raw()[0]["image"][:4]
        ([[7, 7, 7], [7, 7, 7]], b'\x89PNG')
    """

    mode: str = "RGB"
    """Pillow's mode that pixels are converted to.

    ``"RGB"`` gives uint8 ``[height, width, 3]``, ``"L"`` uint8 ``[height, width]``. For masks, ``"P"`` gives uint8
    ``[height, width]``: the numbers that pixels have in a palette, or the values of grey pixels; ``"1"`` gives bool,
    ``"I;16"`` uint16, ``"I"`` int32. An image that has no such values is refused. Masks are resized without new values:
    by the nearest pixel.
    """
    upright: bool = True
    """Whether images are turned as the orientation in their Exif says; else pixels come as Pillow opens the file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "upright", boolean("upright", self.upright))
        if not is_choice(self.mode, IMAGE_MODES):
            raise InvalidArgumentError(f"mode {self.mode!r} of an image: it must be one of {', '.join(IMAGE_MODES)}")


@dataclass(frozen=True)
class ImageSize:
    """The size to which a reader has images decoded."""

    height: int
    width: int
    crop: bool = False
    """Whether to cut equal margins off an image of other proportions; else the image is stretched."""


@dataclass(frozen=True, repr=False)
class SizedImageSpec(ImageSpec):
    """The spec of images that a view decodes to a size that its reader chose. No manifest holds it."""

    size: ImageSize = field(default=ImageSize(1, 1))


@explains_options
@dataclass(frozen=True, repr=False)
class AudioSpec(EncodedSpec):
    """The spec of sounds: records store the bytes of sound files, and readers get float32 between -1 and 1.

    An element that is cached may hold the bytes of the file, or the path or URL of the file.

    Examples:
        >>> import soundfile
        >>> soundfile.write(folder / "silence.wav", [[0.0, 0.0]] * 160, samplerate=16_000)
        >>> rows = [{"sound": folder / "silence.wav"}]
        >>> spec = {"sound": cachelayer.AudioSpec(sampling_rate=16_000, channels=1)}
        >>> ref = cachelayer.Storage(folder / "cache").cache(rows, "sounds@v1", element_spec=spec)
        >>> ref[0]["sound"].shape, ref[0]["sound"].dtype.name
        ((160,), 'float32')
    """

    sampling_rate: int | None = None
    """The rate in Hz, to which files of other rates are resampled; None for the rate of each file."""
    channels: int | None = None
    """How many channels readers get.

    1 gives ``[frames]``, the mean of the channels of a file. A larger number gives ``[frames, channels]``, and every
    file must have that many. None gives ``[frames, <channels of the file>]``.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in options_of(self).items():
            if value is not None:
                object.__setattr__(self, name, integer(f"{name} of a sound:", value, least=1))


@explains_options
@dataclass(frozen=True, repr=False)
class VideoSpec(EncodedSpec):
    """The spec of videos: records store the bytes of video files, and readers get each as a :class:`cachelayer.Video`.

    A Video decodes frames when they are asked for. Records store an index of the frames too, so from a bucket only the
    bytes of these frames are fetched.

    Examples:
        >>> cachelayer.VideoSpec(nullable=True)
        VideoSpec(nullable=True)
    """


@dataclass(frozen=True, repr=False)
class SizedVideoSpec(VideoSpec):
    """The bytes of a video file, decoded to frames of a size that the reader chose. No manifest holds it."""

    size: ImageSize = field(default=ImageSize(1, 1))


@explains_options
@dataclass(frozen=True, repr=False)
class JsonSpec(LeafSpec):
    """Any value of JSON, which may differ from element to element: chat messages, annotations, calls of tools.

    A value consists of dicts with str keys, lists, str, numbers, bools and None. A batch has a list of values. Records
    store canonical text, so the keys of a dict come back sorted. NaN, infinities, integers beyond 64 bits and keys that
    are no str are refused.

    Examples:
        >>> storage = cachelayer.Storage(folder)
        >>> rows = [{"calls": [{"name": "add", "arguments": {"a": 1}}]}, {"calls": None}]
        >>> ref = storage.cache(rows, "chats@v1", element_spec={"calls": cachelayer.JsonSpec()})
        >>> ref[0]["calls"][0]["arguments"]
        {'a': 1}
    """

    dtype: DType = field(default=str, init=False)
    shape: Shape = field(default=(), init=False)
    nullable: bool = field(default=False, init=False)
    nullable_values: bool = field(default=False, init=False)
    timezone: str | None = field(default=None, init=False)

    def __repr__(self) -> str:
        return "JsonSpec()"


class NullableDict(dict[str, Any]):
    """The spec of a dict that may be None. A batch has a :class:`cachelayer.Nullable` of the dict.

    Examples:
        >>> spec = {"meta": cachelayer.NullableDict(lang=cachelayer.ArraySpec(str))}
        >>> rows = [{"meta": {"lang": "de"}}, {"meta": None}]
        >>> ref = cachelayer.Storage(folder).cache(rows, "rows@v1", element_spec=spec)
        >>> ref[1], ref.read([0, 1])["meta"].valid.tolist()
        ({'meta': None}, [True, False])
        >>> ref.element_spec == {"meta": {"lang": cachelayer.ArraySpec(str)}}  # which is never None
        False
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NullableDict) and super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __repr__(self) -> str:
        return f"NullableDict({super().__repr__()})"


def has_values(leaf: LeafSpec) -> bool:
    """Return whether a leaf consists of values that can be None one by one: an array with dimensions."""
    return bool(leaf.shape) and not isinstance(leaf, SparseSpec)


def is_static(leaf: LeafSpec) -> bool:
    """Return whether a leaf takes the same number of bytes in every element."""
    return isinstance(leaf, ArraySpec) and not dtypes.is_string(leaf.dtype) and None not in leaf.shape


def takes_none(leaf: LeafSpec) -> bool:
    """Return whether None is a value of a leaf like any other, as null is in JSON."""
    return isinstance(leaf, JsonSpec)


def as_nullable(leaf: L) -> L:
    """Return the spec of the same leaf, which may be None."""
    return leaf if takes_none(leaf) else replace(leaf, nullable=True)


def with_nullable_values(leaf: L) -> L:
    """Return the spec of the same leaf, in which values may be None."""
    return replace(leaf, nullable_values=True)


def without_nulls(leaf: L) -> L:
    """Return the spec of the same leaf without any None, to compare leaves by their other properties."""
    if leaf.nullable:
        leaf = replace(leaf, nullable=False)
    return replace(leaf, nullable_values=False) if leaf.nullable_values else leaf


def options_of(spec: EncodedSpec) -> dict[str, Any]:
    """Return the options with which files are decoded, by name, such as ``sampling_rate``; ``upright`` only if not."""
    names = [item.name for item in fields(spec) if item.name not in _OF_ALL_LEAVES]
    options = {name: getattr(spec, name) for name in names}
    return {name: value for name, value in options.items() if name != "upright" or not value}


def decoded_leaf(leaf: LeafSpec) -> LeafSpec:
    """Return the spec of a leaf as readers get it: of an image, that of its pixels."""
    if isinstance(leaf, ImageSpec):
        dtype, channels = IMAGE_MODES[leaf.mode]
        size = (leaf.size.height, leaf.size.width) if isinstance(leaf, SizedImageSpec) else (None, None)
        return ArraySpec(np.dtype(dtype), (*size, *channels), leaf.nullable)
    if isinstance(leaf, AudioSpec):
        shape = (None,) if leaf.channels == 1 else (None, leaf.channels)
        return ArraySpec(np.dtype(np.float32), shape, leaf.nullable)
    return leaf


def describe_leaf(leaf: LeafSpec) -> str:
    """Return a leaf spec as text for an error message, such as ``uint8[32, None, 3]``."""
    if isinstance(leaf, ImageSpec):
        return f"the bytes of an image file ({leaf.mode})"
    if isinstance(leaf, AudioSpec):
        return "the bytes of a sound file"
    if isinstance(leaf, VideoSpec):
        return "the bytes of a video file"
    if isinstance(leaf, JsonSpec):
        return "a JSON value"
    name = _dtype_name(leaf)
    if leaf.nullable_values:
        name = f"{name} or None"
    dims = ", ".join("None" if dim is None else str(dim) for dim in leaf.shape)
    array = f"{name}[{dims}]" if leaf.shape else name
    if isinstance(leaf, RaggedSpec):
        return f"ragged {array} with {leaf.ragged_rank} level(s) of {leaf.splits_dtype} row splits"
    return f"sparse {array}" if isinstance(leaf, SparseSpec) else array


def _dtype_name(leaf: LeafSpec) -> str:
    is_time = isinstance(leaf.dtype, np.dtype) and leaf.dtype.kind in "Mm"
    name = np.dtype(leaf.dtype).name if is_time else dtypes.to_name(leaf.dtype)
    return name if leaf.timezone is None else f"{name[:-1]}, {leaf.timezone}]"
