"""WebDataset tar files as sources, written by webdataset itself."""

import bz2
import gzip
import io
import lzma
import tarfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from pictures_and_sounds import SOUNDS, wav
from PIL import Image

from cachelayer import (
    ArraySpec,
    AudioSpec,
    CacheLayerError,
    CacheLayerWarning,
    ElementError,
    ImageSpec,
    InvalidArgumentError,
    Storage,
)
from cachelayer.adapters.webdataset import from_webdataset
from cachelayer.testing import SourceTests


def png(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((2, 3, 3), number % 256, np.uint8)).save(file, "PNG")
    return file.getvalue()


def npy(value: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, value)
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
        "when.npy": npy(np.datetime64(number, "ns")),
        "words.bin": bytes([number % 256, 0]),
    }


class TestWebDataset(SourceTests):
    seeks = False

    def source(self, count: int, folder: Path) -> Any:
        for shard in range(3):
            part = range(shard * count // 3, (shard + 1) * count // 3)
            write(folder / f"train-{shard}.tar", map(sample, part))
        return from_webdataset(str(folder / "train-{0..2}.tar"))

    def element(self, number: int) -> Any:
        return sample(number) | {
            "cls": np.int64(number),
            "left.png": np.full((2, 3, 3), number % 256, np.uint8),
            "txt": f"ü{number}",
            "when.npy": np.datetime64(number, "ns"),
        }


def test_suffixes_are_chosen_and_what_a_sample_lacks_is_none(storage: Storage, tmp_path: Path) -> None:
    write(tmp_path / "a.tar", [{"__key__": "a", "cls": b"1"}, {"__key__": "b", "cls": b"2", "txt": b"two"}])
    with pytest.raises(ElementError, match="'b' has 'txt' too"):
        storage.cache(from_webdataset(tmp_path / "a.tar"), "d@v1")
    ref = storage.cache(from_webdataset(tmp_path / "a.tar", ["txt"]), "d@v1")
    assert list(ref) == [{"__key__": "a", "txt": None}, {"__key__": "b", "txt": "two"}]


def test_a_declared_spec_chooses_suffixes_and_how_they_are_kept(storage: Storage, tmp_path: Path) -> None:
    sound = wav(SOUNDS[0])
    write(tmp_path / "a.tar", [{**sample(4), "score": b" 1.5\n", "wav": sound}])
    source = from_webdataset(tmp_path / "a.tar")
    spec = {"__key__": str, "cls": bytes, "left.png": ImageSpec("L"), "score": "float32", "wav": AudioSpec(8000)}
    ref = storage.cache(source, "d@v1", element_spec=spec)
    assert ref[:1].read([0], fields=("cls",))["cls"].tolist() == [b"4"]
    assert ref.raw()[0]["wav"] == sound
    assert ref.raw()[0]["left.png"] == png(4)
    assert ref.raw()[0]["score"] == np.float32(1.5)
    assert ref.raw().element_spec["left.png"] == ImageSpec("L")


NUMBERS = [(suffix, text) for suffix in ("cls", "id") for text in (b"9223372036854775808", b"007", b"1.0", b"")]


@pytest.mark.parametrize(("suffix", "data"), [("cls", b"cat"), ("txt", b"\xff"), ("npy", npy("text")[:-1]), *NUMBERS])
def test_what_its_suffix_does_not_hold_names_the_sample(
    storage: Storage, tmp_path: Path, suffix: str, data: bytes
) -> None:
    good = {"txt": b"a", "npy": npy(np.arange(3))}.get(suffix, b"7\n")
    write(tmp_path / "a.tar", [{"__key__": "a", suffix: good}, {"__key__": "b", suffix: data}])
    match = rf"^\S*a\.tar, sample 'b', record 1, leaf \['{suffix}'\]: "
    with pytest.raises(ElementError, match=match):
        storage.cache(from_webdataset(tmp_path / "a.tar"), "d@v1")
    spec = {"__key__": str, suffix: bytes}
    assert storage.cache(from_webdataset(tmp_path / "a.tar"), "d@v1", element_spec=spec)[1][suffix] == data
    with pytest.warns(CacheLayerWarning, match=r"1 of 2 records were left out.*sample 'b'") as warned:
        kept = storage.cache(from_webdataset(tmp_path / "a.tar"), "skipped@v1", on_error="skip")
    assert [row["__key__"] for row in kept] == ["a"]
    assert "BadValue" not in str(warned[0].message)


def test_a_sample_with_other_suffixes_is_left_out_if_asked(storage: Storage, tmp_path: Path) -> None:
    write(tmp_path / "a.tar", [{"__key__": "a", "cls": b"1"}, {"__key__": "b", "cls": b"2", "txt": b"two"}])
    with pytest.warns(CacheLayerWarning, match="'b' has 'txt' too"):
        assert len(storage.cache(from_webdataset(tmp_path / "a.tar"), "d@v1", on_error="skip")) == 1


@pytest.mark.parametrize(
    ("dtype", "text", "value"),
    [
        ("bool", "1", None),
        ("uint8", "256", None),
        ("uint64", "18446744073709551615", 2**64 - 1),
        ("float32", "0.1", np.float32(0.1)),
        ("float32", "1e400", None),
        ("float32", "16777217", np.float32(2**24)),
        ("datetime64[D]", "2020-01-01", None),
    ],
)
def test_declared_numbers_are_those_of_the_text_or_refused(
    storage: Storage, tmp_path: Path, dtype: str, text: str, value: Any
) -> None:
    write(tmp_path / "a.tar", [{"__key__": "a", "x": text.encode()}])
    spec = {"__key__": str, "x": dtype}
    refused = pytest.raises(ElementError, match=r"leaf \['x'\]") if value is None else nullcontext()
    with refused:
        assert storage.cache(from_webdataset(tmp_path / "a.tar"), "d@v1", element_spec=spec)[0]["x"] == value


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_pipelines_of_webdataset_itself_are_sources(storage: Storage, tmp_path: Path) -> None:
    write(tmp_path / "a.tar", map(sample, range(5)))
    pipeline = webdataset.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False).decode().to_tuple("npy", "cls")
    ref = storage.cache(pipeline, "d@v1")
    assert [int(number) for _, number in ref] == list(range(5))
    assert ref.element_spec[0] == ArraySpec("float32", (2, 2))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_zeros_after_the_end_mark_and_folders_change_nothing(storage: Storage, tmp_path: Path, pack: Any) -> None:
    write(tmp_path / "a.tar", [sample(1), sample(2)])
    with tarfile.open(tmp_path / "a.tar", "a") as archive:
        folder = tarfile.TarInfo("d.txt")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    (tmp_path / "a.tar").write_bytes(pack((tmp_path / "a.tar").read_bytes() + bytes(20480)))
    assert [row["cls"] for row in storage.cache(from_webdataset(tmp_path / "a.tar"), "d@v1")] == [1, 2]


