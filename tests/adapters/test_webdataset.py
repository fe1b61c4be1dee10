"""WebDataset tar files as sources, written by webdataset itself."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from PIL import Image
from source_conformance import SourceConformance

import cachelayer
from cachelayer import ArraySpec, AudioSpec, ElementError, ImageSpec, InvalidArgumentError, SourceError
from cachelayer.adapters.webdataset import from_webdataset


def png(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((2, 3, 3), number % 256, np.uint8)).save(file, "PNG")
    return file.getvalue()


def write(path: Path, samples: Any) -> None:
    with webdataset.TarWriter(str(path)) as writer:
        for sample in samples:
            writer.write(sample)


def sample(number: int) -> dict[str, Any]:
    return {
        "__key__": f"shard/{number:06d}",
        "cls": str(number).encode(),
        "json": b'{"n": %d}' % number,
        "left.png": png(number),
        "npy": np.full((2, 2), number, np.float32),
        "txt": f"ü{number}".encode(),
    }


class TestWebDataset(SourceConformance):
    seeks = False

    def source(self, count: int, folder: Path) -> Any:
        for shard in range(3):
            part = range(shard * count // 3, (shard + 1) * count // 3)
            write(folder / f"train-{shard}.tar", map(sample, part))
        return from_webdataset(str(folder / "train-{0..2}.tar"))

    def element(self, number: int) -> Any:
        return {
            "__key__": f"shard/{number:06d}",
            "cls": np.int64(number),
            "json": b'{"n": %d}' % number,
            "left.png": np.full((2, 3, 3), number % 256, np.uint8),
            "npy": np.full((2, 2), number, np.float32),
            "txt": f"ü{number}",
        }


@pytest.fixture
def storage(tmp_path: Path) -> cachelayer.Storage:
    return cachelayer.Storage(tmp_path / "cache")


def test_images_stay_the_bytes_of_their_files(storage: cachelayer.Storage, tmp_path: Path) -> None:
    write(tmp_path / "a.tar", [sample(3)])
    ref = storage.cache(from_webdataset(tmp_path / "*.tar"), "d", "v1")
    assert ref.raw().element_spec["left.png"] == ImageSpec()
    assert ref.raw()[0]["left.png"] == png(3)


def test_compressed_files_are_read(storage: cachelayer.Storage, tmp_path: Path) -> None:
    with webdataset.TarWriter(str(tmp_path / "a.tar.gz")) as writer:
        writer.write(sample(3))
    assert storage.cache(from_webdataset(tmp_path / "a.tar.gz"), "d", "v1")[0]["txt"] == "ü3"


def test_files_are_read_through_fsspec(storage: cachelayer.Storage, tmp_path: Path) -> None:
    import fsspec

    for number in range(2):
        write(tmp_path / f"{number}.tar", [sample(number)])
        fsspec.filesystem("memory").pipe(f"/wds/{number}.tar", (tmp_path / f"{number}.tar").read_bytes())
    ref = storage.cache(from_webdataset("memory://wds/{0..1}.tar"), "d", "v1")
    assert [row["cls"] for row in ref] == [0, 1]


def test_suffixes_are_chosen_and_what_a_sample_lacks_is_none(storage: cachelayer.Storage, tmp_path: Path) -> None:
    write(tmp_path / "a.tar", [{"__key__": "a", "cls": b"1"}, {"__key__": "b", "cls": b"2", "txt": b"two"}])
    ref = storage.cache(from_webdataset(tmp_path / "a.tar", ["txt"]), "d", "v1")
    assert list(ref) == [{"__key__": "a", "txt": None}, {"__key__": "b", "txt": "two"}]


def test_a_suffix_that_comes_later_is_named(storage: cachelayer.Storage, tmp_path: Path) -> None:
    write(tmp_path / "a.tar", [{"__key__": "a", "cls": b"1"}, {"__key__": "b", "cls": b"2", "txt": b"two"}])
    with pytest.raises(ElementError, match=r"\['cls'\]"):
        storage.cache(from_webdataset(tmp_path / "a.tar"), "d", "v1")


def test_arrays_of_other_shapes_take_a_declared_spec(storage: cachelayer.Storage, tmp_path: Path) -> None:
    write(tmp_path / "a.tar", [{"__key__": str(n), "npy": np.arange(n)} for n in range(1, 4)])
    with pytest.raises(ElementError, match=r"\['npy'\]"):
        storage.cache(from_webdataset(tmp_path / "a.tar"), "d", "v1")
    spec = {"__key__": str, "npy": ArraySpec("int64", (None,))}
    ref = storage.cache(from_webdataset(tmp_path / "a.tar"), "d", "v1", element_spec=spec)
    assert [row["npy"].tolist() for row in ref] == [[0], [0, 1], [0, 1, 2]]


def test_a_declared_spec_chooses_suffixes_and_how_they_are_kept(storage: cachelayer.Storage, tmp_path: Path) -> None:
    write(tmp_path / "a.tar", [{**sample(4), "score": b" 1.5\n", "wav": b"sound"}])
    source = from_webdataset(tmp_path / "a.tar")
    spec = {"__key__": str, "cls": bytes, "left.png": ImageSpec("L"), "score": "float32", "wav": AudioSpec(8000)}
    ref = storage.cache(source, "d", "v1", element_spec=spec)
    assert ref[:1].read([0], fields=("cls",))["cls"].tolist() == [b"4"]
    assert ref.raw()[0]["wav"] == b"sound"
    assert ref.raw()[0]["score"] == np.float32(1.5)
    assert ref.raw().element_spec["left.png"] == ImageSpec("L")


@pytest.mark.parametrize("spec", [np.int64, {"cls": np.int64}, {"__key__": str, "cls": {"a": np.int64}}], ids=str)
def test_a_declared_spec_of_no_samples_is_refused(storage: cachelayer.Storage, tmp_path: Path, spec: Any) -> None:
    write(tmp_path / "a.tar", [sample(0)])
    with pytest.raises(InvalidArgumentError, match="element_spec"):
        storage.cache(from_webdataset(tmp_path / "a.tar"), "d", "v1", element_spec=spec)


@pytest.mark.parametrize(("suffix", "data"), [("cls", b"cat"), ("txt", b"\xff"), ("npy", b"no array")])
def test_what_its_suffix_does_not_hold_is_named(
    storage: cachelayer.Storage, tmp_path: Path, suffix: str, data: bytes
) -> None:
    rows = [{"__key__": "a", suffix: sample(1)[suffix]}, {"__key__": "b", suffix: data}]
    if suffix == "npy":
        rows[0]["npy"] = np.arange(3)
    write(tmp_path / "a.tar", rows)
    match = rf"record 1, leaf \['{suffix}'\]: .*It is in sample 'b' of .*a\.tar"
    with pytest.raises(ElementError, match=match):
        storage.cache(from_webdataset(tmp_path / "a.tar"), "d", "v1")


@pytest.mark.parametrize("suffix", ["cls", "cls2", "index", "inx", "id"])
@pytest.mark.parametrize("text", ["9223372036854775808", "-9223372036854775809", "007", "+7", "1_000", "1.0", "-0", ""])
def test_a_number_that_int64_does_not_hold_as_it_is_written_names_the_sample(
    storage: cachelayer.Storage, tmp_path: Path, suffix: str, text: str
) -> None:
    write(tmp_path / "a.tar", [{"__key__": "a", suffix: b"7\n"}, {"__key__": "b", suffix: text.encode()}])
    match = rf"record 1, leaf \['{suffix}'\]: expected int64, got b'{re.escape(text)}'.*sample 'b' of .*a\.tar"
    with pytest.raises(ElementError, match=match):
        storage.cache(from_webdataset(tmp_path / "a.tar"), "d", "v1")
    ref = storage.cache(from_webdataset(tmp_path / "a.tar"), "d", "v1", element_spec={"__key__": str, suffix: str})
    assert ref[1][suffix] == text


@pytest.mark.parametrize(
    ("dtype", "text", "value"),
    [
        ("bool", "False", False),
        ("bool", "1", True),
        ("bool", "maybe", None),
        ("float32", "1e400", None),
        ("float32", "inf", np.inf),
        ("uint8", "256", None),
        ("uint64", "18446744073709551615", 2**64 - 1),
        ("float64", "9007199254740992", 2.0**53),
        ("float64", "9007199254740993", None),
        ("float32", "16777217", None),
        ("bfloat16", "257", None),
        ("float32", "1e-400", None),
        ("float32", "1_0", None),
        ("float32", "0.1", np.float32(0.1)),
        ("complex64", "1+2j", 1 + 2j),
        ("datetime64[D]", "2020-01-01", np.datetime64("2020-01-01")),
        ("datetime64[D]", "2020-01-01T12", None),
        ("datetime64[ns]", "2500-01-01", None),
    ],
)
def test_declared_numbers_are_those_of_the_text_or_refused(
    storage: cachelayer.Storage, tmp_path: Path, dtype: str, text: str, value: Any
) -> None:
    write(tmp_path / "a.tar", [{"__key__": "a", "x": text.encode()}])
    spec = {"__key__": str, "x": dtype}
    if value is None:
        with pytest.raises(ElementError, match=r"leaf \['x'\]"):
            storage.cache(from_webdataset(tmp_path / "a.tar"), "d", "v1", element_spec=spec)
    else:
        assert storage.cache(from_webdataset(tmp_path / "a.tar"), "d", "v1", element_spec=spec)[0]["x"] == value


def test_a_tar_file_cut_short_is_named_with_the_record(storage: cachelayer.Storage, tmp_path: Path) -> None:
    for name in ("a.tar", "b.tar", "b.tar.gz"):
        write(tmp_path / name, map(sample, range(5)))
    # A sample takes 10 KiB here: within the data of a file, within a header, and between two samples.
    for name, end, reason in (
        ("b.tar", 7 * 1024 + 600, r"ReadError: unexpected end of data"),
        ("b.tar", 7 * 1024 + 100, r"ReadError: truncated header"),
        ("b.tar", 10 * 1024, r"it is cut short at byte 10240"),
        ("b.tar.gz", 600, r"EOFError: Compressed file ended"),
    ):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / "cut").write_bytes(whole[:end])
        with pytest.raises(SourceError, match=rf"cut failed at record \d or the next: {reason}"):
            storage.cache(from_webdataset([tmp_path / "a.tar", tmp_path / "cut"]), "d", "v1")
    (tmp_path / "cut").write_bytes(b"no tar file" * 100)
    with pytest.raises(SourceError, match="record 0"):
        storage.cache(from_webdataset(tmp_path / "cut"), "d", "v1")
    assert storage.datasets() == []


def archive(*members: str | tarfile.TarInfo) -> bytes:
    """An archive without padding; each file holds a 1."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for member in members:
            if isinstance(member, str):
                member = tarfile.TarInfo(member)
                member.size = 1
            tar.addfile(member, io.BytesIO(b"1"))
    return file.getvalue()[: 1024 * len(members) + 1024]


