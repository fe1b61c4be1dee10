"""Statistics of texts and of images."""

from __future__ import annotations

import io
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from cachelayer.statistics.numbers import NumberStats, NumberSummary

DISTINCT = 1000
COMMON = 10
_LONGEST = 256


@dataclass(frozen=True)
class StringStats:
    """The statistics of a leaf of strings.

    Args:
        distinct: how many strings differ; None if more than 1,000 do, or one is longer than 256.
        common: the ten most common strings with their counts; empty if ``distinct`` is None.
    """

    distinct: int | None
    common: tuple[tuple[str, int], ...]


class StringSummary:
    """Collects statistics of strings, batch by batch, in bounded memory."""

    def __init__(self) -> None:
        self._seen: Counter[str | bytes] | None = Counter()

    def add(self, strings: Sequence[str | bytes]) -> None:
        """Add strings."""
        if self._seen is not None:
            self._seen.update(strings)
            if len(self._seen) > DISTINCT or any(len(string) > _LONGEST for string in self._seen):
                self._seen = None

    def result(self) -> StringStats:
        """Return the statistics. Strings that are bytes are shown as the text of a literal."""
        if self._seen is None:
            return StringStats(None, ())
        ranked = sorted(self._seen.items(), key=lambda item: (-item[1], item[0]))
        return StringStats(len(ranked), tuple((shown_string(text), count) for text, count in ranked[:COMMON]))


def shown_string(string: str | bytes) -> str:
    """Return a string for people: bytes as the text of a literal."""
    # A lone surrogate cannot be printed.
    return string.encode("utf-8", "backslashreplace").decode() if isinstance(string, str) else repr(string)


@dataclass(frozen=True)
class ImageStats:
    """The statistics of a leaf of encoded images.

    Args:
        formats, modes: each format, such as ``JPEG``, and each mode, such as ``RGB``, with its count; the most common
            first.
        width, height: in pixels, as stored.
        unreadable: how many are not images that Pillow can read.
    """

    formats: tuple[tuple[str, int], ...]
    modes: tuple[tuple[str, int], ...]
    width: NumberStats
    height: NumberStats
    unreadable: int


class ImageSummary:
    """Collects statistics of the headers of encoded images, batch by batch. It needs Pillow."""

    def __init__(self) -> None:
        self._formats: Counter[str] = Counter()
        self._modes: Counter[str] = Counter()
        self._width, self._height = NumberSummary(np.dtype(np.int64)), NumberSummary(np.dtype(np.int64))
        self._unreadable = 0

    def add(self, files: Iterable[bytes]) -> None:
        """Add the bytes of image files."""
        from PIL import Image

        sizes = []
        with warnings.catch_warnings():
            # Pillow warns of images that are large when decoded, but nothing is decoded here.
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

    def result(self) -> ImageStats:
        """Return the statistics."""
        formats, modes = tuple(self._formats.most_common()), tuple(self._modes.most_common())
        return ImageStats(formats, modes, self._width.result(), self._height.result(), self._unreadable)
