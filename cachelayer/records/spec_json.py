"""Element specs as JSON, the form in which a manifest holds them.

A dict is a list of pairs, because the order of its keys is part of a spec, and JSON objects have no order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cachelayer.errors import CacheLayerError, FormatError, InvalidArgumentError
from cachelayer.records import dtypes
from cachelayer.records.spec import ArraySpec, AudioSpec, EncodedSpec, ImageSpec, LeafSpec, RaggedSpec, SparseSpec
from cachelayer.records.tree import Tree, is_namedtuple, namedtuple_class

_LEAF_KEYS = frozenset({"kind", "dtype", "shape", "nullable"})
_KEYS = {
    "none": frozenset({"kind"}),
    "array": _LEAF_KEYS,
    "ragged": _LEAF_KEYS | {"ragged_rank", "splits_dtype"},
    "sparse": _LEAF_KEYS,
    "image": frozenset({"kind", "mode", "nullable"}),
    "audio": frozenset({"kind", "sampling_rate", "channels", "nullable"}),
    "dict": frozenset({"kind", "items"}),
    "tuple": frozenset({"kind", "items"}),
    "list": frozenset({"kind", "items"}),
    "namedtuple": frozenset({"kind", "name", "items"}),
}
_LEAF_KINDS: dict[str, type[LeafSpec]] = {"array": ArraySpec, "ragged": RaggedSpec, "sparse": SparseSpec}
_ENCODED_KINDS: dict[str, type[EncodedSpec]] = {"image": ImageSpec, "audio": AudioSpec}
_DEEPEST = 100
"""The most levels of structure, because the functions that read specs are recursive."""
_MOST_DIMENSIONS = 64
_MOST_DIMENSION = 2**63 - 1
_MOST_NBYTES = 2**32
"""The size that a static leaf must stay below, because every record does."""
_MALFORMED = (CacheLayerError, LookupError, OverflowError, RecursionError, TypeError, ValueError)


def to_json(spec: Tree) -> Any:
    return _to_json(spec, 0)


def _to_json(spec: Tree, depth: int) -> Any:
    if depth > _DEEPEST:
        raise InvalidArgumentError(f"elements are nested deeper than {_DEEPEST} levels: make them flatter")
    if spec is None:
        return {"kind": "none"}
    if isinstance(spec, EncodedSpec):
        kind = next(name for name, cls in _ENCODED_KINDS.items() if type(spec) is cls)
        return {"kind": kind} | spec.options | ({"nullable": True} if spec.nullable else {})
    if isinstance(spec, LeafSpec):
        kind = next(name for name, cls in _LEAF_KINDS.items() if type(spec) is cls)
        node: dict[str, Any] = {"kind": kind, "dtype": dtypes.to_name(spec.dtype), "shape": list(spec.shape)}
        if isinstance(spec, RaggedSpec):
            node |= {"ragged_rank": spec.ragged_rank, "splits_dtype": spec.splits_dtype.name}
        return node | ({"nullable": True} if spec.nullable else {})
    if isinstance(spec, dict):
        return {"kind": "dict", "items": [[key, _to_json(child, depth + 1)] for key, child in spec.items()]}
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
        raise FormatError(f"not an element spec: {repr(error)[:300]}") from error


def _from_json(node: Any, depth: int) -> Tree:
    if depth > _DEEPEST:
        raise FormatError(f"an element spec is nested deeper than {_DEEPEST} levels")
    if not isinstance(node, dict):
        raise FormatError(f"not an element spec: expected an object, got a {type(node).__name__}")
    kind = node["kind"]
    unknown = node.keys() - _KEYS.get(kind, node.keys())
    if unknown:
        raise FormatError(f"unknown {sorted(unknown)} in an element spec: it may need a newer release of cachelayer")
    if kind == "none":
        return None
    if kind in _LEAF_KINDS:
        options: dict[str, Any] = {"dtype": dtypes.from_name(_text(node["dtype"])), "shape": _shape(node["shape"])}
        if kind == "ragged":
            options |= {"ragged_rank": _count(node["ragged_rank"]), "splits_dtype": _text(node["splits_dtype"])}
        return _checked(_LEAF_KINDS[kind](**options, nullable=_flag(node.get("nullable", False))))
    if kind in _ENCODED_KINDS:
        decoding = {key: node[key] for key in _KEYS[kind] - {"kind", "nullable"}}
        return _ENCODED_KINDS[kind](**decoding, nullable=_flag(node.get("nullable", False)))
    if kind == "dict":
        children = {_text(key): _from_json(child, depth + 1) for key, child in _pairs(node["items"])}
        if len(children) != len(node["items"]):
            raise FormatError("a dict of an element spec holds a key twice")
        return children
    if kind == "namedtuple":
        pairs = _pairs(node["items"])
        cls = namedtuple_class(_text(node["name"]), tuple(_text(field) for field, _ in pairs))
        return cls(*[_from_json(child, depth + 1) for _, child in pairs])
    if kind in ("tuple", "list"):
        values = [_from_json(child, depth + 1) for child in _list(node["items"])]
        return tuple(values) if kind == "tuple" else values
    raise FormatError(f"unknown kind {kind!r} in an element spec: it may need a newer release of cachelayer")


def _checked(leaf: LeafSpec) -> LeafSpec:
    """Return the leaf; raise if no record can hold it."""
    if leaf.is_static and isinstance(leaf.dtype, np.dtype):
        nbytes = leaf.dtype.itemsize * math.prod(dim for dim in leaf.shape if dim is not None)
        if nbytes >= _MOST_NBYTES:
            raise FormatError(
                f"a leaf of {nbytes} bytes in an element spec: a record has less than {_MOST_NBYTES} bytes"
            )
    return leaf


def _shape(dims: Any) -> tuple[int | None, ...]:
    shape = tuple(None if dim is None else _count(dim) for dim in _list(dims))
    if len(shape) > _MOST_DIMENSIONS:
        raise FormatError(
            f"a leaf of {len(shape)} dimensions in an element spec: at most {_MOST_DIMENSIONS} are allowed"
        )
    return shape


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MOST_DIMENSION:
        raise FormatError(f"{str(value)[:80]} in an element spec is not a dimension")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise FormatError(f"expected a list in an element spec, got a {type(value).__name__}")
    return value


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    pairs = [tuple(_list(pair)) for pair in _list(value)]
    if any(len(pair) != 2 for pair in pairs):
        raise FormatError("expected pairs as items in an element spec, got lists of other lengths")
    return [(key, child) for key, child in pairs]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise FormatError(f"expected a string in an element spec, got a {type(value).__name__}")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise FormatError(f"{value!r} in an element spec is neither true nor false")
    return value
