"""Infer element specs from elements, read those that users write, and find what those of several datasets share."""

from __future__ import annotations

import datetime as dt
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import ml_dtypes
import numpy as np

from cachelayer.errors import CacheLayerError, ElementError, InvalidArgumentError, InvalidTypeError
from cachelayer.records import tree
from cachelayer.records.null_marks import marked, marks
from cachelayer.records.spec import ArraySpec, ImageSpec, JsonSpec, LeafSpec, NullableDict, RaggedSpec, SparseSpec
from cachelayer.records.tree import Tree, children, describe, leaf_values, leaves, map_structure
from cachelayer.records.values import NoArray, Nullable, PictureFile, Ragged, Sparse, Unreadable
from cachelayer.user_warnings import warn

FIRST_ELEMENTS = 64
"""How many elements tell the spec of all if none is declared."""
_FIRST_NBYTES = 16 << 20
MOST_ELEMENTS = 10_000
"""How many elements are looked at for a leaf that is None, or an empty list, in the first of them."""
FIRST_ROWS = 4096
"""How many rows of a table, or lines of JSON, tell the spec of all: to look at them costs little."""
_UNKNOWN = object()
"""Stands for a leaf of which no value shows what it is."""
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

# Types are looked up by name, so that their modules need not be imported.
_REMEDIES = {
    **dict.fromkeys(("bytearray", "memoryview"), "bytes() converts it to bytes"),
    **dict.fromkeys(("set", "frozenset"), "np.array(sorted(...)) converts it to an array"),
    **dict.fromkeys(("range", "array", "list", "deque"), "np.array() converts it to an array"),
    **dict.fromkeys(
        ("date", "timedelta"), "np.datetime64() or np.timedelta64() converts it, str() converts it to a str"
    ),
    "Nullable": "pass unbatch=True to store the rows of a batch, or pass elements instead of batches",
    "Decimal": "float() converts it to a number, str() to a str",
    "Enum": "store its .value or its .name",
    "PurePath": "str() converts it to a str, read_bytes() reads the file",
}


