"""The protocol of a store: named objects in a folder of this machine, or in a bucket.

::

    read  read_ranges                     the bytes of an object, or ranges of several
    stat                                  facts about an object
    put  put_if_absent                    write an object from memory
    put_file  download                    make an object of a file, and a file of an object
    delete  delete_folder  names  facts   for maintenance: nothing that reads a dataset lists or deletes
    url  name  folder  local_path         where objects are: these make no request

Publishing rests on one promise: of several writers that put an absent object, exactly one succeeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

Buffer = bytes | memoryview
"""Bytes that came from a store. Nobody else changes them."""
CLOUD_OF_SCHEME = {
    "gs": "gcs",
    "gcs": "gcs",
    "s3": "s3",
    "s3a": "s3",
    "az": "azure",
    "abfs": "azure",
    "abfss": "azure",
}
"""The cloud of each URL scheme, named like the extra of this package that the cloud needs."""


@dataclass(frozen=True)
class Blob:
    """An object that never changes: its name follows from its bytes."""

    name: str
    """Its name, relative to the store."""
    nbytes: int
    """Its bytes."""
    crc32c: int
    """Their CRC32C."""


@dataclass(frozen=True)
class Stat:
    """The facts that a store tells about an object by one request, without reading it."""

    nbytes: int
    """Its bytes."""
    modified: float
    """When it was written, in seconds since 1970 by the clock of the store; NaN if the store does not say."""
    crc32c: int | None = None
    """The CRC32C that the store has computed of the bytes; None if it computes none."""
    sent_crc32c: int | None = None
    """The CRC32C that :meth:`Store.put_file` sent along; None if the store keeps none, or it was put otherwise."""


class Store(Protocol):
    """Named objects. Many threads may use a store at once, and it can be pickled.

    Names use ``/``. A folder of a store is a store too: a dataset is a folder of its storage, and names its objects
    relative to itself.

    Every method raises StorageError if the store does not answer or does not allow the request. An object counts as
    absent only if the store says so.
    """

    @property
    def url(self) -> str:
        """The URL of the store, without credentials."""

    @property
    def name(self) -> str:
        """The last part of the URL: the dataset id, if the store is the folder of a dataset."""

    def folder(self, name: str) -> Self:
        """Return a folder as a store."""

    def local_path(self, name: str) -> Path | None:
        """Return the path of an object, which need not exist; None if the store is not on this machine."""

    def read(self, name: str) -> bytes | None:
        """Return the bytes of an object; None if there is no such object."""

    def stat(self, name: str) -> Stat | None:
        """Return the facts about an object; None if there is no such object."""

    def put(self, name: str, data: bytes) -> None:
        """Write an object, or replace it. Readers see the old bytes or the new ones. It is durable on return."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write an object unless it exists, and return whether these bytes are the object now. Durable on return.

        Exactly one of several writers gets True.

        Args:
            name: the object.
            data: its bytes. They must be unique to this writer, who recognises them if the reply to the write is lost.
        """

    def delete(self, name: str) -> None:
        """Delete an object, if it exists."""

    def delete_folder(self, folder: str) -> None:
        """Delete every object below a folder."""

    def names(self, folder: str) -> list[str]:
        """Return the names directly below a folder, relative to the folder, in ascending order."""

    def facts(self, folder: str) -> dict[str, Stat | None]:
        """Return the facts about what is directly below a folder, by the names of :meth:`names`; None about a folder.

        A store tells them with its list, but for the checksums that were sent.
        """

    def put_file(self, path: Path, blob: Blob) -> None:
        """Turn a local file into an object, as :meth:`put` writes one. The file may be gone afterwards.

        Args:
            path: the file, which must be durable, and on the disk of the store if that is on this machine.
            blob: the object, with the size and the checksum of the file. What the store says of them is compared.
        """

    def download(self, name: str, path: Path, nbytes: int) -> int:
        """Copy an object into a local file, and return the CRC32C of what was copied.

        Args:
            name: the object.
            path: the file. It is incomplete until this returns; a file that exists is overwritten in place.
            nbytes: the size of the object.

        Raises:
            CorruptionError: if the object is missing or has another size.
        """

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[Buffer]:
        """Return ranges of objects, all fetched at once. Buffers may share memory.

        Args:
            ranges: the object, the first byte, and the byte after the last.

        Raises:
            CorruptionError: if an object is missing or ends before a range does.
        """
