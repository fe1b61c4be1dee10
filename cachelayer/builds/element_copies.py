"""Copy elements as a source yields them, so that later changes of its objects change nothing that is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cachelayer.errors import InvalidTypeError
from cachelayer.records import tree
from cachelayer.records.infer import as_leaf
from cachelayer.records.values import Ragged, Sparse

IMMUTABLE = frozenset({bool, int, float, complex, type(None), str, bytes})
"""Types of values that cannot change."""


def snapshot(value: Any) -> Any:
    """Return a copy of an element that shares no memory with it.

    Structures become dicts, lists and tuples; whatever has ``__array__`` becomes a numpy array. What cannot be stored
    stays as it is: the encoder refuses it by its path.
    """
    kind: Any = type(value)
    if kind in IMMUTABLE:
        return value
    if isinstance(value, np.ndarray):
        return value.copy()
    if kind is dict:
        return {key: child if type(child) in IMMUTABLE else snapshot(child) for key, child in value.items()}
    if isinstance(value, list):
        return [child if type(child) in IMMUTABLE else snapshot(child) for child in value]
    if isinstance(value, tuple):
        children = [child if type(child) in IMMUTABLE else snapshot(child) for child in value]
        return tuple(children) if kind is tuple or not tree.is_namedtuple(value) else kind._make(children)
    if isinstance(value, (np.generic, str, bytes)):
        return value
    if isinstance(value, Mapping):
        return {key: snapshot(child) for key, child in value.items()}
    if isinstance(value, Ragged):
        shapes = None if value.row_shapes is None else value.row_shapes.copy()
        return Ragged(snapshot(value.values), value.row_splits.copy(), shapes)
    if isinstance(value, Sparse):
        return Sparse(value.indices.copy(), value.values.copy(), value.dense_shape.copy())
    if not hasattr(value, "__array__"):
        return value
    try:
        leaf = as_leaf(value)
    except InvalidTypeError:
        return value
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf
