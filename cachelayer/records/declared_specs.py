"""Element specs that users write, and what the specs of several datasets have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from cachelayer.errors import CacheLayerError, InvalidArgumentError
from cachelayer.records import tree
from cachelayer.records.null_marks import marked, marks
from cachelayer.records.spec import ArraySpec, LeafSpec, NullableDict
from cachelayer.records.tree import Tree, children, describe, leaves, map_structure

_BUILD_ALIKE = "build them with one element_spec"


def declared(spec: Tree) -> Tree:
    """Return the element spec that a user wrote in any of the accepted ways.

    ``{"n": "int64", "text": str, "x": jax.ShapeDtypeStruct((3,), "float32"), "nothing": None}`` is read as ``{"n":
    ArraySpec(int64), "text": ArraySpec(str), "x": ArraySpec(float32, (3,)), "nothing": None}``.

    Args:
        spec: the structure of an element. A leaf is a leaf spec; a dtype, the name of one, or a Python type; anything
            that has ``shape`` and ``dtype``, such as ``tf.TensorSpec``; or None for a value that is always None.
    """
    return map_structure(spec, _declared_leaf)


def _declared_leaf(path: str, value: Any) -> LeafSpec | None:
    if value is None or isinstance(value, LeafSpec):
        return value
    try:
        if not isinstance(value, (np.dtype, type)) and hasattr(value, "shape") and hasattr(value, "dtype"):
            dtype = getattr(value.dtype, "as_numpy_dtype", value.dtype)
            return ArraySpec(bytes if dtype in (object, np.object_) else dtype, tuple(value.shape))
        return ArraySpec(value)
    except CacheLayerError as error:
        raise InvalidArgumentError(f"element_spec{path}: {error}") from error


def overlaid(declared: Tree | None, inferred: Tree) -> Tree:
    """Return an inferred spec with the leaves that a user declares in place of its own.

    A declared spec that has all keys keeps their order. ``{"b": str}``, declared for elements of which ``{"a":
    ArraySpec(int64), "b": ArraySpec(bytes)}`` was inferred, changes ``"b"`` alone.
    """
    return inferred if declared is None else _over(declared, inferred)


def _over(declared: Tree, inferred: Tree) -> Tree:
    if isinstance(declared, dict) and isinstance(inferred, dict):
        keys = declared if inferred.keys() <= declared.keys() else {**inferred, **declared}
        spec = {key: _over(declared[key], inferred.get(key)) if key in declared else inferred[key] for key in keys}
        return NullableDict(spec) if isinstance(declared, NullableDict) or isinstance(inferred, NullableDict) else spec
    if isinstance(declared, (tuple, list)) and isinstance(inferred, (tuple, list)) and len(declared) == len(inferred):
        parts = list(map(_over, declared, inferred))
        return type(declared)(*parts) if tree.is_namedtuple(declared) else type(declared)(parts)
    return declared


def may_lack_keys(spec: Tree) -> bool:
    """Return whether a declared spec has dicts, which may lack keys that the elements have."""
    return isinstance(spec, dict) or (isinstance(spec, (tuple, list)) and any(map(may_lack_keys, spec)))


def common_spec(specs: Sequence[tuple[str, Tree]]) -> Tree:
    """Return the spec that fits the elements of several datasets.

    Args:
        specs: the name of each dataset, and its spec; at least one.

    Raises:
        InvalidArgumentError: if the specs differ in more than what may be None.
    """
    (first, common), *others = specs
    for name, spec in others:
        common = _common(first, common, name, spec)
    return common


def _common(first: str, common: Tree, name: str, spec: Tree) -> Tree:
    """Return the spec that fits the elements of two specs, and of nulls in either.

    Args:
        first: the name of the first dataset, for errors.
        common: the common spec of it and of others.
        name: the name of the further dataset.
        spec: its spec.
    """
    common_leaves = dict(leaves(common))
    leaves_of_spec = dict(leaves(spec))
    if list(common_leaves) != list(leaves_of_spec) or _skeleton(common) != _skeleton(spec):
        raise InvalidArgumentError(
            f"elements of {first} are {describe(common)} with leaves {_paths(common_leaves)}, those of {name} are "
            f"{describe(spec)} with leaves {_paths(leaves_of_spec)}: {_BUILD_ALIKE}"
        )
    for path, leaf in common_leaves.items():
        other = leaves_of_spec[path]
        if leaf.without_nulls() != other.without_nulls():
            where = tree.leaf_title(path)
            raise InvalidArgumentError(f"{where} is {leaf!r} in {first} and {other!r} in {name}: {_BUILD_ALIKE}")
    return marked(common, marks(spec))


def _skeleton(spec: Tree) -> Tree:
    """Return the structure of a spec, whatever may be None: False for each leaf, True for what is always None."""
    if isinstance(spec, LeafSpec) or spec is None:
        return spec is None
    if isinstance(spec, dict):
        return {key: _skeleton(child) for key, child in spec.items()}
    parts = [_skeleton(child) for _, child in children(spec)]
    return type(spec)(*parts) if tree.is_namedtuple(spec) else type(spec)(parts)


def _paths(paths: Iterable[str]) -> str:
    return ", ".join(path or "(itself)" for path in paths) or "(none)"
