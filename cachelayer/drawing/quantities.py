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


def ago(seconds: float) -> str:
    """Format a time in the past, such as ``5 min ago``."""
    for unit, of in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * of:
            return f"{seconds / of:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
