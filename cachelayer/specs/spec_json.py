"""Element specs as JSON, as manifests hold them.

A dict is a list of pairs, because the order of its keys is part of a spec, and JSON objects have no order::

    {"image": ImageSpec("L")}   {"kind": "dict", "items": [["image", {"kind": "image", "mode": "L"}]]}
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from cachelayer.errors import CacheLayerError, FormatError, InvalidArgumentError
from cachelayer.specs import dtypes
from cachelayer.specs.spec import (
    ArraySpec,
    AudioSpec,
    EncodedSpec,
    ImageSpec,
    JsonSpec,
    LeafSpec,
    NullableDict,
    RaggedSpec,
    SparseSpec,
    VideoSpec,
    options_of,
)
from cachelayer.specs.tree import Tree, is_namedtuple, namedtuple_class
from cachelayer.support.json_values import DEEPEST, flag, items, mapping, text
from cachelayer.support.memory import LEAF_NBYTES

_MOST_DIMENSIONS = 64
_TEXT_NBYTES = 4
"""Bytes that a text or bytes value takes at least: its length."""
_MALFORMED = (CacheLayerError, LookupError, OverflowError, RecursionError, TypeError, ValueError)


def to_json(spec: Tree) -> Any:
    return _to_json(spec, 0)


def _to_json(spec: Tree, depth: int) -> Any:
    if depth > DEEPEST:
        raise InvalidArgumentError(f"elements are nested deeper than {DEEPEST} levels: make them flatter")
    if spec is None:
        return {"kind": "none"}
    if isinstance(spec, LeafSpec):
        _check_size(spec)
        node: dict[str, Any] = {"kind": _LEAVES[type(spec)][0]}
        if isinstance(spec, EncodedSpec):
            node |= options_of(spec)
        elif not isinstance(spec, JsonSpec):
            node |= {"dtype": dtypes.to_name(spec.dtype), "shape": list(spec.shape)}
            node |= {} if spec.timezone is None else {"timezone": spec.timezone}
        if isinstance(spec, RaggedSpec):
            node |= {"ragged_rank": spec.ragged_rank, "splits_dtype": spec.splits_dtype.name}
        return node | {name: True for name in ("nullable", "nullable_values") if getattr(spec, name)}
    if isinstance(spec, dict):
        pairs = [[key, _to_json(child, depth + 1)] for key, child in spec.items()]
        return {"kind": "dict", "items": pairs} | ({"nullable": True} if isinstance(spec, NullableDict) else {})
    if is_namedtuple(spec):
        fields = [[field, _to_json(child, depth + 1)] for field, child in zip(spec._fields, spec, strict=True)]
        return {"kind": "namedtuple", "name": type(spec).__name__, "items": fields}
    return {"kind": type(spec).__name__, "items": [_to_json(child, depth + 1) for child in spec]}


def from_json(node: Any) -> Tree:
    """Return the spec of JSON values."""
    try:
        return _from_json(node, 0)
    except FormatError:
        raise
    except _MALFORMED as error:
        raise FormatError(
            f"not an element spec that this release reads: {repr(error)[:300]}: if a newer release wrote it, update "
            "cachelayer"
        ) from error


def _from_json(node: Any, depth: int) -> Tree:
    if depth > DEEPEST:
        raise FormatError(f"an element spec is nested deeper than {DEEPEST} levels")
    kind = mapping("a part of it", node)["kind"]
    if kind not in _KINDS:
        raise FormatError(f"unknown kind {kind!r} in an element spec: if a newer release wrote it, update cachelayer")
    needed, optional, read = _KINDS[kind]
    unknown = node.keys() - needed - optional - {"kind"}
    if unknown:
        raise FormatError(
            f"unknown {sorted(unknown)} in an element spec: if a newer release wrote it, update cachelayer"
        )
    facts = {name: node[name] for name in (*needed, *(optional & node.keys()))}
    return read(facts, depth + 1)


def _leaf(cls: type[LeafSpec], facts: dict[str, Any], _: int) -> LeafSpec:
    """Return a leaf spec, whose class checks its arguments."""
    if "shape" in facts:
        dimensions = len(items("shape", facts["shape"]))
        if dimensions > _MOST_DIMENSIONS:
            raise FormatError(
                f"a leaf of {dimensions} dimensions in an element spec: at most {_MOST_DIMENSIONS} are allowed"
            )
        facts["dtype"] = dtypes.from_name(facts["dtype"])
    leaf = cls(**facts)
    _check_size(leaf)
    return leaf


def _check_size(spec: LeafSpec) -> None:
    """Raise for a leaf whose known dimensions are more than a record can hold: readers would make arrays of them."""
    if isinstance(spec, SparseSpec):
        return
    itemsize = spec.dtype.itemsize if isinstance(spec.dtype, np.dtype) else _TEXT_NBYTES
    # Arrays with a dimension of 0 have no bytes, and still may not have all others that large.
    nbytes = itemsize * math.prod(dim for dim in spec.shape if dim)
    if nbytes >= LEAF_NBYTES:
        raise InvalidArgumentError(
            f"a leaf of {nbytes} bytes in an element spec: a record has less than {LEAF_NBYTES} bytes"
        )


def _named(facts: dict[str, Any], depth: int) -> dict[str, Tree]:
    """Return the children of a dict or a namedtuple, by name."""
    pairs = [items("an item", pair) for pair in items("items", facts["items"])]
    children = {text("a key", key): _from_json(child, depth) for key, child in pairs}
    if len(children) != len(pairs):
        raise FormatError("a dict or a namedtuple of an element spec holds a key twice")
    return children


def _dict(facts: dict[str, Any], depth: int) -> dict[str, Tree]:
    children = _named(facts, depth)
    return NullableDict(children) if flag("nullable", facts.get("nullable", False)) else children


def _namedtuple(facts: dict[str, Any], depth: int) -> Tree:
    children = _named(facts, depth)
    return namedtuple_class(text("name", facts["name"]), tuple(children))(*children.values())


def _list(facts: dict[str, Any], depth: int) -> list[Tree]:
    return [_from_json(child, depth) for child in items("items", facts["items"])]


def _tuple(facts: dict[str, Any], depth: int) -> tuple[Tree, ...]:
    return tuple(_list(facts, depth))


_NONE: frozenset[str] = frozenset()
_ITEMS = frozenset({"items"})
_NULLABLE = frozenset({"nullable"})
_ARRAY = frozenset({"dtype", "shape"})
_OF_ARRAY = frozenset({"nullable", "nullable_values", "timezone"})
_LEAVES: dict[type[LeafSpec], tuple[str, frozenset[str], frozenset[str]]] = {
    ArraySpec: ("array", _ARRAY, _OF_ARRAY),
    RaggedSpec: ("ragged", _ARRAY | {"ragged_rank", "splits_dtype"}, _OF_ARRAY),
    SparseSpec: ("sparse", _ARRAY, _OF_ARRAY),
    ImageSpec: ("image", frozenset({"mode"}), frozenset({"upright", "nullable"})),
    AudioSpec: ("audio", frozenset({"sampling_rate", "channels"}), _NULLABLE),
    VideoSpec: ("video", _NONE, _NULLABLE),
    JsonSpec: ("json", _NONE, _NONE),
}
"""The kind of each class of leaves, and the arguments that its nodes have, and may have."""
_Read = Callable[[dict[str, Any], int], Tree]
_KINDS: dict[str, tuple[frozenset[str], frozenset[str], _Read]] = {
    "none": (_NONE, _NONE, lambda _, __: None),
    "dict": (_ITEMS, _NULLABLE, _dict),
    "namedtuple": (_ITEMS | {"name"}, _NONE, _namedtuple),
    "list": (_ITEMS, _NONE, _list),
    "tuple": (_ITEMS, _NONE, _tuple),
    **{kind: (needed, optional, partial(_leaf, cls)) for cls, (kind, needed, optional) in _LEAVES.items()},
}
"""For each kind, the keys that a node has and may have besides ``kind``, and the function that reads them."""
