"""Decode the file of an image or a sound."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import InvalidTypeError, MissingDependencyError
from cachelayer.records.spec import AudioSpec, ImageSize, ImageSpec, LeafSpec, SizedImageSpec

if TYPE_CHECKING:
    from PIL import Image

_WIDE_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
_SCALED_FORMATS = ("JPEG", "MPO")
_TURNED_BY_90_DEGREES = (5, 6, 7, 8)
"""The orientations in Exif of images whose width is the height of their pixels as they are stored."""


def decoder(spec: LeafSpec) -> Callable[[bytes], NDArray[Any]]:
    """Return the function that makes an array of the bytes of a file. Threads may call it at once."""
    if isinstance(spec, ImageSpec):
        return _image_decoder(spec)
    if isinstance(spec, AudioSpec):
        return _audio_decoder(spec)
    raise InvalidTypeError(f"no decoder for {spec!r}: use ImageSpec or AudioSpec")


def _image_decoder(spec: ImageSpec) -> Callable[[bytes], NDArray[Any]]:
    try:
        from PIL import ExifTags, Image, ImageOps
    except ImportError as error:
        raise MissingDependencyError("images need Pillow: pip install 'cachelayer[image]'") from error

    # Hues go round in a circle, so they have no mean that is between them.
    mode = "RGB" if spec.mode == "HSV" and isinstance(spec, SizedImageSpec) else spec.mode

    def decode(data: bytes) -> NDArray[Any]:
        image: Image.Image = Image.open(io.BytesIO(data))
        if isinstance(spec, SizedImageSpec) and image.format in _SCALED_FORMATS:
            size = spec.size.width, spec.size.height
            is_turned = image.getexif().get(ExifTags.Base.Orientation, 1) in _TURNED_BY_90_DEGREES
            # The decoder leaves out details: it halves the image while that is larger than the size.
            image.draft(None, size[::-1] if is_turned else size)
        image.load()
        if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
            # Cameras store an image as the sensor saw it, with the rotation that makes it upright.
            image = ImageOps.exif_transpose(image)
        if image.mode != mode:
            if image.mode in _WIDE_MODES and mode not in _WIDE_MODES:
                raise ValueError(
                    f"its pixels are {image.mode}, which {spec.mode} would cut off: declare ImageSpec(mode='I') or 'F'"
                )
            image = image.convert(mode)
        if isinstance(spec, SizedImageSpec):
            image = _sized(image, spec.size)
            if mode != spec.mode:
                image = image.convert(spec.mode)
        return np.asarray(image)

    return decode


def _sized(image: Image.Image, size: ImageSize) -> Image.Image:
    """Return the image, or the middle of it, in a size."""
    from PIL.Image import Resampling

    left = top = 0.0
    if size.crop:
        scale = min(image.width / size.width, image.height / size.height)
        # Rounding may make the kept part a little larger than the image.
        left = max(0.0, (image.width - size.width * scale) / 2)
        top = max(0.0, (image.height - size.height * scale) / 2)
    box = (left, top, image.width - left, image.height - top)
    return image.resize((size.width, size.height), Resampling.BILINEAR, box=box)


def _audio_decoder(spec: AudioSpec) -> Callable[[bytes], NDArray[Any]]:
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise MissingDependencyError("sounds need soundfile: pip install 'cachelayer[audio]'") from error

    def decode(data: bytes) -> NDArray[Any]:
        samples, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
        if spec.channels == 1:
            samples = samples.mean(axis=1)
        if spec.sampling_rate is not None and rate != spec.sampling_rate:
            samples = _resampled(samples, rate, spec.sampling_rate)
        return np.asarray(samples, np.float32)

    return decode


def _resampled(samples: NDArray[Any], rate: int, wanted: int) -> NDArray[Any]:
    try:
        import soxr
    except ImportError as error:
        raise MissingDependencyError(
            f"resampling a sound from {rate} to {wanted} Hz needs soxr: pip install 'cachelayer[audio]'"
        ) from error
    resampled: NDArray[Any] = soxr.resample(samples, rate, wanted)
    return resampled
