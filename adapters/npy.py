"""Read numpy's own files as sources: ``.npy`` and ``.npz``, in blocks of rows."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass
from io import FileIO
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.adapters._files import Files, reading
from cachelayer.builds.array_source import ArraySource
from cachelayer.builds.batches import Batch, Stacked, batch_records
from cachelayer.builds.source_identity import FileFacts
from cachelayer.errors import CacheLayerError, InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.locks import cached_property
from cachelayer.records import tree
from cachelayer.records.spec import ArraySpec
from cachelayer.records.tree import Tree

AnyPath = str | os.PathLike[str]
_VERSIONS = ((1, 0), (2, 0), (3, 0))
_MOST_BYTES = 2**63 - 1
_MOST_EMPTY_ROWS = 2**24


def from_npy(paths: AnyPath | Mapping[str, Any]) -> ArraySource:
    """Return a source of the rows of ``.npy`` files, which may be larger than memory.

    An array in Fortran order is read column by column, which takes longer.

    Args:
        paths: the path of a file: its rows are the elements. Or a dict of paths: each element is a dict with one row of
            each file, and all files need the same number of rows.

    Raises:
        InvalidArgumentError: if a file does not exist.
        InvalidTypeError: if an array holds objects, which are pickled, or has no dimension.
        SourceError: if a file is not a ``.npy`` file, is cut short, or has a header that does not fit its bytes.
    """
    return NpySource(paths)


class NpySource(ArraySource):
    """The rows of ``.npy`` files; see :func:`from_npy`."""

    def __init__(self, paths: AnyPath | Mapping[str, Any], declared: Tree | None = None) -> None:
        self._paths = paths
        self._arrays: Any = tree.map_structure(paths, lambda _, path: _opened(path))
        super().__init__(tree.map_structure(self._arrays, lambda _, array: array.unread), declared)
        _check_rows({array.name: array for _, array in tree.leaf_values(self._arrays)})

    def file_facts(self) -> list[FileFacts]:
        """Return the current size and modification time of each file."""
        return Files([path for _, path in tree.leaf_values(self._paths)]).facts()

    def rows(self, start: int, stop: int) -> Tree:
        # Read instead of using the map: if a mapped file gets shorter, the process crashes.
        return tree.map_structure(self._arrays, lambda _, array: _rows_of(array, start, stop))


def _opened(path: AnyPath) -> _Array:
    name = os.fspath(path)
    if not Path(path).is_file():
        raise InvalidArgumentError(f"there is no file {name!r}")
    with reading(name, "is not a .npy file, or is cut short"), Path(path).open("rb") as file:
        return _described(file, name, Path(path).stat().st_size, name)


def _rows_of(array: _Array, start: int, stop: int) -> NDArray[Any]:
    """Return some rows of the array of a ``.npy`` file."""
    with reading(array.name, f"failed at record {start} or later"), Path(array.name).open("rb", buffering=0) as file:
        if array.in_c_order:
            rows = np.empty((stop - start, *array.shape[1:]), array.dtype)
            _fill(file, rows, array.offset + start * array.row_nbytes)
            return rows
        # The first dimension varies fastest, so the values of adjacent rows at one place of a row are adjacent too.
        columns = np.empty((*array.shape[:0:-1], stop - start), array.dtype)
        whole = array.shape[0] * array.dtype.itemsize
        for place, run in enumerate(columns.reshape(prod(array.shape[1:]), stop - start)):
            _fill(file, run, array.offset + place * whole + start * array.dtype.itemsize)
        return columns.T


def _fill(file: FileIO, array: NDArray[Any], offset: int) -> None:
    """Fill an array with the bytes at an offset of a file.

    Raises:
        EOFError: if the file ends before the array is full.
    """
    values: Any = array.reshape(-1).view(np.uint8) if array.nbytes else b""
    rest = memoryview(values)
    file.seek(offset)
    while rest:
        count = file.readinto(rest)
        if not count:
            raise EOFError("the file became shorter: it ends within the array")
        rest = rest[count:]


def from_npz(path: AnyPath, arrays: Sequence[str] | Mapping[str, str] | None = None) -> NpzSource:
    """Return a source of the arrays in an ``.npz`` file, compressed or not: an element is a dict with one row of each.

    Arrays are read in blocks of rows, but an array in Fortran order is read whole.

    Args:
        path: the file.
        arrays: the names of the arrays to read, all by default; a dict gives them other names:
            ``{"image": "x_train", "label": "y_train"}``.
    """
    return NpzSource(path, arrays)


@dataclass(frozen=True)
class _Array:
    """An array of a file, as its header describes it.

    Args:
        name: the name of the file, or of the array within the ``.npz`` file.
        dtype, shape: the dtype and shape of the array.
        in_c_order: whether the values of a row are adjacent.
        offset: the position in the file at which the values begin.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    in_c_order: bool
    offset: int

    @property
    def row_nbytes(self) -> int:
        return self.dtype.itemsize * prod(self.shape[1:])

    @property
    def unread(self) -> NDArray[Any]:
        """An array of this dtype and shape, which takes no memory."""
        return np.broadcast_to(np.zeros((), self.dtype), self.shape)

    def blocks(self, member: IO[bytes], first: int, stop: int, size: int) -> Iterator[NDArray[Any]]:
        """Yield a range of rows, in blocks.

        Args:
            member: the open file, at its first value.
            first, stop: the range of rows.
            size: the number of rows in a block.
        """
        starts = range(first, stop, size)
        if not self.in_c_order:
            # The values of a row are spread over the whole file.
            whole = np.frombuffer(member.read(), self.dtype).reshape(self.shape[::-1]).T
            yield from (whole[start : min(stop, start + size)] for start in starts)
            return
        member.seek(first * self.row_nbytes, os.SEEK_CUR)
        for start in starts:
            count = min(size, stop - start)
            data = member.read(count * self.row_nbytes)
            yield np.frombuffer(data, self.dtype).reshape(count, *self.shape[1:])


