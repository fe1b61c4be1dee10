"""Trees: nested dicts, tuples, lists and namedtuples.

An element spec is a tree whose leaves are :class:`cachelayer.specs.spec.LeafSpec`; a None in it stands for a value
that is always None::

    spec             {"image": ImageSpec(), "meta": NullableDict(url=ArraySpec(str))}
    leaves(spec)     [("['image']", ImageSpec()), ("['meta']['url']", ArraySpec(str))]
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

from cachelayer.errors import ElementError, InvalidArgumentError, InvalidTypeError
from cachelayer.specs.spec import LeafSpec, NullableDict, describe_leaf
from cachelayer.specs.values import BadValue

Tree = Any
LISTED = 12
"""How many names a message lists."""
_BUILTINS = frozenset({bool, int, float, complex, str, bytes, type(None)})


def builtin(value: Any) -> Any:
    """Return an instance of a subclass of Python's own types as an instance of the type itself.

    A member of a ``(str, Enum)`` is a text, though ``str()`` of it may be another text. Other values stay as they are.
    """
    if type(value) in _BUILTINS:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes):
        return bytes(memoryview(value))
    if isinstance(value, np.generic):
        return value
    numbers: tuple[Any, ...] = (int, float, complex)
    for kind in numbers:
        if isinstance(value, kind):
            return kind.__pos__(value)
    return value


def is_namedtuple(value: Any) -> bool:
    """Return whether the class of a value was made by ``collections.namedtuple`` or ``typing.NamedTuple``."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


@cache
def namedtuple_class(name: str, fields: tuple[str, ...]) -> type:
    """Return a namedtuple class that can be pickled: the same class for the same arguments."""
    try:
        base = namedtuple(name, fields)  # type: ignore[misc]
    except ValueError as error:
        raise InvalidArgumentError(f"{name!r} with fields {list(fields)} is not a valid namedtuple: {error}") from error

    def reduce(self: Any) -> tuple[Any, ...]:
        return _rebuild_namedtuple, (name, fields, tuple(self))

    return type(name, (base,), {"__slots__": (), "__reduce__": reduce, "__module__": __name__})


def _rebuild_namedtuple(name: str, fields: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return namedtuple_class(name, fields)(*values)


def leaves(spec: Tree) -> list[tuple[str, LeafSpec]]:
    """Return the leaves of an element spec with their paths, depth first."""
    if isinstance(spec, LeafSpec):
        return [("", spec)]
    return [(step + path, leaf) for step, child in children(spec) for path, leaf in leaves(child)]


def children(node: Tree) -> Iterator[tuple[str, Any]]:
    """Yield the step to each child of a node, such as ``['image']`` or ``[0]`` or ``.field``, and the child."""
    if node is None:
        return
    if isinstance(node, Mapping):
        for key, child in node.items():
            yield f"[{builtin(key)!r}]", child
    elif is_namedtuple(node):
        for field, child in zip(node._fields, node, strict=True):
            yield f".{field}", child
    elif isinstance(node, (tuple, list)):
        for index, child in enumerate(node):
            yield f"[{index}]", child
    else:
        raise InvalidTypeError(f"{type(node).__name__} is not part of an element spec")


def map_structure(tree: Tree, leaf: Callable[[str, Any], Any], path: str = "") -> Tree:
    """Return the tree with ``leaf(path, value)`` in place of each leaf.

    Everything but a dict, tuple, list or namedtuple is a leaf, also None. A namedtuple becomes one of the same name
    that can be pickled.
    """
    if isinstance(tree, Mapping):
        fields: dict[str, Any] = NullableDict() if type(tree) is NullableDict else {}
        for key, child in tree.items():
            name = key if type(key) is str else key_name(key, path)
            fields[name] = map_structure(child, leaf, f"{path}[{name!r}]")
        return fields
    if is_namedtuple(tree):
        cls = namedtuple_class(type(tree).__name__, tuple(tree._fields))
        return cls(*(map_structure(child, leaf, path + step) for step, child in children(tree)))
    if isinstance(tree, (tuple, list)):
        mapped = [map_structure(child, leaf, path + step) for step, child in children(tree)]
        return tuple(mapped) if isinstance(tree, tuple) else mapped
    return leaf(path, tree)


def key_name(key: Any, path: str) -> str:
    """Return a key of a dict as a str."""
    if not isinstance(key, str):
        raise ElementError("str keys", f"key {key!r} of type {type(key).__name__}", path=path)
    return str(builtin(key))


def leaf_title(path: str, whole: str = "the element") -> str:
    """Return the name in errors of the leaf at a path; ``whole`` for the empty path of an element that is a leaf."""
    return f"leaf {path}" if path else whole


def leaf_values(value: Tree) -> list[tuple[str, Any]]:
    """Return the leaves of any tree with their paths; None is a leaf too."""
    pairs: list[tuple[str, Any]] = []
    map_structure(value, lambda path, leaf: pairs.append((path, leaf)))
    return pairs


def structure_error(spec: Tree, value: Any) -> ElementError:
    """Return the error of a value whose structure is not that of a spec."""
    got = describe(value)
    if isinstance(spec, dict) and isinstance(value, Mapping):
        missing = [name for name in spec if name not in value]
        others = [name for name in value if name not in spec]
        lacks = [f"lacks {listed(missing)}"] if missing else []
        has = [f"has {listed(others)} besides"] if others else []
        got = f"a dict that {' and '.join(lacks + has)}"
    return ElementError(describe(spec), got, hint=_structure_hint(spec, value))


def _structure_hint(spec: Tree, value: Any) -> str:
    if isinstance(spec, dict) and isinstance(value, Mapping) and value.keys() < spec.keys():
        return (
            "A key may be missing if its leaf is declared nullable in element_spec=, as ArraySpec(..., nullable=True)."
        )
    if isinstance(spec, dict) and isinstance(value, (list, tuple)) and not is_namedtuple(value):
        return "Dicts in a list have the same keys, and are never None: else declare JsonSpec() in element_spec=."
    if isinstance(spec, list) and isinstance(value, list):
        return (
            "Lists of other things than numbers or texts of one kind are structure: for arrays of any length declare "
            "ArraySpec(dtype, (None,)) in element_spec=."
        )
    if isinstance(spec, (dict, list)) and isinstance(value, (Mapping, str, int, float)):
        return "If its structure differs from element to element, declare JsonSpec() in element_spec=."
    return ""


def describe(value: Any) -> str:
    """Return the structure of a value as text for an error message, such as ``a dict with keys 'a', 'b'``."""
    if isinstance(value, LeafSpec):
        return describe_leaf(value)
    if isinstance(value, Mapping):
        return f"a dict with keys {listed(value)}"
    if is_namedtuple(value):
        return f"a {type(value).__name__} with fields {listed(value._fields)}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    # Some objects of frameworks, such as nested tensors, fail when they are asked.
    with suppress(Exception):
        return f"{value.dtype}{list(value.shape)}"
    text = " ".join(repr(value).split())
    if isinstance(value, BadValue):
        return text
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def listed(names: Iterable[Any]) -> str:
    """Return names for a message, of which only the first are shown if there are many."""
    shown = [repr(name) for name in names]
    return ", ".join(shown[:LISTED] + ["..."] * (len(shown) > LISTED)) or "none"
