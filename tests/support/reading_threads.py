"""Reads that any number of threads share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cachelayer.records import threads


@contextmanager
def reading_threads(count: int) -> Iterator[None]:
    """Have so many threads share each read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "cores", lambda: count)
        yield
