"""Draw records: decide for each leaf whether it is a picture, a heat map, a line, a sound or text."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cachelayer.drawing.pixels import Pixels, line, picture, pixels_of, png
from cachelayer.drawing.text import Names, leaf_text, named
from cachelayer.errors import CacheLayerError, StorageError
from cachelayer.records.video import Video
from cachelayer.specs import dtypes, tree
from cachelayer.specs.schema import Schema
from cachelayer.specs.spec import AudioSpec, ImageSpec, JsonSpec, LeafSpec, VideoSpec
from cachelayer.specs.values import Nullable, Ragged, Sparse

Kind = Literal["null", "picture", "line", "sound", "text", "long", "problem"]
LINE_WIDTH = 160
LINE_HEIGHT = 40
_LONG_TEXT = 20_000
_TOKENS = 4096
_LINE_FROM = 17
GRID_NBYTES = 64 << 20
Detokenize = Callable[[list[int]], Any]


@dataclass(frozen=True)
class DrawOptions:
    """Options for drawing records."""

    side: int
    """The most pixels of a side of a picture."""
    leaves: int
    """The most leaves of a record."""
    detokenize: Detokenize | None = None
    """Turns a list of tokens into a text; None shows tokens as numbers."""
    names: Names = field(default_factory=dict)
    """The names of classes, which are shown beside labels."""


@dataclass(frozen=True)
class DrawnLeaf:
    """A leaf as people see it."""

    number: int
    path: str
    kind: Kind
    text: str
    """One line about the leaf; for ``"long"`` the text of the leaf, which may be cut short."""
    pixels: Pixels | None = None
    points: str = ""
    """The points of a line."""
    tokens: str = ""
    """The text of a leaf of tokens."""
    name: str = ""
    """The class name of a label."""

    @property
    def src(self) -> str:
        """The picture as a data URL; empty if there is none."""
        return "" if self.pixels is None else f"data:image/png;base64,{base64.b64encode(png(self.pixels)).decode()}"


def are_tokens(spec: LeafSpec) -> bool:
    """Return whether a leaf is a series of integers of varying length, most likely the tokens of a text."""
    return np.dtype(spec.dtype).kind in "iu" and spec.shape == (None,)


def drawn_leaf(number: int, path: str, spec: LeafSpec, value: Any, options: DrawOptions) -> DrawnLeaf:
    """Draw a leaf. Its spec and value are as they are stored: an image or a sound is the bytes of a file."""
    drawn = partial(DrawnLeaf, number, path)
    if value is None:
        return drawn("null", "null")
    if isinstance(spec, ImageSpec):
        try:
            return drawn(
                "picture", f"an image file of {len(value):,} bytes", picture(value, options.side, upright=spec.upright)
            )
        except CacheLayerError as error:
            return drawn("problem", str(error)[:500])
    if isinstance(spec, VideoSpec):
        return _drawn_video(drawn, value, options.side)
    if isinstance(spec, AudioSpec):
        return drawn("sound", f"a sound file of {len(value):,} bytes")
    if isinstance(spec, JsonSpec):
        value = json.dumps(value, ensure_ascii=False, indent=1)
    if isinstance(value, str):
        cut = f" … the first {_LONG_TEXT:,} of {len(value):,} characters"
        return drawn("long", value if len(value) <= _LONG_TEXT else value[:_LONG_TEXT] + cut)
    text = leaf_text(value)
    tokens = _detokenized(options.detokenize, value)
    if isinstance(value, (bytes, Nullable, Ragged, Sparse)) or are_tokens(spec) or not _are_numbers(np.asarray(value)):
        return drawn("text", text, tokens=tokens)
    array = np.asarray(value)
    if array.ndim == 0:
        text = f"{int(array):,}" if array.dtype.kind in "iu" else text
        return drawn("text", text, name=named(options.names, path, value))
    with np.errstate(all="ignore"):
        pixels = pixels_of(array, options.side)
        points = line(array, LINE_WIDTH, LINE_HEIGHT) if array.ndim == 1 and len(array) >= _LINE_FROM else ""
    kind: Kind = "text"
    if pixels is not None:
        kind = "picture"
    elif points:
        kind = "line"
    return drawn(kind, text, pixels, points, tokens)


def _drawn_video(drawn: Callable[..., DrawnLeaf], file: bytes, side: int) -> DrawnLeaf:
    """Return the first frame of a video, drawn."""
    try:
        video = Video.of_file(file)
        text = f"a video file of {len(file):,} bytes: {len(video):,} frames, {video.fps:.4g} a second"
        return drawn("picture", text, pixels_of(video[0], side))
    except CacheLayerError as error:
        return drawn("problem", str(error)[:500])


def _are_numbers(array: NDArray[Any]) -> bool:
    return array.size > 0 and array.dtype != object and dtypes.number_kind(array.dtype) in "biuf"


def _detokenized(detokenize: Detokenize | None, value: Any) -> str:
    values = value.flat_values if isinstance(value, Ragged) else value
    if detokenize is None or not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "iu":
        return ""
    try:
        return str(detokenize(values[:_TOKENS].tolist()))[:_LONG_TEXT]
    except Exception as error:  # noqa: BLE001 - the user's function may raise anything about a stranger's data
        return f"the detokeniser raised {type(error).__name__}: {error}"[:500]


@dataclass(frozen=True)
class DrawnRecord:
    """A record as people see it."""

    number: int
    leaves: Sequence[DrawnLeaf] = ()
    """The first leaves."""
    more: int = 0
    """How many more leaves the record has."""
    problem: str = ""
    """Why the record is not shown; empty if it is."""


def drawn_records(
    stored: Any, numbers: Sequence[int], options: DrawOptions, most: int = GRID_NBYTES
) -> list[DrawnRecord]:
    """Draw records. A record that cannot be read says why; those after ``most`` bytes are not read, and say so."""
    try:
        return _drawn_together(stored, np.asarray(numbers, np.int64), options, most) if numbers else []
    except StorageError:
        raise
    except CacheLayerError as error:
        if len(numbers) == 1:
            return [DrawnRecord(numbers[0], problem=str(error))]
        return [
            record for number in numbers for record in drawn_records(stored, [number], options, most // len(numbers))
        ]


def _drawn_together(stored: Any, rows: NDArray[np.int64], options: DrawOptions, most: int) -> list[DrawnRecord]:
    schema = Schema.of(stored.element_spec)
    sizes = stored.stored_nbytes(rows)
    leaves = tree.leaves(schema.spec)
    is_read = np.cumsum(sizes) <= most
    elements = iter(stored.__getitems__(rows[is_read]) if is_read.any() else ())
    records = []
    for number, nbytes, is_one_read in zip(rows.tolist(), sizes.tolist(), is_read.tolist(), strict=True):
        if not is_one_read:
            records.append(DrawnRecord(number, problem=f"{nbytes:,} bytes: too large to show here"))
            continue
        values = schema.flatten(next(elements))
        first = enumerate(zip(leaves[: options.leaves], values[: options.leaves], strict=True))
        shown = [drawn_leaf(place, path, leaf, value, options) for place, ((path, leaf), value) in first]
        records.append(DrawnRecord(number, shown, max(0, len(leaves) - options.leaves)))
    return records
