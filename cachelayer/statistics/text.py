"""What is told of strings: their lengths, and which there are where they are few."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

DISTINCT = 1000
COMMON = 10
_LONGEST = 256


@dataclass(frozen=True)
class StringStats:
    """Strings of a leaf.

    Args:
        distinct: how many different ones there are; None where they are more than 1,000, or longer than 256.
        common: the ten that came most often, with how often, where ``distinct`` is known.
    """

    distinct: int | None
    common: tuple[tuple[str, int], ...]


class StringSummary:
    """Strings, batch by batch, in bounded memory."""

    def __init__(self) -> None:
        self._seen: Counter[str | bytes] | None = Counter()

    def add(self, strings: Sequence[str | bytes], longest: int) -> None:
        """Take in strings, and the length of the longest."""
        if self._seen is None:
            return
        if longest <= _LONGEST:
            self._seen.update(strings)
        if longest > _LONGEST or len(self._seen) > DISTINCT:
            self._seen = None

    def result(self) -> StringStats:
        """What was found; bytes as the text of a literal."""
        if self._seen is None:
            return StringStats(None, ())
        ranked = sorted(self._seen.items(), key=lambda item: (-item[1], item[0]))
        common = tuple((_shown(text), count) for text, count in ranked[:COMMON])
        return StringStats(len(self._seen), common)


def _shown(string: str | bytes) -> str:
    # Half a surrogate pair cannot be printed.
    return string.encode("utf-8", "backslashreplace").decode() if isinstance(string, str) else repr(string)
