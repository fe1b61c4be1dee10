"""What every store of objects can do: put, put if absent, read, read ranges, copy files in and out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol


class ObjectStore(Protocol):
    """A flat space of named objects. Names use ``/``; many threads may use a store at once, and it can be pickled.

    Every method raises StorageError where the store does not answer or does not allow it: only an object that is
    truly not there counts as absent.
    """

    @property
    def url(self) -> str:
        """Where the store is, without credentials."""

    @property
    def host(self) -> str:
        """Who keeps it, for messages."""

    def read(self, name: str) -> bytes | None:
        """The object's bytes, or None where there is none."""

    def exists(self, name: str) -> bool:
        """Whether the object exists."""

    def size(self, name: str) -> int | None:
        """Bytes of the object, or None where there is none."""

    def modified(self, name: str) -> float | None:
        """When the object was written, in seconds since the epoch by the store's own clock; None where it is absent."""

    def put(self, name: str, data: bytes) -> None:
        """Write the object whole, over what may be there; it is durable on return."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write the object whole unless it exists; exactly one of several writers gets True. Durable on return.

        Args:
            name: the object.
            data: its bytes; they hold something that no other writer has, by which a doubtful write is recognised.

        Returns:
            Whether these bytes are the object now.
        """

    def delete(self, name: str) -> None:
        """Delete the object; one that is gone already is no error."""

    def delete_folder(self, folder: str) -> None:
        """Delete every object below a folder; one that is gone already is no error."""

    def names(self, folder: str) -> list[str]:
        """The names directly below a folder, without it. For maintenance: reading a dataset never lists."""

    def upload(self, path: Path, name: str, on_bytes: Callable[[int], None] | None = None) -> None:
        """Make a local file an object, whole, over what may be there; its size and checksum are compared.

        Args:
            path: the file.
            name: the object.
            on_bytes: called, from any thread, with the number of further bytes that are there; a negative one where
                the upload begins anew.
        """

    def download(self, name: str, path: Path, nbytes: int, on_bytes: Callable[[int], None] | None = None) -> int:
        """Copy an object of known size to a local file; the CRC32C of what was copied.

        Args:
            name: the object.
            path: the file, a temporary name of the caller's: it is incomplete until this returns. One that is there
                is written over in place.
            nbytes: size of the object.
            on_bytes: called, from any thread, with the number of further bytes that are there.

        Raises:
            CorruptionError: where the object is missing or of another size.
        """

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Exact ranges of objects, all fetched at once.

        Args:
            ranges: (name, start, stop) in bytes.

        Raises:
            CorruptionError: where an object is missing or ends before a range does.
        """
