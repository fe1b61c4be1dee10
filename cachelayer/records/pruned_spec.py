"""Choose some of the leaves of elements, by the names of fields such as ``"meta/url"``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.records import tree
from cachelayer.records.spec import LeafSpec
from cachelayer.records.tree import Tree


def field_names(fields: Any) -> tuple[str, ...]:
    """Return the names of the fields that a user lists, sorted: their order means nothing.

    Raises:
        InvalidArgumentError, InvalidTypeError: if it is not a list of names, or is empty.
    """
    if isinstance(fields, str) or not isinstance(fields, Sequence):
        raise InvalidTypeError(f"fields={fields!r}: pass a list of names, such as ['image', 'meta/url']")
    for name in fields:
        if not isinstance(name, str):
            raise InvalidTypeError(f"fields={fields!r} holds {name!r}: pass names, such as 'image' or 'meta/url'")
    if not fields:
        raise InvalidArgumentError("fields=[] leaves nothing of the records: name one field or more, or leave it out")
    return tuple(sorted(set(fields)))


def pruned(spec: Tree, fields: Sequence[str]) -> tuple[Tree, list[int]]:
    """Return the spec of elements that have only some fields, and the numbers of the leaves that they keep.

    Args:
        spec: the element spec.
        fields: keys of the element, or of dicts within it: ``"meta/url"`` is ``url`` in the dict ``meta``. A field that
            is not a leaf is kept whole. The kept fields stay in the order of the spec.

    Raises:
        InvalidArgumentError: if there is no such field; the message names those that exist.
    """
    for name in fields:
        if not _has(spec, name):
            raise InvalidArgumentError(f"no field {name!r}: the element is {_described(spec)}")
    kept: list[int] = []
    return _pruned(spec, list(fields), [0], kept), kept


def _has(spec: Tree, name: str) -> bool:
    if not isinstance(spec, dict):
        return False
    return name in spec or any(_has(child, rest) for key, child in spec.items() if (rest := _below(key, name)))


def _below(key: str, name: str) -> str:
    """Return the rest of a field's name below a key; empty if it is not below it."""
    return name[len(key) + 1 :] if name.startswith(f"{key}/") else ""


def _pruned(spec: Tree, names: Sequence[str], next_leaf: list[int], kept: list[int]) -> Tree:
    found = {}
    for key, child in spec.items():
        below = [rest for name in names if (rest := _below(key, name)) and _has(child, rest)]
        first, count = next_leaf[0], len(tree.leaves(child))
        if key in names:
            found[key] = child
            kept.extend(range(first, first + count))
        elif below:
            found[key] = _pruned(child, below, next_leaf, kept)
        next_leaf[0] = first + count
    return found


def _described(spec: Tree) -> str:
    if isinstance(spec, LeafSpec):
        return "a single value, which has no fields"
    return tree.describe(spec)
