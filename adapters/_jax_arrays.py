"""Make global ``jax.Array``s of the rows that a process holds."""

from __future__ import annotations

import atexit
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import CacheLayerError, InvalidArgumentError, InvalidTypeError, MissingDependencyError
from cachelayer.locks import cached_property
from cachelayer.records.memory import ALIGNMENT, aligned_empty
from cachelayer.records.values import Nullable, Ragged, Sparse
from cachelayer.streams.background import end_threads

try:
    import jax
    from jax.sharding import NamedSharding, PartitionSpec
except ImportError as error:
    raise MissingDependencyError("this needs JAX: pip install 'cachelayer[jax]'") from error

_batched_device_put: Any
try:
    # A twentieth of the time of jax.device_put, which may be longer than it takes to read a small batch.
    from jax._src.interpreters import pxla
    from jax._src.lib import xla_client

    _takes_x64 = "enable_x64" in signature(pxla.batched_device_put).parameters
    _batched_device_put = xla_client.batched_device_put if _takes_x64 else None
except (ImportError, AttributeError):
    _batched_device_put = None

# Before JAX takes down its devices, which it does at the end of the program too, nothing may be sent any more.
atexit.register(end_threads)

_FIXES: tuple[tuple[type, str], ...] = (
    (Ragged, "give its rows one shape with map(), or call its to_dense(length) in map_batches(), with a fixed length"),
    (
        Nullable,
        "replace every None by a number with map(), or use its values and valid in map_batches()",
    ),
    (Sparse, "make each element an array with map(), for instance with its to_dense()"),
)
# What JAX has instead of 64 bits, unless it is told to have them.
_NARROW = {
    np.dtype(wide): np.dtype(narrow) for wide, narrow in (("i8", "i4"), ("u8", "u4"), ("f8", "f4"), ("c16", "c8"))
}
# JAX on a CPU uses aligned memory without a copy. Its own copy of a large array takes several times as long.
_LARGE_NBYTES = 1 << 20
# How many kinds of batches a sender remembers; a stream has few, of which only the last step of an epoch is another.
_KINDS = 64


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


class Sender:
    """Makes global arrays of the rows that this process holds. Any thread may call it.

    Args:
        sharding: where the rows go.

    Attributes:
        lost: for each leaf with values that JAX does not hold, what the user is told about it.
    """

    def __init__(self, sharding: NamedSharding) -> None:
        self.sharding = sharding
        self.lost: dict[str, str] = {}
        self._known: dict[Any, list[_Target]] = {}

    def __call__(self, batch: Any, size: int, *, wide: bool) -> Any:
        """Return global arrays of ``size`` rows.

        Args:
            batch: the rows that this process holds, of ``size`` rows of the global batch.
            size: the number of rows of the global batch.
            wide: whether JAX has 64 bits. A thread cannot ask: a context manager of JAX sets it for one thread.
        """
        leaves, structure = jax.tree.flatten(batch)
        kind = (size, wide, *[(leaf.shape, leaf.dtype) if type(leaf) is np.ndarray else None for leaf in leaves])
        targets = self._known.get(kind) or self._targets(batch, leaves, kind)
        for place, (leaf, target) in enumerate(zip(leaves, targets, strict=True)):
            array = leaf if type(leaf) is np.ndarray else np.asarray(leaf)
            if array.dtype != target.dtype:
                array = self._narrowed(array, functools.partial(_name, batch, place))
            leaves[place] = target.send(array)
        return structure.unflatten(leaves)

    def _targets(self, batch: Any, leaves: list[Any], kind: tuple[Any, ...]) -> list[_Target]:
        """Return where the leaves go; remember it for batches of this kind.

        Raises:
            CacheLayerError: if JAX has no array for a leaf, or it does not have the rows that this process holds.
        """
        size, wide = kind[:2]
        rows = local_rows(self.sharding, size)
        for place, leaf in enumerate(leaves):
            if not _fits(leaf, rows):
                raise _leaf_error(jax.tree_util.tree_flatten_with_path(batch)[0][place], len(rows))
        dtypes = [np.dtype(leaf.dtype) for leaf in leaves]
        if not wide:
            dtypes = [_NARROW.get(dtype, dtype) for dtype in dtypes]
        targets = [
            _target(self.sharding, (size, *leaf.shape[1:]), dtype, wide)
            for leaf, dtype in zip(leaves, dtypes, strict=True)
        ]
        if None not in kind:
            if len(self._known) >= _KINDS:
                self._known.clear()
            self._known[kind] = targets
        return targets

    def _narrowed(self, array: NDArray[Any], name: Callable[[], str]) -> NDArray[Any]:
        """Return a 64-bit array in the dtype that JAX has for it; note it if that changes its values."""
        dtype = _NARROW[array.dtype]
        with np.errstate(over="ignore"):
            narrow: NDArray[Any] = array.astype(dtype)
        held = np.array_equal(narrow, array) if dtype.kind in "iu" else _as_finite(narrow, array)
        if not held:
            self.lost.setdefault(
                name(),
                f"{name()} has values of {array.dtype} that {dtype} does not hold, and JAX has no {array.dtype}, so "
                "they change: call jax.config.update('jax_enable_x64', True), split or scale them with map(), or leave "
                "them out",
            )
        return narrow


