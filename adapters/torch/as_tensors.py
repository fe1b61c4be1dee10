"""Convert arrays to tensors, sharing memory if possible, and numpy's generators to PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import torch

from cachelayer.errors import InvalidTypeError
from cachelayer.specs import tree
from cachelayer.specs.schema import Schema, not_taken
from cachelayer.specs.tree import Tree
from cachelayer.specs.values import Nullable, Ragged, Sparse

CURE = "convert it with map() of a stream"
# numpy's array protocol does not have these dtypes: they are converted through integers of the same size.
_ML_DTYPES: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(getattr(ml_dtypes, name)): getattr(torch, name)
    for name in (
        "bfloat16",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    )
    if hasattr(torch, name)
}


def tensors(value: Any) -> Any:
    """Return an element or a batch with tensors that share memory with its arrays.

    Args:
        value: the element or batch. Arrays of str or bytes become lists, a Ragged becomes a list of its rows, a Sparse
            becomes a sparse COO tensor, and a Nullable keeps tensors inside.

    Examples:
        >>> import numpy as np
        >>> from cachelayer.adapters.torch import tensors
        >>> image = np.zeros((2, 2), np.uint8)
        >>> element = tensors({"image": image, "name": "cat"})
        >>> image[0, 0] = 7
        >>> element
        {'image': tensor([[7, 0],
                [0, 0]], dtype=torch.uint8), 'name': 'cat'}
    """
    return tree.map_structure(value, tensor_leaf)


def tensor_leaf(path: str, leaf: Any) -> Any:
    if isinstance(leaf, (np.ndarray, np.generic)):
        return leaf.tolist() if leaf.dtype.kind in "OSU" else tensor_of(path, np.asarray(leaf))
    if isinstance(leaf, Ragged):
        return [tensor_leaf(path, row) for row in leaf]
    if isinstance(leaf, Nullable):
        return Nullable(tree.map_structure(leaf.values, tensor_leaf, path), tensor_of(path, leaf.valid))
    if isinstance(leaf, Sparse):
        indices = tensor_of(path, np.ascontiguousarray(leaf.indices.T))
        values = tensor_of(path, leaf.values)
        shape = tuple(leaf.dense_shape.tolist())
        return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)
    return leaf


def tensor_of(path: str, array: np.ndarray[Any, Any]) -> Any:
    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = array.copy()
    dtype = _ML_DTYPES.get(array.dtype)
    try:
        if dtype is None:
            return torch.from_numpy(array)
        return torch.from_numpy(array.view(f"u{array.itemsize}")).view(dtype)
    except (TypeError, ValueError) as error:
        raise not_taken(tree.leaf_title(path), tree.describe(array), "PyTorch", f"{CURE}, or leave it out") from error


def check_dtypes(spec: Tree) -> None:
    """Raise unless PyTorch has the dtypes of all leaves of the records; the error says which fields to choose."""
    Schema.of(spec).check_taken("PyTorch", lambda leaf: None if _has_dtype(leaf) else CURE)


def _has_dtype(leaf: Tree) -> bool:
    dtype = getattr(leaf, "dtype", None)
    if not isinstance(dtype, np.dtype) or dtype.kind in "SU":
        return True
    try:
        tensor_of("", np.empty(0, dtype))
    except InvalidTypeError:
        return False
    return True


def keyed_generators(
    keyed: Callable[[Any, int], Iterator[np.random.Generator]], positions: Any, attempts: int
) -> Iterator[torch.Generator]:
    """Yield the generator of each position for ``map(rng="torch")``, seeded by the first number of numpy's."""
    generator = torch.Generator()
    for each in keyed(positions, attempts):
        yield generator.manual_seed(int(each.integers(2**63)))
