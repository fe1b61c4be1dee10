"""What is told of encoded images, of which nothing but the headers is looked at."""

from __future__ import annotations

import io
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from cachelayer.statistics.numbers import NumberStats, NumberSummary


@dataclass(frozen=True)
class ImageStats:
    """Encoded images of a leaf.

    Args:
        formats, modes: how many there are of each, such as ``JPEG``, and ``RGB``; the most common first.
        width, height: in pixels, as stored.
        unreadable: how many are no image that Pillow knows.
    """

    formats: tuple[tuple[str, int], ...]
    modes: tuple[tuple[str, int], ...]
    width: NumberStats
    height: NumberStats
    unreadable: int


class ImageSummary:
    """Encoded images, batch by batch. Tells nothing where Pillow is not installed."""

    def __init__(self) -> None:
        self._formats: Counter[str] = Counter()
        self._modes: Counter[str] = Counter()
        self._width, self._height = NumberSummary(np.dtype(np.int64)), NumberSummary(np.dtype(np.int64))
        self._unreadable = 0
        self._is_known = True

    def add(self, files: Iterable[bytes]) -> None:
        """Take in the bytes of image files."""
        try:
            from PIL import Image
        except ImportError:
            self._is_known = False
            return
        sizes = []
        with warnings.catch_warnings():
            # It warns of what decoding would take.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            for data in files:
                try:
                    with Image.open(io.BytesIO(data)) as image:
                        sizes.append(image.size)
                        self._formats[image.format or "unknown"] += 1
                        self._modes[image.mode] += 1
                except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
                    self._unreadable += 1
        dimensions = np.array(sizes, np.int64).reshape(len(sizes), 2)
        self._width.add(dimensions[:, 0])
        self._height.add(dimensions[:, 1])

    def result(self) -> ImageStats | None:
        """What was found."""
        if not self._is_known:
            return None
        formats, modes = tuple(self._formats.most_common()), tuple(self._modes.most_common())
        return ImageStats(formats, modes, self._width.result(), self._height.result(), self._unreadable)
