"""Names of fields, such as ``"meta/url"``, and the numbers of the leaves that they name.

Leaves are numbered from 0, depth first. A field is a leaf, or a node with all leaves below it::

    element         {"image": ..., "meta": {"url": ..., "tags": ...}}
    leaf numbers    image 0, meta/url 1, meta/tags 2
    fields          "image": 0    "meta": 1, 2    "meta/url": 1    "meta/tags": 2
"""

from __future__ import annotations

import keyword
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.records import dtypes, tree
from cachelayer.records.spec import ArraySpec, EncodedSpec, LeafSpec, NullableDict, describe_leaf
from cachelayer.records.tree import Tree

UNNAMED = "values"
"""The key of a leaf without a name: that of elements that are one leaf."""


def field_names(fields: Any) -> tuple[str, ...]:
    """Return the names of fields that a user lists, sorted, because their order means nothing."""
    if isinstance(fields, str):
        return (fields,)
    if not isinstance(fields, Sequence):
        raise InvalidTypeError(f"fields={fields!r}: pass a list of names, such as ['image', 'meta/url']")
    for name in fields:
        if not isinstance(name, str):
            raise InvalidTypeError(f"fields={fields!r} holds {name!r}: pass names, such as 'image' or 'meta/url'")
    if not fields:
        raise InvalidArgumentError("fields=[] leaves nothing of the records: name one field or more, or leave it out")
    return tuple(sorted(set(fields)))


def one_or_several(argument: str, names: Any) -> tuple[str, ...]:
    """Return the names of fields that a user passed as an argument: one name, or a list of different names."""
    listed = (names,) if isinstance(names, str) else names
    if not isinstance(listed, Sequence) or not all(isinstance(name, str) for name in listed):
        raise InvalidTypeError(f"{argument}={names!r}: pass the name of a field, or a list of names")
    if not listed or len(set(listed)) < len(listed):
        raise InvalidArgumentError(f"{argument}={names!r}: name one field or more, each once")
    return tuple(listed)


def leaf_number(spec: Tree, name: Any) -> int:
    """Return the number of the leaf of this name; raise if no leaf, or more than one, has it."""
    leaves = _leaves_of(spec, name)
    if len(leaves) == 1 and name in names_of_leaves(spec):
        return leaves[0]
    raise InvalidArgumentError(f"{name!r} is not a field of the elements: {_listed(spec)}")


def varying_leaves(spec: Tree) -> list[int]:
    """Return the numbers of the leaves that have lengths: arrays of shape ``[None]``, single ``bytes`` and ``str``.

    The length of an array is the number of its values. The length of a string is the number of its bytes, in UTF-8 for
    ``str``; images and sounds are strings of bytes too. None has the length 0.
    """
    return [number for number, (_, leaf) in enumerate(tree.leaves(spec)) if _has_length(leaf)]


def varying_leaf(spec: Tree, name: Any) -> int:
    """Return the number of the leaf of this name; raise if it has no lengths."""
    number = leaf_number(spec, name)
    leaf = tree.leaves(spec)[number][1]
    if not _has_length(leaf):
        raise InvalidArgumentError(
            f"{name!r} is {describe_leaf(leaf)}: only arrays of shape [None], bytes and str have lengths"
        )
    return number


def _has_length(leaf: LeafSpec) -> bool:
    if not isinstance(leaf, (ArraySpec, EncodedSpec)):
        return False
    return leaf.shape == (None,) or (leaf.shape == () and dtypes.is_string(leaf.dtype))


def leaf_numbers(spec: Tree, names: Iterable[Any]) -> tuple[int, ...]:
    """Return the numbers of all leaves that these fields have, ascending."""
    chosen = {number for name in names for number in _leaves_of(spec, name)}
    if not chosen:
        raise InvalidArgumentError(f"no fields are named: {_listed(spec)}")
    return tuple(sorted(chosen))


