"""``head``, ``sample`` and ``stats``, for people and for scripts."""

import io
import json
from collections import namedtuple
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from commands import document, invoke, script
from hypothesis import given
from strategies import versions

import cachelayer
from cachelayer import ArraySpec, ImageSpec, Ragged, Sparse
from cachelayer.cli.inspect_versions import element_json
from cachelayer.drawing.text import leaf_text
from cachelayer.specs import tree
from cachelayer.statistics import survey

RECORDS = 300
Pair = namedtuple("Pair", ["left", "right"])


def rows() -> list[dict[str, Any]]:
    names = ("zero", "one", "two")
    return [
        {
            "number": np.int64(n),
            "image": np.full((8, 8, 3), n % 256, np.uint8),
            "name": names[n % 3],
            "weight": np.float32("nan" if n % 100 == 0 else n / RECORDS),
        }
        for n in range(RECORDS)
    ]


@pytest.fixture
def ref(tmp_path: Path) -> cachelayer.DataRef[Any]:
    """A version in the storage `cache` of the test's folder."""
    return cachelayer.Storage(tmp_path / "cache").submit(rows(), "rows@v1", shard_bytes=30_000, progress=False)


def numbers(ended: str) -> list[int]:
    """The numbers of records that were printed as JSON, which are those in them."""
    found = json.loads(ended)
    assert [each["record"] for each in found] == [each["element"]["number"] for each in found]
    return [each["record"] for each in found]


def test_head_shows_the_first_records(ref: cachelayer.DataRef[Any], tmp_path: Path) -> None:
    text = script("head", "cache/rows", "-n", 2, cwd=tmp_path).stdout
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line]
    assert [name for name, _ in lines] == ["record", "number", "image", "name", "weight"] * 2
    assert ["image", "uint8[8, 8, 3] 1 1 1 1 1 1 1 1 …"] in [[name, rest.strip()] for name, rest in lines]
    assert numbers(script("head", "cache/rows@v1", "--json", cwd=tmp_path).stdout) == [0, 1, 2, 3, 4]


@pytest.mark.needs("PIL")
def test_encoded_images_are_shown_decoded(tmp_path: Path) -> None:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (4, 2), "red").save(file, "PNG")
    cachelayer.Storage(tmp_path / "cache").submit([file.getvalue()], "photos@v1", element_spec=ImageSpec())
    text = invoke("head", tmp_path / "cache/photos").stdout
    assert "uint8[2, 4, 3]" in text
    found = invoke("stats", tmp_path / "cache/photos").stdout
    assert "width" in found


def test_what_is_none_within_elements_is_shown(tmp_path: Path) -> None:
    dicts = [{"a": 1, "n": [[1], []]}, None, {"a": None, "n": []}]
    rows = [{"d": value, "x": numbers} for value, numbers in zip(dicts, ([1, None], None, []), strict=True)]
    cachelayer.Storage(tmp_path / "cache").submit(rows, "rows@v1", metadata={"classes": ["zero", "one"]})
    found = document("head", tmp_path / "cache/rows")
    assert [each["element"] for each in found] == rows
    text = invoke("head", tmp_path / "cache/rows").stdout
    assert "int64[2] [1 None]" in text
    assert invoke("stats", tmp_path / "cache/rows").stdout


def test_stats_tells_of_every_leaf(ref: cachelayer.DataRef[Any], tmp_path: Path) -> None:
    text = script("stats", "cache/rows", cwd=tmp_path).stdout
    lines = {line.split()[0]: line for line in text.splitlines() if line}
    assert lines["rows@v1:"] == "rows@v1: 300 records"
    assert "number  int64\n    0 to 299, mean 149.5, std 86.6  " in text
    assert lines["weight"].rstrip().endswith("3 NaN")
    assert "    3 different: 'one' (100), 'two' (100), 'zero' (100)" in text
    ended = script("stats", "cache/rows", "--json", cwd=tmp_path)
    assert json.loads(ended.stdout) == json.loads(json.dumps(survey(ref).to_json()))
    assert "300 records, 20 of them read" in invoke("stats", tmp_path / "cache/rows", "--records", 20).stdout


def test_a_version_without_records_is_looked_at_too(tmp_path: Path) -> None:
    cachelayer.Storage(tmp_path / "cache").submit(
        [], "none@v1", element_spec={"x": ArraySpec("float32", nullable=True)}, allow_empty=True
    )
    place = tmp_path / "cache/none"
    assert invoke("head", place).stdout == invoke("sample", place).stdout == "no records\n"
    assert document("head", place) == []
    assert "0 records" in invoke("stats", place).stdout


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


@pytest.mark.slow
@given(versions())
def test_every_element_can_be_shown_and_is_json(version: Any) -> None:
    for element in version[1]:
        for _, leaf in tree.leaf_values(element):
            leaf_text(leaf).encode()
        json.dumps(element_json(element), allow_nan=False).encode()


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
        "scalars": [np.array(b"_"), np.array("ä"), np.array(3)],
    }
    assert element_json(element) == {
        "pair": {"left": -1, "right": [True, None]},
        "floats": [1.5, "nan", "inf", "-inf"],
        "text": "ä",
        "bytes": "AP8=",
        "matrix": [[0, 1], [2, 3]],
        "ragged": [[0, 1], [2]],
        "sparse": {"dense_shape": [3], "indices": [[1]], "values": [0.5]},
        "day": "2024-02-29",
        "complex": "(1-2j)",
        "scalars": ["Xw==", "ä", 3],
    }


def test_sample_draws_what_a_shuffled_stream_begins_with(ref: cachelayer.DataRef[Any], tmp_path: Path) -> None:
    place = tmp_path / "cache/rows"
    drawn = numbers(invoke("sample", place, "--seed", 3, "-n", 7, "--json").stdout)
    assert drawn == ref.stream(7, shuffle=True, seed=3).record_numbers(0).tolist()
    assert sorted(numbers(invoke("sample", place, "-n", 999, "--json").stdout)) == list(range(RECORDS))
    assert "--records" in invoke("stats", place, "--records", 0, code=2).stderr
