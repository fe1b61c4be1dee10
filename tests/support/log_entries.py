"""Entries that tests append to a log, as another process would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cachelayer.versions.log import Log
from cachelayer.versions.snapshot import Snapshot


def commit(log: Log, change: Callable[[Snapshot], Snapshot]) -> Snapshot:
    """Append what a change makes of the head, and return that entry."""
    for head in log.heads():
        decided = change(head)
        if log.commit(decided):
            return replace(decided, sequence=decided.sequence + 1)
    raise AssertionError("heads end with an error")
