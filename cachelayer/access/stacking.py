"""Batches of elements that functions were applied to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cachelayer.codec import codec_for
from cachelayer.elements import dtypes, tree
from cachelayer.elements.infer import from_element
from cachelayer.elements.spec import ArraySpec, LeafSpec
from cachelayer.elements.tree import Tree
from cachelayer.elements.values import Ragged, Sparse
from cachelayer.sequential.collate import collate


def collate_like(spec: Tree, elements: Sequence[Any]) -> Any:
    """A batch of elements, whose leaves are stacked as those of a dataset where they still are of its kind.

    Args:
        spec: that of the dataset that the elements were made from.
        elements: one or more, of one structure.

    Raises:
        ElementError: where structures, shapes or dtypes differ; it names the leaf.
    """
    varying = {path: leaf for path, leaf in tree.leaves(spec) if leaf.nullable or not _is_plain(leaf)}
    first = dict(tree.leaf_values(elements[0])) if varying else {}
    kept = {path: leaf for path, leaf in varying.items() if path in first and _fits(leaf, first[path])}
    if not kept:
        return collate(elements)
    found = tree.map_structure(elements[0], lambda path, value: kept.get(path) or from_element(value))
    codec = codec_for(found)
    return codec.batch(codec.columns(elements))


def _is_plain(leaf: LeafSpec) -> bool:
    """Whether batches of it are arrays whatever the elements."""
    return isinstance(leaf, ArraySpec) and None not in leaf.shape


def _fits(leaf: LeafSpec, value: Any) -> bool:
    """Whether a value is of the kind of a leaf: functions may have made something else of it."""
    if value is None:
        return leaf.nullable
    if not isinstance(leaf, ArraySpec):
        return isinstance(value, (Ragged, Sparse))
    if dtypes.is_string(leaf.dtype):
        return isinstance(value, (str, bytes)) or np.asarray(value).dtype.kind in "OSU"
    array = np.asarray(value)
    return array.dtype.name == np.dtype(leaf.dtype).name and array.ndim == len(leaf.shape)
