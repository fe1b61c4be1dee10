"""Read folders of files as sources: images or sounds with a folder for each class, or any files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from cachelayer.adapters.sources.files import File, Files, Folder, Options, is_hidden, reading
from cachelayer.builds.batches import BATCH_NBYTES, Batch, ElementBatch
from cachelayer.builds.source_files import FileFacts
from cachelayer.credentials_in_urls import without_credentials
from cachelayer.errors import InvalidArgumentError
from cachelayer.locks import cached_property
from cachelayer.records.spec import ArraySpec, AudioSpec, ImageSpec, LeafSpec
from cachelayer.records.tree import Tree
from cachelayer.system_threads import Pool

IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
SOUNDS = (".wav", ".flac", ".mp3", ".ogg")
Root = str | os.PathLike[str]
Listing = tuple[list[tuple[File, dict[str, Any]]], dict[str, Any]]
"""The files of a source in order, each with the other leaves of its element, and the metadata."""
_FILES_AT_ONCE = 64
_READERS = 16


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
            raise InvalidArgumentError(f"there is no file {pattern!r} in {without_credentials(os.fspath(root))!r}")
        return chosen, {}

    return FilesSource(root, "data", {"path": ArraySpec(str), "data": ArraySpec(bytes)}, listing)


def from_image_folder(
    root: Root, *, extensions: Sequence[str] = IMAGES, mode: str = "RGB", storage_options: Options = None
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
    root: Root,
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
        files = [(path.split("/")[0], file) for path, file in folder.files() if path.lower().endswith(endings)]
        # A class without files would shift the labels of those after it.
        labels = {name: label for label, name in enumerate(classes)}
        empty = labels.keys() - {name for name, _ in files}
        if empty or not classes:
            which = f"the folder {min(empty)!r} has no file" if empty else "there is no folder with a file"
            where = without_credentials(os.fspath(root))
            raise InvalidArgumentError(f"{where}: {which} that ends in {', '.join(endings)}")
        stray = next((file for name, file in files if name not in labels), None)
        if stray is not None:
            raise InvalidArgumentError(f"{stray.name} is not in the folder of a class: move it into one")
        return [(file, {"label": np.int64(labels[name])}) for name, file in files], {"classes": classes}

    return FilesSource(root, leaf, {leaf: spec, "label": ArraySpec(np.dtype(np.int64))}, listing)


class FilesSource:
    """Files, each with the leaves that its path implies.

    Args:
        root: the folder that holds them.
        leaf: the key of the file's bytes in the elements.
        element_spec: the spec of the elements.
        listing: returns the list of the files.
    """

    kind = "files"

    def __init__(self, root: Root, leaf: str, element_spec: Tree, listing: Callable[[], Listing]) -> None:
        self.is_local = Files(root).is_local
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

    def file_facts(self) -> list[FileFacts]:
        """Return the current size and modification time of each file."""
        return [file.facts for file, _ in self._list()[0]]

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The names of the classes, if there are any."""
        return self._listing[1]

    @property
    def length(self) -> int | None:
        return len(self._listing[0])

    def batches(self, limit: int | None) -> Iterator[Batch]:
        """Yield the files, in batches; read several at the same time.

        Raises:
            SourceError: if a file cannot be read; names it and its record.
        """
        with Pool(_READERS, "cachelayer-folders") as pool:
            stop = None if limit is None else self._first + limit
            records = list(enumerate(self._listing[0]))[self._first : stop]
            while records:
                count = nbytes = 0
                while count < min(len(records), _FILES_AT_ONCE) and nbytes < BATCH_NBYTES:
                    nbytes += records[count][1][0].facts.nbytes
                    count += 1
                yield ElementBatch(list(pool.map(self._element, records[:count])))
                del records[:count]

    def _element(self, numbered: tuple[int, tuple[File, dict[str, Any]]]) -> dict[str, Any]:
        record, (file, others) = numbered
        with reading(file.name, f"cannot be read, at record {record}"), file.open() as opened:
            return {self._leaf: opened.read(), **others}
