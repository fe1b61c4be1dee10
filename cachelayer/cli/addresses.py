"""Open the storages, datasets and versions that the arguments of a command name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cachelayer.cli.options import json_or_text, once
from cachelayer.errors import DatasetNotFoundError, InvalidArgumentError, NotFoundError
from cachelayer.storage.storage import Storage
from cachelayer.support.credentials_in_urls import without_credentials
from cachelayer.versions.reference import Reference, names_version
from cachelayer.versions.snapshot import VersionInfo
from cachelayer.views.dataref import DataRef

Pairs = Sequence[tuple[str, str]]


def storage_options(option: Pairs) -> dict[str, Any]:
    """Return the options of the client of a storage. Values are JSON if possible, otherwise texts."""
    return {name: json_or_text(value) for name, value in once("--option", option)}


def open_storage(url: str, option: Pairs = (), **where: Any) -> Storage:
    """Open a storage that exists."""
    storage = Storage(url, storage_options=storage_options(option), **where)
    folder = storage._store.local_path("")
    shown = repr(without_credentials(url))
    if names_version(url):
        raise InvalidArgumentError(f"{shown} is a version: name the folder or the URL that builds publish to")
    if folder is not None and not folder.is_dir():
        raise NotFoundError(f"{shown} is no storage: name the folder or the URL that builds publish to")
    return storage


def open_address(text: str, option: Pairs = (), **where: Any) -> tuple[Storage, str]:
    """Open the storage in a text such as ``gs://bucket/caches/cifar10@v2``; return it with the text for its methods."""
    text = text.rstrip("/")
    url = Reference.parse(text, want="any").url
    if not url:
        raise InvalidArgumentError(
            f"{without_credentials(text)!r} names no dataset: write STORAGE/ID, or STORAGE/ID@VERSION"
        )
    return Storage(url, storage_options=storage_options(option), **where), text


def fetch_rows(storage: Storage, text: str) -> DataRef[Any]:
    """Return the version that a text names, or some of its records with all of their fields."""
    ref: object = storage.fetch(text)
    if not isinstance(ref, DataRef):
        raise InvalidArgumentError(
            f"{without_credentials(text)!r} is a {type(ref).__name__}: name a version, or records of one, by a slice, "
            "where, select, exclude or split"
        )
    return ref


def open_place(text: str, option: Pairs, **where: Any) -> tuple[Storage, str | None]:
    """Open a dataset or a version, as :func:`open_address` does; or a storage, with None for the text."""
    missing = None
    try:
        storage, address = open_address(text, option, **where)
        if Reference.parse(address, want="any").name is None:
            # This raises if there is no such dataset, nor a build of it.
            storage.builds(Reference.parse(address, want="any").dataset_id)
    except InvalidArgumentError:
        pass
    except DatasetNotFoundError as error:
        missing = error
    else:
        return storage, address
    storage = open_storage(text, option, **where)
    # A bucket has no folders: below the name of a dataset that is not there lies nothing.
    if missing is not None and storage._store.local_path("") is None and not storage._store.names(""):
        raise missing
    return storage, None


def only_dataset(text: str) -> str:
    """Return the id of the dataset that a text names. The text must not name a version."""
    reference = Reference.parse(text, want="any")
    if reference.name is not None or reference.calls:
        raise InvalidArgumentError(f"{without_credentials(text)!r} is a version: name only the dataset, STORAGE/ID")
    return reference.dataset_id


def versions_of(storage: Storage, text: str) -> dict[str, VersionInfo]:
    """Return the versions of the dataset that a text names, which may have none."""
    try:
        return storage.versions(Reference.parse(text, want="any").dataset_id)
    except DatasetNotFoundError:
        return {}
