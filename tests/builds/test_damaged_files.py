"""Images and sounds that are cut, empty or of another kind are found when they come in, not in mid-epoch."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from pictures_and_sounds import wav
from PIL import Image

from cachelayer import AudioSpec, CacheLayerWarning, ElementError, ImageSpec, InvalidTypeError, Storage
from cachelayer.adapters.folders import from_audio_folder, from_files, from_image_folder
from cachelayer.adapters.pyarrow import from_parquet


def image(container: str) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
    Image.fromarray(pixels).save(file, container)
    return file.getvalue()


def sound(container: str) -> bytes:
    file = io.BytesIO()
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, 16_000).astype(np.float32)
    soundfile.write(file, samples, 16_000, format=container)
    return file.getvalue()


IMAGES = {name.lower(): image(name) for name in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")}
SOUNDS = {name.lower(): sound(name) for name in ("WAV", "FLAC", "OGG", "MP3")}
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "of another kind": lambda _: b"<!DOCTYPE html><title>404 Not Found</title>",
    "its first bytes": lambda file: file[:20],
    "its first half": lambda file: file[: len(file) // 2],
    "without its end": lambda file: file[: int(len(file) * 0.95)],
}
WHOLE = {"image": IMAGES["png"], "audio": SOUNDS["wav"]}
SPECS: dict[str, Any] = {"image": ImageSpec(), "audio": AudioSpec()}


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # says Pillow
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", [*IMAGES, *SOUNDS])
def test_a_damaged_file_is_refused_or_left_out_whatever_its_kind(storage: Storage, name: str, damage: str) -> None:
    kind = "image" if name in IMAGES else "audio"
    whole = {**IMAGES, **SOUNDS}[name]
    rows = [{kind: whole}, {kind: DAMAGES[damage](whole)}, {kind: whole}]
    with pytest.raises(ElementError) as refused:
        storage.submit(rows, "d@v1", element_spec={kind: SPECS[kind]})
    assert (refused.value.record, refused.value.path) == (1, f"['{kind}']")
    assert "0x" not in str(refused.value)
    with pytest.warns(CacheLayerWarning, match=rf"1 of 3 records were left out.*record 1, leaf \['{kind}'\]"):
        ref = storage.submit(rows, "d@v1", element_spec={kind: SPECS[kind]}, on_error="skip")
    assert len(ref) == 2
    assert len(ref[1][kind]) > 10


def folder(kind: str, files: list[bytes], root: Path) -> Any:
    (root / "a").mkdir(parents=True)
    for number, file in enumerate(files):
        (root / "a" / f"{number}{'.png' if kind == 'image' else '.wav'}").write_bytes(file)
    return from_image_folder(root) if kind == "image" else from_audio_folder(root)


def files(kind: str, files: list[bytes], root: Path) -> Any:
    folder(kind, files, root)
    return from_files(root)


def tar(kind: str, files: list[bytes], root: Path) -> Any:
    webdataset = pytest.importorskip("cachelayer.adapters.webdataset")
    root.mkdir()
    with tarfile.open(root / "a.tar", "w") as archive:
        for number, file in enumerate(files):
            member = tarfile.TarInfo(f"key-{number}.{'png' if kind == 'image' else 'wav'}")
            member.size = len(file)
            archive.addfile(member, io.BytesIO(file))
    return webdataset.from_webdataset(root / "a.tar")


def parquet(kind: str, files: list[bytes], root: Path) -> Any:
    root.mkdir()
    pq.write_table(pa.table({kind: files}), root / "a.parquet")
    return from_parquet(root / "a.parquet")


def hugging_face(kind: str, files: list[bytes], _: Path) -> Any:
    datasets = pytest.importorskip("datasets")
    feature = datasets.Image() if kind == "image" else datasets.Audio()
    rows = {kind: [{"bytes": file, "path": None} for file in files]}
    return datasets.Dataset(
        pa.table({kind: pa.array(rows[kind], feature.pa_type)}),
        info=datasets.DatasetInfo(features=datasets.Features({kind: feature})),
    )


def elements(kind: str, files: list[bytes], _: Path) -> Any:
    return [{kind: file} for file in files]


def names(kind: str, files: list[bytes], root: Path) -> Any:
    folder(kind, files, root)
    return [{kind: str(path)} for path in sorted((root / "a").iterdir())]


SOURCES: dict[str, tuple[Callable[..., Any], str]] = {
    "folder": (folder, r"root/a/2\.(png|wav), record 2"),
    "files": (files, r"root/a/2\.(png|wav), record 2"),
    "tar": (tar, r"a\.tar, sample 'key-2', record 2"),
    "parquet": (parquet, r"a\.parquet, row 2, record 2"),
    "Hugging Face": (hugging_face, "record 2"),
    "elements": (elements, "record 2"),
    "names": (names, "record 2"),
}


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("name", SOURCES)
def test_a_damaged_file_is_named_by_its_source_with_the_reason(
    storage: Storage, tmp_path: Path, name: str, kind: str
) -> None:
    make, place = SOURCES[name]
    damaged = [WHOLE[kind], WHOLE[kind], WHOLE[kind][:-200], WHOLE[kind], b""]
    source = make(kind, damaged, tmp_path / "root")
    options: dict[str, Any] = {}
    if name == "files":
        options = {"element_spec": {"path": str, "data": SPECS[kind]}}
    elif name in ("parquet", "elements", "names"):
        options = {"element_spec": {kind: SPECS[kind]}}
    reason = "truncated" if kind == "image" else "it is cut"
    for workers in (1, 2) if name == "folder" else (1,):
        with pytest.raises(ElementError, match=rf"{place}.*{reason}"):
            storage.submit(source, "d@v1", workers=workers, **options)
        with pytest.warns(CacheLayerWarning, match=rf"^2 of 5 records were left out.*{place}.*{reason}"):
            ref = storage.submit(source, f"d@w{workers}", on_error="skip", workers=workers, **options)
        assert len(ref) == 3
        stored = str(ref.provenance["left_out"])
        assert "record 2" in stored
        assert "key-2" not in stored


def test_without_validation_files_are_stored_as_they_are(storage: Storage) -> None:
    spec = {"image": ImageSpec(), "audio": AudioSpec()}
    cut = {"image": IMAGES["png"][:-200], "audio": SOUNDS["flac"][:-200]}
    ref = storage.submit([cut], "d@v1", element_spec=spec, validate=False)
    assert ref.raw()[0] == cut
    with pytest.raises(ElementError, match="truncated"):
        ref.fields("image")[0]
    with pytest.raises(InvalidTypeError, match="validate"):
        storage.submit([cut], "d@v2", element_spec=spec, validate="header")  # type: ignore[arg-type]


def test_a_file_may_have_the_name_of_another_kind_and_bytes_after_its_end(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "root" / "a").mkdir(parents=True)
    for number, file in enumerate((IMAGES["jpeg"], IMAGES["png"] + b"garbage", IMAGES["jpeg"] + b"garbage" * 100)):
        (tmp_path / "root" / "a" / f"{number}.png").write_bytes(file)
    ref = storage.submit(from_image_folder(tmp_path / "root"), "d@v1")
    assert {row["image"].shape for row in ref} == {(60, 80, 3)}


def test_what_has_no_pixels_and_no_samples_is_kept_or_refused(storage: Storage) -> None:
    silent = storage.submit([wav(np.zeros((0, 1), np.float32))], "silent@v1", element_spec=AudioSpec())
    assert silent[0].shape == (0, 1)
    with pytest.raises(ElementError):
        storage.submit([b"P5 0 3 255\n"], "d@v1", element_spec=ImageSpec("L"))
