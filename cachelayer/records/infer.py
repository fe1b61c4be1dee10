"""Infer element specs from elements, read those that users write, and find what those of several datasets share."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import ml_dtypes
import numpy as np

from cachelayer.errors import CacheLayerError, ElementError, InvalidArgumentError, InvalidTypeError
from cachelayer.records import tree
from cachelayer.records.spec import ArraySpec, EncodedSpec, ImageSpec, LeafSpec, RaggedSpec, SparseSpec
from cachelayer.records.tree import Tree, children, describe, leaf_values, leaves, map_structure
from cachelayer.records.values import NoArray, PictureFile, Ragged, Sparse, Unreadable

FIRST_ELEMENTS = 64
"""How many elements tell the spec of all if none is declared."""
_FIRST_NBYTES = 16 << 20
MOST_ELEMENTS = 10_000
"""How many elements are looked at for a leaf that is None in the first of them."""
FIRST_ROWS = 256
"""How many rows of a table tell the spec of all."""
_EMPTY = object()
"""Stands for a leaf in lists of which all are empty."""
_DECLARE = "Say what it is with element_spec=: cachelayer.ArraySpec('float32'), with a shape such as (None,) for lists."
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


def from_element(element: Any) -> Tree:
    """Return the element spec of one element, with None where it holds None."""
    return map_structure(element, _leaf_of)


def from_elements(elements: Iterable[Any], first: int = FIRST_ELEMENTS) -> Tree:
    """Return the spec of the first elements; None if there are none.

    Dicts and tuples are structure, and so are lists, unless they hold numbers, or texts, alone: such lists are arrays
    of any length. Dimensions in which arrays of one dtype differ are None. A leaf that is None, or an empty list, in
    all of them comes from the first later element that has it, if that is among the first 10,000.

    Args:
        elements: the elements; no more are taken than are needed.
        first: how many elements to look at; fewer, but at least 2, if they have more than 16 MiB.
    """
    spec: Tree = None
    record, nbytes, empty = -1, 0, set[str]()
    for record, element in enumerate(islice(elements, MOST_ELEMENTS)):
        with_lists = _with_lists_of_values(element, "", empty)
        try:
            spec = from_element(with_lists) if record == 0 else _merged(spec, with_lists)
        except ElementError as error:
            raise error.at(record=record) from error.__cause__
        nbytes += approximate_nbytes(element)
        if is_enough(record + 1, nbytes, first) and not null_paths(spec):
            return spec
    for path in null_paths(spec) if record >= 0 else ():
        if path not in empty:
            raise ElementError("a value in one of the first elements", "None in all of them", path=path, hint=_DECLARE)
    return tree.map_structure(spec, lambda path, leaf: [] if leaf is None and path in empty else leaf)


@dataclass(frozen=True, eq=False)
class _ListOfValues:
    """A list of numbers or texts, or of such lists, which is an array; None if it is empty."""

    items: list[Any]

    @property
    def spec(self) -> LeafSpec | None:
        # Path and record are added by those that find it.
        found = spec_of_values([self.items], "")
        return found if isinstance(found, LeafSpec) else None


def _with_lists_of_values(value: Any, path: str, empty: set[str]) -> Any:
    """Return an element with a leaf in place of each list that is an array; add the paths of empty lists to a set."""
    if isinstance(value, Mapping):
        return {key: _with_lists_of_values(child, f"{path}[{key!r}]", empty) for key, child in value.items()}
    if isinstance(value, list):
        if not value:
            empty.add(path)
        kind = _kind_of_items(value)
        if not value or kind in ("number", "text", "bytes", "flag"):
            return _ListOfValues(value)
    if isinstance(value, (list, tuple)):
        parts = [_with_lists_of_values(child, path + step, empty) for step, child in children(value)]
        return type(value)(*parts) if tree.is_namedtuple(value) else type(value)(parts)
    return value


def _kind_of_items(items: Sequence[Any]) -> str | None:
    """Return what all items of a list are, or all items of the lists in it; None if they are no values of one kind."""
    kinds = set(map(_kind_of_item, items)) - {""}
    return kinds.pop() if len(kinds) == 1 else "" if not kinds else None


def _kind_of_item(item: Any) -> str | None:
    if isinstance(item, list):
        return _kind_of_items(item)
    if isinstance(item, (bool, np.bool_)):
        return "flag"
    if isinstance(item, (int, float, np.integer, np.floating)):
        return "number"
    if isinstance(item, str):
        return "text"
    return "bytes" if isinstance(item, bytes) and not isinstance(item, PictureFile) else None


def from_rows(rows: Iterable[Any], declared: Tree | None = None, most: int = FIRST_ROWS) -> Tree:
    """Return the spec of the first rows of a table, or of JSON, with what a user declares in place of what they show.

    Lists, and arrays, are arrays of any length. Keys that a row lacks are None; a leaf that is None in all of the first
    10,000 rows stays None.

    Args:
        rows: the rows; no more are taken than are needed.
        declared: the spec that a user declares, which may lack keys; None for none.
        most: how many rows to look at, if no leaf is None in all of them.
    """
    first: list[Any] = []
    coming, spec = iter(rows), None
    while True:
        before = len(first)
        nbytes = 0
        for row in islice(coming, most):
            first.append(row)
            nbytes += approximate_nbytes(row)
            if nbytes >= _FIRST_NBYTES:
                break
        spec = overlaid(declared, _spec_of_rows(first))
        is_known = all(leaf is not None and leaf is not _EMPTY for _, leaf in leaf_values(spec))
        if is_known or len(first) == before or len(first) >= MOST_ELEMENTS:
            break
    if first and all(isinstance(row, Unreadable) for row in first):
        raise ElementError("a row that can be read", repr(first[0]), record=0)
    for path, leaf in leaf_values(spec):
        if leaf is _EMPTY:
            expected, got = "a value in one of the first lists", "empty lists alone"
            raise ElementError(expected, got, path=path, record=0, hint=_DECLARE)
    return spec


def overlaid(declared: Tree | None, own: Tree) -> Tree:
    """Return a spec with what a user declares in place of what it has. A complete declared spec keeps its order."""
    return own if declared is None else _over(declared, own)


def _over(declared: Tree, own: Tree) -> Tree:
    if isinstance(declared, dict) and isinstance(own, dict):
        keys = declared if own.keys() <= declared.keys() else {**own, **declared}
        return {key: _over(declared[key], own.get(key)) if key in declared else own[key] for key in keys}
    if isinstance(declared, (tuple, list)) and isinstance(own, (tuple, list)) and len(declared) == len(own):
        parts = list(map(_over, declared, own))
        return type(declared)(*parts) if tree.is_namedtuple(declared) else type(declared)(parts)
    return declared


def _spec_of_rows(rows: Sequence[Any]) -> Tree:
    rows = [row for row in rows if not isinstance(row, Unreadable)]
    try:
        return spec_of_values(rows, "")
    except ElementError as error:
        for record, row in enumerate(rows):
            try:
                spec_of_values([row], "")
            except ElementError as own:
                raise own.at(record=record) from own.__cause__
        raise error.at(record=0) from error.__cause__


def spec_of_values(values: Iterable[Any], path: str, depth: int = 0) -> Tree:
    """Return the spec of values that lie within so many levels of lists. The first of them decides their kind."""
    present = [value for value in values if value is not None]
    if not present:
        return _EMPTY if depth else None
    first = present[0]
    if isinstance(first, Mapping):
        present = [value for value in present if isinstance(value, Mapping)]
        keys = dict.fromkeys(chain.from_iterable(present))
        if depth and not keys:
            hint = "Its length would be lost: leave it out."
            raise ElementError("keys in a dict within a list", "dicts without keys", path=path, hint=hint)
        named = ((tree.builtin(key), [row.get(key) for row in present]) for key in keys)
        return {key: spec_of_values(cells, f"{path}[{key!r}]", depth) for key, cells in named}
    if _is_list(first) or _is_texts(first):
        items = chain.from_iterable(value for value in present if _is_list(value) or np.ndim(value))
        return spec_of_values(items, path, depth + 1)
    if is_picture(first) and not depth:
        return ImageSpec()
    return _spec_of_leaf(first, present, path, depth)


def _spec_of_leaf(first: Any, values: list[Any], path: str, depth: int) -> Tree:
    if hasattr(first, "__array__") and np.ndim(first):
        try:
            array: Any = as_leaf(first)
            own = from_element(array)
        except (InvalidTypeError, ElementError) as error:
            raise ElementError("an array that can be stored", str(error), path=path) from error
        return (
            ArraySpec(own.dtype, (None,) * array.ndim)
            if not depth
            else nested_spec(own.dtype, (None,) * (depth + array.ndim))
        )
    first = as_time(first)
    if isinstance(first, int) and not isinstance(first, bool):
        numbers = [tree.builtin(value) for value in values if isinstance(value, (int, float))]
        numbers = [value for value in numbers if type(value) is not bool]
        is_float = any(type(value) is float for value in numbers)
        dtype: Any = np.float64 if is_float else np.uint64 if max(numbers) >= 2**63 else np.int64
    elif isinstance(first, (str, bytes)):
        dtype = str if isinstance(first, str) else bytes
    else:
        own = map_structure(first, _leaf_of, path)
        if not isinstance(own, ArraySpec):
            if depth:
                raise ElementError("a value that arrays hold", describe(first), path=path)
            return own
        dtype = own.dtype
    return nested_spec(dtype, (None,) * depth)


def nested_spec(dtype: Any, dims: tuple[int | None, ...]) -> LeafSpec:
    """Return the spec of nested lists. ``dims`` has the length of the lists at each level, None if lengths differ."""
    unknown = max((axis for axis, dim in enumerate(dims) if dim is None), default=0)
    if unknown == 0:
        return ArraySpec(dtype, dims)
    return RaggedSpec(dtype, ((None,) * (unknown + 1)) + dims[unknown + 1 :], ragged_rank=unknown)


def _is_texts(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim > 0 and value.dtype.kind in "OSUT"


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and not tree.is_namedtuple(value)


def is_picture(value: Any) -> bool:
    """Return whether a value is a picture of Pillow; without importing Pillow, because then there is no picture."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


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


