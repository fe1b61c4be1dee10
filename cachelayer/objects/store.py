"""The protocol of object stores: put, put if absent, read, read ranges, copy files in and out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

Buffer = bytes | memoryview
"""Bytes that came from a store; the caller's own."""
CLOUD_OF_SCHEME = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3", "az": "azure", "abfs": "azure", "abfss": "azure"}
"""Schemes of buckets, and what each is called: as the extra that it needs."""


class Store(Protocol):
    """A flat space of named objects. Names use ``/``; many threads may use a store at once, and it can be pickled.

    A folder of a store is a store too: a dataset is a folder of its storage, and names its objects relative to itself.

    Every method raises StorageError if the store does not answer or does not allow it: an object counts as absent only
    if the store says so.
    """

    @property
    def url(self) -> str:
        """The URL of the store, without credentials."""

    @property
    def name(self) -> str:
        """The last part of the URL: of the folder of a dataset, the dataset's id."""

    def folder(self, name: str) -> Self:
        """Return the objects below a folder as a store. This makes no request."""

    def local_path(self, name: str) -> Path | None:
        """Return the file of an object, whether or not it exists; None if the store is not on this machine."""

    def working_folder(self) -> Path | None:
        """Return a folder, made if need be, from which :meth:`move_in` only renames files; None if there is none."""

    def read(self, name: str) -> bytes | None:
        """Return the object's bytes, or None if there is no such object."""

    def exists(self, name: str) -> bool:
        """Return whether the object exists."""

    def size(self, name: str) -> int | None:
        """Return the size of the object in bytes, or None if there is no such object."""

    def crc32c(self, name: str) -> int | None:
        """Return the CRC32C of the object, or None if there is no such object. The store says it, or all is read."""

    def modified(self, name: str) -> float | None:
        """Return when the object was written, in seconds since the epoch by the store's clock; None if it is absent."""

    def put(self, name: str, data: bytes) -> None:
        """Write the object whole, replacing one that may exist; it is durable on return."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write the object whole unless it exists; exactly one of several writers gets True. Durable on return.

        Args:
            name: the object.
            data: its bytes; unique to this writer, so that a write whose reply was lost can be recognised.

        Returns:
            True if these bytes are the object now.
        """

    def delete(self, name: str) -> None:
        """Delete the object; it is no error if it is gone already."""

    def delete_folder(self, folder: str) -> None:
        """Delete every object below a folder; it is no error if one is gone already."""

    def names(self, folder: str) -> list[str]:
        """Return the names directly below a folder, relative to it. For maintenance: reading a dataset never lists."""

    def upload(self, path: Path, name: str) -> None:
        """Copy a local file to an object, whole, replacing one that may exist; check its size."""

    def write_atomically(self, name: str, fill: Callable[[Path], object]) -> None:
        """Have ``fill`` write a file and make it the object, whole and durable, in place of one that may be there.

        Args:
            name: the object.
            fill: writes the file at the path that it is given; if it raises, the object stays as it was.
        """

    def move_in(self, files: Mapping[Path, str]) -> None:
        """Make durable local files objects, in their order, in place of those that may be there; they may be gone then.

        Args:
            files: the name of the object for each file.
        """

    def download(self, name: str, path: Path, nbytes: int) -> int:
        """Copy an object of known size to a local file, and return the CRC32C of what was copied.

        Args:
            name: the object.
            path: a temporary name: the file is incomplete until this returns. An existing file is overwritten in
                place.
            nbytes: size of the object.

        Raises:
            CorruptionError: if the object is missing or of another size.
        """

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[Buffer]:
        """Return exact ranges of objects, all fetched at once; each is a buffer of its own or a part of one.

        Args:
            ranges: (name, start, stop) in bytes.

        Raises:
            CorruptionError: if an object is missing or ends before a range does.
        """