class NpzSource:
    """The rows of the arrays in an ``.npz`` file; see :func:`from_npz`."""

    kind = "npz"

    def __init__(self, path: AnyPath, arrays: Sequence[str] | Mapping[str, str] | None) -> None:
        self._path = os.fspath(path)
        self._arrays = arrays
        self._first = 0

    def rest(self, records: int) -> NpzSource:
        """Return this source without its first records. A compressed file is still decompressed from its start."""
        rest = copy(self)
        rest._first += records
        return rest

    @cached_property
    def _arrays_by_leaf(self) -> dict[str, _Array]:
        """The array of each leaf.

        Raises:
            InvalidTypeError: if arrays have different lengths.
        """
        if not Path(self._path).is_file():
            raise InvalidArgumentError(f"there is no file {self._path!r}")
        arrays = {}
        with reading(self._path, "is not a .npz file, or is cut short"), zipfile.ZipFile(self._path) as archive:
            stored = [name.removesuffix(".npy") for name in archive.namelist()]
            for leaf, name in self._chosen(stored).items():
                with archive.open(f"{name}.npy") as member:
                    nbytes = archive.getinfo(f"{name}.npy").file_size
                    arrays[leaf] = _described(member, name, nbytes, f"{self._path}, array {name!r}")
        lengths = {leaf: array.shape[0] for leaf, array in arrays.items()}
        if len(set(lengths.values())) != 1:
            raise InvalidTypeError(f"{self._path}: arrays of different lengths, {lengths}: choose some with arrays=")
        _check_rows({f"{self._path}, array {array.name!r}": array for array in arrays.values()})
        return arrays

    def _chosen(self, stored: list[str]) -> dict[str, str]:
        names = stored if self._arrays is None else self._arrays
        chosen = dict(names) if isinstance(names, Mapping) else {name: name for name in names}
        missing = [name for name in chosen.values() if name not in stored]
        if missing:
            raise InvalidArgumentError(f"there is no array {missing[0]!r} among {stored}")
        return chosen

    is_local = True

    @property
    def identity(self) -> dict[str, Any]:
        """The facts that distinguish this file from others."""
        return Files(self._path).identity

    def file_facts(self) -> list[FileFacts]:
        """Return the current size and modification time of the file."""
        return Files(self._path).facts()

    @property
    def element_spec(self) -> Tree | None:
        return {leaf: ArraySpec(array.dtype, array.shape[1:]) for leaf, array in self._arrays_by_leaf.items()}

    @property
    def length(self) -> int | None:
        return next(iter(self._arrays_by_leaf.values())).shape[0]

    def batches(self, limit: int | None) -> Iterator[Batch]:
        """Yield the rows, in batches.

        Raises:
            SourceError: if the file is damaged; names the record.
        """
        rows = self.length or 0
        stop = rows if limit is None else min(rows, self._first + limit)
        arrays = self._arrays_by_leaf
        size = batch_records(sum(array.row_nbytes for array in arrays.values()))
        with ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(self._path))
            blocks = {}
            for leaf, array in arrays.items():
                member = stack.enter_context(archive.open(f"{array.name}.npy"))
                _header(member)
                blocks[leaf] = array.blocks(member, self._first, stop, size)
            for start in range(self._first, stop, size):
                with reading(self._path, f"failed at record {start} or later"):
                    batch = {leaf: next(rows) for leaf, rows in blocks.items()}
                yield Stacked(batch, min(size, stop - start))


