"""numpy's own files in: ``.npy`` memory-mapped, ``.npz`` read in blocks of rows."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.adapters._files import Files, reading
from cachelayer.building.arrays import ArraySource
from cachelayer.building.batches import Batch, Stacked, batch_records
from cachelayer.elements import tree
from cachelayer.elements.spec import ArraySpec
from cachelayer.elements.tree import Tree
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.locks import cached_property

AnyPath = str | os.PathLike[str]


def from_npy(paths: AnyPath | Mapping[str, Any]) -> ArraySource:
    """The rows of ``.npy`` files, which are mapped into memory: they may be larger than it.

    Args:
        paths: the path of a file, whose rows are the elements; or a dict of paths, whose elements are dicts of a row of
            each. Files have as many rows.

    Raises:
        InvalidArgumentError: where there is no such file.
        InvalidTypeError: for arrays of objects, which are pickled, or without a dimension.
        SourceError: for what is no such file, or is cut short.
    """
    return ArraySource(tree.map_structure(paths, lambda _, path: _mapped(path)))


def _mapped(path: AnyPath) -> NDArray[Any]:
    if not Path(path).is_file():
        raise InvalidArgumentError(f"there is no file {os.fspath(path)!r}")
    with reading(os.fspath(path), "is no .npy file, or cut short"):
        with Path(path).open("rb") as file:
            _checked(_header(file), os.fspath(path))
        mapped: NDArray[Any] = np.load(path, mmap_mode="r")
        return mapped


def from_npz(path: AnyPath, arrays: Sequence[str] | Mapping[str, str] | None = None) -> NpzSource:
    """The rows of the arrays in an ``.npz`` file, compressed or not: elements are dicts of a row of each.

    Args:
        path: the file.
        arrays: names of those to take, by default all; a dict gives them names of its own:
            ``{"image": "x_train", "label": "y_train"}``.
    """
    return NpzSource(path, arrays)


@dataclass(frozen=True)
class _Array:
    """An array of an ``.npz`` file, as its header says."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def row_nbytes(self) -> int:
        return self.dtype.itemsize * prod(self.shape[1:])

    def rows(self, member: IO[bytes], count: int) -> NDArray[Any]:
        """The next rows of the array."""
        data = member.read(count * self.row_nbytes)
        return np.frombuffer(data, self.dtype).reshape(count, *self.shape[1:])


class NpzSource:
    """The rows of the arrays in an ``.npz`` file; see :func:`from_npz`."""

    kind = "npz"

    def __init__(self, path: AnyPath, arrays: Sequence[str] | Mapping[str, str] | None) -> None:
        self._path = os.fspath(path)
        self._arrays = arrays
        self._first = 0

    def rest(self, records: int) -> NpzSource:
        """The same rows from one on; those before it are decompressed where the file is."""
        rest = copy(self)
        rest._first += records
        return rest

    @cached_property
    def _arrays_by_leaf(self) -> dict[str, _Array]:
        """The array of each leaf.

        Raises:
            InvalidTypeError: where arrays have other lengths than the others.
        """
        if not Path(self._path).is_file():
            raise InvalidArgumentError(f"there is no file {self._path!r}")
        found = {}
        with reading(self._path, "is no .npz file, or cut short"), zipfile.ZipFile(self._path) as archive:
            stored = [name.removesuffix(".npy") for name in archive.namelist()]
            for leaf, name in self._chosen(stored).items():
                with archive.open(f"{name}.npy") as member:
                    shape, in_c_order, dtype = _checked(_header(member), f"{self._path}, array {name!r}")
                if not in_c_order and len(shape) > 1:
                    raise InvalidTypeError(f"{self._path}, array {name!r}: it is in Fortran order: save it in C order")
                found[leaf] = _Array(name, dtype, shape)
        lengths = {leaf: array.shape[0] for leaf, array in found.items()}
        if len(set(lengths.values())) != 1:
            raise InvalidTypeError(f"{self._path}: arrays of different lengths, {lengths}: choose some with arrays=")
        return found

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
        """What tells its file from others."""
        return Files(self._path).identity

    @property
    def element_spec(self) -> Tree | None:
        return {leaf: ArraySpec(array.dtype, array.shape[1:]) for leaf, array in self._arrays_by_leaf.items()}

    @property
    def length(self) -> int | None:
        return next(iter(self._arrays_by_leaf.values())).shape[0]

    def batches(self, limit: int | None) -> Iterator[Batch]:
        """The rows, in batches.

        Raises:
            SourceError: where the file is damaged, with the record.
        """
        rows = self.length or 0
        stop = rows if limit is None else min(rows, self._first + limit)
        arrays = self._arrays_by_leaf
        size = batch_records(sum(array.row_nbytes for array in arrays.values()))
        with ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(self._path))
            members = {}
            for leaf, array in arrays.items():
                members[leaf] = stack.enter_context(archive.open(f"{array.name}.npy"))
                _header(members[leaf])
                with reading(self._path, f"failed before record {self._first}"):
                    members[leaf].seek(self._first * array.row_nbytes, os.SEEK_CUR)
            for start in range(self._first, stop, size):
                count = min(size, stop - start)
                with reading(self._path, f"failed at record {start} or later"):
                    batch = {leaf: array.rows(members[leaf], count) for leaf, array in arrays.items()}
                yield Stacked(batch, count)


def _header(file: IO[bytes]) -> Any:
    """Shape, whether in C order, and dtype; the file stands at the first value then."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    return shape, not fortran, dtype


def _checked(header: Any, name: str) -> Any:
    shape, _, dtype = header
    if dtype.hasobject or dtype.names:
        raise InvalidTypeError(f"{name}: dtype {dtype} is not stored: save an array of numbers for each leaf")
    if not shape:
        raise InvalidTypeError(f"{name}: it has no rows, but one value")
    return header