COMPRESSIONS = {"plain": bytes, "gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize("compress", COMPRESSIONS.values(), ids=COMPRESSIONS)
def test_a_second_archive_in_a_file_is_not_left_out_in_silence(
    storage: cachelayer.Storage, tmp_path: Path, compress: Any
) -> None:
    path, ab, c = tmp_path / "a", archive("a.cls", "b.cls"), archive("c.cls")
    for whole in (compress(ab + c), compress(ab) + compress(c)):
        path.write_bytes(whole)
        with pytest.raises(SourceError, match="record 1"):
            storage.cache(from_webdataset(path), "d", "v1")
    path.write_bytes(compress(ab + bytes(20480)))
    assert len(storage.cache(from_webdataset(path), "d", "v1")) == 2


def damaged(whole: bytes, place: int) -> bytes:
    return whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]


LINKS = {"symbolic": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE}
LEFT_OUT: dict[str, tuple[bytes, str]] = {
    "a damaged header": (damaged(archive("a.cls", "b.cls"), 1024), "it is damaged at byte 1536: make it again"),
    "a damaged checksum": (damaged(gzip.compress(archive("a.cls", "b.cls")), -6), "CRC check failed"),
    "Zstandard": (b"\x28\xb5\x2f\xfd" + bytes(600), "compressed with Zstandard, which is not read: decompress it"),
    "no archive within": (gzip.compress(gzip.compress(archive("a.cls"))), "ReadError"),
}
for kind, number in LINKS.items():
    link = tarfile.TarInfo("b.cls")
    link.type, link.linkname = number, "a.cls"
    LEFT_OUT[f"a {kind} link"] = archive("a.cls", link), "b.cls is a link to a.cls: pack it with tar --dereference"


