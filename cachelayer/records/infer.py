"""Element specs from what a user declares, from the first elements, and from what several datasets share.

::

    elements                                          spec
    {"n": 1, "word": "a"}                             {"n": ArraySpec(int64), "word": ArraySpec(str)}
    {"n": 1}, {"n": 2.5}                              {"n": ArraySpec(float64)}
    {"ids": [1, 2]}, {"ids": [3]}                     {"ids": ArraySpec(int64, (None,))}
    {"boxes": [[1, 2], []]}                           {"boxes": RaggedSpec(int64, (None, None))}
    {"x": zeros((2, 3))}, {"x": zeros((5, 3))}        {"x": ArraySpec(float64, (None, 3))}
    {"turns": [{"text": "a"}, {"text": "b"}]}         {"turns": {"text": ArraySpec(str, (None,))}}
    {"a": 1, "b": 2}, {"a": 3}                        {"a": ArraySpec(int64), "b": ArraySpec(int64, nullable=True)}
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import numpy as np

from cachelayer.errors import CacheLayerError, ElementError, InvalidArgumentError, InvalidTypeError
from cachelayer.records.value_conversion import as_time, leaf_spec
from cachelayer.specs import tree
from cachelayer.specs.schema import Schema
from cachelayer.specs.spec import ArraySpec, JsonSpec, LeafSpec, NullableDict, RaggedSpec, as_nullable, without_nulls
from cachelayer.specs.tree import Tree, children, describe, leaf_values, leaves, map_structure
from cachelayer.specs.values import BadValue, Nullable, PictureFile, Ragged, Sparse
from cachelayer.support.user_warnings import warn

FIRST_ELEMENTS = 64
"""How many elements tell the spec of all."""
_FIRST_NBYTES = 16 << 20
MOST_ELEMENTS = 10_000
"""How many elements are looked at for a leaf that is None, or an empty list, in all of the first elements."""
FIRST_ROWS = 4096
"""How many rows of a table, or lines of JSON, tell the spec of all: more, because they cost little to look at."""
_UNKNOWN = object()
"""Stands for a leaf that is None, or an empty list, in all elements, so that its dtype is unknown."""
_KEY = re.compile(r"""\[('[^']*'|"[^"]*")\]""")
_KEYS = re.compile(rf"({_KEY.pattern})+")
_KINDS: dict[str, Any] = {
    "number": (int, float, np.integer, np.floating),
    "complex": (complex, np.complexfloating),
    "text": str,
    "bytes": bytes,
    "time": (dt.date, dt.timedelta, np.datetime64, np.timedelta64),
    "dict": Mapping,
    "tuple": tuple,
}
"""The kinds of items that lists may hold, by name."""
_BUILD_ALIKE = "build them with one element_spec"


def declared(spec: Tree) -> Tree:
    """Return the element spec that a user wrote in any of the accepted ways.

    ``{"n": "int64", "text": str, "x": jax.ShapeDtypeStruct((3,), "float32"), "nothing": None}`` is read as ``{"n":
    ArraySpec(int64), "text": ArraySpec(str), "x": ArraySpec(float32, (3,)), "nothing": None}``.

    A leaf is a leaf spec; a dtype, the name of one, or a Python type; anything that has ``shape`` and ``dtype``, such
    as ``tf.TensorSpec``; or None for a value that is always None.
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


def spec_of_source(what: str, own: Tree, declared: Tree | None, fits: Callable[[Tree, LeafSpec], bool]) -> Tree:
    """Return the spec that a source has, with what a user declares in its place; raise if that contradicts it.

    ``fits`` says whether values of a spec, of a leaf or of several, are stored as a declared leaf. A leaf of the source
    that is None is not known.
    """
    spec = overlaid(declared, own)
    try:
        own_leaves = Schema.of(spec).flatten(own)
    except ElementError as error:
        raise InvalidArgumentError(f"element_spec does not fit {what}: {error.at(hint='')}") from error
    for (path, wanted), leaf in zip(leaves(spec), own_leaves, strict=True):
        if leaf is not None and not fits(leaf, wanted):
            raise InvalidArgumentError(f"element_spec{path} is {wanted!r}, but {what} has {leaf!r}")
    return spec


def may_lack_keys(spec: Tree) -> bool:
    """Return whether a declared spec has dicts, which may lack keys that the elements have."""
    return isinstance(spec, dict) or (isinstance(spec, (tuple, list)) and any(map(may_lack_keys, spec)))


class _StructureChangeError(Exception):
    """Values of one place differ in structure."""


def infer_spec(
    elements: Iterable[Any], declared: Tree | None = None, first: int = FIRST_ELEMENTS, *, as_json: bool = False
) -> Tree:
    """Return the spec of the first elements, with the leaves that a user declares in place of inferred ones.

    Dicts and tuples are structure. A leaf may be None if some dicts lack its key. A list of numbers, or of texts, is an
    array of any length; a list of dicts is a dict of arrays; so are lists of such lists. A list of arrays, or of
    tuples, is an array of any length if such lists have different lengths. Any other list is structure. A dimension in
    which arrays of one dtype differ is None. Numbers are floats if one of them is. A leaf that is None, or an empty
    list, in all of the first elements is looked for in later ones, up to element 10,000.

    ``declared`` may lack keys. Of elements with more than 16 MiB, fewer than ``first`` are looked at, but at least 2.
    With ``as_json``, a field is JSON, with a warning, if its structure changes among them: if its values are of
    different kinds, such as dicts and lists; if dicts in a list have different keys; if dicts share no key.
    """
    coming = iter(elements)
    seen: list[Any] = []
    spec: Tree = declared
    is_known = False
    most = first
    while not is_known and _see_more(coming, seen, min(most, MOST_ELEMENTS)):
        spec = _spec_of_elements(seen, declared, as_json)
        is_known = all(leaf is not _UNKNOWN for _, leaf in leaf_values(spec))
        most = 2 * len(seen)
    if seen and all(isinstance(element, BadValue) for element in seen):
        raise ElementError("a row that can be read", repr(seen[0]), record=0)
    for path, leaf in leaf_values(spec):
        if leaf is _UNKNOWN:
            got = "None, or empty lists, in all of them"
            hint = _line_to_write(path)
            raise ElementError("a value in one of the first elements", got, path=path, record=0, hint=hint)
    known = {path for path, _ in leaf_values(declared)}
    for path, leaf in leaf_values(spec):
        if isinstance(leaf, JsonSpec) and path not in known:
            warn(
                f"the structure of leaf {path} changes among the first {len(seen)} records: it is stored as JSON. "
                "Declare it in element_spec=, as cachelayer.JsonSpec() or as something else"
            )
    return spec


def _see_more(coming: Iterator[Any], seen: list[Any], most: int) -> bool:
    """Add elements until ``most`` are seen, or fewer if they are large; return whether an element was left."""
    before = len(seen)
    nbytes = 0
    for element in islice(coming, most - before):
        seen.append(element)
        nbytes += approximate_nbytes(element)
        if nbytes >= _FIRST_NBYTES and len(seen) > 1:
            break
    return len(seen) > before


def _line_to_write(path: str) -> str:
    """Return how a user declares the leaf at a path."""
    line = "cachelayer.ArraySpec('float32')"
    if _KEYS.fullmatch(path):
        for key in reversed(_KEY.findall(path)):
            line = f"{{{key}: {line}}}"
    return f"Say what it is, such as element_spec={line}, with a shape such as (None,) for lists; or None if always so."


def _spec_of_elements(elements: Sequence[Any], declared: Tree | None, as_json: bool) -> Tree:
    readable = [element for element in elements if not isinstance(element, BadValue)]
    try:
        return _spec_of(readable, declared, "", 0, as_json)
    except ElementError as error:
        for record, element in enumerate(elements):
            try:
                _spec_of([] if isinstance(element, BadValue) else [element], declared, "", 0, as_json)
            except ElementError as error_of_element:
                raise error_of_element.at(record=record) from error_of_element.__cause__
        raise error.at(record=0) from error.__cause__


def _spec_of(values: Iterable[Any], declared: Tree | None, path: str, depth: int, as_json: bool) -> Tree:
    """Return the spec of one place of the elements, ``depth`` lists deep: its first value decides its kind."""
    if isinstance(declared, LeafSpec):
        return declared
    with_none = list(values)
    present = [value for value in with_none if value is not None]
    if not present:
        return _UNKNOWN if declared is None else declared
    if as_json and path and declared is None and _changes(with_none, depth):
        raise _StructureChangeError
    first = present[0]
    if isinstance(first, Mapping):
        dicts = [value for value in present if isinstance(value, Mapping)]
        return _spec_of_dicts(dicts, declared, path, depth, as_json)
    if _is_list(first) or (depth and type(first) is tuple):
        lists = [value for value in present if _is_list(value) or (depth and type(value) is tuple)]
        if isinstance(declared, list) or not (depth or _are_arrays(lists)):
            return _spec_of_parts(lists, declared, path, as_json)
        return _spec_of(chain.from_iterable(lists), declared, path, depth + 1, as_json)
    if declared is not None and not isinstance(declared, tuple):
        return declared
    if isinstance(first, tuple) and not depth:
        return _spec_of_parts([value for value in present if isinstance(value, tuple)], declared, path, as_json)
    return _spec_of_leaf(present, path, depth) if declared is None else declared


def _changes(values: list[Any], depth: int) -> bool:
    """Return whether the values of one place, within ``depth`` levels of lists, differ in structure."""
    has_none = any(value is None for value in values)
    filled = [value for value in values if value is not None]
    if not depth:
        filled = [value for value in filled if not isinstance(value, (Mapping, list)) or value]
    kinds = {"list" if _is_list(value) else _kind_of_type(type(value)) for value in filled}
    # A number that meets a structure of one kind is more likely a mistake, which is refused.
    if len(kinds) > 1 and (depth or (kinds & {"dict", "list"} and len(kinds - {"number", "flag"}) > 1)):
        return True
    if depth and has_none and kinds & {"dict", "list"}:
        return True
    if kinds != {"dict"}:
        return False
    keys = [set(value) for value in filled]
    if depth:
        return any(keys_of_dict != keys[0] for keys_of_dict in keys)
    return not set.intersection(*keys)


def _spec_of_dicts(dicts: list[Mapping[Any, Any]], declared: Tree | None, path: str, depth: int, as_json: bool) -> Tree:
    """Return the spec of dicts: all of their keys, in the order in which they come, or as they are declared."""
    if declared is not None and not isinstance(declared, dict):
        return declared
    keys = {tree.key_name(key, path): key for key in dict.fromkeys(chain.from_iterable(dicts))}
    if depth and not keys:
        hint = "Its length would be lost: leave it out."
        raise ElementError("keys in a dict within a list", "dicts without keys", path=path, hint=hint)
    known = declared or {}
    spec: dict[str, Tree] = NullableDict() if isinstance(declared, NullableDict) else {}
    # A declared spec that has all keys decides their order.
    names = known if keys.keys() <= known.keys() else {**keys, **known}
    for name in names:
        if name in known and known[name] is None:
            spec[name] = None
        else:
            key = keys.get(name, name)
            within = f"{path}[{name!r}]"
            try:
                spec[name] = _spec_of((value.get(key) for value in dicts), known.get(name), within, depth, as_json)
            except _StructureChangeError:
                if depth:
                    raise
                spec[name] = JsonSpec()
            if name not in known and not depth and any(key not in value for value in dicts):
                spec[name] = _nullable(spec[name])
    return spec


def _nullable(spec: Tree) -> Tree:
    """Return the spec of a field that some elements lack."""
    if isinstance(spec, dict) and any(leaf is not None for _, leaf in leaf_values(spec)):
        return NullableDict(spec)
    return map_structure(spec, lambda _, leaf: as_nullable(leaf) if isinstance(leaf, LeafSpec) else leaf)


def _spec_of_parts(values: list[Any], declared: Tree | None, path: str, as_json: bool) -> Tree:
    """Return the spec of tuples, or of lists, that are structure. The first value with items decides their number."""
    first = next((value for value in values if len(value)), values[0])
    if _is_list(first) and not isinstance(first, list):
        hint = "Make it a list, or an array of another dtype: what it holds is not of one kind that is stored."
        raise ElementError(
            "numbers, texts, bytes or times in an array of objects", describe(first), path=path, hint=hint
        )
    alike = [value for value in values if len(value) == len(first)]
    if as_json and declared is None and len(alike) < sum(map(bool, values)):
        raise _StructureChangeError
    if declared is not None and (not isinstance(declared, (tuple, list)) or len(declared) != len(first)):
        return declared
    parts = []
    for index, (step, _) in enumerate(children(first)):
        known = None if declared is None else declared[index]
        is_none = declared is not None and known is None
        column = (value[index] for value in alike)
        parts.append(None if is_none else _spec_of(column, known, path + step, 0, as_json))
    if not tree.is_namedtuple(first):
        return tuple(parts) if isinstance(first, tuple) else parts
    return tree.namedtuple_class(type(first).__name__, tuple(first._fields))(*parts)


def _is_list(value: Any) -> bool:
    """Return whether a value is a list, or an array of objects, also one in a Nullable."""
    values = value.values if isinstance(value, Nullable) else value
    return isinstance(values, list) or (isinstance(values, np.ndarray) and values.dtype == object and values.ndim > 0)


def _are_arrays(lists: Sequence[Any]) -> bool:
    """Return whether lists are stored as arrays, or as dicts of arrays, and are no structure."""
    kinds = set().union(*map(_kinds_of, lists))
    if kinds in ({"array"}, {"tuple"}):
        return len(set(map(len, lists))) > 1 or not all(isinstance(value, list) for value in lists)
    return len(kinds) < 2 and "other" not in kinds


def _kinds_of(items: Iterable[Any]) -> set[str]:
    """Return the kinds of the items of lists, and of lists in these, other than None."""
    types = set(map(type, items)) - {type(None)}
    nested = {kind for kind in types if issubclass(kind, (list, np.ndarray))}
    kinds = {_kind_of_type(kind) for kind in types - nested}
    if not nested:
        return kinds
    for item in items:
        if type(item) in nested:
            kinds |= _kinds_of(item) if _is_list(item) else {"array"}
    return kinds


def _kind_of_type(kind: type) -> str:
    if kind in (PictureFile, np.void) or hasattr(kind, "_fields"):
        return "other"
    if issubclass(kind, (bool, np.bool_)):
        return "flag"
    other = "array" if hasattr(kind, "__array__") else "other"
    return next((name for name, types in _KINDS.items() if issubclass(kind, types)), other)


def _spec_of_leaf(values: list[Any], path: str, depth: int) -> LeafSpec:
    first = as_time(values[0])
    try:
        spec = leaf_spec(first)
    except (InvalidTypeError, InvalidArgumentError) as error:
        raise ElementError("a leaf that can be stored", describe(first), path=path, hint=str(error)) from error
    if isinstance(first, int) and not isinstance(first, bool):
        numbers = [tree.builtin(value) for value in values if isinstance(value, (int, float))]
        kinds = set(map(type, numbers))
        if float in kinds:
            spec = ArraySpec(np.float64)
        elif max(numbers) >= 2**63 and min(numbers) >= 0:
            spec = ArraySpec(np.uint64)
    if not depth:
        if spec.shape:
            for value in values[1:]:
                spec = _with_dims_of(spec, value)
        return spec
    if not isinstance(spec, ArraySpec):
        raise ElementError("a value that arrays hold", describe(first), path=path)
    return nested_spec(spec.dtype, (None,) * (depth + len(spec.shape)))


def _with_dims_of(spec: LeafSpec, value: Any) -> LeafSpec:
    """Return the spec with None for each dimension in which a further value differs.

    A value that differs in more is ignored here: the encoder refuses it, and names its record.
    """
    try:
        other = leaf_spec(value)
    except CacheLayerError:
        return spec
    if type(other) is not type(spec) or len(other.shape) != len(spec.shape):
        return spec
    if replace(other, shape=spec.shape) != spec:
        return spec
    dims = tuple(dim if dim == other_dim else None for dim, other_dim in zip(spec.shape, other.shape, strict=True))
    return replace(spec, shape=dims)


def nested_spec(dtype: Any, dims: tuple[int | None, ...], timezone: str | None = None) -> LeafSpec:
    """Return the spec of nested lists of some dims: an array if only the outermost one varies, else a ragged array."""
    unknown = max((axis for axis, dim in enumerate(dims) if dim is None), default=0)
    if unknown == 0:
        return ArraySpec(dtype, dims, timezone=timezone)
    return RaggedSpec(dtype, ((None,) * (unknown + 1)) + dims[unknown + 1 :], ragged_rank=unknown, timezone=timezone)


def approximate_nbytes(value: Any) -> int:
    """Return the approximate size of an element in bytes."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(approximate_nbytes, value.values()))
    if isinstance(value, (tuple, list)):
        return sum(map(approximate_nbytes, value))
    if isinstance(value, (bytes, str)):
        return len(value)
    if isinstance(value, Ragged):
        return approximate_nbytes(value.flat_values)
    return approximate_nbytes(value.values) if isinstance(value, (Nullable, Sparse)) else 8


def common_spec(specs: Sequence[tuple[str, Tree]]) -> Tree:
    """Return the spec that fits the elements of named datasets; only what may be None may differ among them."""
    (first, common), *others = specs
    for name, spec in others:
        common = _common(first, common, name, spec)
    return common


def _common(first: str, common: Tree, name: str, spec: Tree) -> Tree:
    """Return the spec that fits the elements of two specs, and of nulls in either."""
    schema = Schema.of(common)
    other = Schema.of(spec)
    if _structure(schema) != _structure(other):
        raise InvalidArgumentError(
            f"elements of {first} are {describe(common)} with leaves {_paths(schema)}, those of {name} are "
            f"{describe(spec)} with leaves {_paths(other)}: {_BUILD_ALIKE}"
        )
    for leaf, other_leaf in zip(schema.leaves, other.leaves, strict=True):
        if without_nulls(leaf.spec) != without_nulls(other_leaf.spec):
            where = f"{tree.leaf_title(leaf.path)} is {leaf.spec!r} in {first} and {other_leaf.spec!r} in {name}"
            raise InvalidArgumentError(f"{where}: {_BUILD_ALIKE}")
    return schema.marked(other.marks)


def _structure(schema: Schema) -> list[tuple[str, type]]:
    """Return the path and the kind of each node, whatever may be None."""
    kinds: tuple[type, ...] = (LeafSpec, dict, list, tuple, type(None))
    return [(node.path, next(kind for kind in kinds if isinstance(node.spec, kind))) for node in schema.root.nodes()]


def _paths(schema: Schema) -> str:
    return ", ".join(leaf.path or "(itself)" for leaf in schema.leaves) or "(none)"
