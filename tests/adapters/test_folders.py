"""Folders of files, and numpy's own files, as sources; and which files folders and patterns name."""

import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fsspec
import numpy as np
import pytest
import s3fs
import soundfile
from pages import run_page
from PIL import Image
from servers import Server, new_bucket

import cachelayer
from cachelayer import ArraySpec, AudioSpec, ImageSpec, InvalidArgumentError, InvalidTypeError, SourceError, Storage
from cachelayer.adapters.folders import from_audio_folder, from_files, from_image_folder
from cachelayer.adapters.npy import from_npy, from_npz
from cachelayer.adapters.pyarrow import from_json
from cachelayer.adapters.sources.files import Files
from cachelayer.builds.as_source import as_source
from cachelayer.testing import SourceTests

CLASSES = ["cat", "dog"]


def pixels(number: int) -> Any:
    return np.full((2 + number % 2, 3, 3), number % 256, np.uint8)


def write_images(folder: Path, count: int) -> Path:
    for number in range(count):
        inner = folder / CLASSES[int(number >= count // 2)] / f"part{number % 2}"
        inner.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(number)).save(inner / f"{number:05d}.PNG")
    return folder


class TestFiles(SourceTests):
    def source(self, count: int, folder: Path) -> Any:
        for number in range(count):
            (folder / "files" / f"{number // 100:03d}").mkdir(parents=True, exist_ok=True)
            (folder / "files" / f"{number // 100:03d}" / f"{number:05d}.bin").write_bytes(b"x" * (number % 50))
        (folder / "files" / "notes.txt").touch()
        return from_files(folder / "files", "*.bin")

    def element(self, number: int) -> Any:
        return {"path": f"{number // 100:03d}/{number:05d}.bin", "data": b"x" * (number % 50)}


class TestNpy(SourceTests):
    def source(self, count: int, folder: Path) -> Any:
        np.save(folder / "x.npy", np.arange(6 * count, dtype=">i4").reshape(count, 2, 3))
        np.save(folder / "y.npy", np.asfortranarray(np.arange(2 * count, dtype=np.float32).reshape(count, 2)))
        return from_npy({"x": folder / "x.npy", "y": str(folder / "y.npy")})

    def element(self, number: int) -> Any:
        return {
            "x": np.arange(6 * number, 6 * number + 6, dtype=np.int32).reshape(2, 3),
            "y": np.arange(2 * number, 2 * number + 2, dtype=np.float32),
        }


class TestNpz(SourceTests):
    def source(self, count: int, folder: Path) -> Any:
        x = np.arange(6 * count, dtype=np.uint16).reshape(count, 2, 3)
        np.savez_compressed(folder / "a.npz", x_train=x, y_train=np.arange(count, dtype=">i8"), x_test=x[:0])
        return from_npz(folder / "a.npz", {"image": "x_train", "label": "y_train"})

    def element(self, number: int) -> Any:
        image = np.arange(6 * number, 6 * number + 6).astype(np.uint16).reshape(2, 3)
        return {"image": image, "label": np.int64(number)}


def test_images_have_the_label_of_their_folder(storage: Storage, tmp_path: Path) -> None:
    root = write_images(tmp_path / "images", 9)
    (root / "cat" / "notes.txt").touch()
    (root / ".hidden").mkdir()
    (root / "cat" / "._0.png").touch()
    (root / "dog").rename(tmp_path / "elsewhere")
    (root / "dog").symlink_to(tmp_path / "elsewhere")
    ref = storage.cache(from_image_folder(root), "d@v1")
    assert ref.element_spec == {"image": ArraySpec("uint8", (None, None, 3)), "label": ArraySpec("int64")}
    assert ref.metadata["classes"] == CLASSES
    assert [row["label"] for row in ref] == [0] * 4 + [1] * 5
    for row, number in zip(ref, [0, 2, 1, 3, 4, 6, 8, 5, 7], strict=True):
        np.testing.assert_array_equal(row["image"], pixels(number))
    (hidden,) = storage.cache(from_files(root, "*/._*"), "hidden@v1")
    assert hidden == {"path": "cat/._0.png", "data": b""}
    assert ref.raw()[0]["image"] == (root / "cat" / "part0" / "00000.PNG").read_bytes()


def test_the_user_names_the_classes_and_asks_for_the_paths(storage: Storage, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "test", 4)
    ref = storage.cache(from_image_folder(folder, classes=["dog", "bird", "cat"], path=True), "pets@v1")
    assert ref.metadata["classes"] == ["dog", "bird", "cat"]
    assert [element["label"] for element in ref] == [2, 2, 0, 0]
    assert ref[3]["path"] == "dog/part1/00003.PNG"
    with pytest.warns(cachelayer.StaleVersionWarning, match="classes"):
        storage.cache(from_image_folder(folder, classes=["cat", "bird", "dog"], path=True), "pets@v1")
    with pytest.raises(InvalidArgumentError, match="dog"):
        storage.cache(from_image_folder(folder, classes=["cat"]), "cats@v1")
    with pytest.raises(InvalidArgumentError, match="each once"):
        from_image_folder(folder, classes=["cat", "cat"])


def test_an_error_of_a_picture_that_does_not_decode_names_its_file(storage: Storage, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", 4)
    damaged = folder / "dog/part1/00003.PNG"
    damaged.write_bytes(damaged.read_bytes()[:50])
    ref = storage.cache(from_image_folder(folder, path=True), "pets@v1", validate=False)
    reads: list[Callable[[Any], Any]] = [
        lambda ref: ref[3],
        lambda ref: ref.read([0, 3]),
        lambda ref: list(ref.stream(2)),
        lambda ref: list(ref.stream(4).map(lambda element: element)),
        lambda ref: list(cachelayer.concat([ref, ref]).stream(8)),
    ]
    for view in (ref, ref.fields("image"), ref.decoded(size=(4, 4))):
        for read in reads:
            with pytest.raises(cachelayer.ElementError, match=r"dog/part1/00003\.PNG, record 3"):
                read(view)
    iterator = iter(ref.stream(4).map(lambda element: element["label"], on_error="replace"))
    with pytest.warns(cachelayer.CacheLayerWarning):
        next(iterator)
    assert "dog/part1/00003.PNG" in str(iterator.failures[0].error)


def test_pictures_of_pillow_are_images_in_any_source(storage: Storage) -> None:
    pictures = [Image.fromarray(pixels(number)) for number in range(3)]
    assert np.array_equal(storage.cache(pictures, "list@v1")[2], pixels(2))
    rows = ({"image": picture, "number": number} for number, picture in enumerate(pictures))
    assert np.array_equal(storage.cache(rows, "rows@v1")[1]["image"], pixels(1))


def test_sounds_have_the_label_of_their_folder(storage: Storage, tmp_path: Path) -> None:
    for number, name in enumerate(CLASSES):
        (tmp_path / "sounds" / name).mkdir(parents=True)
        samples = np.full(10, number / 4, np.float32)
        soundfile.write(tmp_path / "sounds" / name / "a.wav", samples, 8000, subtype="FLOAT")
    ref = storage.cache(from_audio_folder(tmp_path / "sounds", sampling_rate=8000, channels=1), "d@v1")
    assert ref.raw().element_spec["audio"] == AudioSpec(8000, 1)
    assert [row["audio"].tolist() for row in ref] == [[0.0] * 10, [0.25] * 10]


def test_folders_are_read_through_fsspec(storage: Storage, tmp_path: Path) -> None:
    root = write_images(tmp_path / "images", 4)
    fsspec.filesystem("memory").put(str(root), "/folders", recursive=True)
    ref = storage.cache(from_image_folder("memory://folders"), "d@v1")
    assert ref.digest == storage.cache(from_image_folder(root), "d@v2").digest
    assert storage.cache(from_files("memory://folders"), "e@v1")[0]["path"] == "cat/part0/00000.PNG"


def test_any_files_are_decoded_as_declared(storage: Storage, tmp_path: Path) -> None:
    root = write_images(tmp_path / "images", 2)
    ref = storage.cache(from_files(root), "d@v1", element_spec={"path": str, "data": ImageSpec("L")})
    assert ref[1]["data"].tolist() == [[1] * 3] * 3


def lose_a_class(root: Path) -> None:
    (root / "bird").mkdir()


def leave_one_outside(root: Path) -> None:
    (root / "stray.png").touch()


def lead_back(root: Path) -> None:
    (root / "cat" / "up").symlink_to(root)


def lead_to_nothing(root: Path) -> None:
    (root / "cat" / "gone.png").symlink_to(root / "nothing")


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lose_a_class, "'bird'"),
        (leave_one_outside, r"stray\.png"),
        (lead_back, "cat/up"),
        (lead_to_nothing, r"cat/gone\.png"),
    ],
)
def test_folders_that_would_shift_or_lose_labels_are_refused(spoil: Any, named: str, tmp_path: Path) -> None:
    root = write_images(tmp_path / "images", 4)
    spoil(root)
    with pytest.raises((InvalidArgumentError, SourceError), match=named):
        as_source(from_image_folder(root))


