"""Images that are decoded to one size."""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures_and_sounds import png
from PIL import Image

import cachelayer
from cachelayer import (
    ArraySpec,
    DataRef,
    ElementError,
    ImageSpec,
    InvalidArgumentError,
    InvalidTypeError,
    Nullable,
    StaleVersionError,
)
from cachelayer.specs.spec import IMAGE_MODES

SIZE = (24, 40)
WIDTH_AND_224 = next((width, 224) for width in range(1, 4000) if 224 * (width / 224) > width)
SPEC = {"image": ImageSpec(), "meta": {"mask": ImageSpec("L"), "label": np.int64}}


def picture(width: int, height: int) -> Image.Image:
    """A smooth picture without symmetries."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    planes = 255 * x, 255 * y**2, 120 + 100 * np.sin(5 * x + 3 * y)
    return Image.fromarray(np.stack(planes, -1).astype(np.uint8))


def jpeg(image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=95, **options)
    return file.getvalue()


def resized(data: bytes, mode: str = "RGB", size: tuple[int, int] = SIZE) -> np.ndarray[Any, Any]:
    image = Image.open(io.BytesIO(data)).convert(mode)
    return np.asarray(image.resize(size[::-1], Image.Resampling.BILINEAR))


FILES = [jpeg(picture(40 + 7 * i, 30 + 3 * i)) for i in range(6)]


@pytest.fixture
def storage(tmp_path: Path) -> cachelayer.Storage:
    return cachelayer.Storage(tmp_path)


@pytest.fixture
def ref(storage: cachelayer.Storage) -> DataRef[Any]:
    rows = [{"image": file, "meta": {"mask": file, "label": i}} for i, file in enumerate(FILES)]
    return storage.submit(rows, "d@v", element_spec=SPEC)


def one(storage: cachelayer.Storage, data: bytes, mode: str = "RGB") -> DataRef[Any]:
    return storage.submit([data], "one@v", element_spec=ImageSpec(mode))


def test_a_batch_of_images_of_one_size_is_one_array(ref: DataRef[Any]) -> None:
    sized = ref.decoded(size=SIZE)
    assert sized.element_spec["image"] == ArraySpec(np.uint8, (24, 40, 3))
    assert sized.element_spec["meta"]["mask"] == ArraySpec(np.uint8, (24, 40))
    batch = sized.read([4, 0, 4])
    assert batch["image"].shape == (3, 24, 40, 3)
    for row, number in zip(batch["image"], [4, 0, 4], strict=True):
        np.testing.assert_array_equal(row, resized(FILES[number]))
    assert [step["image"].shape for step in sized.stream(4)] == [(4, 24, 40, 3), (2, 24, 40, 3)]
    batch["image"][:] = 0


def test_records_and_states_stay_as_they_are_and_each_size_has_a_digest(ref: DataRef[Any]) -> None:
    sized = ref.decoded(size=SIZE)
    views = [
        ref,
        sized,
        ref.decoded(size=(48, 48)),
        ref.decoded(size=SIZE, crop=True),
        ref.decoded("image", size=SIZE),
        sized.fields("image"),
        sized[1:],
    ]
    assert len({view.digest for view in views}) == len(views)
    assert sized.raw().digest == ref.raw().digest == ref.digest
    assert sized.fields("meta/label").digest == ref.fields("meta/label").digest
    both = cachelayer.concat([sized, sized])
    assert cachelayer.concat([both, sized]).digest == cachelayer.concat([sized] * 3).digest != both.digest
    assert sized.raw()[3] == ref.raw()[3]
    assert sized.raw().element_spec == ref.raw().element_spec
    small = iter(sized.stream(2, shuffle=True, seed=1))
    next(small)
    large = iter(ref.decoded(size=(48, 48)).stream(2, shuffle=True, seed=1))
    large.set_state(small.get_state())
    assert next(large)["meta"]["label"].tolist() == next(small)["meta"]["label"].tolist()


def test_every_view_of_stored_records_can_be_decoded_to_a_size(ref: DataRef[Any]) -> None:
    expected = resized(FILES[4], "L")
    for view in (
        ref.decoded(size=SIZE)[3:],
        ref[3:].decoded(size=SIZE),
        ref.raw()[3:].decoded(size=SIZE),
        ref.fields("meta")[3:].decoded(size=SIZE),
        ref.decoded(size=SIZE).fields("meta/mask")[3:],
        cachelayer.concat([ref[:2], ref[3:]]).decoded(size=SIZE)[2:],
        cachelayer.concat([ref.decoded(size=SIZE), ref.decoded(size=SIZE)])[9:],
        pickle.loads(pickle.dumps(ref.decoded(size=SIZE)))[3:],
    ):
        np.testing.assert_array_equal(view[1]["meta"]["mask"], expected)
        np.testing.assert_array_equal(view.read([1])["meta"]["mask"][0], expected)
    with pytest.raises(InvalidArgumentError, match=r"leaf \['image'\]"):
        cachelayer.concat([ref.decoded(size=SIZE), ref.decoded(size=(8, 8))])


def test_images_that_are_none_stay_none(storage: cachelayer.Storage) -> None:
    ref = storage.submit([FILES[0], None], "d@v", element_spec=ImageSpec()).decoded(size=SIZE)
    assert ref[1] is None
    batch = ref.read([1, 0])
    assert isinstance(batch, Nullable)
    assert batch.valid.tolist() == [False, True]
    np.testing.assert_array_equal(batch.values[1], resized(FILES[0]))


def test_a_copy_of_a_view_has_its_pixels_and_another_size_is_another_source(
    storage: cachelayer.Storage, ref: DataRef[Any]
) -> None:
    sized, cropped = ref.decoded(size=SIZE), ref.decoded(size=SIZE, crop=True)
    for source in (sized, sized.stream()):
        pixels = storage.cache(source, f"{type(source).__name__}@v")
        assert pixels.raw().element_spec == sized.element_spec
        np.testing.assert_array_equal(pixels[2]["image"], sized[2]["image"])
    with pytest.raises(StaleVersionError, match="records"):
        storage.cache(cropped, f"{type(sized).__name__}@v", on_change="error")
    with pytest.raises(InvalidTypeError, match="cache it first"):
        storage.rewrite(sized, "files@v")


@pytest.mark.parametrize("mode", IMAGE_MODES)
def test_every_mode_can_be_resized(storage: cachelayer.Storage, mode: str) -> None:
    file, image = io.BytesIO(), picture(90, 70)
    if mode == "I;16":
        Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 256).save(file, "PNG")
    elif mode in ("I", "F"):
        image.convert("L").convert(mode).save(file, "TIFF")
    elif mode == "P":
        image.quantize(200).save(file, "PNG")
    else:
        image.save(file, "PNG")
    whole = one(storage, file.getvalue(), mode)
    found = whole.decoded(size=SIZE)
    dtype, channels = IMAGE_MODES[mode]
    assert found.element_spec == ArraySpec(dtype, (*SIZE, *channels))
    assert found[0].shape == (*SIZE, *channels)
    # The mean of a picture hardly changes with its size, even if its pixels are only black and white.
    np.testing.assert_allclose(found[0].mean(), whole[0].mean(), rtol=0.1 if mode == "1" else 0.03)


TURNS: dict[int, Callable[[Any], Any]] = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a.transpose(1, 0, 2)[::-1, ::-1],
    8: lambda a: np.rot90(a),
}


@pytest.mark.parametrize("orientation", TURNS)
def test_images_are_turned_as_the_camera_was_held(storage: cachelayer.Storage, orientation: int) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    size = (50, 20) if orientation >= 5 else (20, 50)
    # So large that the decoder makes it smaller, by another factor if width and height were taken for each other.
    found = one(storage, jpeg(picture(210, 90), exif=exif)).decoded(size=size)[0].astype(int)
    expected = resized(jpeg(picture(210, 90)), size=(20, 50)).astype(int)
    assert np.abs(found - TURNS[orientation](expected)).max() <= 12


def test_crop_keeps_proportions_and_the_middle(storage: cachelayer.Storage) -> None:
    pixels = np.zeros((60, 100, 3), np.uint8)
    pixels[:, 20:80] = np.asarray(picture(60, 60))
    found = one(storage, png(pixels)).decoded(size=(30, 30), crop=True)[0]
    expected = resized(png(np.asarray(picture(60, 60))), size=(30, 30))
    # The filter takes pixels beyond the edge of what is kept into account.
    np.testing.assert_array_equal(found[:, 1:-1], expected[:, 1:-1])
    tall = storage.submit([png(np.swapaxes(pixels, 0, 1).copy())], "tall@v", element_spec=ImageSpec())
    turned = np.swapaxes(tall.decoded(size=(30, 30), crop=True)[0], 0, 1)
    np.testing.assert_allclose(turned.astype(int), found, atol=1)


@pytest.mark.parametrize(("width", "size"), [(29, 7), WIDTH_AND_224])
def test_rounding_never_moves_the_middle_of_an_image_out_of_it(
    storage: cachelayer.Storage, width: int, size: int
) -> None:
    # Dividing by the size and multiplying by it gives more than the width.
    assert size * (width / size) > width
    shapes = [(width + 50, width), (width, width + 50), (width, width)]
    files = [png(np.full((*shape, 3), 77, np.uint8)) for shape in shapes]
    ref = storage.submit(files, "d@v", element_spec=ImageSpec()).decoded(size=(size, size), crop=True)
    assert (ref.read([0, 1, 2]) == 77).all()


def several(image: Image.Image) -> dict[str, Any]:
    return {"save_all": True, "append_images": [Image.new("RGB", image.size, "red")]}


@pytest.mark.parametrize(
    ("kind", "converted", "options"),
    [
        ("JPEG", lambda image: image.convert("CMYK"), lambda _: {"quality": 95}),
        ("JPEG", lambda image: image.convert("L"), lambda _: {"quality": 95}),
        ("PNG", lambda image: image.quantize(64), lambda _: {}),
        ("PNG", lambda image: image.quantize(64), lambda _: {"transparency": 3}),
        *((kind, lambda image: image, several) for kind in ("GIF", "PNG", "MPO")),
    ],
    ids=["CMYK", "gray", "palette", "transparent palette", "animated GIF", "animated PNG", "MPO"],
)
def test_files_of_all_kinds_are_resized_as_they_are_decoded(
    storage: cachelayer.Storage, kind: str, converted: Any, options: Any
) -> None:
    file, image = io.BytesIO(), picture(90, 54)
    converted(image).save(file, kind, **options(image))
    ref = one(storage, file.getvalue())
    expected = np.asarray(Image.fromarray(ref[0]).resize(SIZE[::-1], Image.Resampling.BILINEAR)).astype(int)
    # JPEG decoders make files smaller before colours are converted.
    assert np.abs(ref.decoded(size=SIZE)[0].astype(int) - expected).max() <= 12


@pytest.mark.parametrize(
    ("damaged", "message"),
    [(FILES[1][: len(FILES[1]) // 2], "record 1"), (png(np.full((30, 30), 5000, np.uint16)), "I;16")],
    ids=["cut short", "deep pixels"],
)
def test_files_that_do_not_decode_are_refused(storage: cachelayer.Storage, damaged: bytes, message: str) -> None:
    with pytest.raises(ElementError, match=message) as refused:
        storage.submit([FILES[0], damaged], "d@v", element_spec=ImageSpec())
    assert refused.value.record == 1


@pytest.mark.parametrize(
    ("names", "size", "crop", "error", "text"),
    [
        ((), 224, False, InvalidTypeError, "224"),
        ((), (224,), False, InvalidArgumentError, "224"),
        ((), (224, 0), False, InvalidArgumentError, "0"),
        ((), (8, 2**70), False, InvalidArgumentError, "65535"),
        ((), SIZE, 1, InvalidTypeError, "crop"),
        (("meta/label",), SIZE, False, InvalidArgumentError, "meta/label"),
        ((3,), SIZE, False, InvalidTypeError, "field 3"),
    ],
)
def test_what_makes_no_sense_is_refused(
    ref: DataRef[Any], names: Any, size: Any, crop: Any, error: Any, text: str
) -> None:
    with pytest.raises(error, match=text):
        ref.decoded(*names, size=size, crop=crop)