def declared(spec: Tree) -> Tree:
    """Return the element spec that a user wrote.

    Args:
        spec: the structure of an element. Its leaves are leaf specs; dtypes, their names, or Python types; anything
            that has ``shape`` and ``dtype``, such as ``tf.TensorSpec`` or ``jax.ShapeDtypeStruct``; or None for a
            value that is always None.
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


class _StructureChangeError(Exception):
    """Values of one place differ in structure."""


def infer_spec(
    elements: Iterable[Any], declared: Tree | None = None, first: int = FIRST_ELEMENTS, *, as_json: bool = False
) -> Tree:
    """Return the spec of the first elements, with what a user declares in place of what they show.

    Dicts and tuples are structure; a leaf may be None if some of the dicts lack its key. A list of numbers, or of
    texts, is an array of any length, a list of dicts a dict of arrays; so are lists of such lists. A list of arrays, or
    of tuples, is an array of any length if there are such lists of different lengths. Any other list is structure.
    Dimensions in which arrays of one dtype differ are None; numbers are floats if one of them is. A leaf that is None,
    or an empty list, in all of the first elements comes from later ones, up to the first 10,000.

    Args:
        elements: the elements; few more are taken than are needed.
        declared: the spec that a user declares, which may lack keys; None for none.
        first: how many elements to look at; fewer, but at least 2, if they have more than 16 MiB.
        as_json: whether a field is JSON if its structure changes among them: if values are dicts, lists and others, or
            the dicts in a list have other keys, or dicts share no key. A warning says so.

    Returns:
        The spec; what is declared if there are no elements.

    Raises:
        ElementError: if an element cannot be stored, or no element shows what a leaf is.
    """
    coming, seen = iter(elements), list[Any]()
    spec: Tree = declared
    is_known, most = False, first
    while not is_known and _see_more(coming, seen, min(most, MOST_ELEMENTS)):
        spec = _spec_of_elements(seen, declared, as_json)
        is_known = all(leaf is not _UNKNOWN for _, leaf in leaf_values(spec))
        most = 2 * len(seen)
    if seen and all(isinstance(element, Unreadable) for element in seen):
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
    """Add elements until so many are seen, fewer if they are large; return whether there was one."""
    before, nbytes = len(seen), 0
    for element in islice(coming, most - before):
        seen.append(element)
        nbytes += approximate_nbytes(element)
        if nbytes >= _FIRST_NBYTES and len(seen) > 1:
            break
    return len(seen) > before


def _line_to_write(path: str) -> str:
    """Return how to declare a leaf of which elements do not show what it is."""
    line = "cachelayer.ArraySpec('float32')"
    if _KEYS.fullmatch(path):
        for key in reversed(_KEY.findall(path)):
            line = f"{{{key}: {line}}}"
    return f"Say what it is, such as element_spec={line}, with a shape such as (None,) for lists; or None if always so."


def _spec_of_elements(elements: Sequence[Any], declared: Tree | None, as_json: bool) -> Tree:
    readable = [element for element in elements if not isinstance(element, Unreadable)]
    try:
        return _spec_of(readable, declared, "", 0, as_json)
    except ElementError as error:
        for record, element in enumerate(elements):
            try:
                _spec_of([] if isinstance(element, Unreadable) else [element], declared, "", 0, as_json)
            except ElementError as own:
                raise own.at(record=record) from own.__cause__
        raise error.at(record=0) from error.__cause__


def _spec_of(values: Iterable[Any], declared: Tree | None, path: str, depth: int, as_json: bool) -> Tree:
    """Return the spec of the values of one place within so many levels of lists. The first of them decides its kind."""
    if isinstance(declared, LeafSpec):
        return declared
    every = list(values)
    present = [value for value in every if value is not None]
    if not present:
        return _UNKNOWN if declared is None else declared
    if as_json and path and declared is None and _changes(every, depth):
        raise _StructureChangeError
    first = present[0]
    if isinstance(first, Mapping):
        dicts = [each for each in present if isinstance(each, Mapping)]
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
    """Return whether values of one place differ in structure, within so many levels of lists."""
    has_none = any(value is None for value in values)
    filled = [value for value in values if value is not None and (depth or not _is_empty(value))]
    kinds = {"list" if _is_list(value) else _kind_of_type(type(value)) for value in filled}
    # A number that meets a structure of one kind is more likely a mistake, which is refused.
    if len(kinds) > 1 and (depth or (kinds & {"dict", "list"} and len(kinds - {"number", "flag"}) > 1)):
        return True
    if depth and has_none and kinds & {"dict", "list"}:
        return True
    if kinds != {"dict"}:
        return False
    keys = [set(value) for value in filled]
    return any(each != keys[0] for each in keys) if depth else not set.intersection(*keys)


def _is_empty(value: Any) -> bool:
    return isinstance(value, (Mapping, list)) and not value


def _spec_of_dicts(dicts: list[Mapping[Any, Any]], declared: Tree | None, path: str, depth: int, as_json: bool) -> Tree:
    """Return the spec of dicts: all of their keys, in the order in which they come, or as declared if all are."""
    if declared is not None and not isinstance(declared, dict):
        return declared
    keys = {tree.key_name(key, path): key for key in dict.fromkeys(chain.from_iterable(dicts))}
    if depth and not keys:
        hint = "Its length would be lost: leave it out."
        raise ElementError("keys in a dict within a list", "dicts without keys", path=path, hint=hint)
    known = declared or {}
    spec: dict[str, Tree] = NullableDict() if isinstance(declared, NullableDict) else {}
    for name in known if keys.keys() <= known.keys() else {**keys, **known}:
        if name in known and known[name] is None:
            spec[name] = None
        else:
            key, within = keys.get(name, name), f"{path}[{name!r}]"
            try:
                spec[name] = _spec_of((each.get(key) for each in dicts), known.get(name), within, depth, as_json)
            except _StructureChangeError:
                if depth:
                    raise
                spec[name] = JsonSpec()
            if name not in known and not depth and any(key not in each for each in dicts):
                spec[name] = _nullable(spec[name])
    return spec


def _nullable(spec: Tree) -> Tree:
    """Return the spec of a field that some elements lack."""
    if isinstance(spec, dict) and any(leaf is not None for _, leaf in leaf_values(spec)):
        return NullableDict(spec)
    return map_structure(spec, lambda _, leaf: leaf.as_nullable() if isinstance(leaf, LeafSpec) else leaf)


def _spec_of_parts(values: list[Any], declared: Tree | None, path: str, as_json: bool) -> Tree:
    """Return the spec of tuples, or of lists, that are structure: the first that has items decides how many."""
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
    """Return whether a value is a list, as arrays of objects are too, also those in which some are None."""
    values = value.values if isinstance(value, Nullable) else value
    return isinstance(values, list) or (isinstance(values, np.ndarray) and values.dtype == object and values.ndim > 0)


def _are_arrays(lists: Sequence[Any]) -> bool:
    """Return whether lists are arrays, or dicts of arrays, and no structure."""
    kinds = set().union(*map(_kinds_of, lists))
    if kinds in ({"array"}, {"tuple"}):
        return len(set(map(len, lists))) > 1 or not all(isinstance(value, list) for value in lists)
    return len(kinds) < 2 and "other" not in kinds


def _kinds_of(items: Iterable[Any]) -> set[str]:
    """Return the kinds of values that lists, and lists in them, hold besides None."""
    types = set(map(type, items)) - {type(None)}
    nested = {kind for kind in types if issubclass(kind, (list, np.ndarray))}
    kinds = {_kind_of_type(kind) for kind in types - nested}
    for item in items if nested else ():
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
    for value in values[1:] if spec.shape and not depth else ():
        spec = _with_dims_of(spec, value)
    if not depth:
        return spec
    if not isinstance(spec, ArraySpec):
        raise ElementError("a value that arrays hold", describe(first), path=path)
    return nested_spec(spec.dtype, (None,) * (depth + len(spec.shape)))


def _with_dims_of(spec: LeafSpec, value: Any) -> LeafSpec:
    """Return a spec that fits one more value, if only dimensions differ. If more does, the encoder raises later."""
    try:
        other = leaf_spec(value)
    except CacheLayerError:
        return spec
    if type(other) is not type(spec) or len(other.shape) != len(spec.shape):
        return spec
    if replace(other, shape=spec.shape) != spec:
        return spec
    dims = tuple(one if one == dim else None for one, dim in zip(spec.shape, other.shape, strict=True))
    return replace(spec, shape=dims)


def nested_spec(dtype: Any, dims: tuple[int | None, ...]) -> LeafSpec:
    """Return the spec of nested lists. ``dims`` has the length of the lists at each level, None if lengths differ."""
    unknown = max((axis for axis, dim in enumerate(dims) if dim is None), default=0)
    if unknown == 0:
        return ArraySpec(dtype, dims)
    return RaggedSpec(dtype, ((None,) * (unknown + 1)) + dims[unknown + 1 :], ragged_rank=unknown)


def overlaid(declared: Tree | None, own: Tree) -> Tree:
    """Return a spec with what a user declares in place of what it has. A complete declared spec keeps its order."""
    return own if declared is None else _over(declared, own)


def _over(declared: Tree, own: Tree) -> Tree:
    if isinstance(declared, dict) and isinstance(own, dict):
        keys = declared if own.keys() <= declared.keys() else {**own, **declared}
        spec = {key: _over(declared[key], own.get(key)) if key in declared else own[key] for key in keys}
        return NullableDict(spec) if isinstance(declared, NullableDict) or isinstance(own, NullableDict) else spec
    if isinstance(declared, (tuple, list)) and isinstance(own, (tuple, list)) and len(declared) == len(own):
        parts = list(map(_over, declared, own))
        return type(declared)(*parts) if tree.is_namedtuple(declared) else type(declared)(parts)
    return declared


def as_time(value: Any) -> Any:
    """Return a time of Python or pandas as numpy's, if that keeps all of it; else the value."""
    convert = getattr(value, "to_datetime64", getattr(value, "to_timedelta64", None))
    if getattr(value, "tzinfo", None) is not None:
        return value
    if convert is not None:
        return convert()
    if isinstance(value, dt.date):
        return np.datetime64(value, "us" if isinstance(value, dt.datetime) else "D")
    return np.timedelta64(value, "us") if isinstance(value, dt.timedelta) else value


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


