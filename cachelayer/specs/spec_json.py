"""Element specs as JSON, as manifests hold them.

A dict is a list of pairs, because the order of its keys is part of a spec, and JSON objects have no order::

    {"image": ImageSpec("L")}   {"kind": "dict", "items": [["image", {"kind": "image", "mode": "L"}]]}
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
from cachelayer.support.json_values import DEEPEST, flag, integer, items, mapping, text
from cachelayer.support.memory import LEAF_NBYTES

_LEAF_KINDS: dict[type[LeafSpec], str] = {
    ArraySpec: "array",
    RaggedSpec: "ragged",
    SparseSpec: "sparse",
    ImageSpec: "image",
    AudioSpec: "audio",
    VideoSpec: "video",
    JsonSpec: "json",
}
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
        if isinstance(spec, (ArraySpec, RaggedSpec)):
            _check_size(spec)
        node: dict[str, Any] = {"kind": _LEAF_KINDS[type(spec)]}
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
    keys, read = _KINDS[kind]
    unknown = node.keys() - keys - {"kind"}
    if unknown:
        raise FormatError(
            f"unknown {sorted(unknown)} in an element spec: if a newer release wrote it, update cachelayer"
        )
    return read(node, depth + 1)


def _array(node: dict[str, Any], _: int) -> LeafSpec:
    spec = ArraySpec(**_leaf(node))
    _check_size(spec)
    return spec


def _ragged(node: dict[str, Any], _: int) -> LeafSpec:
    spec = RaggedSpec(
        **_leaf(node),
        ragged_rank=integer("ragged_rank", node["ragged_rank"]),
        splits_dtype=text("splits_dtype", node["splits_dtype"]),
    )
    _check_size(spec)
    return spec


def _check_size(spec: LeafSpec) -> None:
    """Raise for a leaf whose known dimensions are more than a record can hold: readers would make arrays of them."""
    itemsize = spec.dtype.itemsize if isinstance(spec.dtype, np.dtype) else _TEXT_NBYTES
    # Arrays with a dimension of 0 have no bytes, and still may not have all others that large.
    nbytes = itemsize * math.prod(dim for dim in spec.shape if dim)
    if nbytes >= LEAF_NBYTES:
        raise InvalidArgumentError(
            f"a leaf of {nbytes} bytes in an element spec: a record has less than {LEAF_NBYTES} bytes"
        )


def _sparse(node: dict[str, Any], _: int) -> LeafSpec:
    return SparseSpec(**_leaf(node))


def _leaf(node: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a leaf spec that arrays of all kinds have."""
    shape = [None if dim is None else integer("a dimension", dim) for dim in items("shape", node["shape"])]
    if len(shape) > _MOST_DIMENSIONS:
        raise FormatError(
            f"a leaf of {len(shape)} dimensions in an element spec: at most {_MOST_DIMENSIONS} are allowed"
        )
    dtype = dtypes.from_name(text("dtype", node["dtype"]))
    flags = {name: flag(name, node.get(name, False)) for name in ("nullable", "nullable_values")}
    zone = {"timezone": text("timezone", node["timezone"])} if "timezone" in node else {}
    return {"dtype": dtype, "shape": shape, **flags, **zone}


def _image(node: dict[str, Any], _: int) -> LeafSpec:
    upright = flag("upright", node.get("upright", True))
    return ImageSpec(node["mode"], upright, nullable=flag("nullable", node.get("nullable", False)))


def _audio(node: dict[str, Any], _: int) -> LeafSpec:
    nullable = flag("nullable", node.get("nullable", False))
    return AudioSpec(node["sampling_rate"], node["channels"], nullable=nullable)


def _video(node: dict[str, Any], _: int) -> LeafSpec:
    return VideoSpec(nullable=flag("nullable", node.get("nullable", False)))


def _named(node: dict[str, Any], depth: int) -> dict[str, Tree]:
    """Return the children of a dict or a namedtuple, by name."""
    pairs = [items("an item", pair) for pair in items("items", node["items"])]
    children = {text("a key", key): _from_json(child, depth) for key, child in pairs}
    if len(children) != len(pairs):
        raise FormatError(f"a {node['kind']} of an element spec holds a key twice")
    return children


def _dict(node: dict[str, Any], depth: int) -> dict[str, Tree]:
    children = _named(node, depth)
    return NullableDict(children) if flag("nullable", node.get("nullable", False)) else children


def _namedtuple(node: dict[str, Any], depth: int) -> Tree:
    children = _named(node, depth)
    return namedtuple_class(text("name", node["name"]), tuple(children))(*children.values())


def _list(node: dict[str, Any], depth: int) -> list[Tree]:
    return [_from_json(child, depth) for child in items("items", node["items"])]


def _tuple(node: dict[str, Any], depth: int) -> tuple[Tree, ...]:
    return tuple(_list(node, depth))


_ARRAY_KEYS = frozenset({"dtype", "shape", "nullable", "nullable_values", "timezone"})
_KINDS: dict[str, tuple[frozenset[str], Callable[[dict[str, Any], int], Tree]]] = {
    "none": (frozenset(), lambda _, __: None),
    "array": (_ARRAY_KEYS, _array),
    "ragged": (_ARRAY_KEYS | {"ragged_rank", "splits_dtype"}, _ragged),
    "sparse": (_ARRAY_KEYS, _sparse),
    "image": (frozenset({"mode", "upright", "nullable"}), _image),
    "audio": (frozenset({"sampling_rate", "channels", "nullable"}), _audio),
    "video": (frozenset({"nullable"}), _video),
    "json": (frozenset(), lambda _, __: JsonSpec()),
    "dict": (frozenset({"items", "nullable"}), _dict),
    "namedtuple": (frozenset({"name", "items"}), _namedtuple),
    "list": (frozenset({"items"}), _list),
    "tuple": (frozenset({"items"}), _tuple),
}
"""For each kind, the keys that a node may have besides ``kind``, and the function that reads the node."""