def chosen_spec(spec: Tree, chosen: Collection[int]) -> Tree:
    """Return the spec of elements that have only these leaves."""
    if not isinstance(spec, dict):
        raise InvalidArgumentError(f"fields are keys of dicts, and elements are {tree.describe(spec)}")
    fields: dict[str, Tree] = NullableDict() if isinstance(spec, NullableDict) else {}
    first = 0
    for key, child in spec.items():
        count = len(tree.leaves(child))
        of_child = {number - first for number in chosen if first <= number < first + count}
        first += count
        if of_child and len(of_child) < count and not isinstance(child, dict):
            raise InvalidArgumentError(f"{key!r} is {tree.describe(child)}: name it whole, not some of its items")
        if of_child:
            fields[key] = child if len(of_child) == count else chosen_spec(child, of_child)
    return fields


def _leaves_of(spec: Tree, name: Any) -> range:
    """Return the numbers of the leaves of a field."""
    if not isinstance(name, str):
        raise InvalidTypeError(f"field {name!r} of type {type(name).__name__}: pass a name such as 'tokens' or 'a/b'")
    fields = [leaves for known, leaves in _nodes(spec) if known == name]
    if len(fields) > 1:
        raise InvalidArgumentError(f"{name!r} names {len(fields)} parts of an element: rename a key that holds a '/'")
    if not fields or not fields[0]:
        raise InvalidArgumentError(f"no field {name!r}: {_listed(spec)}")
    return fields[0]


def _nodes(spec: Tree, name: str = "", first: int = 0) -> Iterator[tuple[str, range]]:
    """Yield the name of each field of a spec called ``name``, and the numbers of its leaves from ``first`` on."""
    if isinstance(spec, LeafSpec):
        yield name, range(first, first + 1)
        return
    for step, child in _steps(spec):
        below = f"{name}/{step}" if name else step
        count = len(tree.leaves(child))
        if not isinstance(child, LeafSpec):
            yield below, range(first, first + count)
        yield from _nodes(child, below, first)
        first += count


def _steps(spec: Tree) -> Iterator[tuple[str, Tree]]:
    if isinstance(spec, dict):
        yield from spec.items()
    elif tree.is_namedtuple(spec):
        yield from zip(spec._fields, spec, strict=True)
    elif spec is not None:
        yield from ((str(number), child) for number, child in enumerate(spec))


def last_key(name: str) -> str:
    """Return the last part of the name of a field, which is its key in windows, packs and clips."""
    return name.rpartition("/")[2] or UNNAMED


def in_condition(name: str) -> str:
    """Return the name of a field as users write it in conditions of ``where``: ``meta.url`` for ``meta/url``."""
    is_plain = all(part.isidentifier() and not keyword.iskeyword(part) for part in name.split("/"))
    return name.replace("/", ".") if is_plain else f"`{name}`"


def names_of_leaves(spec: Tree, name: str = "") -> list[str]:
    """Return the names of all leaves, in the order of their numbers; ``name`` is the name of the spec itself."""
    if isinstance(spec, LeafSpec):
        return [name]
    steps = _steps(spec)
    return [leaf for step, child in steps for leaf in names_of_leaves(child, f"{name}/{step}" if name else step)]


def dict_named(spec: Tree, name: str) -> tuple[int, range] | None:
    """Return the depth of the dict of this name, and the numbers of its leaves; None if no dict has this name.

    The depth is how many dicts are around it.
    """
    depth = 0
    first = 0
    path = ""
    while isinstance(spec, dict) and path != name:
        for key, child in spec.items():
            below = f"{path}/{key}" if path else key
            if below == name or name.startswith(f"{below}/"):
                spec = child
                path = below
                depth += 1
                break
            first += len(tree.leaves(child))
        else:
            return None
    count = len(tree.leaves(spec))
    return (depth, range(first, first + count)) if isinstance(spec, dict) and count and path == name else None


def _listed(spec: Tree) -> str:
    names = [repr(name) for name in names_of_leaves(spec)]
    if names == ["''"]:
        return "an element is one field, which has no name"
    return f"the fields are {', '.join(names[:12] + ['...'] * (len(names) > 12)) or 'none'}"
