"""Locks that survive forks and pickling, properties that are computed once, and pickles without what was computed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")
_MISSING = object()


class ProcessLock:
    """A reentrant lock that is free in a forked child, even if another thread held it at the fork.

    ::

        with lock.of_process():
            ...

    Unpickling makes a new lock. There is no ``__enter__``: a signal handler that raises between two lines of that
    method would leave the lock taken for ever. Python's own lock is taken in one step.
    """

    def __init__(self) -> None:
        self._locks: dict[int, threading.RLock] = {}
        """The lock of the threads of each process: of this one, and of those that it was forked from."""

    def of_process(self) -> threading.RLock:
        """Return the lock for the threads of this process; a new one after a fork."""
        pid = os.getpid()
        # Of threads that come at once, the lock of one is set: no other operation of a dict can come between.
        return self._locks.get(pid) or self._locks.setdefault(pid, threading.RLock())

    def __reduce__(self) -> tuple[type[ProcessLock], tuple[()]]:
        return ProcessLock, ()


class cached_property(Generic[T]):  # noqa: N801 - named like functools.cached_property
    """A property that is computed when it is first read, once for each object.

    Threads that read it on the same object meanwhile wait; threads that read it on other objects do not. Before Python
    3.12, functools.cached_property has one lock for all objects of a class, and leaves it taken in a forked child.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = self._lock_name = ""
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        self._lock_name = f"_lock_of_{name}"

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        # Python calls this only until the object has the value as an attribute.
        attributes = instance.__dict__
        with attributes.setdefault(self._lock_name, ProcessLock()).of_process():
            value = attributes.get(self._name, _MISSING)
            if value is _MISSING:
                value = attributes[self._name] = self._compute(instance)
            attributes.pop(self._lock_name, None)
        return value  # type: ignore[no-any-return]


class PickledByFields:
    """A dataclass that is pickled by its fields alone: what it has computed is computed again."""

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: self.__dict__[field.name] for field in fields(self)}  # type: ignore[arg-type]
