"""A lock that outlives forks and pickles."""

from __future__ import annotations

import os
import threading
from types import TracebackType


class ProcessLock:
    """Held by one thread of this process at a time, which may take it again.

    A fork while another thread holds it leaves the child with a free one: the thread does not exist there. A pickle
    of it is a new lock.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if self._pid != os.getpid():
            self.__init__()  # type: ignore[misc]
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[ProcessLock], tuple[()]]:
        return ProcessLock, ()
