"""Read numpy's own files as sources: ``.npy`` files, which are mapped, and ``.npz`` files, which are loaded."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.adapters.sources.files import File, Files, Options, file_source
from cachelayer.builds.array_source import array_source
from cachelayer.builds.batches import Batch
from cachelayer.builds.source import Source
from cachelayer.builds.source_files import FileSource, reading
from cachelayer.errors import CacheLayerError, InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.specs import tree
from cachelayer.specs.spec import ArraySpec
from cachelayer.specs.tree import Tree
from cachelayer.support.arguments import explains_options
from cachelayer.support.credentials_in_urls import without_credentials
from cachelayer.support.locks import cached_property

__all__ = ["from_npy", "from_npz"]

AnyPath = str | os.PathLike[str]
_MOST_EMPTY_ROWS = 2**24


@explains_options
def from_npy(paths: AnyPath | Mapping[str, Any], *, storage_options: Options = None) -> FileSource:
    """Return a source of the rows of ``.npy`` files. They must not get shorter.

    Files of this host are mapped, and may be larger than memory; those at a URL are loaded.

    Args:
        paths: the path or URL of a file: its rows are the elements. Or a dict of them: each element is a dict with one
            row of each file, and all files need the same number of rows.
        storage_options: options of fsspec's client.

    Raises, when the files are read:
        InvalidArgumentError: if a file does not exist.
        InvalidTypeError: if an array holds objects, which are pickled, or has no dimension.
        SourceError: if a file is not a ``.npy`` file, or its header does not fit its bytes.

    Examples:
        >>> import numpy as np
        >>> from cachelayer.adapters.npy import from_npy
        >>> np.save(folder / "x.npy", np.arange(6.0).reshape(3, 2))
        >>> np.save(folder / "y.npy", np.array([7, 8, 9]))
        >>> source = from_npy({"x": folder / "x.npy", "y": folder / "y.npy"})
        >>> cachelayer.Storage(folder / "cache").cache(source, "points@v1")[1]
        {'x': array([2., 3.]), 'y': np.int64(8)}
    """
    files = [os.fspath(path) for _, path in tree.leaf_values(paths)]

    def load(matches: Iterator[File]) -> Tree:
        return tree.map_structure(paths, lambda _path, _name: _array_of(next(matches)))

    return _source("arrays", files, storage_options, load, {"structure": tree.map_structure(paths, lambda *_: None)})


@explains_options
def from_npz(
    path: AnyPath, arrays: Sequence[str] | Mapping[str, str] | None = None, *, storage_options: Options = None
) -> FileSource:
    """Return a source of the arrays in an ``.npz`` file, compressed or not: an element is a dict with one row of each.

    The arrays are loaded into memory.

    Args:
        path: the path or URL of the file.
        arrays: the names of the arrays to read, all by default; a dict gives them other names:
            ``{"image": "x_train", "label": "y_train"}``.
        storage_options: options of fsspec's client.

    Examples:
        >>> import numpy as np
        >>> from cachelayer.adapters.npy import from_npz
        >>> np.savez(folder / "data.npz", x_train=np.arange(6.0).reshape(3, 2), y_train=np.array([7, 8, 9]))
        >>> source = from_npz(folder / "data.npz", {"label": "y_train"})
        >>> cachelayer.Storage(folder / "cache").cache(source, "labels@v1").read([0, 2])
        {'label': array([7, 9])}
    """
    name = os.fspath(path)
    return _source("npz", [name], storage_options, lambda matches: _loaded(next(matches), arrays), {"arrays": arrays})


def _source(
    kind: str,
    names: list[str],
    storage_options: Options,
    load: Callable[[Iterator[File]], Tree],
    options: Mapping[str, Any],
) -> FileSource:
    def opened(files: Sequence[File], declared: Tree | None) -> Source:
        if len(files) > len(names):
            raise InvalidArgumentError(f"{without_credentials(names[0])} names several files: pass one")
        with reading(names[0]):
            rows = _Rows(lambda: array_source(load(iter(files)), declared))
            return replace(rows.source, kind=kind, read=rows.read, take=rows.take, nbytes=None)

    return file_source(Files(names, storage_options), opened, options)


class _Rows:
    """Arrays of files. Another process opens the files, rather than get the arrays that are mapped here."""

    def __init__(self, make: Callable[[], Source]) -> None:
        self._make = make

    @cached_property
    def source(self) -> Source:
        return self._make()

    def read(self, start: int, stop: int | None) -> Iterator[Batch]:
        return self.source.read(start, stop)

    def take(self, numbers: Sequence[int]) -> Batch:
        assert self.source.take is not None  # noqa: S101 - arrays are taken
        return self.source.take(numbers)

    def __getstate__(self) -> dict[str, Any]:
        return {"_make": self._make}


def _array_of(file: File) -> NDArray[Any]:
    """Return the array of a ``.npy`` file: mapped, or loaded if the file is not on this host."""
    with reading(file.name, "is not a .npy file of numbers, or is cut short"):
        if not file.is_local:
            with file.open() as opened:
                return _checked(file.name, read_array(opened))
        array: Any = np.load(file.path, mmap_mode="r", allow_pickle=False)
        if not isinstance(array, np.memmap) or array.offset + array.nbytes != file.facts.nbytes:
            raise ValueError("it has other bytes than one array of numbers")
    return _checked(file.name, array)


def _loaded(file: File, arrays: Sequence[str] | Mapping[str, str] | None) -> dict[str, NDArray[Any]]:
    name = file.name
    what = "is not a .npz file, is cut short, or does not fit into memory"
    with reading(name, what), file.open() as opened, zipfile.ZipFile(opened) as archive:
        stored = [member.removesuffix(".npy") for member in archive.namelist()]
        wanted = stored if arrays is None else arrays
        chosen = wanted if isinstance(wanted, Mapping) else {each: each for each in wanted}
        missing = [each for each in chosen.values() if each not in stored]
        if missing:
            raise InvalidArgumentError(f"there is no array {missing[0]!r} among {stored}")
        loaded = {}
        for leaf, each in chosen.items():
            with archive.open(f"{each}.npy") as member:
                loaded[leaf] = _checked(f"{name}, array {each!r}", read_array(member))
    return loaded


def read_array(file: IO[bytes]) -> NDArray[Any]:
    """Return the array in an open ``.npy`` file; raise a ValueError if it holds anything else, as objects."""
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
