"""Elements for people and for scripts; images in the terminal and as files."""

from __future__ import annotations

import io
import json
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from rich.console import Console
from strategies import versions

from cachelayer import ImageSpec, MissingDependencyError, Ragged, Sparse, StorageError
from cachelayer.cli.pictures import Picture, is_picture, save_images
from cachelayer.cli.rendering import ElementView, element_json, leaf_text
from cachelayer.records.infer import from_element

Pair = namedtuple("Pair", ["left", "right"])


def printed(shown: Any, *, colour: bool, width: int = 80) -> str:
    console = Console(
        file=io.StringIO(),
        force_terminal=colour,
        color_system="truecolor" if colour else None,
        width=width,
        markup=False,
    )
    console.print(shown)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def pixels(text: str) -> list[list[tuple[str, str]]]:
    """Upper and lower colour of each character of a picture, as rich writes them."""
    rows = [row for row in text.splitlines() if "▀" in row]
    cells = [[cell.rpartition("\x1b[")[2] for cell in row.split("▀")[:-1]] for row in rows]
    parts = [[cell.rstrip("m").split(";") for cell in row] for row in cells]
    return [[(";".join(part[2:5]), ";".join(part[7:10])) for part in row] for row in parts]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (np.int64(7), "7"),
        (np.float32("nan"), "nan"),
        (ml_dtypes.bfloat16(0.5), "0.5"),
        (np.bool_(True), "True"),
        (np.datetime64("2024-02-29"), "2024-02-29"),
        ("näïve", "'näïve'"),
        ("\x1b[31mred\ud800", r"'\x1b[31mred\ud800'"),
        ("a" * 500, "'" + "a" * 200 + "' …"),
        (b"\x00abc", r"4 bytes b'\x00abc'"),
        (np.array([[1, 2], [3, 4]], np.int32), "int32[2, 2] [[1 2] [3 4]]"),
        (np.arange(1000), "int64[1000] 0 1 2 3 4 5 6 7 …"),
        (np.zeros((0, 3), np.float16), "float16[0, 3]"),
        (np.array(["a", "b"], object), "strings[2] ['a' 'b']"),
        (Ragged(np.arange(3), np.array([0, 2, 3])), "ragged, 2 rows: int64[2] [0 1], int64[1] [2]"),
        (Sparse([[0, 2]], [5], [3, 4]), "sparse [3, 4], 1 value: (0, 2): 5"),
    ],
)
def test_a_leaf_is_a_line(value: Any, text: str) -> None:
    assert leaf_text(value) == text


def test_an_element_is_a_line_a_leaf() -> None:
    text = printed(ElementView({"a": 1, "b": (Pair("x", None), [2.5])}), colour=False)
    assert [line.split() for line in text.splitlines()] == [
        ["['a']", "1"],
        ["['b'][0].left", "'x'"],
        ["['b'][0].right", "None"],
        ["['b'][1][0]", "2.5"],
    ]
    assert printed(ElementView(b"ab"), colour=False).strip() == "2 bytes b'ab'"


def test_what_stands_in_strings_is_shown_as_it_is() -> None:
    assert "'[bold]x[/bold] :smile:'" in printed(ElementView({"[red]": "[bold]x[/bold] :smile:"}), colour=False)


@pytest.mark.slow
@given(versions())
def test_every_element_can_be_shown_and_is_json(version: Any) -> None:
    for element in version[1]:
        printed(ElementView(element), colour=True).encode()
        printed(ElementView(element), colour=False).encode()
        json.dumps(element_json(element), allow_nan=False, ensure_ascii=False).encode()


def test_json_holds_what_python_reads_back() -> None:
    element = {
        "pair": Pair(np.int64(-1), [True, None]),
        "floats": np.array([1.5, np.nan, np.inf, -np.inf], ml_dtypes.bfloat16),
        "text": "ä",
        "bytes": b"\x00\xff",
        "matrix": np.arange(4).reshape(2, 2),
        "ragged": Ragged(np.arange(3), np.array([0, 2, 3])),
        "sparse": Sparse([[1]], [0.5], [3]),
        "day": np.datetime64("2024-02-29"),
        "complex": np.complex64(1 - 2j),
    }
    assert element_json(element) == {
        "pair": {"left": -1, "right": [True, None]},
        "floats": [1.5, "NaN", "Infinity", "-Infinity"],
        "text": "ä",
        "bytes": {"nbytes": 2, "base64": "AP8="},
        "matrix": [[0, 1], [2, 3]],
        "ragged": [[0, 1], [2]],
        "sparse": {"dense_shape": [3], "indices": [[1]], "values": [0.5]},
        "day": "2024-02-29",
        "complex": [1.0, -2.0],
    }


