"""Headers of files that end with their own checksum: magic, version, fields, and the CRC32C of all of these."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import google_crc32c

from cachelayer.errors import CorruptionError, FormatError

_CHECKSUM = struct.Struct("<I")


@dataclass(frozen=True)
class SealedHeader:
    """The layout of a header; its first fields are the magic and the version.

    Args:
        layout: all fields but the checksum.
        magic: what files of this format begin with.
        version: the newest version that this release reads.
        kind: what a file is, in one word, such as ``plan``.
        of: what it is a file of, such as ``packs``.
    """

    layout: struct.Struct
    magic: bytes
    version: int
    kind: str
    of: str

    @property
    def nbytes(self) -> int:
        """The bytes of the header."""
        return self.layout.size + _CHECKSUM.size

    def encode(self, *fields: Any) -> bytes:
        """Return the bytes of a header of the newest version with these fields."""
        head = self.layout.pack(self.magic, self.version, *fields)
        return head + _CHECKSUM.pack(google_crc32c.value(head))

    def decode(self, raw: bytes, name: str) -> tuple[Any, ...]:
        """Return the fields after magic and version.

        Args:
            raw: the file, or at least its header.
            name: what errors call the file.

        Raises:
            FormatError: if it has another format.
            CorruptionError: if it is damaged.
        """
        if len(raw) < self.nbytes:
            raise CorruptionError(f"{name}: a {self.kind} of {self.of} that was cut short")
        head = raw[: self.layout.size]
        magic, version, *fields = self.layout.unpack(head)
        if magic != self.magic:
            raise FormatError(f"{name}: not a {self.kind} of {self.of}")
        if version > self.version:
            raise FormatError(
                f"{name}: a {self.kind} of version {version}; this release reads up to {self.version}: "
                "update cachelayer"
            )
        if _CHECKSUM.unpack(raw[self.layout.size : self.nbytes])[0] != google_crc32c.value(head):
            raise CorruptionError(f"{name}: the header does not match its checksum")
        return tuple(fields)
