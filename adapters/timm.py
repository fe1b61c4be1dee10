"""Read images in timm: a reader of its ``ImageDataset`` over the encoded images of a ref. It does not import timm."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from cachelayer.access.dataref import DataRef
from cachelayer.errors import ElementError, InvalidArgumentError, InvalidTypeError
from cachelayer.records.spec import ArraySpec, ImageSpec

__all__ = ["ImageReader", "reader"]


def reader(ref: DataRef[Any], image: str = "image", target: str = "label") -> ImageReader:
    """Return a reader for ``timm.data.ImageDataset("", reader=...)``: images as the files they were, and class numbers.

    timm decodes the images itself. For an exact order and a state, pass the loader of ``create_loader`` to
    :func:`cachelayer.adapters.torch.resumable`.

    Args:
        ref: records that are dicts, in which images are stored encoded, as :class:`cachelayer.ImageSpec` or bytes.
        image: the key of the image.
        target: the key of the class number.

    Raises:
        InvalidTypeError: if the ref has no encoded images, or the target is no integer.
        InvalidArgumentError: if there is no such key.
    """
    if not isinstance(ref, DataRef):
        raise InvalidTypeError(f"a {type(ref).__name__} is not a DataRef of encoded images")
    raw = ref.raw()
    spec = raw.element_spec
    if not isinstance(spec, Mapping):
        raise InvalidTypeError(f"the elements are not dicts: {spec}")
    for name in (image, target):
        if name not in spec:
            raise InvalidArgumentError(f"the elements have no {name!r}, but {', '.join(map(repr, spec))}: pass the key")
    leaf = spec[image]
    if not isinstance(leaf, ImageSpec) and leaf != ArraySpec(bytes):
        raise InvalidTypeError(
            f"leaf {image!r} is stored as {leaf}, and timm's reader gives files: cache the bytes of image files"
        )
    label = spec[target]
    if not (isinstance(label, ArraySpec) and label.shape == () and getattr(label.dtype, "kind", "O") in "biu"):
        raise InvalidTypeError(f"leaf {target!r} is {label}: class numbers are integers")
    return ImageReader(raw, image, target)


class ImageReader:
    """The images of a ref as open files, each with its class number; made by :func:`reader`. Picklable."""

    def __init__(self, raw: DataRef[Any], image: str, target: str) -> None:
        self._raw = raw
        self._image = image
        self._target = target

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The number of each class by its name, as in timm's own readers: from ``ref.metadata["classes"]``."""
        return {name: number for number, name in enumerate(self._raw.metadata.get("classes", ()))}

    def __len__(self) -> int:
        return len(self._raw)

    def __getitem__(self, index: int) -> tuple[io.BytesIO, int]:
        element = self._raw[index]
        for name in (self._image, self._target):
            if element[name] is None:
                raise ElementError("an image and its class", "None", path=f"[{name!r}]", record=index)
        return io.BytesIO(element[self._image]), int(element[self._target])

    def filename(self, index: int, basename: bool = False, absolute: bool = False) -> str:  # noqa: ARG002
        """Return a name for a record, since it has no file: its number."""
        return str(index)

    def filenames(self, basename: bool = False, absolute: bool = False) -> list[str]:  # noqa: ARG002
        """Return a name for each record."""
        return [str(index) for index in range(len(self))]

    def __repr__(self) -> str:
        return f"reader({self._raw!r})"
