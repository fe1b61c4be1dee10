"""Parse sizes and times such as ``256MB`` and ``24h``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cachelayer.errors import InvalidArgumentError

_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", re.ASCII)
_BYTES = {
    "": 1,
    "b": 1,
    **{f"{prefix}{unit}": 1000**power for power, prefix in enumerate("kmgt", 1) for unit in ("", "b")},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
}
_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def nbytes(option: str, text: str) -> int:
    """Parse a size: ``256MB``, ``1.5GiB``, ``4096``.

    Raises:
        InvalidArgumentError: if the text is invalid; the error names the option.
    """
    return int(_scaled(option, text, _BYTES, "bytes such as 4096, 256MB or 1GiB"))


def seconds(option: str, text: str) -> float:
    """Parse a time: ``90``, ``30m``, ``24h``, ``7d``.

    Raises:
        InvalidArgumentError: if the text is invalid; the error names the option.
    """
    return _scaled(option, text, _SECONDS, "a time such as 90s, 30m, 24h or 7d")


def _scaled(option: str, text: str, units: Mapping[str, int], what: str) -> float:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2].lower() not in units:
        raise InvalidArgumentError(f"{option} {text!r}: pass {what}")
    return float(match[1]) * units[match[2].lower()]
