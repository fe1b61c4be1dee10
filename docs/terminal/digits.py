"""Handwritten digits that ship inside scikit-learn, as a source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def digits(brightness: float = 255.0) -> Iterator[dict[str, Any]]:
    """1,797 images of 8 x 8 pixels, with what they show."""
    images, labels = load_digits(return_X_y=True)
    for image, label in zip(images.reshape(-1, 8, 8, 1), labels, strict=True):
        pixels = np.rint(image / 16 * brightness).astype(np.uint8)
        yield {"image": pixels, "label": int(label), "name": NAMES[label], "ink": np.float32(image.mean() / 16)}