def is_enough(elements: int, nbytes: int, first: int = FIRST_ELEMENTS) -> bool:
    """Return whether so many elements of so many bytes tell the spec of all: the first 64, or those of 16 MiB."""
    return elements >= first or (elements > 1 and nbytes >= _FIRST_NBYTES)


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
        return value.flat_values.nbytes
    return value.values.nbytes if isinstance(value, Sparse) else 8


def may_lack_keys(spec: Tree) -> bool:
    """Return whether a declared spec has dicts, which may lack keys that the elements have."""
    return isinstance(spec, dict) or (isinstance(spec, (tuple, list)) and any(map(may_lack_keys, spec)))


def lacks_keys(spec: Tree, element: Any) -> bool:
    """Return whether an element, or a batch of them, has keys that a declared spec lacks."""
    if isinstance(spec, dict):
        if not isinstance(element, Mapping):
            return False
        return len(element) > len(spec) or any(lacks_keys(child, element.get(key)) for key, child in spec.items())
    if isinstance(spec, (tuple, list)):
        return isinstance(element, (tuple, list)) and any(map(lacks_keys, spec, element))
    return False


def completed(spec: Tree, elements: Iterable[Any]) -> Tree:
    """Return a declared spec with the keys that it lacks, as the first elements have them; in the order of the first.

    If the first element lacks a key of the spec, or has another structure, the spec is not meant for it and stays as it
    is.

    Args:
        spec: the declared spec.
        elements: the elements; no more are taken than are needed.
    """
    coming = iter(elements)
    first = next(coming, None)
    if not _declares(spec, first) or not lacks_keys(spec, first):
        return spec
    undeclared = (_undeclared(spec, element) for element in chain([first], coming) if _declares(spec, element))
    return _over(spec, from_elements(undeclared))


