"""Arrays as pictures."""

import io
from typing import Any

import numpy as np
import pytest

from cachelayer.drawing.drawn_records import DrawOptions, drawn_leaf
from cachelayer.drawing.pixels import fitted, heat, line, png, rgb
from cachelayer.drawing.text import class_names, named, shown_path
from cachelayer.specs.spec import ArraySpec


def test_pixels_come_back_from_png() -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 3), np.uint8)
    with image.open(io.BytesIO(png(pixels))) as read:
        assert np.array_equal(np.asarray(read), pixels)


@pytest.mark.parametrize("shape", [(1, 1), (3, 900), (97, 96), (2, 2, 4), (500, 20, 3)])
def test_every_picture_fits(shape: tuple[int, ...]) -> None:
    drawn = fitted(np.full(shape, 77, np.uint8), 96)
    assert max(drawn.shape[:2]) <= 96
    assert np.all(drawn == 77)
    assert rgb(drawn).shape == (*drawn.shape[:2], 3)


@pytest.mark.parametrize(
    "numbers",
    [
        np.array([[np.nan, np.inf], [-np.inf, np.nan]]),
        np.array([[1e308, -1e308], [0, 1]]),
        np.zeros((3, 4)),
        np.array([[True, False], [True, True]]),
        np.array([[2**63 - 1, -(2**63)], [0, 1]]),
        np.ones((3000, 2), np.float16),
    ],
)
def test_any_numbers_are_drawn_the_highest_brightest(numbers: np.ndarray) -> None:
    assert max(heat(numbers, 96).shape[:2]) <= 96
    for points in line(numbers.reshape(-1)[:4], 100, 10).split():
        x, y = map(float, points.split(","))
        assert 0 <= x <= 100
        assert 0 <= y <= 10
    assert line(np.array([3.0, np.nan, 5.0]), 100, 10) == "0.0,10.0 100.0,0.0"
    drawn = heat(np.array([[0.0, 1.0], [2.0, np.nan]]), 2)
    assert drawn[0, 0].sum() < drawn[0, 1].sum() < drawn[1, 0].sum()
    assert drawn[1, 1].tolist() == [128, 128, 128]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (np.zeros((9, 9), np.uint8), "picture"),
        (np.zeros((4, 9, 9, 3), np.uint8), "text"),
        (np.full((4, 9, 9, 3), 2.5), "text"),
        (np.zeros((4, 9, 9, 2), np.uint8), "text"),
        (np.full((9, 9, 3), 0.5), "picture"),
        (np.full((9, 9, 3), 2.5), "text"),
        (np.zeros((2, 3)), "picture"),
        (np.zeros(100), "line"),
        (np.full(100, np.nan), "text"),
        (np.zeros(3), "text"),
        (np.zeros(0), "text"),
        (np.zeros((0, 3)), "text"),
        (np.zeros((5, 0, 3, 3), np.uint8), "text"),
        (np.complex64(1), "text"),
        (np.datetime64("2020-01-01"), "text"),
        ("a", "long"),
        (b"a", "text"),
        (None, "null"),
    ],
)
def test_a_leaf_is_drawn_as_what_it_is(value: object, kind: str) -> None:
    dtype = str if isinstance(value, str) else bytes if isinstance(value, bytes) else getattr(value, "dtype", np.int64)
    found = drawn_leaf(0, "", ArraySpec(dtype, getattr(value, "shape", ())), value, DrawOptions(96, 1))
    assert found.kind == kind
    assert (found.pixels is not None) == (kind == "picture")


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("['image']", "image"),
        ("['meta']['url']", "meta/url"),
        ("[0]", "0"),
        ("[1]['a'].b", "1/a/b"),
        ('["it\'s"]', "it's"),
        ("", "element"),
        ("['']", "['']"),
        ("['a]b[0]']", "a]b[0]"),
    ],
)
def test_paths_are_shown_as_people_write_them(path: str, shown: str) -> None:
    assert shown_path(path) == shown


@pytest.mark.parametrize(
    "metadata",
    [
        {"classes": ["cat", "dog"]},
        {"tfds": {"class_names": {"['label']": ["cat", "dog"]}}},
        {"huggingface_features": {"label": {"_type": "ClassLabel", "names": ["cat", "dog"]}, "x": {"_type": "Value"}}},
    ],
)
def test_class_names_of_the_metadata_stand_beside_labels(metadata: dict[str, Any]) -> None:
    names = class_names(metadata)
    assert [named(names, "['label']", np.int64(label)) for label in (-1, 0, 1, 2)] == ["", "cat", "dog", ""]
    assert class_names({"classes": [1, 2]}) == class_names({"tfds": []}) == {}
