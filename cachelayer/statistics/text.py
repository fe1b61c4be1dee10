"""Statistics of strings: which there are, if few differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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

    def add(self, strings: Sequence[str | bytes], longest: int) -> None:
        """Add strings; ``longest`` is the length of the longest."""
        if self._seen is None:
            return
        if longest <= _LONGEST:
            self._seen.update(strings)
        if longest > _LONGEST or len(self._seen) > DISTINCT:
            self._seen = None

    def result(self) -> StringStats:
        """Return the statistics. Strings that are bytes are shown as the text of a literal."""
        if self._seen is None:
            return StringStats(None, ())
        ranked = sorted(self._seen.items(), key=lambda item: (-item[1], item[0]))
        common = tuple((shown_string(text), count) for text, count in ranked[:COMMON])
        return StringStats(len(self._seen), common)


def shown_string(string: str | bytes) -> str:
    """Return a string for people: bytes as the text of a literal."""
    # A lone surrogate cannot be printed.
    return string.encode("utf-8", "backslashreplace").decode() if isinstance(string, str) else repr(string)