def _declares(spec: Tree, element: Any) -> bool:
    """Return whether an element has all keys of a spec."""
    if isinstance(spec, dict):
        has_keys = isinstance(element, Mapping) and all(key in element for key in spec)
        return has_keys and all(_declares(child, element[key]) for key, child in spec.items())
    if isinstance(spec, (tuple, list)):
        fits = isinstance(element, (tuple, list)) and len(spec) == len(element)
        return fits and all(map(_declares, spec, element))
    return True


def _undeclared(spec: Tree, element: Any) -> Tree:
    """Return what a spec does not declare of an element, with an empty tuple in place of what it declares."""
    if isinstance(spec, dict):
        return {key: _undeclared(spec[key], child) if key in spec else child for key, child in element.items()}
    if isinstance(spec, (tuple, list)):
        # A tuple, because a list of numbers would be an array.
        return tuple(_undeclared(child, part) for child, part in zip(spec, element, strict=True))
    return ()


def null_paths(spec: Tree) -> list[str]:
    """Return the paths at which a spec holds None."""
    return [path for path, leaf in leaf_values(spec) if leaf is None]


def _merged(spec: Tree, element: Any, path: str = "") -> Tree:
    """Return a spec that fits one more element, if only dimensions differ. If more does, the encoder raises later."""
    if spec is None:
        return map_structure(element, _leaf_of, path)
    if isinstance(spec, dict) and isinstance(element, Mapping):
        return {key: _merged(child, element.get(key), f"{path}[{key!r}]") for key, child in spec.items()}
    if isinstance(spec, (tuple, list)) and isinstance(element, (tuple, list)) and len(spec) == len(element):
        parts = zip(children(spec), element, strict=True)
        merged = [_merged(child, part, path + step) for (step, child), part in parts]
        return type(spec)(*merged) if hasattr(spec, "_fields") else type(spec)(merged)
    if not isinstance(spec, LeafSpec) or isinstance(spec, EncodedSpec) or isinstance(element, (dict, tuple, list)):
        return spec
    if isinstance(element, _ListOfValues):
        return _with_list(spec, element)
    try:
        leaf = leaf_spec(element)
    except CacheLayerError:
        return spec
    if type(leaf) is not type(spec) or len(leaf.shape) != len(spec.shape):
        return spec
    dims = tuple(one if one == other else None for one, other in zip(spec.shape, leaf.shape, strict=True))
    return replace(spec, shape=dims) if replace(leaf, shape=spec.shape) == spec else spec


