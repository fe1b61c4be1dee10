"""Names of fields, such as ``"meta/url"``, and the numbers of the leaves that they name.

Leaves are numbered from 0, depth first. A field is a leaf, or a node with all leaves below it::

    element         {"image": ..., "meta": {"url": ..., "tags": ...}}
    leaf numbers    image 0, meta/url 1, meta/tags 2
    fields          "image": 0    "meta": 1, 2    "meta/url": 1    "meta/tags": 2
"""

from __future__ import annotations

import keyword
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.specs import dtypes
from cachelayer.specs.schema import Node, Schema
from cachelayer.specs.spec import ArraySpec, EncodedSpec, LeafSpec, describe_leaf
from cachelayer.specs.tree import Tree

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
    [leaves] = _leaves_of(spec, [name])
    if len(leaves) == 1 and name in names_of_leaves(spec):
        return leaves[0]
    raise InvalidArgumentError(f"{name!r} is not a field of the elements: {_listed(spec)}")


def leaf_named(spec: Tree, name: Any) -> LeafSpec:
    """Return the spec of the leaf of this name; raise if no leaf, or more than one, has it."""
    leaf: LeafSpec = Schema.of(spec).leaves[leaf_number(spec, name)].spec
    return leaf


def varying_leaf(spec: Tree, name: Any) -> int:
    """Return the number of the leaf of this name; raise if it has no lengths."""
    leaf = leaf_named(spec, name)
    if not has_length(leaf):
        raise InvalidArgumentError(
            f"{name!r} is {describe_leaf(leaf)}: only arrays of shape [None], bytes and str have lengths"
        )
    return leaf_number(spec, name)


def has_length(leaf: LeafSpec) -> bool:
    """Return whether a leaf has a length: arrays of shape ``[None]``, single ``bytes`` and ``str``.

    The length of an array is the number of its values. The length of a string is the number of its bytes, in UTF-8 for
    ``str``; images and sounds are strings of bytes too. None has the length 0.
    """
    if not isinstance(leaf, (ArraySpec, EncodedSpec)):
        return False
    return leaf.shape == (None,) or (leaf.shape == () and dtypes.is_string(leaf.dtype))


def leaf_numbers(spec: Tree, names: Iterable[Any]) -> tuple[int, ...]:
    """Return the numbers of all leaves that these fields have, ascending."""
    chosen = {number for leaves in _leaves_of(spec, names) for number in leaves}
    if not chosen:
        raise InvalidArgumentError(f"no fields are named: {_listed(spec)}")
    return tuple(sorted(chosen))


def _leaves_of(spec: Tree, names: Iterable[Any]) -> Iterator[range]:
    """Yield the numbers of the leaves of each of some fields."""
    fields = defaultdict[str, list[range]](list)
    for node in Schema.of(spec).root.nodes():
        # The element itself has no name, unless it is a leaf.
        if node.path or not node.children:
            fields[node.name].append(node.leaves)
    for name in names:
        if not isinstance(name, str):
            kind = type(name).__name__
            raise InvalidTypeError(f"field {name!r} of type {kind}: pass a name such as 'tokens' or 'a/b'")
        named = fields.get(name, [])
        if len(named) > 1:
            raise InvalidArgumentError(
                f"{name!r} names {len(named)} parts of an element: rename a key that holds a '/'"
            )
        if not named or not named[0]:
            raise InvalidArgumentError(f"no field {name!r}: {_listed(spec)}")
        yield named[0]


def last_key(name: str) -> str:
    """Return the last part of the name of a field, which is its key in windows, packs and clips."""
    return name.rpartition("/")[2] or UNNAMED


def in_condition(name: str) -> str:
    """Return the name of a field as users write it in conditions of ``where``: ``meta.url`` for ``meta/url``."""
    is_plain = all(part.isidentifier() and not keyword.iskeyword(part) for part in name.split("/"))
    return name.replace("/", ".") if is_plain else f"`{name}`"


def names_of_leaves(spec: Tree) -> list[str]:
    """Return the names of all leaves, in the order of their numbers."""
    return [leaf.name for leaf in Schema.of(spec).leaves]


def dicts_named(spec: Tree, name: str) -> list[Node]:
    """Return the dict of this name, below the element; none if no dict has it."""
    return [node for node in Schema.of(spec).dicts if node.name == name]


def _listed(spec: Tree) -> str:
    names = [repr(name) for name in names_of_leaves(spec)]
    if names == ["''"]:
        return "an element is one field, which has no name"
    return f"the fields are {', '.join(names[:12] + ['...'] * (len(names) > 12)) or 'none'}"
