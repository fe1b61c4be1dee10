"""Make global ``jax.Array``s of the rows that a process holds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import CacheLayerError, InvalidArgumentError, InvalidTypeError, MissingDependencyError
from cachelayer.records.values import Nullable, Ragged, Sparse
from cachelayer.user_warnings import warn

try:
    import jax
    from jax.sharding import NamedSharding, PartitionSpec
except ImportError as error:
    raise MissingDependencyError("this needs JAX: pip install 'cachelayer[jax]'") from error

_FIXES: tuple[tuple[type, str], ...] = (
    (Ragged, "give its rows one shape with map(), or call its to_dense(length) in map_batches(), with a fixed length"),
    (
        Nullable,
        "replace every None by a number with map(), or use its values and valid in map_batches()",
    ),
    (Sparse, "make each element an array with map(), for instance with its to_dense()"),
)
_SMALL_NBYTES = 1 << 20
# JAX on a CPU uses memory of this alignment without a copy.
_ALIGNMENT = 64


@lru_cache(maxsize=256)
def of_rank(sharding: NamedSharding, rank: int) -> NamedSharding:
    """Return the sharding of leaves with ``rank`` axes."""
    if len(sharding.spec) <= rank:
        return sharding
    return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:rank]), memory_kind=sharding.memory_kind)


@lru_cache(maxsize=256)
def local_rows(sharding: NamedSharding, size: int) -> NDArray[np.int64]:
    """Return the rows of a global batch that devices of this process hold, ascending."""
    held = np.zeros(size, bool)
    for (rows,) in of_rank(sharding, 1).addressable_devices_indices_map((size,)).values():
        held[rows] = True
    rows_held: NDArray[np.int64] = np.flatnonzero(held)
    rows_held.setflags(write=False)
    return rows_held


def global_arrays(batch: Any, size: int, sharding: NamedSharding, changed: set[str]) -> Any:
    """Return global arrays of ``size`` rows from a batch of the rows that this process holds.

    Args:
        batch: the rows.
        size: the number of rows of the global batch.
        sharding: where the rows go.
        changed: the leaves that a warning was given for, because JAX cannot hold their values; this adds to it.
    """
    rows = local_rows(sharding, size)
    leaves, structure = jax.tree.flatten(batch)
    for place, leaf in enumerate(leaves):
        if not isinstance(leaf, (np.ndarray, jax.Array)) or not _is_known(leaf.dtype) or leaf.shape[:1] != rows.shape:
            raise _leaf_error(jax.tree_util.tree_flatten_with_path(batch)[0][place], len(rows))
        if leaf.dtype.itemsize > 4 and leaf.dtype != jax.dtypes.canonicalize_dtype(leaf.dtype):
            leaves[place] = _narrowed(np.asarray(leaf), functools.partial(_name, batch, place), changed)
    if (
        sharding.num_devices == 1
        and sharding.is_fully_addressable
        and sum(leaf.nbytes for leaf in leaves) < _SMALL_NBYTES
    ):
        return structure.unflatten(_sender(sharding, tuple([leaf.ndim for leaf in leaves]))(*map(np.asarray, leaves)))
    return structure.unflatten([_global_array(leaf, size, rows, sharding) for leaf in leaves])


def _name(batch: Any, place: int) -> str:
    path = jax.tree_util.tree_flatten_with_path(batch)[0][place][0]
    return f"leaf {jax.tree_util.keystr(path)}" if path else "the batch"


def _narrowed(array: NDArray[Any], name: Callable[[], str], changed: set[str]) -> NDArray[Any]:
    """Return a 64-bit array in the dtype that JAX has for it; warn if that changes its values."""
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    with np.errstate(over="ignore"):
        narrow: NDArray[Any] = array.astype(dtype)
    held = np.array_equal(narrow, array) if dtype.kind in "iu" else _as_finite(narrow, array)
    if not held and name() not in changed:
        changed.add(name())
        warn(
            f"{name()} has values of {array.dtype} that {dtype} does not hold, and JAX has no {array.dtype}, so they "
            "change: call jax.config.update('jax_enable_x64', True), split or scale them with map(), or leave them out"
        )
    return narrow


def _as_finite(narrow: NDArray[Any], array: NDArray[Any]) -> bool:
    infinite = np.isinf(narrow)
    return not infinite.any() or np.array_equal(infinite, np.isinf(array))


@lru_cache(maxsize=64)
def _sender(sharding: NamedSharding, ranks: tuple[int, ...]) -> Any:
    """Return a function that sends all arrays to the only device in one call: more calls would cost more time."""
    return jax.jit(lambda *leaves: leaves, out_shardings=tuple([of_rank(sharding, rank) for rank in ranks]))


def _global_array(leaf: Any, size: int, rows: NDArray[np.int64], sharding: NamedSharding) -> jax.Array:
    array = np.asarray(leaf)
    on_cpu = sharding.mesh.devices.flat[0].platform == "cpu"

    def part(index: tuple[slice, ...]) -> NDArray[Any]:
        first, last, _ = index[0].indices(size)
        place = int(np.searchsorted(rows, first))
        rows_of_device = array[(slice(place, place + last - first), *index[1:])]
        return _aligned(rows_of_device) if on_cpu else rows_of_device

    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    return jax.make_array_from_callback((size, *array.shape[1:]), of_rank(sharding, array.ndim), part, dtype=dtype)


def _aligned(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array in memory that JAX on a CPU uses without a copy: its own copy would be several times slower."""
    if array.ctypes.data % _ALIGNMENT == 0 and array.flags.c_contiguous:
        return array
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    copy: NDArray[Any] = np.ndarray(array.shape, array.dtype, memory, -memory.ctypes.data % _ALIGNMENT)
    copy[...] = array
    return copy


@functools.cache
def _is_known(dtype: np.dtype[Any]) -> bool:
    """Return whether JAX has arrays of a dtype."""
    try:
        jax.device_put(np.empty(0, dtype))
    except TypeError:
        return False
    return True


def _leaf_error(path_and_leaf: tuple[Any, Any], rows: int) -> CacheLayerError:
    path, leaf = path_and_leaf
    name = f"leaf {jax.tree_util.keystr(path)}" if path else "the batch"
    if hasattr(leaf, "dtype") and _is_known(leaf.dtype):
        return InvalidArgumentError(
            f"{name} has shape {list(leaf.shape)} for {rows} rows: functions passed to map_batches() must keep every "
            "row, on the first axis"
        )
    dtype = getattr(leaf, "dtype", type(leaf).__name__)
    what = type(leaf.flat[0]).__name__ if str(dtype) == "object" and leaf.size else dtype
    fix = next(
        (fix for kind, fix in _FIXES if isinstance(leaf, kind)), "turn it into numbers with map(), or leave it out"
    )
    return InvalidTypeError(f"{name} has type {what}, which JAX has no array for: {fix}")