def _header(file: IO[bytes]) -> Any:
    """Read shape, whether the array is in Fortran order, and dtype; leave the file at the first value."""
    version = np.lib.format.read_magic(file)
    if version not in _VERSIONS:
        raise ValueError(f"its header has the version {version}, which is not one of {_VERSIONS}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(file)


def _described(file: IO[bytes], name: str, nbytes: int, title: str) -> _Array:
    """Return the array that a file begins with, from its header.

    Args:
        file: the file, at its first byte.
        name: the name of the array.
        nbytes: the size of the whole file.
        title: the name of the array in messages.

    Raises:
        InvalidTypeError: if the array cannot be stored.
        SourceError: if the header and the number of bytes do not agree.
    """
    shape, in_fortran_order, dtype = _header(file)
    if dtype.hasobject or dtype.kind == "V" or dtype.subdtype is not None:
        raise InvalidTypeError(f"{title}: dtype {dtype} is not stored: save an array of numbers for each leaf")
    try:
        ArraySpec(dtype)
    except CacheLayerError as error:
        raise InvalidTypeError(f"{title}: {error}") from error
    if not shape:
        raise InvalidTypeError(f"{title}: it has no rows, only one value")
    if min(shape) < 0 or prod(length for length in shape if length) * max(1, dtype.itemsize) > _MOST_BYTES:
        raise SourceError(f"{title} has a header with the shape {shape}, which no array has: save it again")
    over = nbytes - file.tell() - dtype.itemsize * prod(shape)
    if over > 0:
        raise SourceError(f"{title} has {over} bytes after its array: save one array per file")
    if over < 0:
        raise SourceError(f"{title} is cut short: {-over} bytes of its array of shape {shape} are missing")
    array = _Array(name, dtype, shape, not in_fortran_order or len(shape) == 1, file.tell())
    _ = array.unread
    return array


def _check_rows(arrays: Mapping[str, _Array]) -> None:
    """Raise if there are very many rows without bytes: only a header, which may be wrong, gives their number.

    Raises:
        SourceError: names the first file.
    """
    title, first = next(iter(arrays.items()))
    if first.shape[0] > _MOST_EMPTY_ROWS and not any(array.row_nbytes for array in arrays.values()):
        raise SourceError(
            f"{title} has a header with {first.shape[0]:,} rows of no bytes, more than the {_MOST_EMPTY_ROWS:,} that "
            "are allowed: save fewer rows, or add a leaf with values"
        )