def test_a_file_that_cannot_be_read_is_named_with_its_record(storage: Storage, tmp_path: Path) -> None:
    root = write_images(tmp_path / "images", 4)
    source = as_source(from_files(root))
    assert source.length == 4
    (root / "dog" / "part1" / "00003.PNG").unlink()
    with pytest.raises(SourceError, match="record 3"):
        storage.cache(source, "d@v1")


@pytest.mark.parametrize("read", [from_files, from_image_folder, from_audio_folder])
def test_a_folder_that_is_not_there_or_empty_is_an_error(storage: Storage, tmp_path: Path, read: Any) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("nope", "empty"):
        with pytest.raises(
            InvalidArgumentError, match=r"there is no such folder|there is no file|there is no folder with a file"
        ):
            storage.cache(read(tmp_path / name), "d@v1")


@pytest.mark.parametrize("read", [from_files, from_image_folder, from_audio_folder])
@pytest.mark.parametrize("roots", [[], ["a", "b"], ("a",), 3, None])
def test_a_folder_is_one_path(read: Any, roots: Any) -> None:
    with pytest.raises(InvalidTypeError, match="one folder"):
        read(roots)


@pytest.mark.parametrize("array", [np.array([1, "a", None], object), np.zeros(3, [("a", "i4")]), np.float32(1)])
def test_arrays_that_are_not_stored_are_refused_by_name(storage: Storage, tmp_path: Path, array: Any) -> None:
    np.save(tmp_path / "x.npy", array)
    np.savez(tmp_path / "x.npz", a=array)
    for read, name in ((from_npy, "x.npy"), (from_npz, "x.npz")):
        with pytest.raises((InvalidTypeError, SourceError), match=name):
            storage.cache(read(tmp_path / name), "d@v1")


