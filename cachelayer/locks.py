"""A lock that outlives forks and pickles."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any


class ProcessLock:
    """Held by one thread of this process at a time, which may take it again.

    A fork while another thread holds it leaves the child with a free one: the thread does not exist there. A pickle
    of it is a new lock.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()

    def of_process(self) -> threading.RLock:
        """The lock that threads of this process hold."""
        if self._pid != os.getpid():
            self.__init__()  # type: ignore[misc]
        return self._lock

    if TYPE_CHECKING:

        def __enter__(self) -> None: ...
        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None: ...

    else:
        # Properties, so that a ``with`` statement calls the lock of C itself: a signal handler that raises in a method
        # of ours, just after it took the lock, would leave the lock taken for ever.
        @property
        def __enter__(self) -> Callable[[], Any]:
            return self.of_process().__enter__

        @property
        def __exit__(self) -> Callable[..., None]:
            return self._lock.__exit__

    def __reduce__(self) -> tuple[type[ProcessLock], tuple[()]]:
        return ProcessLock, ()