def may_lack_keys(spec: Tree) -> bool:
    """Return whether a declared spec has dicts, which may lack keys that the elements have."""
    return isinstance(spec, dict) or (isinstance(spec, (tuple, list)) and any(map(may_lack_keys, spec)))


def common_spec(specs: Sequence[tuple[str, Tree]]) -> Tree:
    """Return the spec that fits the elements of all specs, which may differ only in which leaves may be None.

    Args:
        specs: the name of each dataset and its spec; at least one.
    """
    (first, common), *others = specs
    for name, spec in others:
        common = _common(first, common, name, spec)
    return common


def _common(first: str, common: Tree, name: str, spec: Tree) -> Tree:
    mine, theirs = dict(leaves(common)), dict(leaves(spec))
    if list(mine) != list(theirs) or _skeleton(common) != _skeleton(spec):
        raise InvalidArgumentError(
            f"elements of {first} are {describe(common)} with leaves {_paths(mine)}, those of {name} are "
            f"{describe(spec)} with leaves {_paths(theirs)}: {_BUILD_ALIKE}"
        )
    for path, leaf in mine.items():
        other = theirs[path]
        if leaf.without_nulls() != other.without_nulls():
            where = tree.leaf_title(path)
            raise InvalidArgumentError(f"{where} is {leaf!r} in {first} and {other!r} in {name}: {_BUILD_ALIKE}")
    return marked(common, marks(spec))


