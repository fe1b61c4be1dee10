"""A system that gives no more threads."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_NO_STACK = 1 << 47
"""More bytes than a process can address."""


@contextmanager
def no_threads() -> Iterator[None]:
    """Have every start of a thread fail, as under a limit of threads or memory."""
    size = threading.stack_size(_NO_STACK)
    try:
        yield
    finally:
        threading.stack_size(size)
