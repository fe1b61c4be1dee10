"""Pixels that are values: numbers of classes, instances and depths are kept as they are, or refused."""

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import cachelayer
from cachelayer import ArraySpec, CacheLayerWarning, ElementError, ImageSpec, Storage
from cachelayer.adapters.folders import from_files, from_image_folder
from cachelayer.drawing.drawn_records import DrawOptions, drawn_leaf

CLASSES = np.array([[0, 1, 20, 255], [255, 19, 2, 0], [0, 0, 1, 1]], np.uint8)
PALETTE = [channel for number in range(256) for channel in (number * 7 % 256, number * 31 % 256, 128)]
DEPTHS = np.array([[0, 1, 300, 65535]], np.uint16)


def file_of(image: Image.Image, container: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, container, **options)
    return file.getvalue()


def mask(values: Any = CLASSES) -> Image.Image:
    image = Image.fromarray(values).convert("P")
    image.putpalette(PALETTE)
    image.putdata(values.reshape(-1).tolist())
    return image


FEW = CLASSES % 2
VALUES: dict[str, tuple[str, bytes, Any]] = {
    "palette": ("P", file_of(mask()), CLASSES),
    "palette of one bit": ("P", file_of(mask(FEW), bits=1), FEW),
    "palette of four bits": ("P", file_of(mask(CLASSES % 16), bits=4), CLASSES % 16),
    "palette in a GIF": ("P", file_of(mask(), "GIF", optimize=False), CLASSES),
    "palette in a TIFF": ("P", file_of(mask(), "TIFF"), CLASSES),
    "grey": ("P", file_of(Image.fromarray(CLASSES)), CLASSES),
    "one bit": ("1", file_of(Image.fromarray(FEW.astype(bool))), FEW.astype(bool)),
    "black and white": ("1", file_of(Image.fromarray(FEW * np.uint8(255))), FEW.astype(bool)),
    "16 bits": ("I;16", file_of(Image.fromarray(DEPTHS)), DEPTHS),
    "16 bits in a TIFF": ("I;16", file_of(Image.fromarray(DEPTHS.astype(">u2")), "TIFF"), DEPTHS),
    "16 bits in a PGM": ("I;16", b"P5 4 1 65535\n" + DEPTHS.astype(">u2").tobytes(), DEPTHS),
    "16 bits as integers": ("I", file_of(Image.fromarray(DEPTHS)), DEPTHS.astype(np.int32)),
    "grey as integers": ("I", file_of(Image.fromarray(CLASSES)), CLASSES.astype(np.int32)),
    "integers": ("I", file_of(Image.fromarray(DEPTHS.astype(np.int32) - 5), "TIFF"), DEPTHS.astype(np.int32) - 5),
    "16 bits as floats": ("F", file_of(Image.fromarray(DEPTHS)), DEPTHS.astype(np.float32)),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_are_kept_and_a_size_adds_none(storage: Storage, name: str) -> None:
    mode, file, values = VALUES[name]
    ref = storage.submit([{"mask": file}], "d@v1", element_spec={"mask": ImageSpec(mode)})
    np.testing.assert_array_equal(ref[0]["mask"], values)
    assert ref[0]["mask"].dtype == values.dtype
    assert ref.raw()[0]["mask"] == file
    if mode != "F":
        for size in ((2, 2), (7, 9), (300, 2)):
            for crop in (False, True):
                sized = ref.decoded(size=size, crop=crop).read([0])["mask"]
                assert sized.shape == (1, *size)
                assert set(sized.ravel().tolist()) <= set(values.ravel().tolist())


def small_png(values: Any, bits: int) -> bytes:
    """A grey PNG of fewer bits than 8, which Pillow does not write: each byte has several pixels."""
    import struct
    import zlib

    packed = np.packbits(np.unpackbits(values[..., None], axis=-1)[..., 8 - bits :].reshape(len(values), -1), axis=1)
    header = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], bits, 0, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in packed)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