def test_json_of_long_values_says_what_they_are() -> None:
    assert element_json(np.zeros((40, 30), np.uint8)) == {"dtype": "uint8", "shape": [40, 30], "first": [0] * 8}
    assert element_json("x" * 5000) == {"characters": 5000, "first": "x" * 200}
    ragged = Ragged(np.arange(2000), np.arange(0, 2001, 2))
    assert element_json(ragged) == {"rows": 1000, "first": [[n, n + 1] for n in range(0, 16, 2)]}
    diagonal = Sparse(np.arange(4000).reshape(2000, 2), np.ones(2000), [4000, 4000])
    assert element_json(diagonal)["count"] == 2000
    assert element_json(diagonal)["values"] == [1.0] * 8
    assert element_json(bytes(5000)) == {"nbytes": 5000, "first": repr(bytes(8))}


def test_an_image_is_drawn_two_pixels_a_character() -> None:
    image = np.arange(20 * 16 * 3, dtype=np.uint8).reshape(20, 16, 3)
    drawn = pixels(printed(Picture(image), colour=True))
    assert (len(drawn), len(drawn[0])) == (10, 16)
    names = [[";".join(map(str, pixel)) for pixel in row] for row in image.tolist()]
    assert drawn == [list(zip(*rows, strict=True)) for rows in zip(names[0::2], names[1::2], strict=True)]


def test_small_images_are_enlarged_and_large_ones_averaged() -> None:
    small = pixels(printed(Picture(np.full((2, 2, 1), 9, np.uint8)), colour=True))
    assert small == [[("9;9;9", "9;9;9")] * 16] * 8
    checks = np.indices((480, 480)).sum(axis=0) % 2 * 200
    large = pixels(printed(Picture(checks.astype(np.uint8)), colour=True))
    assert large == [[("100;100;100", "100;100;100")] * 48] * 24
    assert len(pixels(printed(Picture(np.zeros((10, 1000, 3), np.uint8)), colour=True, width=20))[0]) == 20


def test_what_can_be_seen_through_lies_on_black() -> None:
    half = np.full((16, 16, 4), [200, 100, 0, 51], np.uint8)
    assert pixels(printed(Picture(half), colour=True))[0][0] == ("40;20;0", "40;20;0")


def test_images_are_drawn_only_where_there_is_colour() -> None:
    element = {"image": np.zeros((16, 16, 3), np.uint8)}
    assert "▀" in printed(ElementView(element), colour=True)
    assert "uint8[16, 16, 3]" in printed(ElementView(element), colour=False)


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((8, 8), "uint8", True),
        ((8, 7), "uint8", False),
        ((2, 2, 1), "uint8", True),
        ((2, 2, 2), "uint8", False),
        ((0, 5, 3), "uint8", False),
        ((28, 28), "float32", False),
    ],
)
def test_what_looks_like_an_image(shape: tuple[int, ...], dtype: str, expected: bool) -> None:
    assert is_picture(np.zeros(shape, dtype)) is expected


@pytest.mark.needs("PIL")
def test_images_are_saved_as_files(tmp_path: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    element = {
        "rgb": rng.integers(0, 256, (5, 4, 3), np.uint8),
        "grey": rng.integers(0, 256, (5, 4, 1), np.uint8),
        "not": np.zeros((5, 4, 3), np.float32),
    }
    written = save_images(from_element(element), 7, element, tmp_path / "deep/down")
    assert [path.name for path in written] == ["000007-rgb.png", "000007-grey.png"]
    assert np.array_equal(np.asarray(Image.open(written[0])), element["rgb"])
    assert np.array_equal(np.asarray(Image.open(written[1])), element["grey"][:, :, 0])


@pytest.mark.needs("PIL")
def test_leaves_with_like_names_have_files_of_their_own(tmp_path: Path) -> None:
    image = np.zeros((8, 8), np.uint8)
    element = {"a": {"b": image}, "a b": image, "ä": image}
    written = save_images(from_element(element), 0, element, tmp_path)
    assert [path.name for path in written] == ["000000-a-b.png", "000000-a-b-2.png", "000000-ä.png"]


def test_without_pillow_nothing_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'cachelayer\[image\]'"):
        save_images(ImageSpec(), 0, b"?", tmp_path)


@pytest.mark.needs("PIL")
def test_encoded_images_are_saved_as_they_are(tmp_path: Path) -> None:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (4, 4), "red").save(file, "JPEG")
    spec = {"photo": ImageSpec(), "broken": ImageSpec(), "none": ImageSpec(nullable=True)}
    written = save_images(spec, 0, {"photo": file.getvalue(), "broken": b"?", "none": None}, tmp_path)
    assert {path.name: path.read_bytes() for path in written} == {
        "000000-photo.jpeg": file.getvalue(),
        "000000-broken.bin": b"?",
    }


@pytest.mark.needs("PIL")
def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"cannot write .*file/000000"):
        save_images(ImageSpec(), 0, b"?", tmp_path / "file")
