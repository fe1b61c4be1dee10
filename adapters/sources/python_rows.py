"""Rows of Python values, as JSON, generators and frames of objects hold them: dicts whose lists become arrays.

The first rows decide the element spec; after that the codec stores a value exactly, or refuses it by its leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from typing import Any

from cachelayer.adapters.sources.pictures import bytes_of
from cachelayer.records.spec import ImageSpec
from cachelayer.records.tree import Tree


def packer(spec: Tree, *, fill: bool = False) -> Callable[[Any], Any]:
    """Return a function that turns a value of a row into what the codec takes for its spec.

    Lists of dicts become dicts of lists, and pictures files. What does not fit the spec stays as it is: the codec
    refuses it.

    Args:
        spec: the spec of the value.
        fill: whether a key that a dict lacks stands for None.
    """
    if isinstance(spec, dict):
        return partial(_packed_dict, {key: packer(child, fill=fill) for key, child in spec.items()}, fill)
    return bytes_of if isinstance(spec, ImageSpec) else _same


def _same(value: Any) -> Any:
    return value


def _packed_dict(parts: dict[str, Callable[[Any], Any]], fill: bool, value: Any) -> Any:
    if value is None and fill:
        value = {}
    if isinstance(value, Mapping):
        missing = dict.fromkeys(parts) if fill else {}
        return {key: parts.get(key, _same)(child) for key, child in {**missing, **value}.items()}
    if isinstance(value, (list, tuple)) and all(isinstance(row, Mapping) for row in value):
        keys = dict.fromkeys(chain(parts, *value))
        if fill or all(row.keys() == keys.keys() for row in value):
            return {key: parts.get(key, _same)([row.get(key) for row in value]) for key in keys}
    return value
