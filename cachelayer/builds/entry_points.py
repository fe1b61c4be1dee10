"""Find the functions of installed packages that make sources: adapters, and what reads files by their paths."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@cache
def entry_points_of(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group. To look for them takes longer than to build a small version."""
    # Imported here: it takes a tenth of the time of importing the whole package.
    from importlib.metadata import entry_points

    return tuple(entry_points(group=group))
