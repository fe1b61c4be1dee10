"""Open the storages, datasets and versions that the arguments of a command name.

Each function takes a text, and the options that :class:`Storage` takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from cachelayer.errors import DatasetNotFoundError, InvalidArgumentError, NotFoundError
from cachelayer.storage.storage import Storage
from cachelayer.support.credentials_in_urls import without_credentials
from cachelayer.versions.reference import Reference, names_version
from cachelayer.versions.snapshot import VersionInfo
from cachelayer.views.dataref import DataRef


@dataclass(frozen=True)
class Address:
    """What a text such as ``gs://bucket/caches/cifar10@v2`` names: a storage, and a dataset or a version in it."""

    storage: Storage
    text: str
    """The text, which the methods of the storage take."""
    reference: Reference

    @classmethod
    def open(cls, text: str, **access: Any) -> Self:
        """Open the storage."""
        text = text.rstrip("/")
        reference = Reference.parse(text, want="any")
        if not reference.url:
            raise InvalidArgumentError(
                f"{without_credentials(text)!r} names no dataset: write STORAGE/ID, or STORAGE/ID@VERSION"
            )
        return cls(Storage(reference.url, **access), text, reference)

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
        return versions_of(self.storage, self.reference.dataset_id)


def versions_of(storage: Storage, dataset_id: str) -> dict[str, VersionInfo]:
    """Return the versions of a dataset, which may have none."""
    try:
        return storage.versions(dataset_id)
    except DatasetNotFoundError:
        return {}


def open_rows(text: str, **access: Any) -> DataRef[Any]:
    """Open a version, or some of its records."""
    return Address.open(text, **access).rows()


def open_storage(url: str, *, missing: DatasetNotFoundError | None = None, **access: Any) -> Storage:
    """Open a storage that exists; if the text could also name a dataset, say that it is missing."""
    storage = Storage(url, **access)
    folder = storage._store.local_path("")
    shown = repr(without_credentials(url))
    if names_version(url):
        raise InvalidArgumentError(f"{shown} is a version: name the folder or the URL that builds publish to")
    # A bucket has no folders: below the name of a dataset that is not there lies nothing.
    is_there = (missing is None or storage._store.names("")) if folder is None else folder.is_dir()
    if not is_there:
        advice = f", and {missing}" if missing else ": name the folder or the URL that builds publish to"
        raise NotFoundError(f"{shown} is no storage{advice}")
    return storage


def open_place(text: str, **access: Any) -> tuple[Storage, Address | None]:
    """Open a storage, and what the text names in it: a dataset or a version; or None."""
    missing = None
    try:
        address = Address.open(text, **access)
        if address.reference.name is None:
            # This raises if there is no such dataset, nor a build of it.
            address.storage.builds(address.reference.dataset_id)
    except InvalidArgumentError:
        pass
    except DatasetNotFoundError as error:
        missing = error
    else:
        return address.storage, address
    return open_storage(text, missing=missing, **access), None


def open_target(text: str, **access: Any) -> tuple[Storage, str | None]:
    """Open the storage that a version is copied to, and return the new name of the version if the text has one."""
    if names_version(text):
        address = Address.open(text, **access)
        return address.storage, address.text
    return Storage(text.rstrip("/"), **access), None


def open_copy(text: str, **access: Any) -> Storage | DataRef[Any]:
    """Open a version, or a storage that has a copy of one under the same name."""
    return open_rows(text, **access) if names_version(text) else open_storage(text.rstrip("/"), **access)
