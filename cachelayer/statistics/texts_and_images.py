"""Statistics of texts, and the sizes of images."""

from __future__ import annotations

import io
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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


def image_sizes(files: Iterable[bytes]) -> list[tuple[int, int]]:
    """Return the width and the height in the headers of image files; 0 and 0 for files that Pillow cannot read."""
    from PIL import Image

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
    return sizes
