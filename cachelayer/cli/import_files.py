"""The formats of ``cachelayer import``, and the adapter that reads each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from cachelayer.errors import InvalidArgumentError

_IMAGES = r"\.(jpe?g|png|ppm|bmp|pgm|tiff?|webp)"
_SOUNDS = r"\.(wav|flac|mp3|ogg)"


@dataclass(frozen=True)
class _Format:
    """A format of files.

    Args:
        adapter: the module and the function that read it, below ``cachelayer.adapters``.
        names: the pattern at the end of a file's name; None if the format is that of a folder.
    """

    adapter: str
    names: str | None = None


_FORMATS = {
    "parquet": _Format("pyarrow.from_parquet", r"\.parquet"),
    "arrow": _Format("pyarrow.from_ipc", r"\.(arrow|feather|ipc)"),
    "csv": _Format("pyarrow.from_csv", r"\.csv(\.gz|\.bz2)?"),
    "jsonl": _Format("pyarrow.from_json", r"\.(jsonl|ndjson|json)(\.gz|\.bz2)?"),
    "tfrecord": _Format("tfrecord.from_tfrecord", r"\.tfrecords?(-\d+-of-\d+|-[*?]+.*)?(\.gz)?"),
    "webdataset": _Format("webdataset.from_webdataset", r"\.tar"),
    "images": _Format("folders.from_image_folder"),
    "sounds": _Format("folders.from_audio_folder"),
    "files": _Format("folders.from_files"),
}
FORMATS = tuple(_FORMATS)


def format_of(files: Sequence[str], chosen: str | None) -> str:
    """Return the format of files: the chosen one, or what their names or the names in a folder show.

    Raises:
        InvalidArgumentError: if the names show no format or several, or a folder is not the only argument.
    """
    if chosen is not None and chosen not in _FORMATS:
        raise InvalidArgumentError(f"--format {chosen!r}: it must be one of {', '.join(_FORMATS)}")
    name = chosen or _by_names(files)
    if _FORMATS[name].names is None and len(files) > 1:
        raise InvalidArgumentError(f"--format {name} takes one folder, got {len(files)}")
    return name


def _by_names(files: Sequence[str]) -> str:
    formats = {_by_name(file) for file in files}
    if formats == {None} and len(files) == 1:
        return _in_folder(files[0])
    if len(formats) > 1 or None in formats:
        shown = ", ".join(files[:3])
        raise InvalidArgumentError(f"{shown}: the names do not show one format: pass --format {'|'.join(_FORMATS)}")
    return str(formats.pop())


def _by_name(file: str) -> str | None:
    for name, each in _FORMATS.items():
        if each.names is not None and re.search(f"({each.names})$", file, re.IGNORECASE):
            return name
    return None


def _in_folder(path: str) -> str:
    from cachelayer.adapters._files import Folder

    inner = [name for name, _ in Folder.at(path).files()]
    for kind, pattern in (("images", _IMAGES), ("sounds", _SOUNDS)):
        if inner and all("/" in name and re.search(f"({pattern})$", name, re.IGNORECASE) for name in inner):
            return kind
    return "files"


def imported(kind: str, files: list[str]) -> Any:
    """Return the source of files of a format."""
    module, function = _FORMATS[kind].adapter.split(".")
    read = getattr(import_module(f"cachelayer.adapters.{module}"), function)
    if kind == "tfrecord":
        return read(files, compression_type=_compression_of_tfrecords(files))
    return read(files[0] if _FORMATS[kind].names is None else files)


def _compression_of_tfrecords(files: list[str]) -> str | None:
    compressed = {file.endswith(".gz") for file in files}
    if len(compressed) > 1:
        raise InvalidArgumentError("some TFRecord files end in .gz and some do not: import them separately")
    return "GZIP" if compressed == {True} else None
