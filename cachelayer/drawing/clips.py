"""Draw clips: arrays of frames, each of which is an image."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.drawing.pixels import CHANNELS, Pixels, fitted, is_picture, is_share, rgb

MOST_FRAMES = 120
_STRIP = 6
_LEAST_SIDE = 32
_MOST_PIXELS = 1 << 23


def is_clip(value: Any) -> bool:
    """Return whether a leaf looks like a clip: ``[frames, h, w, 1 | 3 | 4]`` of uint8, or of floats from 0 to 1."""
    if not isinstance(value, np.ndarray) or value.ndim != 4 or 0 in value.shape or value.shape[3] not in CHANNELS:
        return False
    return is_picture(value[0]) or (value.dtype.kind == "f" and is_share(value[0]) and is_share(value[-1]))


def strip(clip: NDArray[Any], side: int) -> Pixels:
    """Return a few frames side by side."""
    return np.concatenate([_frame(clip[number], side) for number in _spread(len(clip), _STRIP)], axis=1)


def film(clip: NDArray[Any], side: int) -> Pixels:
    """Return up to :data:`MOST_FRAMES` frames, one below the other, each of at most ``side`` pixels."""
    numbers = _spread(len(clip), MOST_FRAMES)
    fits = max(_LEAST_SIDE, min(side, int((_MOST_PIXELS / len(numbers)) ** 0.5)))
    return np.concatenate([_frame(clip[number], fits) for number in numbers], axis=0)


def film_frames(clip: NDArray[Any]) -> int:
    """Return how many frames :func:`film` draws."""
    return min(len(clip), MOST_FRAMES)


def _spread(count: int, most: int) -> list[int]:
    """Return up to ``most`` numbers below ``count``, spread evenly."""
    numbers: list[int] = np.linspace(0, count - 1, min(count, most)).astype(np.int64).tolist()
    return numbers


def _frame(frame: NDArray[Any], side: int) -> Pixels:
    if frame.dtype != np.uint8:
        frame = (np.clip(np.nan_to_num(frame.astype(np.float64)), 0, 1) * 255).astype(np.uint8)
    return rgb(fitted(frame, side))
