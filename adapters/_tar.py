"""Read the files of a tar archive from start to end, without skipping anything silently."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
from collections.abc import Callable, Iterator
from typing import IO, Any

from cachelayer.errors import SourceError

_OPENERS: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
_ZSTANDARD = b"\x28\xb5\x2f\xfd"
_CHUNK = 1 << 20
_END = bytes(tarfile.BLOCKSIZE)


def files_of(file: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each file in an archive, decompressed if it is a gzip, bzip2 or xz file.

    Args:
        file: the archive.

    Raises:
        SourceError: if the archive is damaged or cut short, has bytes after its end, or contains a link.
        tarfile.TarError, OSError, EOFError, lzma.LZMAError: if it is not an archive, or compressed data is damaged.
    """
    tape = _Tape(_decompressed(file))
    with tarfile.open(fileobj=tape, mode="r:") as tar:  # type: ignore[call-overload]
        # tarfile would keep every header; drop them, since each is read once.
        while (member := tar.next()) is not None:
            tar.members = []
            if member.isreg():
                opened = tar.extractfile(member)
                yield member.name, b"" if opened is None else opened.read()
            elif not member.isdir():
                what = f"a link to {member.linkname}" if member.issym() or member.islnk() else "not a file"
                raise SourceError(f"{member.name} is {what}: pack it with tar --dereference --hard-dereference")
    if tape.last != _END:
        # tarfile treats both a cut and a damaged header as the end.
        cut = len(tape.last) < len(_END)
        raise SourceError(f"it is {'cut short' if cut else 'damaged'} at byte {tape.place}: make it again")
    if any(data.strip(b"\0") for data in iter(lambda: tape.read(_CHUNK), b"")):
        raise SourceError("bytes follow its end mark: split it into two files")


def _decompressed(file: IO[bytes]) -> Any:
    start = file.read(len(max(_OPENERS, key=len)))
    file.seek(0)
    if start.startswith(_ZSTANDARD):
        raise SourceError("it is compressed with Zstandard, which is not read: decompress it first")
    return next((opener(file) for magic, opener in _OPENERS.items() if start.startswith(magic)), file)


class _Tape:
    """A file that is read from start to end and remembers the last block read."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.place = 0
        self.last = b""

    def read(self, size: int) -> bytes:
        parts: list[bytes] = []
        left = size
        while left and (part := self._file.read(left)):
            parts.append(part)
            left -= len(part)
        self.last = b"".join(parts)
        self.place += len(self.last)
        return self.last

    def tell(self) -> int:
        return self.place

    def seek(self, place: int) -> None:
        while self.place < place and self.read(min(_CHUNK, place - self.place)):
            pass
