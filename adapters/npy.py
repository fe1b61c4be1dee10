"""Read numpy's own files as sources: ``.npy`` files, which are mapped, and ``.npz`` files, which are loaded."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.adapters.sources.files import Files, reading
from cachelayer.builds.array_source import ArraySource
from cachelayer.builds.batches import Batch
from cachelayer.builds.source_identity import FileFacts
from cachelayer.errors import CacheLayerError, InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.locks import cached_property
from cachelayer.records import tree
from cachelayer.records.spec import ArraySpec
from cachelayer.records.tree import Tree

AnyPath = str | os.PathLike[str]
_MOST_EMPTY_ROWS = 2**24


def from_npy(paths: AnyPath | Mapping[str, Any]) -> NumpySource:
    """Return a source of the rows of ``.npy`` files, which may be larger than memory.

    Args:
        paths: the path of a file: its rows are the elements. Or a dict of paths: each element is a dict with one row of
            each file, and all files need the same number of rows.

    Raises, when the files are read:
        InvalidArgumentError: if a file does not exist.
        InvalidTypeError: if an array holds objects, which are pickled, or has no dimension.
        SourceError: if a file is not a ``.npy`` file, or its header does not fit its bytes.
    """
    files = [os.fspath(path) for _, path in tree.leaf_values(paths)]
    return NumpySource("arrays", files, lambda: tree.map_structure(paths, lambda _, path: _mapped(os.fspath(path))))


def from_npz(path: AnyPath, arrays: Sequence[str] | Mapping[str, str] | None = None) -> NumpySource:
    """Return a source of the arrays in an ``.npz`` file, compressed or not: an element is a dict with one row of each.

    The arrays are loaded into memory.

    Args:
        path: the file.
        arrays: the names of the arrays to read, all by default; a dict gives them other names:
            ``{"image": "x_train", "label": "y_train"}``.
    """
    name = os.fspath(path)
    return NumpySource("npz", [name], lambda: _loaded(name, arrays))


class NumpySource:
    """The rows of arrays in files.

    Args:
        kind: what the files are.
        files: their paths.
        load: returns the arrays.
    """

    is_local = True

    def __init__(self, kind: str, files: Sequence[str], load: Callable[[], Tree]) -> None:
        self.kind = kind
        self._files = files
        self._load = load
        self._first = 0

    @cached_property
    def _nbytes(self) -> list[int]:
        return [_size_of(name) for name in self._files]

    @cached_property
    def _rows(self) -> ArraySource:
        _ = self._nbytes
        with reading(self._files[0]):
            return ArraySource(self._load())

    @property
    def element_spec(self) -> Tree | None:
        return self._rows.element_spec

    @property
    def length(self) -> int | None:
        return self._rows.length

    def file_facts(self) -> list[FileFacts]:
        """Return the current size and modification time of each file."""
        return Files(self._files).facts()

    def skipped(self, records: int) -> NumpySource:
        """Return this source without its first records."""
        skipped = copy(self)
        skipped._first += records
        return skipped

    def batches(self, limit: int | None) -> Iterator[Batch]:
        """Yield the rows, in batches.

        Raises:
            SourceError: if a file gets shorter or longer.
        """
        for batch in self._rows.skipped(self._first).batches(limit):
            # Reading the map of a file that got shorter would end the process.
            for name, nbytes in zip(self._files, self._nbytes, strict=True):
                if _size_of(name) != nbytes:
                    raise SourceError(f"{name} changed while it was read: it had {nbytes:,} bytes")
            yield batch


def _size_of(name: str) -> int:
    with reading(name):
        if not Path(name).is_file():
            raise InvalidArgumentError("there is no file of this name")
        return Path(name).stat().st_size


def _mapped(name: str) -> NDArray[Any]:
    """Return the array of a ``.npy`` file, mapped."""
    nbytes = _size_of(name)
    with reading(name, "is not a .npy file of numbers, or is cut short"):
        array: Any = np.load(name, mmap_mode="r", allow_pickle=False)
    over = nbytes - array.offset - array.nbytes if isinstance(array, np.memmap) else None
    if over != 0:
        raise SourceError(f"{name} has other bytes than one array of numbers: save one array per file")
    return _checked(name, array)


def _loaded(name: str, arrays: Sequence[str] | Mapping[str, str] | None) -> dict[str, NDArray[Any]]:
    """Return the chosen arrays of an ``.npz`` file."""
    what = "is not a .npz file, is cut short, or does not fit into memory"
    with reading(name, what), zipfile.ZipFile(name) as archive:
        stored = [member.removesuffix(".npy") for member in archive.namelist()]
        wanted = stored if arrays is None else arrays
        chosen = wanted if isinstance(wanted, Mapping) else {each: each for each in wanted}
        missing = [each for each in chosen.values() if each not in stored]
        if missing:
            raise InvalidArgumentError(f"there is no array {missing[0]!r} among {stored}")
        found = {}
        for leaf, each in chosen.items():
            with archive.open(f"{each}.npy") as member:
                found[leaf] = _checked(f"{name}, array {each!r}", read_array(member))
    lengths = {leaf: len(array) for leaf, array in found.items()}
    if len(set(lengths.values())) != 1:
        raise InvalidTypeError(f"{name}: arrays of different lengths, {lengths}: choose some with arrays=")
    return found


def read_array(file: IO[bytes]) -> NDArray[Any]:
    """Return the array in an open ``.npy`` file.

    Raises:
        ValueError: if the file holds anything else, such as objects or two arrays.
    """
    array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    if file.read(1):
        raise ValueError("other bytes follow the array")
    return array


def _checked(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if not array.ndim:
        raise InvalidTypeError(f"{name}: it has no rows, only one value")
    if not array.nbytes and len(array) > _MOST_EMPTY_ROWS:
        raise SourceError(f"{name} has {len(array):,} rows of no bytes: a header that nothing confirms")
    try:
        ArraySpec(array.dtype)
    except CacheLayerError as error:
        raise InvalidTypeError(f"{name}: {error}") from error
    return array
