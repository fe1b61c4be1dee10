"""Infer element specs from elements, and read those that users write."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from cachelayer.errors import CacheLayerError, ElementError, InvalidArgumentError, InvalidTypeError
from cachelayer.records.spec import ArraySpec, LeafSpec, RaggedSpec, SparseSpec
from cachelayer.records.tree import Tree, children, describe, leaf_values, map_structure
from cachelayer.records.values import NoArray, Ragged, Sparse

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


def from_elements(elements: Iterable[Any]) -> Tree:
    """Return the spec of the first element; a leaf that is None there comes from the first element that has it."""
    spec: Tree = None
    unresolved = True
    for record, element in enumerate(elements):
        try:
            spec = from_element(element) if record == 0 else _fill(spec, element)
        except ElementError as error:
            raise error.at(record=record) from error.__cause__
        unresolved = bool(null_paths(spec))
        if not unresolved:
            break
    if unresolved:
        raise ElementError(
            "a value in one of the first elements",
            "None in all of them",
            path=null_paths(spec)[0],
            hint="Pass element_spec= to say what this leaf is.",
        )
    return spec


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


def declares_part(spec: Tree, whole: Tree) -> bool:
    """Return whether a declared spec says nothing else than a whole spec, in which nulls may have been found since."""
    if not _declares(spec, whole):
        return False
    if isinstance(spec, dict):
        return all(declares_part(child, whole[key]) for key, child in spec.items())
    if isinstance(spec, (tuple, list)):
        return type(spec) is type(whole) and all(map(declares_part, spec, whole))
    return bool(spec == whole or (isinstance(spec, LeafSpec) and spec.as_nullable() == whole))


def completed(spec: Tree, element: Any) -> Tree:
    """Return a declared spec with the keys that it lacks, as an element has them; in the order of the element.

    If the element lacks a key of the spec, or has another structure, the spec is not meant for it and stays as it is.
    """
    return _completed(spec, element, "") if _declares(spec, element) else spec


def _declares(spec: Tree, element: Any) -> bool:
    """Return whether an element has all keys of a spec."""
    if isinstance(spec, dict):
        has_keys = isinstance(element, Mapping) and all(key in element for key in spec)
        return has_keys and all(_declares(child, element[key]) for key, child in spec.items())
    if isinstance(spec, (tuple, list)):
        fits = isinstance(element, (tuple, list)) and len(spec) == len(element)
        return fits and all(map(_declares, spec, element))
    return True


def _completed(spec: Tree, element: Any, path: str) -> Tree:
    if isinstance(spec, dict):
        # A complete spec keeps its own order.
        keys = spec if len(spec) == len(element) else element
        return {
            key: _completed(spec[key], element[key], at) if key in spec else _shown_by(element[key], at)
            for key in keys
            for at in [f"{path}[{key!r}]"]
        }
    if isinstance(spec, (tuple, list)):
        parts = [
            _completed(child, part, path + step) for (step, child), part in zip(children(spec), element, strict=True)
        ]
        return type(spec)(*parts) if hasattr(spec, "_fields") else type(spec)(parts)
    return spec


def _shown_by(value: Any, path: str) -> Tree:
    spec = map_structure(value, _leaf_of, path)
    for unknown in null_paths(spec):
        hint = "Add it to element_spec, which lacks it, to say what this leaf is."
        raise ElementError("a value in the first element", "None", path=path + unknown, hint=hint)
    return spec


def null_paths(spec: Tree) -> list[str]:
    """Return the paths at which a spec holds None."""
    return [path for path, leaf in leaf_values(spec) if leaf is None]


def _fill(spec: Tree, element: Any, path: str = "") -> Tree:
    """Fill in leaves of this element where the spec holds None. If structures differ, the encoder raises later."""
    if spec is None:
        return map_structure(element, _leaf_of, path)
    if isinstance(spec, dict) and isinstance(element, Mapping):
        return {key: _fill(child, element.get(key), f"{path}[{key!r}]") for key, child in spec.items()}
    if isinstance(spec, (tuple, list)) and isinstance(element, (tuple, list)) and len(spec) == len(element):
        filled = [_fill(child, part, path + step) for (step, child), part in zip(children(spec), element, strict=True)]
        return type(spec)(*filled) if hasattr(spec, "_fields") else type(spec)(filled)
    return spec


def _leaf_of(path: str, value: Any) -> LeafSpec | None:
    try:
        return leaf_spec(value)
    except (InvalidTypeError, InvalidArgumentError) as error:
        raise ElementError("a leaf that can be stored", describe(value), path=path, hint=str(error)) from error


def leaf_spec(value: Any) -> LeafSpec | None:
    if value is None:
        return None
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
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (bool, int, float, complex, np.generic)):
        array = np.asarray(value)
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
