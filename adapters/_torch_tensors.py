"""Convert tensors to arrays and back, sharing memory if possible."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np

from cachelayer.errors import ElementError, InvalidTypeError, MissingDependencyError
from cachelayer.records import tree
from cachelayer.records.tree import Tree
from cachelayer.records.values import Nullable, Ragged, Sparse

try:
    import torch
except ImportError as error:
    raise MissingDependencyError("this needs PyTorch: pip install 'cachelayer[torch]'") from error

_CARRIERS = {1: (torch.uint8, np.uint8), 2: (torch.int16, np.int16)}
# numpy's array protocol does not have these dtypes: they are converted through integers of the same size.
_ML_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    getattr(torch, name): np.dtype(getattr(ml_dtypes, name))
    for name in (
        "bfloat16",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    )
}
_FROM_ML_DTYPES = {dtype: name for name, dtype in _ML_DTYPES.items()}


def arrays(value: Any, path: str = "") -> Tree:
    """Return a value with arrays in place of tensors, and namedtuples in place of dataclasses."""
    return tree.map_structure(value, _array_leaf, path)


def _array_leaf(path: str, leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return array_of(path, leaf)
    if isinstance(leaf, Nullable):
        return Nullable(arrays(leaf.values, path), np.asarray(leaf.valid))
    if dataclasses.is_dataclass(leaf) and not isinstance(leaf, (type, Ragged, Sparse)):
        names = tuple(field.name for field in dataclasses.fields(leaf))
        values = [arrays(getattr(leaf, name), f"{path}.{name}") for name in names]
        return tree.namedtuple_class(type(leaf).__name__, names)(*values)
    return leaf


def array_of(path: str, tensor: Any) -> np.ndarray[Any, Any]:
    """Return the values of a tensor, without a copy if possible."""
    try:
        tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
        dtype = _ML_DTYPES.get(tensor.dtype)
        if dtype is None:
            return np.asarray(tensor.numpy())
        return np.asarray(tensor.view(_CARRIERS[dtype.itemsize][0]).numpy().view(dtype))
    except (TypeError, RuntimeError) as error:
        got = f"a tensor of layout {tensor.layout} and dtype {tensor.dtype} on {tensor.device}"
        hint = "Convert it: .to_dense(), .dequantize(), .to(<a dtype>)."
        raise ElementError("a tensor that numpy can hold", got, path=path, hint=hint) from error


def tensors(value: Any) -> Any:
    """Return an element or a batch with tensors that share memory with its arrays.

    Args:
        value: the element or batch. Arrays of str or bytes become lists, a Ragged becomes a list of its rows, a Sparse
            becomes a sparse COO tensor, and a Nullable keeps tensors inside.

    Raises:
        InvalidTypeError: if PyTorch does not have the dtype of an array; names the path of the leaf.
    """
    return tree.map_structure(value, tensor_leaf)


def tensor_leaf(path: str, leaf: Any) -> Any:
    if isinstance(leaf, Ragged):
        return [tensor_leaf(path, row) for row in leaf]
    if isinstance(leaf, Nullable):
        return Nullable(tree.map_structure(leaf.values, tensor_leaf, path), tensor_of(path, leaf.valid))
    if isinstance(leaf, Sparse):
        indices = tensor_of(path, np.ascontiguousarray(leaf.indices.T))
        values, shape = tensor_of(path, leaf.values), tuple(leaf.dense_shape.tolist())
        return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)
    if isinstance(leaf, (np.ndarray, np.generic)):
        return leaf.tolist() if leaf.dtype.kind in "OSU" else tensor_of(path, np.asarray(leaf))
    return leaf


def tensor_of(path: str, array: np.ndarray[Any, Any]) -> Any:
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    dtype = _FROM_ML_DTYPES.get(array.dtype)
    try:
        if dtype is None:
            return torch.from_numpy(array)
        return torch.from_numpy(array.view(_CARRIERS[array.itemsize][1])).view(dtype)
    except (TypeError, ValueError) as error:
        name = f"leaf {path}" if path else "the element"
        raise InvalidTypeError(
            f"{name} has dtype {array.dtype}, which PyTorch does not have: convert it with map() of a stream"
        ) from error