def test_names_that_lead_elsewhere_are_keys_and_nothing_is_written_there(storage: Storage, tmp_path: Path) -> None:
    names = ["/etc/a", "../b", "c/../../d", "ü", "long/" * 60 + "e"]
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(f"{name}.txt"))
    ref = storage.cache(from_webdataset(tmp_path / "a.tar"), "d@v1")
    assert [element["__key__"] for element in ref] == names
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar", "d"}


def test_what_is_not_there_is_an_error(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "0.tar").touch()
    with pytest.raises(InvalidArgumentError, match=r"there is no file .*1\.tar"):
        storage.cache(from_webdataset(str(tmp_path / "{0..1}.tar")), "d@v1")


def test_a_sample_whose_files_lie_apart_is_refused_by_its_name(storage: Storage, tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for name in ("1.txt", "2.txt", "1.cls", "2.cls"):
            member = tarfile.TarInfo(name)
            member.size = 1
            tar.addfile(member, io.BytesIO(b"7"))
    for suffixes in (None, ["txt", "cls"], ["txt"]):
        with pytest.raises(CacheLayerError, match=r"^\S*a\.tar.*'1'"):
            storage.cache(from_webdataset(path, suffixes), "d@v1")
    write(tmp_path / "b.tar", [{"__key__": "1", "txt": b"a"}])
    write(tmp_path / "c.tar", [{"__key__": "1", "txt": b"b"}])
    assert len(storage.cache(from_webdataset([tmp_path / "b.tar", tmp_path / "c.tar"]), "d@v1")) == 2