@pytest.mark.parametrize(("whole", "reason"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_a_sample_that_cannot_be_read_is_not_left_out_in_silence(
    storage: cachelayer.Storage, tmp_path: Path, whole: bytes, reason: str
) -> None:
    (tmp_path / "a").write_bytes(whole)
    with pytest.raises(SourceError, match=rf"a failed at record \d or the next: .*{re.escape(reason)}"):
        storage.cache(from_webdataset(tmp_path / "a"), "d", "v1")
    assert storage.datasets() == []


def test_bytes_after_an_array_are_refused_by_sample(storage: cachelayer.Storage, tmp_path: Path) -> None:
    file = io.BytesIO()
    for _ in range(2):
        np.save(file, np.arange(3))
    write(tmp_path / "a.tar", [{"__key__": "a", "npy": np.arange(3)}, {"__key__": "b", "npy": file.getvalue()}])
    with pytest.raises(ElementError, match=r"\['npy'\]"):
        storage.cache(from_webdataset(tmp_path / "a.tar"), "d", "v1")


@pytest.mark.parametrize("suffixes", ["cls", [".cls"], ["CLS"], [1]], ids=str)
def test_suffixes_that_no_sample_can_have_are_refused(tmp_path: Path, suffixes: Any) -> None:
    with pytest.raises(cachelayer.CacheLayerError, match="suffix"):
        from_webdataset(tmp_path / "a.tar", suffixes)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_pipelines_of_webdataset_itself_are_sources(storage: cachelayer.Storage, tmp_path: Path) -> None:
    write(tmp_path / "a.tar", map(sample, range(5)))
    pipeline = webdataset.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False).decode().to_tuple("npy", "cls")
    ref = storage.cache(pipeline, "d", "v1")
    assert [int(number) for _, number in ref] == list(range(5))
    assert ref.element_spec[0] == ArraySpec("float32", (2, 2))


def test_what_is_not_there_is_an_error(storage: cachelayer.Storage, tmp_path: Path) -> None:
    (tmp_path / "0.tar").touch()
    with pytest.raises(InvalidArgumentError, match=r"there is no file .*1\.tar"):
        storage.cache(from_webdataset(str(tmp_path / "{0..1}.tar")), "d", "v1")
