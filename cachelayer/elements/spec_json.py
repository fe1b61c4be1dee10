"""Element specs as JSON, as they stand in a manifest.

Dicts are lists of pairs, since the order of keys is part of a spec and JSON objects have none.
"""

from __future__ import annotations

from typing import Any

from cachelayer.elements import dtypes
from cachelayer.elements.spec import ArraySpec, AudioSpec, EncodedSpec, ImageSpec, LeafSpec, RaggedSpec, SparseSpec
from cachelayer.elements.tree import Tree, is_namedtuple, namedtuple_class
from cachelayer.errors import CacheLayerError, FormatError

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


def to_json(spec: Tree) -> Any:
    """The spec as JSON values."""
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
        return {"kind": "dict", "items": [[key, to_json(child)] for key, child in spec.items()]}
    if is_namedtuple(spec):
        fields = [[field, to_json(child)] for field, child in zip(spec._fields, spec, strict=True)]
        return {"kind": "namedtuple", "name": type(spec).__name__, "items": fields}
    return {"kind": type(spec).__name__, "items": [to_json(child) for child in spec]}


def from_json(node: Any) -> Tree:
    """The spec of JSON values.

    Raises:
        FormatError: where they are not a spec of this format.
    """
    try:
        return _from_json(node)
    except FormatError:
        raise
    except (CacheLayerError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"not an element spec: {error!r} in {str(node)[:200]}") from error


def _from_json(node: Any) -> Tree:
    kind = node["kind"]
    unknown = node.keys() - _KEYS.get(kind, node.keys())
    if unknown:
        raise FormatError(f"unknown {sorted(unknown)} in an element spec: it may need a newer release of cachelayer")
    if kind == "none":
        return None
    if kind in _LEAF_KINDS:
        options: dict[str, Any] = {"dtype": dtypes.from_name(node["dtype"]), "shape": tuple(node["shape"])}
        if kind == "ragged":
            options |= {"ragged_rank": node["ragged_rank"], "splits_dtype": node["splits_dtype"]}
        return _LEAF_KINDS[kind](**options, nullable=_flag(node.get("nullable", False)))
    if kind in _ENCODED_KINDS:
        said = {key: node[key] for key in _KEYS[kind] - {"kind", "nullable"}}
        return _ENCODED_KINDS[kind](**said, nullable=_flag(node.get("nullable", False)))
    if kind == "dict":
        children = {_key(key): _from_json(child) for key, child in node["items"]}
        if len(children) != len(node["items"]):
            raise FormatError("a dict of an element spec holds a key twice")
        return children
    if kind == "namedtuple":
        cls = namedtuple_class(node["name"], tuple(field for field, _ in node["items"]))
        return cls(*(_from_json(child) for _, child in node["items"]))
    if kind == "tuple":
        return tuple(_from_json(child) for child in node["items"])
    if kind == "list":
        return [_from_json(child) for child in node["items"]]
    raise FormatError(f"unknown kind {kind!r} in an element spec: it may need a newer release of cachelayer")


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise FormatError(f"key {key!r} of an element spec is no str")
    return key


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise FormatError(f"{value!r} in an element spec is neither true nor false")
    return value
