"""Tar files as they come: each file in them is read, or the archive is refused by its name."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
from pathlib import Path
from typing import Any

import pytest

from cachelayer import SourceError, Storage
from cachelayer.adapters.webdataset import from_webdataset


def archive(*members: tuple[str, bytes, str, bytes]) -> bytes:
    """An archive of files, with its end mark and nothing after it."""
    file = io.BytesIO()
    for name, kind, target, data in members:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size = kind, target, len(data)
        file.write(info.tobuf() + data + bytes(-len(data) % 512))
    return file.getvalue() + bytes(1024)


def regular(name: str, data: bytes) -> tuple[str, bytes, str, bytes]:
    return name, tarfile.REGTYPE, "", data


A, B = regular("a.txt", b"1"), regular("b.txt", b"2" * 600)
WHOLE = archive(A, B)
BROKEN = {
    "text": b"no tar file" * 100,
    "damage between two files": WHOLE[:1024] + b"\xff" * 8 + WHOLE[1032:],
    "a wrong sum between two files": WHOLE[: 1024 + 148] + b"0000000\0" + WHOLE[1024 + 156 :],
    "two archives": WHOLE + WHOLE,
    "two archives in gzip members": gzip.compress(WHOLE) + gzip.compress(WHOLE),
    "two archives in gzip": gzip.compress(WHOLE + WHOLE),
    "two archives in xz": lzma.compress(WHOLE + WHOLE),
    "gzip with a damaged checksum": gzip.compress(WHOLE)[:-6] + b"\xff" + gzip.compress(WHOLE)[-5:],
    "Zstandard": b"\x28\xb5\x2f\xfd" + bytes(600),
    "gzip with more after it": gzip.compress(WHOLE) + b"more",
    "a hard link": archive(A, ("b.txt", tarfile.LNKTYPE, "a.txt", b"")),
    "a symbolic link": archive(A, ("b.txt", tarfile.SYMTYPE, "a.txt", b"")),
    "a pipe": archive(A, ("b.txt", tarfile.FIFOTYPE, "", b"")),
    "a device": archive(A, ("b.txt", tarfile.CHRTYPE, "", b"")),
    "a file that is there twice": archive(A, A),
}


def stored(data: bytes, folder: Path) -> Any:
    (folder / "x.tar").write_bytes(data)
    return Storage(folder / "cache").submit(from_webdataset(folder / "x.tar"), "d", "v1")


@pytest.mark.parametrize("name", BROKEN)
def test_an_archive_of_which_something_would_be_left_out_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"x\.tar .*record [01] or the next"):
        stored(BROKEN[name], tmp_path)
    assert not Storage(tmp_path / "cache").datasets()


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_zeros_after_the_end_mark_and_folders_change_nothing(pack: Any, tmp_path: Path) -> None:
    folder = ("d.txt", tarfile.DIRTYPE, "", b"")
    ref = stored(pack(archive(A, folder, B) + bytes(20480)), tmp_path)
    assert list(ref) == [{"__key__": "a", "txt": "1"}, {"__key__": "b", "txt": "2" * 600}]


def test_names_that_lead_elsewhere_are_keys_and_nothing_is_written_there(tmp_path: Path) -> None:
    names = ["/etc/a", "../b", "c/../../d", "ü", "long/" * 60 + "e"]
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as written:
        for name in names:
            info = tarfile.TarInfo(f"{name}.txt")
            info.size = 1
            written.addfile(info, io.BytesIO(b"1"))
    ref = stored(file.getvalue(), tmp_path)
    assert [element["__key__"] for element in ref] == names
    assert {path.name for path in tmp_path.iterdir()} == {"x.tar", "cache"}
