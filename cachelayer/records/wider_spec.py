"""Propose a wider element spec for an element that does not fit the one that there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cachelayer.errors import CacheLayerError
from cachelayer.records import dtypes, tree
from cachelayer.records.infer import from_element, leaf_spec
from cachelayer.records.spec import ArraySpec
from cachelayer.records.tree import Tree

_MOST_LEAVES = 40


def wider(spec: Tree, element: Any, *, may_add: bool = True) -> Tree | None:
    """Return the spec that a user may have meant, which fits an element that ``spec`` does not; None if none is likely.

    Dimensions that differ become None. Lists of numbers that differ in length become arrays of one dimension.

    Args:
        spec: the element spec.
        element: the element.
        may_add: whether keys may be added that the spec lacks: earlier elements would not have them.
    """
    try:
        found = _wider(spec, element, may_add)
    except (CacheLayerError, ValueError, TypeError, KeyError):
        return None
    return None if found == spec else found


def _wider(spec: Tree, element: Any, may_add: bool) -> Tree:
    if isinstance(spec, dict) and isinstance(element, Mapping):
        found = {key: _wider(child, element[key], may_add) for key, child in spec.items()}
        new = [key for key in element if key not in spec]
        return {**found, **{key: from_element(element[key]) for key in new if may_add}}
    numbers = _dtype_of_numbers(spec)
    if numbers is not None and isinstance(element, list) and len(spec) != len(element):
        return ArraySpec(numbers, (None,))
    if isinstance(spec, ArraySpec) and not isinstance(element, (list, tuple)):
        leaf = leaf_spec(element)
        if isinstance(leaf, ArraySpec) and (leaf.dtype, len(leaf.shape)) == (spec.dtype, len(spec.shape)):
            dims = (one if one == other else None for one, other in zip(spec.shape, leaf.shape, strict=True))
            return ArraySpec(spec.dtype, tuple(dims), spec.nullable)
    return spec


def _dtype_of_numbers(spec: Tree) -> Any:
    """Return the dtype of a list of scalars of one dtype; None if the spec is no such list."""
    if not isinstance(spec, list) or not all(isinstance(each, ArraySpec) and each.shape == () for each in spec):
        return None
    found = {each.dtype for each in spec}
    return found.pop() if len(found) == 1 else None


def as_code(spec: Tree) -> str:
    """Return a spec as Python text that makes it; empty if that would be long."""
    return _code(spec) if len(tree.leaves(spec)) <= _MOST_LEAVES else ""


def _code(spec: Tree) -> str:
    if isinstance(spec, ArraySpec):
        text = f"'{dtypes.to_name(spec.dtype)}'" if isinstance(spec.dtype, np.dtype) else spec.dtype.__name__
        shape = f", {spec.shape}" if spec.shape else ""
        return f"ArraySpec({text}{shape}{', nullable=True' if spec.nullable else ''})"
    if isinstance(spec, dict):
        return "{" + ", ".join(f"{key!r}: {_code(child)}" for key, child in spec.items()) + "}"
    if tree.is_namedtuple(spec):
        return f"{type(spec).__name__}({', '.join(f'{name}={_code(getattr(spec, name))}' for name in spec._fields)})"
    if isinstance(spec, (tuple, list)):
        inner = ", ".join(map(_code, spec))
        return f"[{inner}]" if isinstance(spec, list) else f"({inner}{',' if len(spec) == 1 else ''})"
    return repr(spec)
