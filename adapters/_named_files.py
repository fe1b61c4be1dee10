"""Find the adapter that reads a file or a folder by its name: for ``cachelayer import``, and paths as sources."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cachelayer.adapters._files import Folder
from cachelayer.errors import InvalidArgumentError
from cachelayer.provenance.contents import without_userinfo

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
    "npy": _Format("npy.from_npy", r"\.npy"),
    "npz": _Format("npy.from_npz", r"\.npz"),
    "images": _Format("folders.from_image_folder"),
    "sounds": _Format("folders.from_audio_folder"),
    "files": _Format("folders.from_files"),
}
FORMATS = tuple(_FORMATS)
_OF_ONE = {"npy", "npz", *(name for name, each in _FORMATS.items() if each.names is None)}
_SAVED = {
    "dataset_info.json": "datasets.load_from_disk(path), or tfds.builder_from_directory(path), makes a source of it",
    "dataset_dict.json": "datasets.load_from_disk(path) makes a source of it",
    "dataset_spec.pb": "tf.data.Dataset.load(path) makes a source of it",
}
"""How to read folders that other libraries save, by a file in them."""
_SHOWN = 80
_OTHERS = {
    r"^hf://": "datasets.load_dataset(name, split=...) makes a source of it",
    r"\.(sqlite3?|db)$": "pass a function that yields the rows of a query: see the recipes in docs/sources.md",
    r"\.(txt|text|md)$": "pass an iterable of its lines or texts, such as pathlib.Path(path).read_text().splitlines()",
    r"\.(pkl|pickle|pt|pth)$": "load it, and pass the arrays or elements that it holds: pickles are never read",
    r"\.(h5|hdf5|zarr|mat)$": "open it, and pass a dict of its arrays, or a generator of its rows",
}
"""What to do about paths that no adapter reads."""


def format_of(files: Sequence[str], chosen: str | None) -> str:
    """Return the format of files: the chosen one, or what their names or the names in a folder show.

    Raises:
        InvalidArgumentError: if the names show no format or several, or a folder is not the only argument.
    """
    if chosen is not None and chosen not in _FORMATS:
        raise InvalidArgumentError(f"--format {chosen!r}: it must be one of {', '.join(_FORMATS)}")
    name = chosen or _by_names(files)
    if name in _OF_ONE and len(files) > 1:
        what = "folder" if _FORMATS[name].names is None else "file"
        raise InvalidArgumentError(f"--format {name} takes one {what}, got {len(files)}")
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
    return _by_names_inside([name for name, _ in Folder.at(path).files()]) or "files"


def _by_names_inside(names: Sequence[str]) -> str | None:
    for kind, pattern in (("images", _IMAGES), ("sounds", _SOUNDS)):
        if names and all("/" in name and re.search(f"({pattern})$", name, re.IGNORECASE) for name in names):
            return kind
    return None


def source_of(path: str | list[str]) -> Any:
    """Return the source of the file or folder at a path or URL, or of the files that a pattern or a list names.

    Raises:
        InvalidArgumentError: if there is no such file or folder, or its name does not tell how to read it.
        SourceError: if it cannot be read.
    """
    if isinstance(path, list):
        return _of_list(path)
    is_local = _check_name(path)
    kind = _by_name(path)
    local = _expanded(path)
    if kind is not None and not local.is_dir():
        return imported(kind, [path])
    for pattern, advice in _OTHERS.items():
        if re.search(pattern, path, re.IGNORECASE):
            raise InvalidArgumentError(f"{path!r}: {advice}")
    if is_local and not local.exists():
        raise InvalidArgumentError(f"{path!r}: there is no such file or folder")
    if local.is_file():
        endings = ", ".join(("parquet", "arrow", "csv", "jsonl", "tfrecord", "tar", "npy", "npz"))
        raise InvalidArgumentError(
            f"{path!r}: its name does not tell how to read it (known are {endings}). Pass what a reader in "
            "cachelayer.adapters returns for it, or an iterable of elements"
        )
    return _of_folder(path)


def _of_list(paths: list[str]) -> Any:
    """Return the source of several files, which must be of one format."""
    if len(paths) == 1:
        return source_of(paths[0])
    for path in paths:
        _check_name(path)
    kinds = {_by_name(path) for path in paths}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is None or kind in _OF_ONE:
        shown = ", ".join(repr(path[:_SHOWN]) for path in paths[:2])
        raise InvalidArgumentError(
            f"{shown}, ...: these {len(paths)} are files, and their names do not tell how to read them together. Pass "
            "what a reader in cachelayer.adapters returns for them; to store the names, pass an iterator over them"
        )
    return imported(kind, paths)


def _check_name(path: str) -> bool:
    """Return whether a name is that of a local file; raise if no file can have it."""
    is_local = "://" not in path
    if is_local:
        _refuse_if_no_path(path)
    else:
        _refuse_credentials(path)
    return is_local


def _refuse_credentials(url: str) -> None:
    """Raise if a URL has a user, or a query of HTTP: they are credentials mostly, which messages would show."""
    parts = urlsplit(url)
    if "@" in parts.netloc or (parts.scheme in ("http", "https") and parts.query):
        raise InvalidArgumentError(
            f"{without_userinfo(url)}: a URL with a user or a query may hold credentials, which are shown and stored: "
            "pass what a reader in cachelayer.adapters returns for it, with storage_options="
        )


def _refuse_if_no_path(path: str) -> None:
    """Raise if the system cannot have a file of this name, such as a text that is longer than any name."""
    try:
        _expanded(path).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        shown = path if len(path) <= _SHOWN else f"{path[:_SHOWN]}..."
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidArgumentError(
            f"{shown!r} is not the path of a file ({reason}): a str is taken as a path. To store texts, pass an "
            "iterable of them"
        ) from error


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # there is no such user
        return Path(path)


def _of_folder(path: str) -> Any:
    folder = Folder.at(path)
    files = dict(folder.files())
    for name, advice in _SAVED.items():
        if name in files:
            raise InvalidArgumentError(f"{path!r} holds {name}: {advice}")
    kind = _by_names_inside(list(files))
    if kind in ("images", "sounds"):
        return imported(kind, [path])
    formats = {_by_name(name) for name in files}
    found = formats.pop() if len(formats) == 1 else None
    if found is None or found in _OF_ONE:
        raise InvalidArgumentError(
            f"{path!r}: the names of its {len(files)} files do not tell how to read them together. Pass the files, a "
            "pattern, or what a function of cachelayer.adapters.folders returns: from_image_folder, from_audio_folder, "
            "or from_files, where each file is a record"
        )
    return imported(found, sorted(file.name for file in files.values()))


def imported(kind: str, files: list[str]) -> Any:
    """Return the source of files of a format."""
    module, function = _FORMATS[kind].adapter.split(".")
    read = getattr(import_module(f"cachelayer.adapters.{module}"), function)
    if kind == "tfrecord":
        return read(files, compression_type=_compression_of_tfrecords(files))
    return read(files[0] if kind in _OF_ONE else files)


def _compression_of_tfrecords(files: list[str]) -> str | None:
    compressed = {file.endswith(".gz") for file in files}
    if len(compressed) > 1:
        raise InvalidArgumentError("some TFRecord files end in .gz and some do not: import them separately")
    return "GZIP" if compressed == {True} else None
