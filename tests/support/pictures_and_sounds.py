"""Pictures and sounds, and the bytes of their files."""

import io
from typing import Any

import numpy as np
import soundfile
from PIL import Image

PIXELS = [np.random.default_rng(i).integers(0, 256, (4 + i % 3, 6 + i % 2, 3), np.uint8) for i in range(20)]
SOUNDS = [np.random.default_rng(i).uniform(-1, 1, (50 + i, 2)).astype(np.float32) for i in range(20)]


def png(pixels: Any, mode: str | None = None, **options: Any) -> bytes:
    image = Image.fromarray(pixels)
    file = io.BytesIO()
    (image if mode is None else image.convert(mode)).save(file, "PNG", **options)
    return file.getvalue()


def wav(samples: Any, rate: int = 16000) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="WAV", subtype="FLOAT")
    return file.getvalue()
