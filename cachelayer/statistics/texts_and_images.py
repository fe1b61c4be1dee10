"""Statistics of texts and bytes, and the sizes of images."""

from __future__ import annotations

import io
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

DISTINCT = 1000
"""How many distinct strings are counted at most."""
COMMON = 10
"""How many of the most common strings are told."""
_LONGEST = 256
"""Strings of more characters are not counted."""


@dataclass(frozen=True)
class StringStats:
    """The statistics of a leaf of strings."""

    distinct: int | None
    """How many strings differ; None if more than 1,000 do, or one is longer than 256."""
    common: tuple[tuple[str, int], ...]
    """The ten most common strings with their counts; empty if ``distinct`` is None."""


class StringSummary:
    """Collects statistics of strings, batch by batch, in bounded memory."""

    def __init__(self) -> None:
        self._seen: Counter[str | bytes] | None = Counter()
        """The count of each string; None once they are too many, or one is too long."""

    def add(self, strings: NDArray[Any]) -> None:
        """Add an array of shape ``[n]``."""
        if self._seen is not None:
            self._seen.update(strings.tolist())
            if len(self._seen) > DISTINCT or any(len(string) > _LONGEST for string in self._seen):
                self._seen = None

    def result(self) -> StringStats:
        """Return the statistics. Bytes are shown as Python writes them, such as ``b'ab'``."""
        if self._seen is None:
            return StringStats(None, ())
        ranked = sorted(self._seen.items(), key=lambda item: (-item[1], item[0]))
        return StringStats(len(ranked), tuple((_shown(string), count) for string, count in ranked[:COMMON]))


def _shown(string: str | bytes) -> str:
    # A lone surrogate cannot be printed.
    return string.encode("utf-8", "backslashreplace").decode() if isinstance(string, str) else repr(string)


def image_sizes(files: Iterable[bytes]) -> dict[str, NDArray[np.int64]]:
    """Return the widths and heights in the headers of image files, 0 for broken ones; an empty dict without Pillow."""
    try:
        from PIL import Image
    except ImportError:
        return {}
    sizes = []
    with warnings.catch_warnings():
        # Pillow warns of images that are large when decoded, but nothing is decoded here.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        for data in files:
            try:
                with Image.open(io.BytesIO(data)) as image:
                    sizes.append(image.size)
            except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
                sizes.append((0, 0))
    widths, heights = np.array(sizes, np.int64).reshape(-1, 2).T
    return {"width": widths, "height": heights}
