"""Pictures of Pillow that come through datasets: no pixel changes, and files stay the bytes that they are."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from datasets import Features, List
from PIL import Image

from cachelayer import ElementError, Storage

NOISE = np.random.default_rng(0).integers(0, 255, (16, 16, 3), dtype=np.uint8)
NUMBERS = count()


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    return Storage(tmp_path_factory.mktemp("pictures"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Image.fromarray(NOISE).save(tmp_path / "a.jpg", quality=60)
    return tmp_path / "a.jpg"


class Rows:
    """What ``from_generator`` calls, and what datasets does not hash."""

    def __init__(self, make: Callable[[], list[Any]]) -> None:
        self.make = make

    def __call__(self) -> Iterator[Any]:
        return ({"x": value} for value in self.make())

    def __reduce__(self) -> Any:
        return Rows, (list,)


def stored(storage: Storage, make: Callable[[], list[Any]], feature: Any) -> Any:
    features = None if feature is None else Features({"x": feature})
    source = datasets.IterableDataset.from_generator(Rows(make), features=features)
    return storage.submit(source, f"pictures-{next(NUMBERS)}", "v1")


def loaded(picture: Any) -> Any:
    picture.load()
    return picture


def drawn_on(picture: Any) -> Any:
    picture.putpixel((3, 3), (1, 2, 3))
    return picture


def thumbnail(picture: Any) -> Any:
    picture.thumbnail((8, 8))
    return picture


def drafted(picture: Any) -> Any:
    picture.draft("L", (4, 4))
    return picture


def closed(picture: Any) -> Any:
    with picture:
        picture.load()
    return picture


OPENED: dict[str, Callable[[Path], Any]] = {
    "by name": Image.open,
    "from bytes": lambda path: Image.open(io.BytesIO(path.read_bytes())),
}
AS_THEY_ARE = {"not read yet": lambda picture: picture, "read": loaded, "read and closed": closed}
CHANGED = {"drawn on": drawn_on, "made smaller": thumbnail, "drafted": drafted}


@pytest.mark.parametrize("feature", [None, datasets.Image()])
@pytest.mark.parametrize("how", OPENED)
@pytest.mark.parametrize("then", AS_THEY_ARE)
def test_a_picture_of_a_file_keeps_its_pixels_and_its_bytes_if_they_are_there(
    then: str, how: str, feature: Any, path: Path, storage: Storage
) -> None:
    with OPENED[how](path) as picture:
        ref = stored(storage, lambda: [AS_THEY_ARE[then](picture), None], feature)
    np.testing.assert_array_equal(ref[0]["x"], np.asarray(Image.open(path)))
    if how == "by name" or then == "not read yet":
        assert ref.raw()[0]["x"] == path.read_bytes()
    assert ref[1]["x"] is None


@pytest.mark.parametrize("feature", [None, datasets.Image()])
@pytest.mark.parametrize("how", OPENED)
@pytest.mark.parametrize("then", CHANGED)
def test_a_picture_that_was_changed_since_is_what_it_is_now(
    then: str, how: str, feature: Any, path: Path, storage: Storage
) -> None:
    wanted = np.asarray(CHANGED[then](OPENED[how](path)).convert("RGB"))
    ref = stored(storage, lambda: [CHANGED[then](OPENED[how](path))], feature)
    np.testing.assert_array_equal(ref[0]["x"], wanted)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F"])
def test_a_picture_of_any_mode_keeps_its_pixels_or_is_refused_by_its_record(mode: str, storage: Storage) -> None:
    picture = Image.fromarray(NOISE).convert("P" if mode == "PA" else "RGB")
    picture = picture.convert("RGB" if mode == "LAB" else mode)
    if mode == "LAB":
        picture = Image.merge("LAB", picture.split())
    if mode == "I":
        picture = picture.point(lambda value: value * 1000)
    try:
        ref = stored(storage, lambda: [picture.copy()], datasets.Image(mode=None))
    except ElementError as error:
        assert "record 0, leaf ['x']" in str(error)  # noqa: PT017
        return
    with Image.open(io.BytesIO(ref.raw()[0]["x"])) as found:
        assert found.mode == mode
        assert found.tobytes() == picture.tobytes()


@pytest.mark.parametrize("feature", [None, List(datasets.Image()), {"inner": datasets.Image()}])
def test_pictures_within_lists_and_dicts_keep_their_files(feature: Any, path: Path, storage: Storage) -> None:
    def make() -> list[Any]:
        picture = Image.open(io.BytesIO(path.read_bytes()))
        return [{"inner": picture}] if isinstance(feature, dict) else [[], [picture, picture]]

    ref = stored(storage, make, feature)
    found = ref.raw()[-1]["x"]
    files = [found["inner"]] if isinstance(feature, dict) else list(found)
    assert set(files) == {path.read_bytes()}


def test_a_frame_of_an_animation_is_that_frame(tmp_path: Path, storage: Storage) -> None:
    frames = [Image.new("RGB", (4, 4), color) for color in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])

    def make() -> list[Any]:
        with Image.open(tmp_path / "a.gif") as first, Image.open(tmp_path / "a.gif") as second:
            second.seek(1)
            return [loaded(first), loaded(second)]

    ref = stored(storage, make, None)
    assert [element["x"][0, 0].tolist() for element in ref] == [[255, 0, 0], [0, 0, 255]]
