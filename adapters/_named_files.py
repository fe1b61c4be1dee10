"""Find the adapter that reads a file or a folder by its name: for ``cachelayer import``, and paths as sources."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib import import_module

from cachelayer.adapters.sources.files import File, Folder, is_folder, is_marker
from cachelayer.builds.source_files import FileSource
from cachelayer.errors import InvalidArgumentError
from cachelayer.support.credentials_in_urls import has_user, without_credentials

_IMAGES = r"\.(jpe?g|png|ppm|bmp|pgm|tiff?|webp)"
_SOUNDS = r"\.(wav|flac|mp3|ogg)"
_COMPRESSED = r"(\.gz|\.bz2|\.zst|\.lz4)?"
_ADAPTERS = {
    "parquet": ("pyarrow.from_parquet", r"\.parquet"),
    "arrow": ("pyarrow.from_ipc", r"\.(arrow|feather|ipc)"),
    "csv": ("pyarrow.from_csv", rf"\.csv{_COMPRESSED}"),
    "jsonl": ("pyarrow.from_json", rf"\.(jsonl|ndjson|json){_COMPRESSED}"),
    "tfrecord": ("tfrecord.from_tfrecord", r"\.tfrecords?(-\d+-of-\d+|-[*?]+.*)?(\.gz)?"),
    "webdataset": ("webdataset.from_webdataset", r"\.tar"),
    "npy": ("npy.from_npy", r"\.npy"),
    "npz": ("npy.from_npz", r"\.npz"),
    "images": ("folders.from_image_folder", None),
    "sounds": ("folders.from_audio_folder", None),
    "files": ("folders.from_files", None),
}
"""For each format: the function that reads it, below ``cachelayer.adapters``, and how its files' names end."""
FORMATS = tuple(_ADAPTERS)
_FOLDERS = {"images", "sounds", "files"}
_OF_ONE = {"npy", "npz", *_FOLDERS}
_SHOWN = 200


def source_of(path: str | list[str]) -> FileSource:
    """Return the source of the file or folder at a path or URL, or of the files that a pattern or a list names."""
    paths = [path] if isinstance(path, str) else path
    return imported(format_of(paths, None), paths)


def format_of(paths: Sequence[str], chosen: str | None) -> str:
    """Return the format of files: the chosen one, or what their names or the names in a folder show."""
    for path in paths:
        _refuse_credentials(path)
    if chosen is not None and chosen not in FORMATS:
        raise InvalidArgumentError(f"--format {chosen!r}: it must be one of {', '.join(FORMATS)}")
    kind = chosen or _by_names(paths)
    if kind is None and len(paths) == 1 and is_folder(paths[0]):
        kind = _in_folder(paths[0])
    if kind is None:
        shown = ", ".join(repr(without_credentials(path)[:_SHOWN]) for path in paths[:3])
        raise InvalidArgumentError(
            f"{shown}: the names do not show one format of {', '.join(FORMATS)}: pass --format to import; else what a "
            "reader in cachelayer.adapters returns, what another library loads from it, or an iterable of elements"
        )
    if kind in _OF_ONE and len(paths) > 1:
        raise InvalidArgumentError(f"{kind} takes one {'folder' if kind in _FOLDERS else 'file'}, got {len(paths)}")
    return kind


def imported(kind: str, files: list[str]) -> FileSource:
    """Return the source of files of a format, or of the files in a folder."""
    module, function = _ADAPTERS[kind][0].split(".")
    read: Callable[..., FileSource] = getattr(import_module(f"cachelayer.adapters.{module}"), function)
    if kind in _FOLDERS:
        return read(files[0])
    if kind not in {*_OF_ONE, "tfrecord"}:
        return read(files)
    is_url_of_file = "://" in files[0] and _by_name(files[0]) is not None
    names = files
    if len(files) == 1 and not is_url_of_file and is_folder(files[0]):
        names = [file.name for file in _data_files(files[0])]
    if kind in _OF_ONE:
        return read(names[0])
    compressed = {name.endswith(".gz") for name in names}
    if len(compressed) > 1:
        raise InvalidArgumentError("some TFRecord files end in .gz and some do not: import them separately")
    return read(files, compression_type="GZIP" if compressed == {True} else None)


def _by_names(files: Sequence[str]) -> str | None:
    formats = {_by_name(file) for file in files}
    return formats.pop() if len(formats) == 1 else None


def _by_name(file: str) -> str | None:
    return next((kind for kind, (_, names) in _ADAPTERS.items() if names is not None and _ends(file, names)), None)


def _ends(name: str, pattern: str) -> bool:
    return re.search(f"({pattern})$", name, re.IGNORECASE) is not None


def _data_files(path: str) -> list[File]:
    return [file for file in Folder.at(path).files() if not is_marker(file.inner)]


def _in_folder(path: str) -> str | None:
    files = [file.inner for file in _data_files(path)]
    for kind, pattern in (("images", _IMAGES), ("sounds", _SOUNDS)):
        if files and all("/" in name and _ends(name, pattern) for name in files):
            return kind
    kind_of_names = _by_names(files)
    return None if kind_of_names in _OF_ONE and len(files) > 1 else kind_of_names


def _refuse_credentials(url: str) -> None:
    """Raise if a URL has a user, or a query of HTTP: they are credentials mostly, which messages would show."""
    if has_user(url) or (url.lower().startswith(("http:", "https:")) and "?" in url):
        raise InvalidArgumentError(
            f"{without_credentials(url)}: a URL with a user or a query may hold credentials, which are shown and "
            "stored: pass what a reader in cachelayer.adapters returns for it, with storage_options="
        )