def test_arrays_of_an_archive_that_do_not_belong_together_are_refused(storage: Storage, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.zeros(3), b=np.zeros(4))
    with pytest.raises(InvalidTypeError, match="'b'"):
        storage.cache(from_npz(tmp_path / "x.npz", ["a", "b"]), "d@v1")
    with pytest.raises(InvalidArgumentError, match="'z'"):
        storage.cache(from_npz(tmp_path / "x.npz", ["z"]), "d@v1")


def names(found: Any) -> list[str]:
    return [file.path.rpartition("/")[2] for file in found]


def test_patterns_take_hidden_files_only_if_they_say_the_dot(tmp_path: Path) -> None:
    root = tmp_path / ".home"
    for name in ("b.csv", "a.csv", "._a.csv", ".old/c.csv", "sub/d.csv", "linked.csv"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    assert names(Files(root / "*.csv").find()) == ["a.csv", "b.csv", "linked.csv"]
    assert names(Files(root / "._*.csv").find()) == ["._a.csv"]
    assert names(Files(root / "**" / "*.csv").find()) == ["a.csv", "b.csv", "linked.csv", "d.csv"]
    assert names(Files(root / ".old" / "*.csv").find()) == ["c.csv"]
    assert names(Files([root / "b.csv", root / "*.csv"]).find()) == ["b.csv", "a.csv", "b.csv", "linked.csv"]


def test_a_folder_that_is_named_like_a_file_is_not_left_out_in_silence(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").touch()
    (tmp_path / "b.parquet").mkdir()
    with pytest.raises(InvalidArgumentError, match=r"b\.parquet' is a folder: pass '.*b\.parquet/\*'"):
        Files(tmp_path / "*.parquet").find()
    assert names(Files(tmp_path / "*").find()) == ["a.parquet"]
    with pytest.raises(InvalidArgumentError, match=r"b\.parquet"):
        Files(tmp_path / "b.parquet").find()


@pytest.mark.parametrize("name", ["root/b", "root", "."])
@pytest.mark.parametrize("read", [from_files, from_image_folder])
def test_a_folder_that_may_not_be_read_is_named(name: str, read: Callable[..., Any]) -> None:
    with TemporaryDirectory() as given:
        folder = Path(given)
        folder.chmod(0o755)
        for each in "ab":
            (folder / "root" / each).mkdir(parents=True)
            (folder / "root" / each / "x.png").write_bytes(b"1")
        (folder / name).chmod(0)
        is_root = os.geteuid() == 0
        try:
            if is_root:
                os.seteuid(65534)
            with pytest.raises(SourceError, match="PermissionError"):
                as_source(read(folder / "root"))
        finally:
            if is_root:
                os.seteuid(0)
            (folder / name).chmod(0o755)


@pytest.mark.parametrize("url", ["gs://", "gs:///a.csv", "s3://", "s3:// /a.csv", "gcs:// ", "s3a:///*.csv"])
def test_a_url_without_a_bucket_is_refused_at_once(tmp_path: Path, url: str) -> None:
    storage = Storage(tmp_path)
    for use in (
        lambda: Files(url).find(),
        lambda: storage.submit(from_files(url), "d@v1"),
        lambda: storage.submit(url, "d@v1"),
        lambda: Storage(url),
        lambda: cachelayer.ArrayRecordDataSource(url),
    ):
        with pytest.raises(InvalidArgumentError, match="names no bucket"):
            use()


def test_the_page_shows_what_its_code_prints() -> None:
    run_page("files.md", 4)


def test_objects_in_the_place_of_folders_are_no_files(storage: Storage, tmp_path: Path, s3: Server) -> None:
    bucket = new_bucket(s3)
    fs = s3fs.S3FileSystem(**s3.storage_options(), skip_instance_cache=True)
    objects = {"": b"", "f/": b"", "f/sub/": b"", "f/sub/a.txt": b"a", "f/none/": b"", "f/empty.txt": b"", "f/sub": b""}
    for name, data in objects.items():
        if name:
            fs.call_s3("put_object", Bucket=bucket, Key=name, Body=data)
    options = {"storage_options": s3.storage_options()}
    ref = storage.cache(from_files(s3.url(bucket, "f"), **options), "d@v1")
    assert [(row["path"], row["data"]) for row in ref] == [("empty.txt", b""), ("sub/a.txt", b"a")]
    with pytest.raises(InvalidArgumentError, match="there is no file"):
        storage.cache(from_json(s3.url(bucket, "f/none/*"), **options), "d@v2")


def test_a_folder_that_is_named_like_a_pattern_is_meant_as_it_is(storage: Storage, tmp_path: Path) -> None:
    for number, name in enumerate(["run[1]", "run1", "a*b", "aXb", "sub/run[1]", "sub/run1"]):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "x.jsonl").write_text(f'{{"n": {number}}}')

    versions = count()

    def read(pattern: str) -> list[int]:
        return [int(row["n"]) for row in storage.submit(from_json(tmp_path / pattern), f"d@v{next(versions)}")]

    assert read("run[1]/*.jsonl") == read("run[1]/x.jsonl") == [0]
    assert read("a*b/*.jsonl") == [2]
    assert read("sub/run[1]/*.jsonl") == read("s*/run[[]1]/*.jsonl") == [4]
    assert read("run[12]/*.jsonl") == [1]
    assert read("run*/*.jsonl") == [1, 0]


def test_arrays_at_a_url_are_those_of_this_host(storage: Storage, tmp_path: Path) -> None:
    array, memory = np.arange(12, dtype=">i4").reshape(6, 2), fsspec.filesystem("memory")
    np.save(tmp_path / "x.npy", array)
    np.savez(tmp_path / "x.npz", x=array)
    digests = set()
    for number, (read, name) in enumerate(((from_npy, "x.npy"), (from_npz, "x.npz"))):
        memory.pipe(f"/arrays/{name}", (tmp_path / name).read_bytes())
        for where in (tmp_path / name, f"memory://arrays/{name}"):
            source = read({"x": where}) if read is from_npy else read(where)
            version = f"v{number}{len(str(where))}"
            digests.add(storage.submit(source, f"d@{version}").digest)
        assert len(storage.submit(f"memory://arrays/{name}", f"d@w{number}")) == 6
        memory.pipe(f"/arrays/{name}", (tmp_path / name).read_bytes()[:-5])
        with pytest.raises(SourceError, match=name):
            storage.submit(f"memory://arrays/{name}", "d@bad")
    assert len(digests) == 1
