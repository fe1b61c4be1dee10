"""Write pixels as PNG, and read them from arrays and from files of images and sounds."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import ElementError
from cachelayer.records.media import why_cut
from cachelayer.support.extras import packages_of

Pixels = NDArray[np.uint8]
CHANNELS = (1, 3, 4)
_LEAST = 8
"""Grey images with fewer pixels a side are more likely to be something else."""
_COLOURS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
"""The colours of a heat map from the lowest value to the highest: even in lightness, and told apart by the
colour-blind."""
_NO_NUMBER = (128, 128, 128)


def pixels_of(array: NDArray[Any], side: int) -> Pixels | None:
    """Return the pixels of an array that looks like an image or a table of numbers; None for any other.

    Images are uint8 of shape ``[h, w]`` from 8 x 8 on, and uint8 or shares of 1 of shape ``[h, w, 1 | 3 | 4]``.
    """
    if array.ndim == 2 and min(array.shape) > 1:
        is_grey = array.dtype == np.uint8 and min(array.shape) >= _LEAST
        return rgb(fitted(array, side)) if is_grey else heat(array, side)
    if array.ndim != 3 or array.shape[2] not in CHANNELS or min(array.shape[:2]) < 2:
        return None
    if array.dtype.kind == "f" and array.min() >= 0 and array.max() <= 1:
        array = (array.astype(np.float64) * 255).astype(np.uint8)
    return rgb(fitted(array, side)) if array.dtype == np.uint8 else None


def fitted(pixels: NDArray[Any], side: int) -> Pixels:
    """Scale ``[h, w]`` or ``[h, w, c]`` to fit into a square: down by leaving pixels out, up by repeats."""
    longest = max(pixels.shape[:2])
    step = -(-longest // side)
    times = max(1, min(side // 2 // longest, 16))
    return np.ascontiguousarray(pixels[::step, ::step].repeat(times, axis=0).repeat(times, axis=1), np.uint8)


def rgb(pixels: Pixels) -> Pixels:
    """Convert ``[h, w]`` or ``[h, w, 1 | 3 | 4]`` to ``[h, w, 3]``, with transparent pixels on black."""
    whole = pixels if pixels.ndim == 3 else pixels[:, :, None]
    if whole.shape[2] == 4:
        whole = (whole[:, :, :3].astype(np.uint16) * whole[:, :, 3:] // 255).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(whole, (*whole.shape[:2], 3)))


def heat(numbers: NDArray[Any], side: int) -> Pixels:
    """Draw ``[h, w]`` numbers as a heat map of at most ``side`` pixels; NaN and the infinities are grey."""
    step = tuple(slice(None, None, max(1, -(-length // side))) for length in numbers.shape)
    finite, shares = _shares(numbers[step])
    places = shares * (len(_COLOURS) - 1)
    stops = np.arange(len(_COLOURS))
    channels = [np.interp(places, stops, [colour[channel] for colour in _COLOURS]) for channel in range(3)]
    colours = np.rint(np.stack(channels, axis=-1)).astype(np.uint8)
    colours[~finite] = _NO_NUMBER
    return fitted(colours, side)


def line(numbers: NDArray[Any], width: int, height: int) -> str:
    """Return ``[n]`` numbers as the points of an SVG polyline; NaN and the infinities are left out."""
    finite, shares = _shares(numbers[:: max(1, len(numbers) // (4 * width))])
    across = np.linspace(0, width, len(shares))[finite]
    up = height * (1 - shares[finite])
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across.tolist(), up.tolist(), strict=True))


def _shares(numbers: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return which numbers are finite, and all numbers scaled to 0 for the lowest finite one and 1 for the highest."""
    # Halves keep the difference of the largest floats finite.
    halves = numbers.astype(np.float64) / 2
    finite = np.isfinite(halves)
    low, high = (halves[finite].min(), halves[finite].max()) if finite.any() else (0.0, 0.0)
    return finite, (np.where(finite, halves, low) - low) / (high - low or 1.0)


def png(pixels: Pixels) -> bytes:
    """Return ``[h, w, 3]`` pixels as the bytes of a PNG file."""
    height, width = pixels.shape[:2]
    # Each row begins with the number of its filter: 0, for none.
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, 3 * width)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = _chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(rows.tobytes(), 4)), _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


MOST_PIXELS = 1 << 26
MOST_SECONDS = 60
MOST_SAMPLES = 1 << 24
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
"""The formats that are decoded. Pillow runs programs of this machine for some others; the rest are rare."""


def picture(data: bytes, side: int, *, upright: bool = True) -> Pixels:
    """Decode the file of an image to ``[h, w, 3]`` pixels of at most ``side``, after a check of its size."""
    with packages_of("image", "images need Pillow"):
        from PIL import Image, ImageOps
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            width, height = image.size
            if width * height > MOST_PIXELS:
                raise ElementError(f"at most {MOST_PIXELS:,} pixels", f"an image of {width:,} x {height:,} pixels")
            image.draft("RGB", (2 * side, 2 * side))
            turned = ImageOps.exif_transpose(image) if upright else image
            if turned.mode.startswith(("I", "F")):
                return heat(np.asarray(turned), side)
            turned.thumbnail((side, side))
            return np.ascontiguousarray(np.asarray(turned.convert("RGB")))
    except ElementError:
        raise
    except Exception as error:
        # Pillow raises anything about a file that is damaged or made to do harm.
        raise ElementError("an image file", f"{len(data):,} bytes that do not decode: {error}") from error


def sound(data: bytes) -> bytes:
    """Decode the first minute of a sound file to a WAV file of 16 bits a sample."""
    with packages_of("audio", "sounds need soundfile"):
        import soundfile
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            if cut := why_cut(file, data):
                raise ElementError("a whole sound file", f"{len(data):,} bytes: {cut}")
            rate = file.samplerate
            # A file may state any number of channels, and memory for all of them is taken first.
            frames = min(rate * MOST_SECONDS, MOST_SAMPLES // file.channels)
            samples = file.read(frames, dtype="float32", always_2d=True)[:, :2]
        decoded = io.BytesIO()
        soundfile.write(decoded, np.nan_to_num(samples), rate, format="WAV", subtype="PCM_16")
        return decoded.getvalue()
    except ElementError:
        raise
    except Exception as error:
        # So does libsndfile.
        raise ElementError("a sound file", f"{len(data):,} bytes that do not decode: {error}") from error
