"""The formats of ``cachelayer import``, and the adapter that reads each."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from cachelayer.errors import InvalidArgumentError

_IMAGES = r"\.(jpe?g|png|ppm|bmp|pgm|tiff?|webp)"
_SOUNDS = r"\.(wav|flac|mp3|ogg)"
_NAMES = {
    "parquet": r"\.parquet",
    "arrow": r"\.(arrow|feather|ipc)",
    "csv": r"\.csv(\.gz|\.bz2)?",
    "jsonl": r"\.(jsonl|ndjson|json)(\.gz|\.bz2)?",
    "tfrecord": r"\.tfrecords?(-\d+-of-\d+|-[*?]+.*)?(\.gz)?",
    "webdataset": r"\.tar",
}
_FOLDERS = ("images", "sounds", "files")
FORMATS = (*_NAMES, *_FOLDERS)


def format_of(files: Sequence[str], chosen: str | None) -> str:
    """Return the format of files: the chosen one, otherwise the one that their names, or the names in a folder, show.

    Raises:
        InvalidArgumentError: if the names do not show one format, or several folders are passed.
    """
    if chosen is not None and chosen not in FORMATS:
        raise InvalidArgumentError(f"--format {chosen!r}: it is one of {', '.join(FORMATS)}")
    kind = chosen or _by_names(files)
    if kind in _FOLDERS and len(files) > 1:
        raise InvalidArgumentError(f"--format {kind} takes one folder, got {len(files)}")
    return kind


def _by_names(files: Sequence[str]) -> str:
    kinds = {_by_name(file) for file in files}
    if kinds == {None} and len(files) == 1:
        return _in_folder(files[0])
    if len(kinds) > 1 or None in kinds:
        shown = ", ".join(files[:3])
        raise InvalidArgumentError(f"{shown}: the names do not show one format: pass --format {'|'.join(FORMATS)}")
    return str(kinds.pop())


def _by_name(file: str) -> str | None:
    for kind, pattern in _NAMES.items():
        if re.search(f"({pattern})$", file, re.IGNORECASE):
            return kind
    return None


def _in_folder(path: str) -> str:
    from cachelayer.adapters._files import Folder

    inner = [name for name, _ in Folder.at(path).files()]
    for kind, pattern in (("images", _IMAGES), ("sounds", _SOUNDS)):
        if inner and all("/" in name and re.search(f"({pattern})$", name, re.IGNORECASE) for name in inner):
            return kind
    return "files"


def imported(kind: str, files: list[str]) -> Any:
    """Return the source for files of a format."""
    return _SOURCES[kind](files)


def _parquet(files: list[str]) -> Any:
    from cachelayer.adapters.pyarrow import from_parquet

    return from_parquet(files)


def _arrow(files: list[str]) -> Any:
    from cachelayer.adapters.pyarrow import from_ipc

    return from_ipc(files)


def _csv(files: list[str]) -> Any:
    from cachelayer.adapters.pyarrow import from_csv

    return from_csv(files)


def _jsonl(files: list[str]) -> Any:
    from cachelayer.adapters.pyarrow import from_json

    return from_json(files)


def _tfrecord(files: list[str]) -> Any:
    from cachelayer.adapters.tfrecord import from_tfrecord

    compression = {file.endswith(".gz") for file in files}
    if len(compression) > 1:
        raise InvalidArgumentError("some TFRecord files end in .gz and some do not: import them separately")
    return from_tfrecord(files, compression_type="GZIP" if compression == {True} else None)


def _webdataset(files: list[str]) -> Any:
    from cachelayer.adapters.webdataset import from_webdataset

    return from_webdataset(files)


def _images(files: list[str]) -> Any:
    from cachelayer.adapters.folders import from_image_folder

    return from_image_folder(files[0])


def _sounds(files: list[str]) -> Any:
    from cachelayer.adapters.folders import from_audio_folder

    return from_audio_folder(files[0])


def _files(files: list[str]) -> Any:
    from cachelayer.adapters.folders import from_files

    return from_files(files[0])


_SOURCES: dict[str, Callable[[list[str]], Any]] = {
    "parquet": _parquet,
    "arrow": _arrow,
    "csv": _csv,
    "jsonl": _jsonl,
    "tfrecord": _tfrecord,
    "webdataset": _webdataset,
    "images": _images,
    "sounds": _sounds,
    "files": _files,
}
