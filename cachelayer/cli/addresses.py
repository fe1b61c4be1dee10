"""Storages, references, sizes and times as arguments of commands, and the options to reach storages."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from cachelayer.access.dataref import DataRef
from cachelayer.errors import DatasetNotFoundError, InvalidArgumentError
from cachelayer.objects.local import LocalStore
from cachelayer.objects.open_store import without_credentials
from cachelayer.storage.storage import Storage
from cachelayer.versions.reference import Reference

StorageArgument = Annotated[str, typer.Argument(metavar="STORAGE", help="A path, or a URL such as gs://bucket/prefix.")]
ReferenceArgument = Annotated[
    str,
    typer.Argument(
        metavar="REFERENCE",
        help="STORAGE/ID@VERSION. The version is a name, a tag, latest (default) or sha256:PREFIX; \\[a:b] slices it.",
    ),
]
TargetArgument = Annotated[
    str, typer.Argument(metavar="STORAGE/ID@VERSION", help="The new version; its name never changes.")
]
DatasetArgument = Annotated[str, typer.Argument(metavar="STORAGE/ID", help="A dataset in a storage.")]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option", "-o", metavar="KEY=VALUE", help="An option of the storage's client, such as endpoint_url=..."
    ),
]
ToOptions = Annotated[
    list[str] | None, typer.Option("--to-option", metavar="KEY=VALUE", help="An option of the second storage's client.")
]
LocalCache = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="The folder for local copies of remote shards.", show_default=False),
]


def open_storage(url: str, options: Sequence[str] | None, local_cache: Path | None = None) -> Storage:
    """Open the storage that an argument names."""
    parent, _, name = url.rstrip("/").rpartition("/")
    if "@" in name:
        raise InvalidArgumentError(
            f"{without_credentials(url)!r} names a version: here a storage is asked for, such as "
            f"{without_credentials(parent or '.')!r}"
        )
    return Storage(url, local_cache=local_cache, storage_options=storage_options(options))


def existing_storage(url: str, options: Sequence[str] | None) -> Storage:
    storage = open_storage(url, options)
    if isinstance(storage._store, LocalStore) and not storage._store.root.is_dir():
        raise InvalidArgumentError(f"there is nothing at {url}: name the folder that builds publish to")
    return storage


def open_address(
    text: str, options: Sequence[str] | None, local_cache: Path | None = None
) -> tuple[Storage, Reference]:
    """Open the storage of a text such as ``gs://bucket/caches/cifar10@v2``, and return what the text names in it."""
    reference = Reference.split(text.rstrip("/"))
    if not reference.url:
        raise InvalidArgumentError(
            f"{without_credentials(text)!r} names no dataset: write STORAGE/ID, or STORAGE/ID@VERSION"
        )
    storage = Storage(reference.url, local_cache=local_cache, storage_options=storage_options(options))
    return storage, reference


def open_target(text: str, options: Sequence[str] | None, local_cache: Path | None = None) -> tuple[Storage, Reference]:
    """Open the storage of a version that is to be made: ``STORAGE/ID@VERSION``."""
    storage, target = open_address(text, options, local_cache)
    if target.name is None or target.rows is not None:
        raise InvalidArgumentError(f"{text!r} names no new version: write STORAGE/ID@VERSION")
    return storage, target


def open_place(text: str, options: Sequence[str] | None) -> tuple[Storage, Reference | None]:
    """Open what an argument names: a dataset or a version, or else a storage."""
    with suppress(InvalidArgumentError, DatasetNotFoundError):
        storage, reference = open_address(text, options)
        if reference.name is None:
            storage.versions(reference.dataset_id)
        return storage, reference
    return existing_storage(text, options), None


def open_reference(text: str, options: Sequence[str] | None, local_cache: Path | None = None) -> DataRef[Any]:
    """Open the version, or the slice of one, that an argument names."""
    return open_address(text, options, local_cache)[0].fetch(text.rstrip("/"))


def storage_options(options: Sequence[str] | None) -> dict[str, Any]:
    """Parse ``KEY=VALUE`` options. Values are JSON if possible, otherwise text."""
    pairs = (split_pair("--option", option) for option in options or ())
    return {name: json_or_text(value) for name, value in pairs}


def split_pair(option: str, text: str) -> tuple[str, str]:
    """Return the name and the value of an argument such as ``size=3``."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InvalidArgumentError(f"{option} is written as NAME=VALUE")
    return name, value


def json_or_text(text: str) -> Any:
    """Decode a text as JSON if possible, otherwise return it."""
    try:
        return json.loads(text)
    except ValueError:
        return text


_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII)
_UNITS = {
    "bytes such as 4096, 256MB or 1GiB": {
        "": 1,
        "kb": 10**3,
        "mb": 10**6,
        "gb": 10**9,
        "tb": 10**12,
        "kib": 2**10,
        "mib": 2**20,
        "gib": 2**30,
        "tib": 2**40,
    },
    "a time such as 90s, 30m, 24h or 7d": {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400},
}
_BYTES, _SECONDS = _UNITS


def nbytes(option: str, text: str) -> int:
    """Parse a size: ``256MB``, ``1.5GiB``, ``4096``."""
    return int(_quantity(option, text, _BYTES))


def seconds(option: str, text: str) -> float:
    """Parse a time: ``90``, ``30m``, ``24h``, ``7d``."""
    return _quantity(option, text, _SECONDS)


def _quantity(option: str, text: str, what: str) -> float:
    match = _NUMBER.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS[what]:
        raise InvalidArgumentError(f"{option} {text!r}: pass {what}")
    return float(match[1]) * _UNITS[what][match[2]]