@dataclass(frozen=True)
class _Target:
    """Where the parts of an array go.

    Args:
        sharding, shape, dtype: those of the array.
        aval: what JAX knows of an array before it is there; None if it has to be asked each time.
        indices: for each device, the part of the global array that it holds.
        devices: those of this process.
        wide: whether JAX has 64 bits.
    """

    sharding: NamedSharding
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    aval: Any
    indices: tuple[tuple[slice, ...], ...]
    devices: list[Any]
    wide: bool

    @cached_property
    def takes_whole(self) -> bool:
        return len(self.devices) == 1 and bool(self.sharding.num_devices == 1)

    @cached_property
    def aligns(self) -> bool:
        return any(device.platform == "cpu" for device in self.devices)

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        return local_rows(self.sharding, self.shape[0])

    def send(self, array: NDArray[Any]) -> jax.Array:
        """Return the global array of the rows that this process holds."""
        parts = [array] if self.takes_whole else [_part(array, self.shape[0], self.rows, each) for each in self.indices]
        if self.aligns and array.nbytes >= _LARGE_NBYTES:
            parts = list(map(_aligned, parts))
        return self.put(parts)

    def put(self, parts: list[NDArray[Any]]) -> jax.Array:
        if self.aval is not None:
            return _batched_device_put(self.aval, self.sharding, parts, self.devices, True, enable_x64=self.wide)
        with jax.enable_x64(self.wide):
            arrays = jax.device_put(parts, self.devices)
            return jax.make_array_from_single_device_arrays(self.shape, self.sharding, arrays, dtype=self.dtype)


@lru_cache(maxsize=256)
def _target(sharding: NamedSharding, shape: tuple[int, ...], dtype: np.dtype[Any], wide: bool) -> _Target:
    sharding = of_rank(sharding, len(shape))
    held = sharding.addressable_devices_indices_map(shape)
    target = _Target(sharding, shape, dtype, None, tuple(held.values()), list(held), wide)
    if _batched_device_put is None:
        return target
    parts = [np.zeros(sharding.shard_shape(shape), dtype) for _ in held]
    return replace(target, aval=target.put(parts).aval)


def _part(array: NDArray[Any], size: int, rows: NDArray[np.int64], index: tuple[slice, ...]) -> NDArray[Any]:
    """Return the part of the rows that this process holds that one device holds."""
    first, last, _ = index[0].indices(size)
    place = int(np.searchsorted(rows, first))
    part: NDArray[Any] = array[(slice(place, place + last - first), *index[1:])]
    return part


def _fits(leaf: Any, rows: NDArray[np.int64]) -> bool:
    return isinstance(leaf, (np.ndarray, jax.Array)) and _is_known(leaf.dtype) and leaf.shape[:1] == rows.shape


def _name(batch: Any, place: int) -> str:
    path = jax.tree_util.tree_flatten_with_path(batch)[0][place][0]
    return f"leaf {jax.tree_util.keystr(path)}" if path else "the batch"


def _as_finite(narrow: NDArray[Any], array: NDArray[Any]) -> bool:
    infinite = np.isinf(narrow)
    return not infinite.any() or np.array_equal(infinite, np.isinf(array))


def _aligned(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array in memory that JAX on a CPU uses without a copy."""
    if array.__array_interface__["data"][0] % ALIGNMENT == 0 and array.flags.c_contiguous:
        return array
    copy = aligned_empty(array.shape, array.dtype)
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
