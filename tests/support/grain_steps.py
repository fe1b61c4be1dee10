"""Functions that Grain's worker processes run: each process imports this file, and nothing of the tests."""

from typing import Any

import grain
import numpy as np


def doubled(element: dict[str, Any]) -> dict[str, Any]:
    return {**element, "label": element["label"] * 2}


def noisy(element: Any, rng: np.random.Generator) -> Any:
    return {**element, "noise": rng.random(3)}


class Noisy(grain.transforms.RandomMap):  # type: ignore[misc]
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return noisy(element, rng)
