"""A lock that outlives forks and pickles, and properties that are worked out once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

T = TypeVar("T")
_MISSING = object()


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


class cached_property(Generic[T]):  # noqa: N801 - it is used as the one of functools is
    """A property that is worked out when it is asked for first, once for each object.

    Threads that ask the same object meanwhile wait; no other object does. functools' own holds one lock for all objects
    of a class until Python 3.12, and leaves it held in a child of a fork.
    """

    def __init__(self, work_out: Callable[[Any], T]) -> None:
        self._work_out = work_out
        self._name = self._lock_name = ""
        self.__doc__ = work_out.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name, self._lock_name = name, f"_lock_of_{name}"

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        # Python looks here only until the value is among the attributes of the object.
        attributes = instance.__dict__
        with attributes.setdefault(self._lock_name, ProcessLock()):
            found = attributes.get(self._name, _MISSING)
            if found is _MISSING:
                found = attributes[self._name] = self._work_out(instance)
            attributes.pop(self._lock_name, None)
        return found  # type: ignore[no-any-return]
