"""Decide whether a source can be appended to a version: its elements must fit the version's spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cachelayer.errors import InvalidArgumentError
from cachelayer.records import tree
from cachelayer.records.spec import ArraySpec, EncodedSpec, LeafSpec
from cachelayer.records.tree import Tree


def check_fits(name: str, spec: Tree, added: Tree | None) -> None:
    """Raise if a source cannot be appended to a version.

    Args:
        name: the version.
        spec: its spec; a dimension that is None takes any size.
        added: the source's own spec; None if it declares none.

    Raises:
        InvalidArgumentError: with each leaf that differs.
    """
    differences = [] if added is None else _differences(dict(tree.leaves(spec)), dict(tree.leaves(added)))
    if differences:
        raise InvalidArgumentError(
            f"this source cannot be appended to {name}: its elements have another spec: {'; '.join(differences)}. "
            "Convert its elements, or build a new dataset of all records"
        )


def _differences(ours: Mapping[str, LeafSpec], theirs: Mapping[str, LeafSpec]) -> list[str]:
    gone = [f"{_leaf(path)} is missing" for path in ours if path not in theirs]
    new = [f"{_leaf(path)} is {leaf!r} and not in the version" for path, leaf in theirs.items() if path not in ours]
    changed = [
        f"{_leaf(path)} is {theirs[path]!r}, in the version {leaf!r}"
        for path, leaf in ours.items()
        if path in theirs and not _fits(leaf, theirs[path])
    ]
    return [*gone, *new, *changed]


def _leaf(path: str) -> str:
    return f"leaf {path}" if path else "the element"


def _fits(ours: LeafSpec, theirs: LeafSpec) -> bool:
    """Return whether elements of their spec can be stored under ours; unknown dimensions are checked later."""
    if isinstance(ours, EncodedSpec) and isinstance(theirs, ArraySpec):
        return theirs.dtype is bytes
    if type(ours) is not type(theirs) or len(ours.shape) != len(theirs.shape):
        return False
    if isinstance(ours, EncodedSpec):
        return ours.as_nullable() == theirs.as_nullable()
    dims = zip(ours.shape, theirs.shape, strict=True)
    return all(mine is None or dim is None or mine == dim for mine, dim in dims) and ours == replace(
        theirs, shape=ours.shape, nullable=ours.nullable
    )