def _with_list(spec: LeafSpec, values: _ListOfValues) -> LeafSpec:
    """Return the spec of lists that fits one more list: if one has floats, all have."""
    leaf = values.spec
    if leaf is None or leaf.shape != spec.shape or type(leaf) is not type(spec) or leaf.dtype == spec.dtype:
        return spec
    is_wider = {spec.dtype, leaf.dtype} == {np.dtype(np.int64), np.dtype(np.float64)}
    return replace(spec, dtype=np.dtype(np.float64)) if is_wider else spec


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
        if leaf.as_nullable() != other.as_nullable():
            where = tree.leaf_title(path)
            raise InvalidArgumentError(f"{where} is {leaf!r} in {first} and {other!r} in {name}: {_BUILD_ALIKE}")
    nullable = {path for path, leaf in theirs.items() if leaf.nullable}
    return map_structure(common, lambda path, leaf: leaf.as_nullable() if path in nullable else leaf)


def _skeleton(spec: Tree) -> Tree:
    return map_structure(spec, lambda _, leaf: leaf is None)


def _paths(paths: Iterable[str]) -> str:
    return ", ".join(path or "(itself)" for path in paths) or "(none)"


def _leaf_of(path: str, value: Any) -> LeafSpec | None:
    try:
        return leaf_spec(value)
    except (InvalidTypeError, InvalidArgumentError) as error:
        raise ElementError("a leaf that can be stored", describe(value), path=path, hint=str(error)) from error


def leaf_spec(value: Any) -> LeafSpec | None:
    if value is None:
        return None
    if isinstance(value, _ListOfValues):
        return value.spec
    if isinstance(value, PictureFile):
        return ImageSpec(value.mode)
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
