"""Bytes and times as people write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

import typer

_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", re.ASCII)
_BYTES = {
    "": 1,
    "b": 1,
    **{f"{prefix}{unit}": 1000**power for power, prefix in enumerate("kmgt", 1) for unit in ("", "b")},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
}
_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def nbytes(text: str) -> int:
    """Bytes: ``256MB``, ``1.5GiB``, ``4096``."""
    return int(_scaled(text, _BYTES, "bytes such as 4096, 256MB or 1GiB"))


def seconds(text: str) -> float:
    """Seconds: ``90``, ``30m``, ``24h``, ``7d``."""
    return _scaled(text, _SECONDS, "a time such as 90s, 30m, 24h or 7d")


def _scaled(text: str, units: Mapping[str, int], what: str) -> float:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2].lower() not in units:
        raise typer.BadParameter(f"{text!r} is not {what}")
    return float(match[1]) * units[match[2].lower()]


ShardBytes = Annotated[
    int | None, typer.Option(parser=nbytes, metavar="SIZE", help="About the size of a shard file: 256MB, 1GiB.")
]
Grace = Annotated[
    float, typer.Option(parser=seconds, metavar="TIME", help="How long ago a build must have stopped: 30m, 24h, 7d.")
]
