"""Reads whose images and sounds any number of threads decode."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cachelayer.records import decoding_threads


@contextmanager
def reading_threads(count: int) -> Iterator[None]:
    """Have so many threads decode."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding_threads, "cores", lambda: count)
        decoding_threads._pool.cache_clear()
        yield
        decoding_threads._pool.cache_clear()
