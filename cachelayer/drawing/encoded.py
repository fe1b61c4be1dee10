"""Decode the files of images and sounds that strangers stored, within limits."""

from __future__ import annotations

import io
import wave
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.drawing.pixels import Pixels, heat
from cachelayer.errors import ElementError, MissingDependencyError

MOST_PIXELS = 1 << 26
MOST_SECONDS = 60
MOST_SAMPLES = 1 << 24
# Others run programs of this machine, or are rare.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")


def picture(data: bytes, side: int) -> Pixels:
    """Decode the file of an image to ``[h, w, 3]`` pixels of at most ``side``. Its size is checked before its pixels.

    Raises:
        ElementError: if it is too large or does not decode.
        MissingDependencyError: if Pillow is not installed.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise MissingDependencyError("images need Pillow: pip install 'cachelayer[image]'") from error
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            width, height = image.size
            if width * height > MOST_PIXELS:
                raise ElementError(f"at most {MOST_PIXELS:,} pixels", f"an image of {width:,} x {height:,} pixels")
            image.draft("RGB", (2 * side, 2 * side))
            upright = ImageOps.exif_transpose(image)
            if upright.mode.startswith(("I", "F")):
                return heat(np.asarray(upright), side)
            upright.thumbnail((side, side))
            return np.ascontiguousarray(np.asarray(upright.convert("RGB")))
    except ElementError:
        raise
    except Exception as error:
        # Pillow raises anything about a file that is damaged or made to do harm.
        raise ElementError("an image file", f"{len(data):,} bytes that do not decode: {error}") from error


def sound(data: bytes) -> bytes:
    """Decode the file of a sound, of which the first minute counts, to a WAV file of 16 bits a sample.

    Raises:
        ElementError: if it does not decode.
        MissingDependencyError: if soundfile is not installed.
    """
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise MissingDependencyError("sounds need soundfile: pip install 'cachelayer[audio]'") from error
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            rate = file.samplerate
            # A file may claim any number of channels, and memory for all of them is taken first.
            frames = min(rate * MOST_SECONDS, MOST_SAMPLES // file.channels)
            samples = file.read(frames, dtype="float32", always_2d=True)[:, :2]
        return wav(samples, rate)
    except Exception as error:
        # libsndfile raises anything, as above.
        raise ElementError("a sound file", f"{len(data):,} bytes that do not decode: {error}") from error


def wav(samples: NDArray[Any], rate: int) -> bytes:
    """Return ``[frames, channels]`` samples between -1 and 1 as the bytes of a WAV file."""
    made = io.BytesIO()
    with wave.open(made, "wb") as out:
        out.setnchannels(samples.shape[1])
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes((np.clip(np.nan_to_num(samples), -1, 1) * 32767).astype("<i2").tobytes())
    return made.getvalue()
