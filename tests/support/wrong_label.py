"""Pictures of digits of which one has a wrong label, and a small model whose loss jumps because of it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import cachelayer

BATCH, SEED = 64, 7
CLASSES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def wrongly_labelled(wrong: int) -> Iterator[dict[str, Any]]:
    """Yield grey pictures of the ten digits in turn; the record ``wrong`` has the label of another digit."""
    images, labels = load_digits(return_X_y=True)
    by_label = [images[labels == label].reshape(-1, 8, 8) for label in range(10)]
    for number in range(len(images)):
        label = number % 10
        image = by_label[label][number // 10 % len(by_label[label])] * 15.9
        yield {"image": image.astype(np.uint8), "label": (label + 3) % 10 if number == wrong else label}


def losses(ref: cachelayer.DataRef[Any], epochs: int) -> list[float]:
    """Train a network of one hidden layer, and return the loss of each step."""
    rng = np.random.default_rng(0)
    into, out = rng.normal(0, 0.1, (64, 64)), np.zeros((64, 10))
    found = []
    for batch in ref.stream(BATCH, shuffle=True, seed=SEED, num_epochs=epochs):
        pixels, truth = batch["image"].reshape(-1, 64) / 255, np.eye(10)[batch["label"]]
        hidden = np.maximum(pixels @ into, 0)
        share = _softmax(hidden @ out)
        found.append(float(-np.log((share * truth).sum(1) + 1e-9).mean()))
        error = (share - truth) / len(truth)
        back = (error @ out.T) * (hidden > 0)
        out -= hidden.T @ error
        into -= pixels.T @ back
    return found


def _softmax(values: NDArray[np.float64]) -> NDArray[np.float64]:
    powers = np.exp(values - values.max(1, keepdims=True))
    shares: NDArray[np.float64] = powers / powers.sum(1, keepdims=True)
    return shares
