"""Libraries that decode JPEG files, in one thread: the time of the processor, and whether their pixels are Pillow's.

Run: ``python benchmarks/media_decoders.py``. It measures those that are installed, with and without their own scaling.
"""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from harness import machine, table
from media import SIDE, jpegs
from PIL import Image

ROUNDS, FILES = 7, 30
Decode = Callable[[bytes], Any]


def whole(file: bytes) -> Any:
    """The pixels, by Pillow."""
    return np.asarray(Image.open(io.BytesIO(file)))


def sized(image: Image.Image) -> Any:
    """The pixels in the size that is wanted, by Pillow."""
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR))


def by_pillow() -> dict[str, tuple[Decode, Decode]]:
    """Pillow, with the decoder's own scaling and without."""

    def drafted(file: bytes) -> Any:
        image = Image.open(io.BytesIO(file))
        image.draft(None, (SIDE, SIDE))
        return sized(image)

    return {
        "Pillow": (whole, lambda file: sized(Image.open(io.BytesIO(file)))),
        "Pillow, Image.draft": (whole, drafted),
    }


def by_simplejpeg() -> dict[str, tuple[Decode, Decode]]:
    """simplejpeg, which scales in steps of an eighth; Pillow resizes."""
    from simplejpeg import decode_jpeg

    def scaled(file: bytes) -> Any:
        return sized(Image.fromarray(decode_jpeg(file, "RGB", min_height=SIDE, min_width=SIDE, min_factor=1)))

    return {
        "simplejpeg, resized by Pillow": (decode_jpeg, lambda file: sized(Image.fromarray(decode_jpeg(file)))),
        "simplejpeg, scaled, resized by Pillow": (decode_jpeg, scaled),
    }


def by_opencv() -> dict[str, tuple[Decode, Decode]]:
    """OpenCV, with the mean of areas, and with its quick filter, which skips pixels."""
    import cv2

    cv2.setNumThreads(0)

    def pixels(file: bytes) -> Any:
        return cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR_RGB)

    def resized(method: int) -> Decode:
        return lambda file: cv2.resize(pixels(file), (SIDE, SIDE), interpolation=method)

    return {
        "OpenCV, INTER_AREA": (pixels, resized(cv2.INTER_AREA)),
        "OpenCV, INTER_LINEAR": (pixels, resized(cv2.INTER_LINEAR)),
    }


def by_torchvision() -> dict[str, tuple[Decode, Decode]]:
    """torchvision, with antialiasing."""
    import torch
    from torchvision.io import decode_jpeg
    from torchvision.transforms.v2.functional import resize

    torch.set_num_threads(1)

    def tensor(file: bytes) -> Any:
        return decode_jpeg(torch.frombuffer(bytearray(file), dtype=torch.uint8))

    return {
        "torchvision": (lambda file: tensor(file).permute(1, 2, 0), lambda file: resize(tensor(file), [SIDE, SIDE]))
    }


LIBRARIES = {"PIL": by_pillow, "simplejpeg": by_simplejpeg, "cv2": by_opencv, "torchvision": by_torchvision}


def microseconds(decode: Decode, files: list[bytes]) -> float:
    """The processor's microseconds a file."""
    begun = time.process_time()
    for file in files:
        decode(file)
    return (time.process_time() - begun) / len(files) * 1e6


def main() -> None:
    """Print the table."""
    files, large = jpegs(FILES, 500, 400), jpegs(FILES // 4, 1000, 800)
    found = {}
    for name, library in LIBRARIES.items():
        found.update(library() if find_spec(name) else {})
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(ROUNDS):
        for name, (pixels, scaled) in found.items():
            for column, work in enumerate(((pixels, files), (scaled, files), (scaled, large))):
                times.setdefault((name, column), []).append(microseconds(*work))
    lines = []
    for name, (pixels, _) in found.items():
        columns = [times[name, column] for column in range(3)]
        cells = [f"{statistics.median(each):,.0f} ({min(each):,.0f} to {max(each):,.0f})" for each in columns]
        same = all(np.array_equal(whole(file), np.asarray(pixels(file))) for file in files)
        lines.append((name, *cells, "yes" if same else "no"))
    small = f"{SIDE} x {SIDE}"
    head = (
        "processor, us a picture",
        "500 x 400",
        f"500 x 400 to {small}",
        f"1000 x 800 to {small}",
        "Pillow's pixels",
    )
    print(table(f"JPEG decoders in one thread, medians of {ROUNDS} and spread ({machine()})", head, lines))


if __name__ == "__main__":
    main()
