"""Draw images in the terminal, and save them as files."""

from __future__ import annotations

import io
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style

from cachelayer.drawing.pixels import is_picture, means
from cachelayer.errors import MissingDependencyError, StorageError
from cachelayer.records import tree
from cachelayer.records.spec import ImageSpec

_COLUMNS, _ROWS = 48, 24
# Small images are drawn larger.
_SMALL = 16


class Picture:
    """An image drawn with half blocks, two pixels per character.

    Args:
        image: an array for which :func:`is_picture` is true.
    """

    def __init__(self, image: NDArray[np.uint8]) -> None:
        self._pixels = _rgb(image)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        pixels = _fitted(self._pixels, 2 * _ROWS, max(1, min(_COLUMNS, options.max_width)))
        for upper, lower in zip(pixels[0::2], pixels[1::2], strict=True):
            for above, below in zip(upper.tolist(), lower.tolist(), strict=True):
                style = Style(color=Color.from_rgb(*above), bgcolor=Color.from_rgb(*below))
                yield Segment("▀", style)
            yield Segment.line()

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Any:
        from rich.measure import Measurement

        width = _fitted(self._pixels, 2 * _ROWS, max(1, min(_COLUMNS, options.max_width))).shape[1]
        return Measurement(width, width)


def _rgb(image: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Convert an image to ``[h, w, 3]``, with transparent pixels on black."""
    pixels = (image if image.ndim == 3 else image[:, :, None]).astype(np.float64)
    if pixels.shape[2] == 4:
        pixels = pixels[:, :, :3] * pixels[:, :, 3:] / 255
    return np.broadcast_to(pixels, (*pixels.shape[:2], 3))


def _fitted(pixels: NDArray[np.float64], rows: int, columns: int) -> NDArray[np.uint8]:
    """Scale an image to fit into ``rows`` and ``columns``, with an even number of rows."""
    height, width = pixels.shape[:2]
    if max(height, width) < _SMALL:
        times = max(1, min(-(-_SMALL // max(height, width)), columns // width))
        pixels = pixels.repeat(times, axis=0).repeat(times, axis=1)
        height, width = pixels.shape[:2]
    shrink = max(height / rows, width / columns, 1.0)
    height, width = max(1, round(height / shrink)), max(1, round(width / shrink))
    pixels = means(means(pixels, min(height, rows), 0), min(width, columns), 1)
    if len(pixels) % 2:
        pixels = np.concatenate([pixels, np.zeros_like(pixels[:1])])
    return np.rint(pixels).astype(np.uint8)


def save_images(spec: tree.Tree, number: int, element: Any, folder: Path) -> list[Path]:
    """Write the images of an element as files: encoded ones with their own bytes, others as PNG.

    Args:
        spec: the spec of the raw elements.
        number: the record number, with which the file names begin.
        element: the element, not decoded.
        folder: the folder for the files; it is made if it does not exist.

    Raises:
        MissingDependencyError: if Pillow is not installed.
        StorageError: if a file cannot be written.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingDependencyError("saving images needs Pillow: pip install 'cachelayer[image]'") from error
    written = []
    seen: Counter[str] = Counter()
    for (path, leaf), value in zip(tree.leaves(spec), tree.flatten_like(spec, element), strict=True):
        name = "-".join([f"{number:06d}", *re.findall(r"\w+", path)])
        seen[name] += 1
        name += f"-{seen[name]}" * (seen[name] > 1)
        if isinstance(leaf, ImageSpec) and value is not None:
            written.append(_write(folder / f"{name}.{_extension(value)}", value))
        elif is_picture(value):
            file = io.BytesIO()
            Image.fromarray(value[:, :, 0] if value.shape[2:] == (1,) else value).save(file, "PNG")
            written.append(_write(folder / f"{name}.png", file.getvalue()))
    return written


def _extension(data: bytes) -> str:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data)) as image:
            return (image.format or "image").lower()
    except UnidentifiedImageError:
        return "bin"


def _write(path: Path, data: bytes) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error}") from error
    return path