def _skeleton(spec: Tree) -> Tree:
    """Return the structure of a spec, whatever may be None, with True for what always is."""
    if isinstance(spec, LeafSpec) or spec is None:
        return spec is None
    if isinstance(spec, dict):
        return {key: _skeleton(child) for key, child in spec.items()}
    parts = [_skeleton(child) for _, child in children(spec)]
    return type(spec)(*parts) if tree.is_namedtuple(spec) else type(spec)(parts)


def _paths(paths: Iterable[str]) -> str:
    return ", ".join(path or "(itself)" for path in paths) or "(none)"


def leaf_spec(value: Any) -> LeafSpec:
    """Return the spec of a value that is no structure."""
    if isinstance(value, PictureFile):
        return ImageSpec(value.mode)
    if isinstance(value, Nullable) and isinstance(value.values, np.ndarray) and value.values.shape == value.valid.shape:
        # The rows of a batch may be null too, and a batch of scalars looks alike: then its build has unbatch=True.
        return leaf_spec(value.values).with_nullable_values()
    if isinstance(value, Ragged) and isinstance(value.flat_values, Nullable):
        return leaf_spec(value.with_flat(value.flat_values.values)).with_nullable_values()
    if isinstance(value, Ragged):
        flat, splits = value.flat_values, value.nested_row_splits
        if flat.ndim == 0:
            raise InvalidTypeError("the values of a Ragged are a scalar: pass an array of at least one dimension")
        shape = (None, *[None] * len(splits), *flat.shape[1:])
        return RaggedSpec(_array_dtype(flat), shape, ragged_rank=len(splits), splits_dtype=splits[0].dtype)
    if isinstance(value, Sparse):
        return SparseSpec(_array_dtype(value.values), tuple(value.dense_shape.reshape(-1).tolist()))
    array = as_leaf(value)
    if isinstance(array, (bytes, str)):
        return ArraySpec(type(array))
    if isinstance(value, np.ndarray) and value.dtype.kind == "T":
        return ArraySpec(str, value.shape)
    return ArraySpec(array.dtype, array.shape)


def as_leaf(value: Any) -> np.ndarray[Any, Any] | bytes | str:
    """Return a dense leaf as a numpy array, bytes or str."""
    if isinstance(value, np.ndarray):
        if isinstance(value, np.ma.MaskedArray):
            raise InvalidTypeError("a masked array would lose its mask: use filled(), or None, or a second array")
        # Arrays of dtype StringDType keep their strings outside of the array.
        return value.astype(object) if value.dtype.kind == "T" else value
    if isinstance(value, (bytes, str)):
        leaf: bytes | str = tree.builtin(value)
        return leaf
    if isinstance(value, (bool, int, float, complex, np.generic)):
        array = np.asarray(tree.builtin(value))
        if array.dtype == object:
            raise InvalidTypeError(f"{value} does not fit into 64 bits")
        return array
    if hasattr(value, "__array__") and not isinstance(value, NoArray):
        try:
            array = _as_array(value)
        except Exception as error:
            raise InvalidTypeError(f"a {type(value).__name__} does not become an array: {error}") from error
        if array.dtype == object and array.shape == () and isinstance(array.item(), (bytes, str)):
            return as_leaf(array.item())
        return array
    raise InvalidTypeError(
        f"a {type(value).__name__} is not an array, number, bytes, str or None: convert it{_remedy(value)}"
    )


def _as_array(value: Any) -> np.ndarray[Any, Any]:
    """Return what an array protocol gives; tensors of PyTorch in dtypes of ``ml_dtypes`` go through integers."""
    if type(value).__module__.partition(".")[0] != "torch":
        return np.asarray(value)
    value = value.detach().cpu().resolve_conj().resolve_neg()
    dtype = getattr(ml_dtypes, str(value.dtype).removeprefix("torch."), None)
    if dtype is None:
        return np.asarray(value)
    integers = value.view(getattr(sys.modules["torch"], f"uint{8 * np.dtype(dtype).itemsize}"))
    return np.asarray(integers).view(dtype)


def _remedy(value: Any) -> str:
    """Return how to convert a value to one that can be stored, for an error message."""
    for kind in type(value).__mro__:
        if kind.__name__ in _REMEDIES:
            return f": {_REMEDIES[kind.__name__]}"
    if hasattr(value, "__dataclass_fields__"):
        return ": dataclasses.asdict() converts it to a dict"
    if hasattr(value, "__array_interface__"):
        return ": np.asarray() converts it to an array; the file of an image can be stored as bytes, with ImageSpec"
    return ""


def _array_dtype(values: np.ndarray[Any, Any]) -> Any:
    if values.dtype != object:
        return values.dtype
    kinds = {type(item) for item in values.reshape(-1)}
    if kinds in ({bytes}, {str}):
        return kinds.pop()
    raise InvalidTypeError(f"an object array of {sorted(kind.__name__ for kind in kinds) or 'nothing'} is not stored")
