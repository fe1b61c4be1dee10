"""Decide how a leaf of a record is drawn: as a picture, a heat map, a line, a sound or text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from cachelayer.drawing.encoded import picture
from cachelayer.drawing.leaf_text import leaf_text
from cachelayer.drawing.pixels import Pixels, fitted, heat, is_picture, line, rgb
from cachelayer.errors import CacheLayerError
from cachelayer.records import dtypes, tree
from cachelayer.records.spec import AudioSpec, ImageSpec, LeafSpec
from cachelayer.records.values import Ragged, Sparse

Kind = Literal["null", "picture", "line", "sound", "text", "long", "problem"]
LINE_WIDTH, LINE_HEIGHT = 160, 40
_FRAMES = 6
_LONG_TEXT = 20_000
_TOKENS = 4096
_LINE_FROM = 17
Detokenize = Callable[[list[int]], Any]


@dataclass(frozen=True)
class DrawnLeaf:
    """A leaf as people see it.

    Args:
        number: which leaf of the element it is.
        path: where it is in the element.
        kind: how it is shown.
        text: one line about it; for ``long`` its text, which may be cut.
        pixels: those of a picture, else None.
        points: those of a line.
        tokens: what the detokeniser made of it.
    """

    number: int
    path: str
    kind: Kind
    text: str
    pixels: Pixels | None = None
    points: str = ""
    tokens: str = ""


def drawn_element(
    spec: tree.Tree, element: Any, side: int, most: int, detokenize: Detokenize | None = None
) -> list[DrawnLeaf]:
    """Return the first leaves of an element, drawn.

    Args:
        spec: the spec of elements as they are stored, with the files of images and sounds.
        element: the element as it is stored.
        side: the most pixels of a side of a picture.
        most: the most leaves that are drawn.
        detokenize: turns a list of tokens into text.
    """
    leaves = list(zip(tree.leaves(spec), tree.flatten_like(spec, element), strict=True))[:most]
    return [
        drawn_leaf(number, path, leaf, value, side, detokenize) for number, ((path, leaf), value) in enumerate(leaves)
    ]


def drawn_leaf(
    number: int, path: str, spec: LeafSpec, value: Any, side: int, detokenize: Detokenize | None = None
) -> DrawnLeaf:
    """Return one leaf, drawn; see :func:`drawn_element`."""
    if value is None:
        return DrawnLeaf(number, path, "null", "null")
    if isinstance(spec, ImageSpec):
        return _file(number, path, value, side)
    if isinstance(spec, AudioSpec):
        return DrawnLeaf(number, path, "sound", f"a sound file of {len(value):,} bytes")
    if isinstance(value, str):
        return _text(number, path, value)
    if isinstance(value, (bytes, Sparse)):
        return DrawnLeaf(number, path, "text", leaf_text(value))
    tokens = "" if detokenize is None else _detokenized(detokenize, value)
    if isinstance(value, Ragged):
        return DrawnLeaf(number, path, "text", leaf_text(value), tokens=tokens)
    array = np.asarray(value)
    if not isinstance(spec.dtype, np.dtype) or dtypes.number_kind(array.dtype) not in "biuf" or array.size == 0:
        return DrawnLeaf(number, path, "text", leaf_text(value))
    with np.errstate(all="ignore"):
        pixels = _pixels(array, side)
        points = line(array, LINE_WIDTH, LINE_HEIGHT) if array.ndim == 1 and len(array) >= _LINE_FROM else ""
    kind: Kind = "picture" if pixels is not None else "line" if points else "text"
    return DrawnLeaf(number, path, kind, leaf_text(value), pixels, points, tokens)


def _file(number: int, path: str, data: bytes, side: int) -> DrawnLeaf:
    try:
        pixels = picture(data, side)
    except CacheLayerError as error:
        return DrawnLeaf(number, path, "problem", str(error)[:500])
    return DrawnLeaf(number, path, "picture", f"an image file of {len(data):,} bytes", pixels)


def _text(number: int, path: str, text: str) -> DrawnLeaf:
    if len(text) <= _LONG_TEXT:
        return DrawnLeaf(number, path, "long", text)
    return DrawnLeaf(
        number, path, "long", f"{text[:_LONG_TEXT]} … the first {_LONG_TEXT:,} of {len(text):,} characters"
    )


def _pixels(array: Any, side: int) -> Pixels | None:
    """Return the pixels of an array that is a picture, a clip or a table of numbers; None for any other."""
    if is_picture(array):
        return rgb(fitted(array, side))
    if array.ndim == 4 and is_picture(array[0]):
        chosen = np.linspace(0, len(array) - 1, min(len(array), _FRAMES)).astype(np.int64)
        return np.concatenate([rgb(fitted(array[frame], side)) for frame in chosen.tolist()], axis=1)
    if array.ndim == 3 and array.shape[2] in (1, 3, 4) and array.dtype.kind == "f" and _is_share(array):
        return rgb(fitted((array.astype(np.float64) * 255).astype(np.uint8), side))
    if array.ndim == 2 and min(array.shape) > 1:
        return heat(array, side)
    return None


def _is_share(array: Any) -> bool:
    """Return whether all values lie between 0 and 1."""
    return bool(min(array.shape[:2]) > 1 and array.min() >= 0 and array.max() <= 1)


def _detokenized(detokenize: Detokenize, value: Any) -> str:
    values = value.flat_values if isinstance(value, Ragged) else np.asarray(value)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        return ""
    try:
        return str(detokenize(values[:_TOKENS].tolist()))[:_LONG_TEXT]
    except Exception as error:  # noqa: BLE001 - the user's function may raise anything about a stranger's data
        return f"the detokeniser raised {type(error).__name__}: {error}"[:500]
