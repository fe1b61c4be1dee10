"""Show quantities as text."""

from __future__ import annotations


def size(nbytes: int) -> str:
    """Format a number of bytes in powers of 1000, such as ``1.5 GB``."""
    number, unit = float(nbytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if number < 999.5 or unit == "PB":
            break
        number /= 1000
    return f"{number:.0f} {unit}" if unit == "B" or number >= 99.95 else f"{number:.1f} {unit}"
