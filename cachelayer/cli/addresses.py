"""Open the storages, datasets and versions that the arguments of a command name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

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


@dataclass(frozen=True)
class Address:
    """What a text such as ``gs://bucket/caches/cifar10@v2`` names: a storage, and a dataset or a version in it."""

    storage: Storage
    text: str
    """The text, which the methods of the storage take."""

    @classmethod
    def open(cls, text: str, option: Pairs = (), **where: Any) -> Self:
        """Open the storage."""
        text = text.rstrip("/")
        url = Reference.parse(text, want="any").url
        if not url:
            raise InvalidArgumentError(
                f"{without_credentials(text)!r} names no dataset: write STORAGE/ID, or STORAGE/ID@VERSION"
            )
        return cls(Storage(url, storage_options=storage_options(option), **where), text)

    @property
    def reference(self) -> Reference:
        return Reference.parse(self.text, want="any")

    def rows(self) -> DataRef[Any]:
        """Return the version that the text names, or some of its records with all of their fields."""
        ref: object = self.storage.fetch(self.text)
        if not isinstance(ref, DataRef):
            raise InvalidArgumentError(
                f"{without_credentials(self.text)!r} is a {type(ref).__name__}: name a version, or records of one, by "
                "a slice, where, select, exclude or split"
            )
        return ref

    def versions(self) -> dict[str, VersionInfo]:
        """Return the versions of the dataset, which may have none."""
        try:
            return self.storage.versions(self.reference.dataset_id)
        except DatasetNotFoundError:
            return {}


def open_place(text: str, option: Pairs, **where: Any) -> tuple[Storage, Address | None]:
    """Open a storage, and what the text names in it: a dataset or a version; or None."""
    missing = None
    try:
        address = Address.open(text, option, **where)
        if address.reference.name is None:
            # This raises if there is no such dataset, nor a build of it.
            address.storage.builds(address.reference.dataset_id)
    except InvalidArgumentError:
        pass
    except DatasetNotFoundError as error:
        missing = error
    else:
        return address.storage, address
    storage = open_storage(text, option, **where)
    # A bucket has no folders: below the name of a dataset that is not there lies nothing.
    if missing is not None and storage._store.local_path("") is None and not storage._store.names(""):
        raise missing
    return storage, None
