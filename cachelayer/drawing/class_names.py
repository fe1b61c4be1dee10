"""The names of classes that a version's metadata has, as the adapters write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

Names = Mapping[str, list[str]]


def class_names(metadata: Mapping[str, Any]) -> Names:
    """Return the class names of each leaf that is a label, by its path.

    The metadata may be anybody's: what does not look like names is ignored.
    """
    found = {"['label']": metadata.get("classes")}
    of_tfds = metadata.get("tfds")
    named = of_tfds.get("class_names") if isinstance(of_tfds, Mapping) else None
    found |= named if isinstance(named, Mapping) else {}
    found |= dict(_labels(metadata.get("huggingface_features"), ""))
    return {path: names for path, names in found.items() if names is not None and _are_names(names)}


def _are_names(names: Any) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def _labels(features: Any, path: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(features, Mapping):
        return
    if features.get("_type") == "ClassLabel":
        yield path, features.get("names")
        return
    for name, feature in features.items():
        yield from _labels(feature, f"{path}[{name!r}]")


def name_of(value: Any, names: list[str]) -> str:
    """Return the name of a label; an empty text if it is not the number of a class."""
    array = np.asarray(value)
    if array.ndim or array.dtype.kind not in "iu" or not 0 <= array < len(names):
        return ""
    return names[int(array)]
