"""Read folders of files as sources: images or sounds with a folder for each class, or any files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from cachelayer.adapters._files import Folder, ListedFile, are_local, is_hidden, reading
from cachelayer.builds.batches import BATCH_NBYTES, Batch, ElementBatch
from cachelayer.builds.source_identity import FileFacts, identity_of_files
from cachelayer.errors import InvalidArgumentError
from cachelayer.locks import cached_property
from cachelayer.records.spec import ArraySpec, AudioSpec, ImageSpec, LeafSpec
from cachelayer.records.tree import Tree
from cachelayer.system_threads import Pool

IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
SOUNDS = (".wav", ".flac", ".mp3", ".ogg")
Root = str | os.PathLike[str]
Options = Mapping[str, Any] | None
_FILES_AT_ONCE = 64
_READERS = 16


@dataclass(frozen=True)
class Listing:
    """The files of a source in order, each with the other leaves of its element."""

    files: Sequence[tuple[ListedFile, dict[str, Any]]]
    metadata: dict[str, Any]


def from_files(root: Root, pattern: str = "*", *, storage_options: Options = None) -> FilesSource:
    """Return a source of all files in a folder: dicts of ``path``, relative to the root, and ``data``, sorted by path.

    Declare ``element_spec={"path": str, "data": ImageSpec()}`` to have images decoded when they are read.

    Args:
        root: the path or URL of the folder. Files may be at any depth. Links to folders are followed.
        pattern: the paths to read, such as ``"*.json"``; ``*`` matches ``/`` too. Hidden files, and files in hidden
            folders, are read only if the pattern has a name that begins with a dot.
        storage_options: options of fsspec's client.
    """

    def listing() -> Listing:
        files = Folder.at(root, storage_options).files(hidden=is_hidden(pattern))
        chosen = [(file, {"path": path}) for path, file in files if fnmatchcase(path, pattern)]
        if not chosen:
            raise InvalidArgumentError(f"there is no file {pattern!r} in {os.fspath(root)!r}")
        return Listing(chosen, {})

    return FilesSource("data", {"path": ArraySpec(str), "data": ArraySpec(bytes)}, listing, is_local=are_local(root))


def from_image_folder(
    root: str | os.PathLike[str],
    *,
    extensions: Sequence[str] = IMAGES,
    mode: str = "RGB",
    storage_options: Options = None,
) -> FilesSource:
    """Return a source of images with a folder for each class: dicts of ``image`` and ``label``, sorted by path.

    A label is the index of the class among the sorted class names, which are in ``ref.metadata["classes"]``. Images
    stay the bytes of their files; reading decodes them. Links to folders are followed. Hidden files and folders, whose
    names begin with a dot, are ignored.

    Args:
        root: the folder that holds a folder for each class; files may be at any depth.
        extensions: the endings of image files, such as ``.png``; other files are ignored.
        mode: Pillow's mode that pixels are converted to.
        storage_options: options of fsspec's client.
    """
    return _of_classes(root, "image", ImageSpec(mode), extensions, storage_options)


def from_audio_folder(
    root: str | os.PathLike[str],
    *,
    extensions: Sequence[str] = SOUNDS,
    sampling_rate: int | None = None,
    channels: int | None = None,
    storage_options: Options = None,
) -> FilesSource:
    """Return a source of sounds with a folder for each class: dicts of ``audio`` and ``label``, as for image folders.

    Args:
        root: the folder that holds a folder for each class; files may be at any depth.
        extensions: the endings of sound files, such as ``.wav``; other files are ignored.
        sampling_rate, channels: what files are decoded to; see :class:`cachelayer.AudioSpec`.
        storage_options: options of fsspec's client.
    """
    return _of_classes(root, "audio", AudioSpec(sampling_rate, channels), extensions, storage_options)


def _of_classes(root: Root, leaf: str, spec: LeafSpec, extensions: Sequence[str], options: Options) -> FilesSource:
    endings = tuple(each.lower() for each in ([extensions] if isinstance(extensions, str) else extensions))

    def listing() -> Listing:
        folder = Folder.at(root, options)
        classes = folder.folders()
        places = {name: np.int64(place) for place, name in enumerate(classes)}
        chosen = []
        for path, file in folder.files():
            name, inner, _ = path.partition("/")
            if path.lower().endswith(endings):
                if not inner:
                    raise InvalidArgumentError(f"{file.name} is not in the folder of a class: move it into one")
                chosen.append((file, {"label": places[name]}))
        empty = sorted(set(places.values()) - {others["label"] for _, others in chosen})
        if empty or not classes:
            which = f"the folder {classes[empty[0]]!r} has no file" if empty else "there is no folder with a file"
            raise InvalidArgumentError(f"{os.fspath(root)}: {which} that ends in {', '.join(endings)}")
        return Listing(chosen, {"classes": classes})

    leaves = {leaf: spec, "label": ArraySpec(np.dtype(np.int64))}
    return FilesSource(leaf, leaves, listing, is_local=are_local(root))


class FilesSource:
    """Files, each with the leaves that its path implies.

    Args:
        leaf: the key of the file's bytes in the elements.
        element_spec: the spec of the elements.
        listing: returns the list of the files.
        is_local: whether the files lie on this host.
    """

    kind = "files"
    is_local: bool = False

    def __init__(
        self, leaf: str, element_spec: Tree, listing: Callable[[], Listing], *, is_local: bool = False
    ) -> None:
        self.is_local = is_local
        self.element_spec: Tree | None = element_spec
        self._leaf = leaf
        self._list = listing
        self._first = 0

    def skipped(self, records: int) -> FilesSource:
        """Return this source without its first records."""
        skipped = copy(self)
        skipped._first += records
        return skipped

    @cached_property
    def _listing(self) -> Listing:
        return self._list()

    @property
    def identity(self) -> dict[str, Any]:
        """The facts that distinguish these files from others."""
        return identity_of_files(file.facts for file, _ in self._listing.files)

    def file_facts(self) -> list[FileFacts]:
        """Return the current size and modification time of each file."""
        return [file.facts for file, _ in self._list().files]

    @property
    def metadata(self) -> dict[str, Any]:
        """The names of the classes, if there are any."""
        return self._listing.metadata

    @property
    def length(self) -> int | None:
        return len(self._listing.files)

    def batches(self, limit: int | None) -> Iterator[Batch]:
        """Yield the files, in batches; read several at the same time.

        Raises:
            SourceError: if a file cannot be read; names it and its record.
        """
        with Pool(_READERS, "cachelayer-folders") as pool:
            stop = None if limit is None else self._first + limit
            for chunk in _chunks(list(enumerate(self._listing.files[self._first : stop], self._first))):
                yield ElementBatch(list(pool.map(self._element, chunk)))

    def _element(self, numbered: tuple[int, tuple[ListedFile, dict[str, Any]]]) -> dict[str, Any]:
        record, (file, others) = numbered
        with reading(file.name, f"cannot be read, at record {record}"), file.open() as opened:
            return {self._leaf: opened.read(), **others}


def _chunks(files: list[tuple[int, Any]]) -> Iterator[list[tuple[int, Any]]]:
    """Yield the files in lists that fit into a batch."""
    chunk: list[tuple[int, Any]] = []
    nbytes = 0
    for numbered in files:
        chunk.append(numbered)
        nbytes += numbered[1][0].nbytes
        if nbytes >= BATCH_NBYTES or len(chunk) == _FILES_AT_ONCE:
            yield chunk
            chunk, nbytes = [], 0
    if chunk:
        yield chunk
