"""Draw records: decide for each leaf whether it is a picture, a heat map, a line, a sound or text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from cachelayer.drawing.pixels import Pixels, line, picture, pixels_of
from cachelayer.drawing.text import Names, leaf_text, named
from cachelayer.errors import CacheLayerError, StorageError
from cachelayer.records import dtypes, tree
from cachelayer.records.spec import AudioSpec, ImageSpec, LeafSpec
from cachelayer.records.values import Ragged, Sparse

Kind = Literal["null", "picture", "line", "sound", "text", "long", "problem"]
LINE_WIDTH, LINE_HEIGHT = 160, 40
_LONG_TEXT = 20_000
_TOKENS = 4096
_LINE_FROM = 17
Detokenize = Callable[[list[int]], Any]


@dataclass(frozen=True)
class Look:
    """How records are drawn.

    Args:
        side: the most pixels of a side of a picture.
        leaves: the most leaves of a record that are drawn.
        detokenize: turns a list of tokens into text.
        names: the class names of leaves that are labels, by path.
    """

    side: int
    leaves: int
    detokenize: Detokenize | None = None
    names: Names = field(default_factory=dict)


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
        name: the class name of a label.
    """

    number: int
    path: str
    kind: Kind
    text: str
    pixels: Pixels | None = None
    points: str = ""
    tokens: str = ""
    name: str = ""


def are_tokens(spec: LeafSpec) -> bool:
    """Return whether a leaf is a series of integers of any length, which most likely stands for a text."""
    return isinstance(spec.dtype, np.dtype) and spec.dtype.kind in "iu" and spec.shape == (None,)


def drawn_element(spec: tree.Tree, element: Any, look: Look) -> list[DrawnLeaf]:
    """Return the first leaves of an element, drawn.

    Args:
        spec: the spec of elements as they are stored, with the files of images and sounds.
        element: the element as it is stored.
        look: how they are drawn.
    """
    leaves = list(zip(tree.leaves(spec), tree.flatten_like(spec, element), strict=True))[: look.leaves]
    return [drawn_leaf(number, path, leaf, value, look) for number, ((path, leaf), value) in enumerate(leaves)]


def drawn_leaf(number: int, path: str, spec: LeafSpec, value: Any, look: Look) -> DrawnLeaf:
    if value is None:
        return DrawnLeaf(number, path, "null", "null")
    if isinstance(spec, ImageSpec):
        return _file(number, path, value, look.side)
    if isinstance(spec, AudioSpec):
        return DrawnLeaf(number, path, "sound", f"a sound file of {len(value):,} bytes")
    if isinstance(value, str):
        return _text(number, path, value)
    if isinstance(value, (bytes, Sparse)):
        return DrawnLeaf(number, path, "text", leaf_text(value))
    tokens = "" if look.detokenize is None else _detokenized(look.detokenize, value)
    if isinstance(value, Ragged):
        return DrawnLeaf(number, path, "text", leaf_text(value), tokens=tokens)
    array = np.asarray(value)
    if not isinstance(spec.dtype, np.dtype) or dtypes.number_kind(array.dtype) not in "biuf" or array.size == 0:
        return DrawnLeaf(number, path, "text", leaf_text(value))
    if array.ndim == 0:
        text = f"{int(array):,}" if array.dtype.kind in "iu" else leaf_text(value)
        return DrawnLeaf(number, path, "text", text, name=named(look.names, path, value))
    if are_tokens(spec):
        return DrawnLeaf(number, path, "text", leaf_text(value), tokens=tokens)
    return _array(number, path, array, look.side, tokens)


def _array(number: int, path: str, array: NDArray[Any], side: int, tokens: str) -> DrawnLeaf:
    text = leaf_text(array)
    with np.errstate(all="ignore"):
        pixels = pixels_of(array, side)
        points = line(array, LINE_WIDTH, LINE_HEIGHT) if array.ndim == 1 and len(array) >= _LINE_FROM else ""
    kind: Kind = "picture" if pixels is not None else "line" if points else "text"
    return DrawnLeaf(number, path, kind, text, pixels, points, tokens)


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


def _detokenized(detokenize: Detokenize, value: Any) -> str:
    values = value.flat_values if isinstance(value, Ragged) else np.asarray(value)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        return ""
    try:
        return str(detokenize(values[:_TOKENS].tolist()))[:_LONG_TEXT]
    except Exception as error:  # noqa: BLE001 - the user's function may raise anything about a stranger's data
        return f"the detokeniser raised {type(error).__name__}: {error}"[:500]


GRID_NBYTES = 64 << 20


class Stored(Protocol):
    """Records as they are stored, with the files of images and sounds."""

    @property
    def element_spec(self) -> Any:
        """The spec of an element."""

    def __getitems__(self, indices: NDArray[np.int64], /) -> Sequence[Any]:
        """Return the elements of these record numbers."""

    def stored_nbytes(self, indices: NDArray[np.int64], /) -> NDArray[np.int64]:
        """Return the bytes that records take."""


@dataclass(frozen=True)
class DrawnRecord:
    """A record as people see it.

    Args:
        number: its number.
        leaves: its first leaves, drawn.
        more: how many leaves it has besides.
        problem: why it is not shown; empty if it is.
    """

    number: int
    leaves: Sequence[DrawnLeaf] = ()
    more: int = 0
    problem: str = ""


def drawn_records(stored: Stored, numbers: Sequence[int], look: Look, most: int = GRID_NBYTES) -> list[DrawnRecord]:
    """Return records, drawn. One that is damaged says so, and so do those that exceed ``most`` bytes together.

    Args:
        stored: where they are read from.
        numbers: the numbers of records that exist.
        look: how they are drawn.
        most: the most bytes that are read.
    """
    try:
        return _drawn_together(stored, np.asarray(numbers, np.int64), look, most) if numbers else []
    except StorageError:
        raise
    except CacheLayerError as error:
        if len(numbers) == 1:
            return [DrawnRecord(numbers[0], problem=str(error))]
        return [record for number in numbers for record in drawn_records(stored, [number], look, most // len(numbers))]


def _drawn_together(stored: Stored, rows: NDArray[np.int64], look: Look, most: int) -> list[DrawnRecord]:
    spec, sizes = stored.element_spec, stored.stored_nbytes(rows)
    is_read = np.cumsum(sizes) <= most
    elements = iter(stored.__getitems__(rows[is_read]) if is_read.any() else ())
    more = max(0, len(tree.leaves(spec)) - look.leaves)
    return [
        DrawnRecord(number, drawn_element(spec, next(elements), look), more)
        if is_one_read
        else DrawnRecord(number, problem=f"{nbytes:,} bytes: too large to show here")
        for number, nbytes, is_one_read in zip(rows.tolist(), sizes.tolist(), is_read.tolist(), strict=True)
    ]
