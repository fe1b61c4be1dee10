"""A function for processes of this host, in an unnamed file that they inherit.

Arrays lie in the file after the pickle, and all processes map them: they are not copied into each. Arrays in mapped
files (``np.memmap``) stay there; the pickle has their paths and places.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.context import set_spawning_popen
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cachelayer.engines.engine import add_to_path, refuse_unpicklable
from cachelayer.temporary_files import unnamed_file

_LARGE = 1 << 20
"""Bytes from which an array is looked for in mapped files."""
_ALIGNED = 64
_HEAD = np.dtype("<u8")
_COMPARED = 1 << 16


class FunctionFile:
    """A function with all that it holds, pickled by value if the main program defines it.

    Args:
        function: the function.
        what: what the function is, for the error message.

    Raises:
        InvalidTypeError: if it cannot be pickled.
    """

    def __init__(self, function: Callable[..., Any], what: str) -> None:
        buffers: list[pickle.PickleBuffer] = []
        with refuse_unpicklable(what):
            # Credentials are pickled only for a child that is being started.
            set_spawning_popen(self)  # type: ignore[arg-type]
            try:
                message = _pickled(function, buffers)
            finally:
                set_spawning_popen(None)
        arrays = [buffer.raw() for buffer in buffers]
        head = pickle.dumps((sys.path, message, [array.nbytes for array in arrays]))
        self._file = os.fdopen(os.memfd_create("cachelayer"), "wb") if hasattr(os, "memfd_create") else unnamed_file()
        self._file.write(np.array(len(head), _HEAD).tobytes())
        self._file.write(head)
        for array in arrays:
            self._file.seek(_aligned(self._file.tell()))
            self._file.write(array)
        self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()


def read_function(descriptor: int) -> Callable[..., Any]:
    """Return the function of an inherited file; add the module search path of its process to ours."""
    # Arrays stay writable, and what a process writes stays its own, as in a copy.
    memory = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
    os.close(descriptor)
    end = _HEAD.itemsize + int(np.frombuffer(memory, _HEAD, 1)[0])
    path, message, sizes = pickle.loads(memory[_HEAD.itemsize : end])  # noqa: S301 - from the process that wrote it
    add_to_path(path)
    buffers = []
    for nbytes in sizes:
        start = _aligned(end)
        end = start + nbytes
        buffers.append(memory[start:end])
    return cast(Callable[..., Any], pickle.loads(message, buffers=buffers))  # noqa: S301 - from the same process


def _aligned(position: int) -> int:
    return -(-position // _ALIGNED) * _ALIGNED


def _pickled(function: Callable[..., Any], buffers: list[pickle.PickleBuffer]) -> bytes:
    # Imported here: most programs never need it.
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            place = _place_in_file(obj) if isinstance(obj, np.ndarray) and obj.nbytes >= _LARGE else None
            return super().reducer_override(obj) if place is None else (_mapped, place)

    message = io.BytesIO()
    Pickler(message, buffer_callback=buffers.append).dump(function)
    return message.getvalue()


def _place_in_file(array: NDArray[Any]) -> tuple[Any, ...] | None:
    """Return the arguments of ``_mapped`` for an array that lies in a mapped file; None if it lies in none."""
    file: Any = array
    while isinstance(file, np.ndarray) and not isinstance(file, np.memmap):
        file = file.base
    # Private changes of an array of mode "c" are not in the file.
    if getattr(file, "_mmap", None) is None or file.mode == "c" or not isinstance(file.filename, str | Path):
        return None
    if array.dtype.hasobject or not (array.flags.c_contiguous or array.flags.f_contiguous):
        return None
    # The offset of a view is that of the whole array.
    begin = file.offset - file.offset % mmap.ALLOCATIONGRANULARITY
    offset = begin + array.ctypes.data - np.frombuffer(file._mmap, np.uint8).ctypes.data
    mode = "c" if array.flags.writeable else "r"
    order = "C" if array.flags.c_contiguous else "F"
    place = isinstance(array, np.memmap), str(file.filename), array.dtype, mode, offset, array.shape, order
    with suppress(OSError, ValueError):
        if _is_alike(array, _mapped(*place)):
            return place
    return None


def _is_alike(array: NDArray[Any], other: NDArray[Any]) -> bool:
    """Return whether two arrays have the same first and last bytes: the file may have been replaced meanwhile."""
    one, two = (each.reshape(-1, order="A").view(np.uint8) for each in (array, other))
    return bool((one[:_COMPARED] == two[:_COMPARED]).all() and (one[-_COMPARED:] == two[-_COMPARED:]).all())


def _mapped(as_memmap: bool, path: str, dtype: Any, mode: Any, offset: int, shape: Any, order: Any) -> NDArray[Any]:
    array: NDArray[Any] = np.memmap(path, dtype, mode, offset, shape, order)
    return array if as_memmap else array.view(np.ndarray)
