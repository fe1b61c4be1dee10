"""Functions for processes of this host: large arrays in them are mapped by all processes, not copied into each.

A large array that lies in a mapped file (``np.memmap``) is sent as its path and place there. The bytes of other large
arrays go into one unnamed file, which the processes inherit and map.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cachelayer.engines.remote_call import cannot_be_sent
from cachelayer.temporary_files import unnamed_file

LARGE = 1 << 20
"""Bytes of an array from which it is mapped."""
_ALIGNED = 64
_COMPARED = 1 << 16


class LocalCall:
    """A function with all that it holds, to be called by processes of this host.

    Args:
        function: the function.
        what: what the function is, for the error message.
        otherwise: what the user can do instead, for the error message.

    Raises:
        InvalidTypeError: if it cannot be pickled.
    """

    def __init__(self, function: Callable[..., Any], what: str, otherwise: str) -> None:
        self._shared = _Shared()
        with cannot_be_sent(what, otherwise):
            pickled = _pickled(function, self._shared.put)
        self.message = pickle.dumps((sys.path, pickled, self._shared.places))
        """What is sent to each process."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptor of the unnamed file, which each process inherits; empty if no array needs it."""
        return () if self._shared.descriptor is None else (self._shared.descriptor,)


def called(message: bytes, descriptor: int | None) -> Callable[..., Any]:
    """Return the function of a message; add the module search path of its process to ours.

    Args:
        message: the message of a :class:`LocalCall`.
        descriptor: that of its unnamed file, which is closed here; None if it has none.
    """
    path, pickled, places = pickle.loads(message)  # noqa: S301 - from the process that requests calls
    sys.path[:] = dict.fromkeys([*path, *sys.path])
    buffers: list[memoryview] = []
    if descriptor is not None:
        # Arrays stay writable, and what a process writes stays its own, as in a copy.
        mapped = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
        os.close(descriptor)
        buffers = [mapped[start : start + nbytes] for start, nbytes in places]
    return cast(Callable[..., Any], pickle.loads(pickled, buffers=buffers))  # noqa: S301 - from the same process


class _Shared:
    """The unnamed file, which is made for the first large array."""

    def __init__(self) -> None:
        self.descriptor: int | None = None
        self.places: list[tuple[int, int]] = []

    def put(self, buffer: pickle.PickleBuffer) -> bool:
        """Write a buffer into the file if it is large; return whether it is to be pickled instead."""
        raw = buffer.raw()
        if raw.nbytes < LARGE:
            return True
        if self.descriptor is None:
            self.descriptor = _unnamed_file()
            weakref.finalize(self, os.close, self.descriptor)
        start = sum(self.places[-1]) if self.places else 0
        start = -(-start // _ALIGNED) * _ALIGNED
        done = 0
        while done < raw.nbytes:
            done += os.pwrite(self.descriptor, raw[done:], start + done)
        self.places.append((start, raw.nbytes))
        return False


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("cachelayer-arrays")
    with unnamed_file() as file:
        return os.dup(file.fileno())


def _pickled(function: Callable[..., Any], put: Callable[[pickle.PickleBuffer], bool]) -> bytes:
    """Pickle a function, by value if the main program defines it; arrays in mapped files as their places there."""
    # Imported here: most programs never need it.
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, np.ndarray) and obj.nbytes >= LARGE:
                place = _place_in_file(obj)
                if place is not None:
                    return _mapped, (type(obj) is np.memmap, *place)
            return super().reducer_override(obj)

    pickled = io.BytesIO()
    Pickler(pickled, buffer_callback=put).dump(function)
    return pickled.getvalue()


def _place_in_file(array: NDArray[Any]) -> tuple[Any, ...] | None:
    """Return path, dtype, mode, offset, shape and order of an array in a mapped file; None if it lies in none."""
    file = _file_of(array)
    if file is None or array.dtype.hasobject or not (array.flags.c_contiguous or array.flags.f_contiguous):
        return None
    # A view keeps the offset of the whole array.
    begin = file.offset - file.offset % mmap.ALLOCATIONGRANULARITY
    mapped = np.frombuffer(file._mmap, np.uint8)
    offset = begin + array.ctypes.data - mapped.ctypes.data
    mode = "c" if array.flags.writeable else "r"
    place = str(file.filename), array.dtype, mode, offset, array.shape, "C" if array.flags.c_contiguous else "F"
    with suppress(OSError, ValueError):
        if _is_alike(array, _mapped(True, *place)):
            return place
    return None


def _file_of(array: NDArray[Any]) -> Any:
    """Return the mapped file that an array is, or is a view of; None if it is none, or may differ from the file."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap):
            has_name = getattr(base, "_mmap", None) is not None and isinstance(base.filename, str | Path)
            return base if has_name and base.mode != "c" else None
        base = base.base
    return None


def _is_alike(array: NDArray[Any], other: NDArray[Any]) -> bool:
    """Return whether two arrays have the same first and last bytes: the file may have been replaced meanwhile."""
    one, two = (each.reshape(-1, order="A").view(np.uint8) for each in (array, other))
    return bool((one[:_COMPARED] == two[:_COMPARED]).all() and (one[-_COMPARED:] == two[-_COMPARED:]).all())


def _mapped(as_memmap: bool, path: str, dtype: Any, mode: Any, offset: int, shape: Any, order: Any) -> NDArray[Any]:
    found: NDArray[Any] = np.memmap(path, dtype, mode, offset, shape, order)
    return found if as_memmap else found.view(np.ndarray)
