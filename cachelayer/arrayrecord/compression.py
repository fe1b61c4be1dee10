"""The compression of records in a shard, as users name it.

``writer``, ``index``, ``decompress``, ``local_shards`` and ``file`` write and read it.
"""

from __future__ import annotations

from dataclasses import dataclass

from cachelayer.errors import InvalidArgumentError

_LEVELS = range(-7, 23)
_DEFAULT_LEVEL = 3


@dataclass(frozen=True)
class Compression:
    """A way to compress records, each on its own.

    Args:
        zstd_level: the level of zstd; None for no compression.
    """

    zstd_level: int | None = None

    @property
    def is_compressed(self) -> bool:
        return self.zstd_level is not None

    @property
    def writer_option(self) -> str:
        """The option that ``ArrayRecordWriter`` takes."""
        return "uncompressed" if self.zstd_level is None else f"zstd:{self.zstd_level},window_log:20"

    @property
    def name(self) -> str | None:
        """The name by which users choose it."""
        return None if self.zstd_level is None else f"zstd:{self.zstd_level}"

    @classmethod
    def parse(cls, text: str | None) -> Compression:
        """Return the compression that a user names: None or ``"none"``, ``"zstd"``, or ``"zstd:<level>"``."""
        if text is None or text == "none":
            return cls()
        name, _, level = str(text).partition(":")
        if name == "zstd":
            if not level:
                return cls(_DEFAULT_LEVEL)
            if level.lstrip("-").isdecimal() and int(level) in _LEVELS:
                return cls(int(level))
        raise InvalidArgumentError(
            f"compression {text!r}: it must be None, 'zstd' or 'zstd:<level>', level {_LEVELS[0]} to {_LEVELS[-1]}"
        )