COLOURS = Image.fromarray(np.stack([CLASSES, CLASSES // 2, CLASSES // 3], axis=-1))
REFUSED: dict[str, tuple[str, bytes, str]] = {
    "a palette as grey": ("L", file_of(mask()), r"ImageSpec\('P'\)"),
    "a palette as black and white": ("1", file_of(mask()), r"ImageSpec\('P'\)"),
    "a palette as integers": ("I", file_of(mask()), r"ImageSpec\('P'\)"),
    "colours as classes": ("P", file_of(COLOURS), r"ImageSpec\('RGB'\)"),
    "colours as integers": ("I", file_of(COLOURS), r"ImageSpec\('RGB'\)"),
    "16 bits as classes": ("P", file_of(Image.fromarray(DEPTHS)), r"ImageSpec\('I;16'\)"),
    "16 bits as grey": ("L", file_of(Image.fromarray(DEPTHS)), r"ImageSpec\('I;16'\)"),
    "one bit as classes": ("P", file_of(Image.fromarray(FEW.astype(bool))), r"ImageSpec\('1'\)"),
    "grey as one bit": ("1", file_of(Image.fromarray(FEW)), r"ImageSpec\('P'\)"),
    "integers that 16 bits do not hold": ("I;16", file_of(Image.fromarray(np.full((2, 2), -1, np.int32)), "TIFF"), "I"),
    "floats as integers": ("I", file_of(Image.fromarray(np.full((2, 2), 0.5, np.float32)), "TIFF"), "F"),
    "integers that floats do not hold": (
        "F",
        file_of(Image.fromarray(np.full((2, 2), 2**24 + 1, np.int32)), "TIFF"),
        "I",
    ),
    "a PGM of few greys": ("P", b"P5 4 1 15\n\0\1\2\17", "stretches"),
    "a PGM of 10 bits": ("I;16", b"P5 4 1 1023\n" + (DEPTHS % 1024).astype(">u2").tobytes(), "stretches"),
    "a PNG of 4 bits": ("P", small_png(CLASSES % 16, 4), "stretches"),
    "a PNG of 2 bits": ("I", small_png(CLASSES % 4, 2), "stretches"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_values_that_would_change_are_refused_when_they_come_in(storage: Storage, name: str) -> None:
    mode, file, cure = REFUSED[name]
    with pytest.raises(ElementError, match=cure) as refused:
        storage.submit([{"mask": file}], "d@v1", element_spec={"mask": ImageSpec(mode)})
    assert (refused.value.record, refused.value.path) == (0, "['mask']")


def test_a_grey_palette_is_as_grey_as_its_colours(storage: Storage) -> None:
    image = mask()
    image.putpalette([number // 2 for number in range(256) for _ in range(3)])
    ref = storage.submit([file_of(image)], "d@v1", element_spec=ImageSpec("L"))
    np.testing.assert_array_equal(ref[0], CLASSES // 2)


def test_colours_of_a_palette_come_as_rgb_if_that_is_declared(storage: Storage) -> None:
    ref = storage.submit([file_of(mask())], "d@v1", element_spec=ImageSpec("RGB"))
    np.testing.assert_array_equal(ref[0], np.asarray(mask().convert("RGB")))


def tar(path: Path, names: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as file:
        for name, data in names.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return path


def test_masks_come_in_from_files_of_all_kinds(storage: Storage, tmp_path: Path) -> None:
    file = file_of(mask())
    (tmp_path / "masks" / "one").mkdir(parents=True)
    (tmp_path / "masks" / "one" / "a.png").write_bytes(file)
    pq.write_table(pa.table({"mask": [file]}), tmp_path / "masks.parquet")
    spec = {"path": str, "data": ImageSpec("P")}
    found = [
        storage.cache(from_image_folder(tmp_path / "masks", mode="P"), "folder@v1")[0]["image"],
        storage.cache(from_files(tmp_path / "masks"), "files@v1", element_spec=spec)[0]["data"],
        storage.cache(tmp_path / "masks.parquet", "parquet@v1", element_spec={"mask": ImageSpec("P")})[0]["mask"],
        storage.cache([{"mask": tmp_path / "masks/one/a.png"}], "names@v1", element_spec={"mask": ImageSpec("P")})[0][
            "mask"
        ],
    ]
    for values in found:
        np.testing.assert_array_equal(values, CLASSES)


def test_undeclared_masks_of_tar_files_are_values_and_a_warning_names_both_ways(
    storage: Storage, tmp_path: Path
) -> None:
    webdataset = pytest.importorskip("cachelayer.adapters.webdataset")
    path = tar(tmp_path / "a.tar", {"0.png": file_of(mask()), "0.jpg": file_of(COLOURS, "JPEG")})
    with pytest.warns(CacheLayerWarning, match=r"\['png'\].*ImageSpec\('P'\).*ImageSpec\('RGB'\)"):
        ref = storage.cache(webdataset.from_webdataset(path), "d@v1")
    np.testing.assert_array_equal(ref[0]["png"], CLASSES)
    assert ref[0]["jpg"].shape == (3, 4, 3)
    spec = {"__key__": str, "png": ImageSpec("RGB")}
    assert storage.cache(webdataset.from_webdataset(path), "d@v2", element_spec=spec)[0]["png"].shape == (3, 4, 3)
    deep = tar(tmp_path / "b.tar", {"0.png": file_of(Image.fromarray(DEPTHS))})
    np.testing.assert_array_equal(storage.cache(webdataset.from_webdataset(deep), "d@v3")[0]["png"], DEPTHS)


@pytest.mark.parametrize("form", ["table", "tables", "rows"])
def test_undeclared_masks_of_hugging_face_are_values(storage: Storage, form: str) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"mask": datasets.Image(), "in": {"depth": datasets.Image()}, "photo": datasets.Image()}
    )
    row = {"mask": mask(), "in": {"depth": Image.fromarray(DEPTHS)}, "photo": COLOURS}
    rows = {name: [value, value] for name, value in row.items()}
    dataset = datasets.Dataset.from_dict(rows, features=features)
    if form == "tables":
        dataset = dataset.to_iterable_dataset()
    if form == "rows":
        dataset = datasets.IterableDataset.from_generator(lambda: iter([row, row]), features=features)
    with pytest.warns(CacheLayerWarning, match=r"\['mask'\].*ImageSpec\('P'\)"):
        ref = storage.cache(dataset, f"{form}@v1")
    assert len(ref) == 2
    for element in ref:
        np.testing.assert_array_equal(element["mask"], CLASSES)
        np.testing.assert_array_equal(element["in"]["depth"], DEPTHS)
        np.testing.assert_array_equal(element["photo"], np.asarray(COLOURS))


class Pairs:
    """A dataset as torchvision's VOCSegmentation is: pictures of Pillow, opened or made."""

    def __init__(self, *images: Any) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> Any:
        image = self.images[number]
        return (Image.open(image) if isinstance(image, Path) else image), number


def cached(storage: Storage, name: str, *images: Any, **options: Any) -> Any:
    data = pytest.importorskip("torch.utils.data")
    kind = type("TorchPairs", (Pairs, data.Dataset), {})
    return storage.submit(kind(*images), f"{name}@v1", **options)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # as people leave pictures open
def test_pictures_with_a_palette_are_the_values_that_their_source_gave(storage: Storage, tmp_path: Path) -> None:
    mask().save(tmp_path / "a.png")
    short = Image.fromarray(CLASSES).convert("P")
    short.putpalette([0, 0, 0, 255, 0, 0])
    short.putdata(CLASSES.reshape(-1).tolist())
    ref = cached(storage, "masks", tmp_path / "a.png", mask(), short)
    assert ref.raw().element_spec[0] == ImageSpec("P")
    for values, _ in ref:
        np.testing.assert_array_equal(values, CLASSES)
    colours = cached(storage, "colours", mask(), element_spec=(ImageSpec(), ArraySpec("int64")))
    np.testing.assert_array_equal(colours[0][0], np.asarray(mask().convert("RGB")))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_pictures_are_as_their_source_left_them(storage: Storage, tmp_path: Path) -> None:
    frames = [Image.fromarray(CLASSES // (1 + number)) for number in range(3)]
    frames[0].save(tmp_path / "a.tif", save_all=True, append_images=frames[1:])
    with Image.open(tmp_path / "a.tif") as third:
        third.seek(2)
        np.testing.assert_array_equal(cached(storage, "third", third)[0][0], CLASSES // 3)
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(tmp_path / "b.jpg")
    with Image.open(tmp_path / "b.jpg") as drafted:
        drafted.draft("L", (8, 8))
        assert cached(storage, "drafted", drafted)[0][0].shape == (8, 8)


def test_values_go_out_as_they_are(storage: Storage) -> None:
    to_tf = pytest.importorskip("cachelayer.adapters.tensorflow").to_tf
    ref = storage.submit([{"mask": file_of(mask())}] * 2, "d@v1", element_spec={"mask": ImageSpec("P")})
    [batch] = to_tf(ref.decoded(size=(3, 4)).stream(2))
    np.testing.assert_array_equal(batch["mask"].numpy()[1], CLASSES)
    drawn = drawn_leaf(0, "mask", ImageSpec("P"), file_of(mask()), DrawOptions(side=64, leaves=4))
    assert drawn.kind == "picture"
    datasets = pytest.importorskip("cachelayer.adapters.huggingface")
    np.testing.assert_array_equal(np.asarray(datasets.to_datasets(ref)[0]["mask"]), CLASSES)


TURNED = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(4, 6))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("container", ["PNG", "TIFF", "WEBP"])
def test_files_turn_and_pictures_of_a_source_stay(
    storage: Storage, tmp_path: Path, orientation: int, container: str
) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    options = {"lossless": True} if container == "WEBP" else {}
    root = tmp_path / "root"
    (root / "in").mkdir(parents=True)
    path = root / "in" / f"a.{container.lower()}"
    TURNED.convert("RGB").save(path, container, exif=exif, **options)
    turned = {1: 0, 6: -1, 3: 2, 8: 1, 2: 0, 7: -1, 4: 2, 5: 1}[orientation]
    upright = np.asarray(TURNED.convert("RGB"))
    upright = np.rot90(upright[:, ::-1] if orientation in (2, 4, 5, 7) else upright, turned)
    with Image.open(path) as opened:
        given = np.asarray(opened)
    folder = storage.cache(from_image_folder(root), "folder@v1")
    np.testing.assert_array_equal(folder[0]["image"], upright)
    assert folder.decoded(size=upright.shape[:2])[0]["image"].tolist() == upright.tolist()
    spec = {"image": ImageSpec(upright=False), "label": ArraySpec("int64")}
    np.testing.assert_array_equal(
        storage.cache(from_image_folder(root), "stored@v1", element_spec=spec)[0]["image"], given
    )
    for number, picture in enumerate((Image.open(path), Image.open(path).convert("RGB"))):
        np.testing.assert_array_equal(cached(storage, f"pictures-{number}", picture)[0][0], given)


def test_a_turned_picture_of_a_page_is_drawn_as_it_is_read(storage: Storage) -> None:
    exif = Image.Exif()
    exif[274] = 6
    file = file_of(TURNED.convert("RGB"), exif=exif)
    shapes = {
        upright: np.shape(drawn_leaf(0, "x", ImageSpec(upright=upright), file, DrawOptions(64, 4)).pixels)
        for upright in (True, False)
    }
    assert shapes == {True: (6, 4, 3), False: (4, 6, 3)}
    assert cachelayer.ImageSpec() != ImageSpec(upright=False)
