"""Read folders of files as sources: images or sounds with a folder for each class, or any files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import numpy as np

from cachelayer.adapters.sources.files import File, Files, Folder, Options, file_source, is_hidden
from cachelayer.builds.batches import BATCH_NBYTES, Batch, ElementBatch
from cachelayer.builds.source import Source
from cachelayer.builds.source_files import FileSource, reading
from cachelayer.errors import InvalidArgumentError
from cachelayer.specs.spec import ArraySpec, AudioSpec, ImageSpec, LeafSpec
from cachelayer.specs.tree import Tree
from cachelayer.support.arguments import explains_options
from cachelayer.support.credentials_in_urls import without_credentials
from cachelayer.support.system_threads import Pool

__all__ = ["from_audio_folder", "from_files", "from_image_folder"]

IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
SOUNDS = (".wav", ".flac", ".mp3", ".ogg")
Root = str | os.PathLike[str]
_FILES_AT_ONCE = 64
_SHOWN = 10
_READERS = 16


@explains_options
def from_files(root: Root, pattern: str = "*", *, storage_options: Options = None) -> FileSource:
    """Return a source of all files in a folder: dicts of ``path``, relative to the root, and ``data``, sorted by path.

    Declare ``element_spec={"path": str, "data": ImageSpec()}`` to have images decoded when they are read.

    Args:
        root: the path or URL of the folder. Files may be at any depth. Links to folders are followed.
        pattern: the paths to read, such as ``"*.json"``; ``*`` matches ``/`` too. Hidden files, and files in hidden
            folders, are read only if the pattern has a name that begins with a dot.
        storage_options: options of fsspec's client.

    Examples:
        >>> from cachelayer.adapters.folders import from_files
        >>> for name in ("b.json", "a.json", "c.txt"):
        ...     _ = (folder / name).write_text(name.upper())
        >>> ref = cachelayer.Storage(folder / "cache").cache(from_files(folder, "*.json"), "files@v1")
        >>> list(ref)
        [{'path': 'a.json', 'data': b'A.JSON'}, {'path': 'b.json', 'data': b'B.JSON'}]
    """

    def choose(folder: Folder) -> list[File]:
        every = folder.files(hidden=is_hidden(pattern))
        chosen = [file for file in every if fnmatchcase(file.inner, pattern)]
        if not chosen:
            raise InvalidArgumentError(f"there is no file {pattern!r} in {without_credentials(folder.path)!r}")
        return chosen

    files = Files(root, storage_options, choose)
    return file_source(files, partial(_source, "data", {"path": ArraySpec(str), "data": ArraySpec(bytes)}, None))


@explains_options
def from_image_folder(
    root: Root,
    *,
    extensions: Sequence[str] = IMAGES,
    mode: str = "RGB",
    classes: Sequence[str] | None = None,
    path: bool = False,
    storage_options: Options = None,
) -> FileSource:
    """Return a source of images with a folder for each class: dicts of ``image`` and ``label``, sorted by path.

    A label is the index of the class among the sorted class names, which are in ``ref.metadata["classes"]``. Images
    stay the bytes of their files; reading decodes them. Links to folders are followed. Hidden files and folders, whose
    names begin with a dot, are ignored.

    Args:
        root: the folder that holds a folder for each class; files may be at any depth.
        extensions: the endings of image files, such as ``.png``; other files are ignored.
        mode: Pillow's mode that pixels are converted to.
        classes: the names of the classes in the order of their labels, such as those of the training set, of which a
            test set may lack some. By default, all folders, sorted by name.
        path: whether elements have a field ``path``: that of the file, relative to the root.
        storage_options: options of fsspec's client.

    Examples:
        >>> from PIL import Image
        >>> from cachelayer.adapters.folders import from_image_folder
        >>> for number, name in enumerate(["dog", "cat"]):
        ...     (folder / "train" / name).mkdir(parents=True)
        ...     Image.new("RGB", (4, 3), (9, number, 0)).save(folder / "train" / name / "0.png")
        >>> ref = cachelayer.Storage(folder / "cache").cache(from_image_folder(folder / "train"), "pets@v1")
        >>> ref.metadata["classes"], ref[1]["label"], ref[1]["image"].shape, ref[1]["image"][0, 0]
        (['cat', 'dog'], np.int64(1), (3, 4, 3), array([9, 0, 0], dtype=uint8))
    """
    return _of_classes(root, "image", ImageSpec(mode), extensions, classes, path, storage_options)


@explains_options
def from_audio_folder(
    root: Root,
    *,
    extensions: Sequence[str] = SOUNDS,
    sampling_rate: int | None = None,
    channels: int | None = None,
    classes: Sequence[str] | None = None,
    path: bool = False,
    storage_options: Options = None,
) -> FileSource:
    """Return a source of sounds with a folder for each class: dicts of ``audio`` and ``label``, as for image folders.

    Args:
        root: the folder that holds a folder for each class; files may be at any depth.
        extensions: the endings of sound files, such as ``.wav``; other files are ignored.
        sampling_rate, channels: what files are decoded to; see :class:`cachelayer.AudioSpec`.
        classes, path: as for image folders.
        storage_options: options of fsspec's client.

    Examples:
        >>> import numpy as np
        >>> import soundfile
        >>> from cachelayer.adapters.folders import from_audio_folder
        >>> for name in ("yes", "no"):
        ...     (folder / "words" / name).mkdir(parents=True)
        ...     soundfile.write(folder / "words" / name / "0.wav", np.zeros(800), 16000)
        >>> source = from_audio_folder(folder / "words", sampling_rate=8000, channels=1)
        >>> ref = cachelayer.Storage(folder / "cache").cache(source, "words@v1")
        >>> ref.metadata["classes"], ref[0]["audio"].shape
        (['no', 'yes'], (400,))
    """
    spec = AudioSpec(sampling_rate, channels)
    return _of_classes(root, "audio", spec, extensions, classes, path, storage_options)


def _of_classes(
    root: Root,
    leaf: str,
    spec: LeafSpec,
    extensions: Sequence[str],
    declared: Sequence[str] | None,
    has_path: bool,
    storage_options: Options,
) -> FileSource:
    names = None if declared is None else _class_names(declared)
    endings = tuple(each.lower() for each in ([extensions] if isinstance(extensions, str) else extensions))
    path_spec = {"path": ArraySpec(str)} if has_path else {}
    options: dict[str, Any] = {}
    if names is not None:
        options["classes"] = names
    if has_path:
        options["path"] = True
    files = Files(root, storage_options, partial(_files_of_classes, endings, names))
    every = {leaf: spec, "label": ArraySpec(np.dtype(np.int64)), **path_spec}
    return file_source(files, partial(_source, leaf, every, names), options)


def _files_of_classes(endings: tuple[str, ...], names: list[str] | None, folder: Folder) -> list[File]:
    """Return the files in the folders of classes; raise if a class has none, or a file lies elsewhere."""
    classes = folder.folders() if names is None else names
    files = [file for file in folder.files() if file.inner.lower().endswith(endings)]
    # A class without files would shift the labels of those after it, unless the user names the classes.
    empty = {*classes} - {*map(_class_of, files)} if names is None else set()
    if empty or not files:
        which = f"the folder {min(empty)!r} has no file" if empty else "there is no folder with a file"
        raise InvalidArgumentError(f"{without_credentials(folder.path)}: {which} that ends in {', '.join(endings)}")
    known = {*classes}
    stray = next((file for file in files if _class_of(file) not in known), None)
    if stray is not None:
        cure = "move it into one" if names is None else f"classes= has {', '.join(map(repr, classes[:_SHOWN]))}"
        raise InvalidArgumentError(f"{stray.name} is not in the folder of a class: {cure}")
    return files


def _class_of(file: File) -> str:
    return file.inner.partition("/")[0]


def _class_names(classes: Sequence[str]) -> list[str]:
    names = [classes] if isinstance(classes, str) else list(classes)
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise InvalidArgumentError(f"classes={classes!r}: pass the names of folders, each once")
    return names


def _source(
    leaf: str, spec: dict[str, LeafSpec], names: list[str] | None, files: Sequence[File], _: Tree | None
) -> Source:
    """Return the source of files, whose bytes are ``leaf`` of elements, with the leaves that their paths imply."""
    classes = (names or sorted({*map(_class_of, files)})) if "label" in spec else []
    elements = _Elements(leaf, files, {name: np.int64(label) for label, name in enumerate(classes)}, "path" in spec)
    return Source(
        "files",
        elements.read,
        elements.take,
        elements.place,
        element_spec=spec,
        length=len(files),
        starts=range(len(files)),
        metadata={"classes": classes} if classes else {},
    )


@dataclass(frozen=True)
class _Elements:
    """Elements with the bytes of a file as one leaf, and other leaves; several files are read at the same time."""

    leaf: str
    files: Sequence[File]
    labels: Mapping[str, np.int64]
    """The label of each class; none if elements have no label."""
    has_path: bool

    def read(self, start: int, stop: int | None) -> Iterator[Batch]:
        end = len(self.files) if stop is None else min(stop, len(self.files))
        with Pool(_READERS, "cachelayer-folders") as pool:
            while start < end:
                count = nbytes = 0
                while count < min(end - start, _FILES_AT_ONCE) and nbytes < BATCH_NBYTES:
                    nbytes += self.files[start + count].facts.nbytes
                    count += 1
                yield ElementBatch([*pool.map(self._element, range(start, start + count))])
                start += count

    def take(self, numbers: Sequence[int]) -> Batch:
        with Pool(_READERS, "cachelayer-folders") as pool:
            return ElementBatch([*pool.map(self._element, numbers)])

    def place(self, record: int) -> str:
        return self.files[record].name

    def _element(self, record: int) -> dict[str, Any]:
        file = self.files[record]
        with reading(file.name, f"cannot be read, at record {record}"), file.open() as opened:
            element: dict[str, Any] = {self.leaf: opened.read()}
        if self.labels:
            element["label"] = self.labels[_class_of(file)]
        if self.has_path:
            element["path"] = file.inner
        return element
