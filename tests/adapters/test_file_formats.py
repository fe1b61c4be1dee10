"""What every format of files keeps, wherever they lie: missing, cut short, or changed while they are read."""

import bz2
import gzip
import io
import lzma
import os
import re
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from cachelayer import InvalidArgumentError, InvalidTypeError, SourceError, Storage
from cachelayer.adapters.folders import from_files
from cachelayer.adapters.npy import from_npy, from_npz
from cachelayer.adapters.pyarrow import from_csv, from_ipc, from_json, from_parquet
from cachelayer.adapters.webdataset import from_webdataset
from cachelayer.builds.as_source import as_source
from cachelayer.builds.batches import Batch
from cachelayer.builds.source import Source
from cachelayer.errors import CacheLayerError

ROWS = 3000
NUMBERS = np.random.default_rng(0).permutation(ROWS)
TABLE = pa.table({"x": NUMBERS})
SCHEMA = pa.schema({"x": pa.int64()})
CSV = b"x\n" + b"".join(b"%d\n" % number for number in NUMBERS)
JSON = b"".join(b'{"x": %d}\n' % number for number in NUMBERS)


def written(write: Callable[[Any], Any]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def archive(*members: tuple[str, bytes, str, bytes]) -> bytes:
    """A tar file of members, with its end mark and nothing after it."""
    file = io.BytesIO()
    for name, kind, target, data in members:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size = kind, target, len(data)
        file.write(info.tobuf() + data + bytes(-len(data) % 512))
    return file.getvalue() + bytes(1024)


def regular(name: str, data: bytes) -> tuple[str, bytes, str, bytes]:
    return name, tarfile.REGTYPE, "", data


@dataclass(frozen=True)
class Format:
    """A format of files.

    Args:
        data: a whole file.
        read: a path, or a list of paths, as a source.
        is_framed: whether a file that is cut short is not a file of this format any more.
        is_remote: whether files are read wherever fsspec finds them.
    """

    data: bytes
    read: Callable[[Any], Any]
    is_framed: bool = True
    is_remote: bool = True


TAR = archive(*(regular(f"{n}.bin", NUMBERS.tobytes()[n : n + 600]) for n in range(3)))
FORTRAN = np.asfortranarray(NUMBERS.reshape(-1, 4))
FORMATS = {
    "csv": Format(CSV, from_csv, is_framed=False),
    "csv.gz": Format(gzip.compress(CSV), from_csv),
    "csv.bz2": Format(bz2.compress(CSV[:99]) + bz2.compress(CSV[99:]), from_csv, is_framed=False),
    "jsonl": Format(JSON, from_json, is_framed=False),
    "jsonl.gz": Format(gzip.compress(JSON[:99]) + gzip.compress(JSON[99:]), lambda path: from_json(path, SCHEMA)),
    "parquet": Format(written(lambda file: pq.write_table(TABLE, file, row_group_size=100)), from_parquet),
    "arrow": Format(written(lambda file: pa.feather.write_feather(TABLE, file, chunksize=100)), from_ipc),
    "tar": Format(TAR[:-512], from_webdataset),
    "tar.gz": Format(gzip.compress(TAR), from_webdataset),
    "tar.bz2": Format(bz2.compress(TAR), from_webdataset),
    "tar.xz": Format(lzma.compress(TAR), from_webdataset),
    "npz": Format(written(lambda file: np.savez(file, x=NUMBERS)), from_npz, is_remote=False),
    "small.npz": Format(written(lambda file: np.savez_compressed(file, x=NUMBERS)), from_npz, is_remote=False),
    "npy": Format(written(lambda file: np.save(file, NUMBERS)), from_npy, is_remote=False),
    "fortran.npy": Format(written(lambda file: np.save(file, FORTRAN)), from_npy, is_remote=False),
}


@pytest.mark.parametrize("name", [name for name, each in FORMATS.items() if each.is_remote])
def test_files_are_read_wherever_fsspec_finds_them(name: str, storage: Storage, tmp_path: Path) -> None:
    form, remote = FORMATS[name], f"memory://formats/{name}"
    for number in range(2):
        (tmp_path / f"{number}.{name}").write_bytes(form.data)
        fsspec.filesystem("memory").pipe(f"/formats/{name}/{number}.{name}", form.data)
    sources = [tmp_path / f"*.{name}", [f"{remote}/{number}.{name}" for number in range(2)], f"{remote}/*.{name}"]
    refs = [storage.cache(form.read(paths), f"d@v{number}") for number, paths in enumerate(sources)]
    assert len(refs[0]) == (6 if "tar" in name else 2 * ROWS)
    assert len({ref.digest for ref in refs}) == 1


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_not_there_is_an_error(name: str, storage: Storage, tmp_path: Path) -> None:
    form = FORMATS[name]
    for paths in (tmp_path / "nope", str(tmp_path / "*.nope") if form.is_remote else "nope"):
        with pytest.raises(InvalidArgumentError, match="there is no file"):
            storage.cache(form.read(paths), "d@v1")
    for paths in ([], [3]) if form.is_remote else (3,):
        with pytest.raises((InvalidArgumentError, InvalidTypeError, TypeError)):
            storage.cache(form.read(paths), "d@v1")


@pytest.mark.parametrize("name", [name for name, each in FORMATS.items() if each.is_framed])
def test_a_file_that_is_cut_short_anywhere_is_refused_by_its_name(name: str, storage: Storage, tmp_path: Path) -> None:
    form, path = FORMATS[name], tmp_path / f"x.{name}"
    end = len(form.data)
    for cut in (0, 3, 60, end // 3, end // 2, end - 9, end - 1):
        path.write_bytes(form.data[:cut])
        with pytest.raises(SourceError, match=path.name):
            storage.cache(form.read(path), "d@v1")
    assert storage.datasets() == []


def npy(header: str, data: bytes = b"", version: bytes = b"\1\0") -> bytes:
    """A file with a header of any text."""
    size = "<H" if version == b"\1\0" else "<I"
    return b"\x93NUMPY" + version + struct.pack(size, len(header)) + header.encode("latin1") + data


def described(descr: str = "'<f4'", shape: str = "(6, 4)", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}\n"


def zipped(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", data)
    return file.getvalue()


ARRAY = np.arange(24, dtype=np.float32).tobytes()
HEADERS = {
    "text": b"hello, this is no array",
    "an unknown version": npy(described(), ARRAY, b"\7\0"),
    "a header that is no dict": npy("[1, 2]", ARRAY),
    "a header that calls": npy("__import__('os')", ARRAY),
    "a void dtype": npy(described("'|V4'"), ARRAY),
    "a negative length": npy(described(shape="(-6, 4)"), ARRAY),
    "more rows than bytes": npy(described(shape="(7, 4)"), ARRAY),
    "fewer rows than bytes": npy(described(shape="(5, 4)"), ARRAY),
    "more bytes than 64 bits count": npy(described(shape=f"({2**40}, {2**40})"), ARRAY),
    "2**40 rows of no bytes": npy(described(shape=f"({2**40}, 0)")),
}
A, B = regular("a.txt", b"1"), regular("b.txt", b"2" * 600)
WHOLE = archive(A, B)
TARS = {
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
TEXTS = {
    "nothing": b"",
    "a row that is short": b"n,x\n1\n",
    "a quote that does not end": b'x,y\n1,"ab\n2,c\n',
    "gzip": gzip.compress(CSV),
    "UTF-16": CSV.decode().encode("utf-16"),
    "zeros after the rows": b"n,x\n1,2\n" + bytes(100),
    "a row longer than a block": b"x\n1\n" + b"a" * 3000 + b"\n",
}
SMALL_BLOCKS = pyarrow.csv.ReadOptions(block_size=1000)
DAMAGED: dict[str, tuple[Any, str, bytes]] = {
    **{f"npy: {name}": (from_npy, "npy", data) for name, data in HEADERS.items()},
    **{f"npz: {name}": (from_npz, "npz", zipped(data)) for name, data in HEADERS.items()},
    **{f"tar: {name}": (from_webdataset, "tar", data) for name, data in TARS.items()},
    "csv.gz: more after it": (from_csv, "csv.gz", gzip.compress(CSV) + b"more"),
    "jsonl.gz: more after it": (from_json, "jsonl.gz", gzip.compress(JSON) + b"more"),
    **{f"csv: {name}": (partial(from_csv, read_options=SMALL_BLOCKS), "csv", data) for name, data in TEXTS.items()},
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_file_of_which_something_would_be_lost_is_refused_by_its_name(
    name: str, storage: Storage, tmp_path: Path
) -> None:
    read, suffix, data = DAMAGED[name]
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(data)
    with pytest.raises(CacheLayerError, match=re.escape(str(path))):
        storage.cache(read(path), "d@v1")
    assert storage.datasets() == []


@pytest.mark.parametrize("name", [name for name in FORMATS if not name.startswith(("tar.", "small"))])
def test_the_name_of_a_file_tells_its_format(name: str, storage: Storage, tmp_path: Path) -> None:
    path = tmp_path / f"x.{name}"
    path.write_bytes(FORMATS[name].data)
    named, read = storage.cache(path, "d@named"), storage.cache(FORMATS[name].read(path), "d@read")
    assert named.digest == read.digest


def touch(path: Path) -> None:
    os.utime(path, ns=(0, 0))


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\n" * 8)


CHANGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "written anew": (touch, "was written again"),
    "longer": (grow, "has .* bytes, not"),
    "gone": (Path.unlink, "is gone|changed while they were read"),
}


def changed(files: Any, change: Callable[[], Any]) -> Source:
    """Return a source that does something to its file when the last of its batches was given."""
    source = as_source(files)

    def read(start: int, stop: int | None) -> Iterator[Batch]:
        yield from source.batches(start, stop)
        # A part of it is read to see how large records are.
        if stop is None:
            change()

    return replace(source, read=read)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", [*FORMATS, "file"])
def test_a_file_that_changes_while_it_is_read_ends_the_build_by_name(
    name: str, change: str, storage: Storage, tmp_path: Path
) -> None:
    path = tmp_path / f"x.{name}"
    path.write_bytes(FORMATS[name].data if name in FORMATS else b"x")
    read = FORMATS[name].read if name in FORMATS else lambda path: from_files(path.parent, "x.*")
    spoil, reason = CHANGES[change]
    with pytest.raises(SourceError, match=reason) as raised:
        storage.submit(changed(read(path), lambda: spoil(path)), "d@v1")
    assert str(path.parent) in str(raised.value)
    assert storage.datasets() == []


def test_a_remote_file_that_changes_while_it_is_read_ends_the_build() -> None:
    with fsspec.open("memory://changing/x.csv", "wt") as file:
        file.write("x\n1\n")

    def change() -> None:
        with closing(fsspec.open("memory://changing/x.csv", "wt").open()) as file:
            file.write("x\n1\n2\n")

    storage = Storage("memory://changing/cache")
    with pytest.raises(SourceError, match=r"memory://.*x\.csv changed while it was read: it has 6 bytes, not 4"):
        storage.submit(changed(from_csv("memory://changing/x.csv"), change), "d@v1")


def test_a_file_that_comes_while_others_are_read_is_none_of_them(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    source = changed(from_csv(tmp_path / "*.csv"), lambda: (tmp_path / "b.csv").write_text("x\n2\n"))
    assert len(Storage(tmp_path / "cache").submit(source, "d@v1")) == 1
