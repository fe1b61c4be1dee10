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
from cachelayer.builds.array_source import ArraySource
from cachelayer.builds.batches import Batch, Stacked, batch_records
from cachelayer.builds.source_identity import FileFacts
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.locks import cached_property
from cachelayer.records import tree
from cachelayer.records.spec import ArraySpec
from cachelayer.records.tree import Tree

AnyPath = str | os.PathLike[str]


def from_npy(paths: AnyPath | Mapping[str, Any]) -> ArraySource:
    """The rows of ``.npy`` files, which may be larger than the memory.

    Args:
        paths: the path of a file, whose rows are the elements; or a dict of paths, whose elements are dicts of a row of
            each. Files have as many rows.

    Raises:
        InvalidArgumentError: where there is no such file.
        InvalidTypeError: for arrays of objects, which are pickled, or without a dimension.
        SourceError: for what is no such file, or is cut short.
    """
    return NpySource(paths)


class NpySource(ArraySource):
    """The rows of ``.npy`` files; see :func:`from_npy`."""

    def __init__(self, paths: AnyPath | Mapping[str, Any], declared: Tree | None = None) -> None:
        super().__init__(tree.map_structure(paths, lambda _, path: _mapped(path)), declared)
        self._paths = paths

    def file_facts(self) -> list[FileFacts]:
        """Return what the listings of its files say now."""
        return Files([path for _, path in tree.leaf_values(self._paths)]).facts()

    def rows(self, start: int, stop: int) -> Tree:
        # Read, not mapped: a file that gets shorter under a map ends the process.
        return tree.map_structure(self._columns, lambda _, mapped: _rows_of(mapped, start, stop))


def _rows_of(mapped: Any, start: int, stop: int) -> NDArray[Any]:
    """Rows of a file that is mapped, which are read from it."""
    if not isinstance(mapped, np.memmap) or not mapped.flags.c_contiguous or not mapped.size:
        return np.asarray(mapped[start:stop])
    path, shape = os.fspath(mapped.filename or ""), (stop - start, *mapped.shape[1:])
    row_nbytes = mapped.nbytes // len(mapped)
    with reading(path, f"failed at record {start} or later"):
        found = np.fromfile(path, mapped.dtype, prod(shape), offset=mapped.offset + start * row_nbytes)
        return found.reshape(shape)


def _mapped(path: AnyPath) -> NDArray[Any]:
    if not Path(path).is_file():
        raise InvalidArgumentError(f"there is no file {os.fspath(path)!r}")
    with reading(os.fspath(path), "is no .npy file, or cut short"):
        with Path(path).open("rb") as file:
            header = _checked(_header(file), os.fspath(path))
            _check_end(header, Path(path).stat().st_size - file.tell(), os.fspath(path))
        mapped: NDArray[Any] = np.load(path, mmap_mode="r")
        return mapped


def from_npz(path: AnyPath, arrays: Sequence[str] | Mapping[str, str] | None = None) -> NpzSource:
    """The rows of the arrays in an ``.npz`` file, compressed or not: elements are dicts of a row of each.

    They are read in blocks of rows; an array in Fortran order is read as a whole.

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
    in_c_order: bool = True

    @property
    def row_nbytes(self) -> int:
        return self.dtype.itemsize * prod(self.shape[1:])

    def blocks(self, member: IO[bytes], first: int, stop: int, size: int) -> Iterator[NDArray[Any]]:
        """The rows from one on, in blocks.

        Args:
            member: stands at the first value.
            first, stop: which rows.
            size: rows of a block.
        """
        starts = range(first, stop, size)
        if not self.in_c_order:
            # Each row has values from all over the file.
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
                    title = f"{self._path}, array {name!r}"
                    shape, in_c_order, dtype = _checked(_header(member), title)
                    _check_end(
                        (shape, in_c_order, dtype), archive.getinfo(f"{name}.npy").file_size - member.tell(), title
                    )
                found[leaf] = _Array(name, dtype, shape, in_c_order or len(shape) == 1)
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

    def file_facts(self) -> list[FileFacts]:
        """Return what the listing of its file says now."""
        return Files(self._path).facts()

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


def _check_end(header: Any, nbytes: int, name: str) -> None:
    """Raise if more bytes follow a header than its array has, as if two were saved to one file.

    Raises:
        SourceError: with the file and the number.
    """
    shape, _, dtype = header
    over = nbytes - dtype.itemsize * prod(shape)
    if over > 0:
        raise SourceError(f"{name} goes on for {over} bytes after its array: save one array a file")
