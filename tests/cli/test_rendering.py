"""Elements for people and for scripts."""

from __future__ import annotations

import io
import json
from collections import namedtuple
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from rich.console import Console
from strategies import versions

from cachelayer import Ragged, Sparse
from cachelayer.cli.look_at_records import ElementView, element_json, leaf_text

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
