"""Turn streams into global ``jax.Array``s, on any mesh and any number of processes."""

from __future__ import annotations

import atexit
import functools
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.adapters.frameworks.stream_or_ref import CURE_OF_VALUES, check_numbers, check_stream
from cachelayer.errors import CacheLayerError, InvalidArgumentError, InvalidTypeError
from cachelayer.protocols import T
from cachelayer.specs import tree
from cachelayer.specs.schema import not_taken
from cachelayer.streams.ahead.background import end_threads
from cachelayer.streams.ahead.prefetch import Prefetcher
from cachelayer.streams.checkpoint import Awaited, save_state
from cachelayer.streams.epochs import EpochCursor
from cachelayer.streams.epochwise import Epochwise
from cachelayer.streams.iterator import StreamIterator
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.streams.stream import Stream
from cachelayer.support.arguments import explains_options, integer
from cachelayer.support.extras import packages_of
from cachelayer.support.user_warnings import warn

with packages_of("jax", "this needs JAX"):
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

__all__ = ["GlobalBatchIterator", "GlobalBatches", "global_batches", "shard_by_process"]

# Before JAX takes down its devices, which it does at the end of the program too, no thread may send arrays any more.
atexit.register(end_threads)


def shard_by_process() -> tuple[int, int]:
    """Return the index of this process and the number of JAX processes.

    For ``ref.stream(shard=...)``, and for ``storage.cache(hosts=...)``: all processes build a version together.

    Examples:
        >>> from cachelayer.adapters.jax import shard_by_process
        >>> shard_by_process()
        (0, 1)
        >>> ref = cachelayer.wrap(list(range(8)), identity="numbers")
        >>> len(ref.stream(4, shard=shard_by_process()))
        2
    """
    return jax.process_index(), jax.process_count()


@explains_options
def global_batches(stream: Stream[T], sharding: NamedSharding, *, depth: int | None = None) -> GlobalBatches[T]:
    """Return the batches of a stream as global arrays: the same on any mesh and any number of processes.

    Each process reads only the rows that its devices hold. Functions passed to ``map_batches`` see only these rows, and
    must not change the arrays that they returned. All processes must iterate in the same way.

    Args:
        stream: a batched stream without ``shard``.
        sharding: the sharding of every leaf, ``[global_batch_size, ...]``: its first part divides the rows, its other
            parts the further axes of leaves that have them.
        depth: the number of batches that are read, and sent to the devices, ahead of the one in use; several small
            ones count as one. By default as many as the stream reads ahead (``prefetch``).

    Returns:
        An iterable of batches. Each iteration has the next epoch; if the stream is endless, it goes on where the last
        one stopped. It has ``get_state`` and ``set_state``, as its iterators have. A batch has the structure of the
        stream's, with ``jax.Array`` leaves in JAX's dtypes: 64 bits become 32 unless ``jax_enable_x64`` is set. Then
        numbers that are rounded get a warning, and those that are too large an error, which names the leaf. With
        remainder "pad" an item is ``(batch, mask)``.

    Raises:
        InvalidArgumentError: if the stream has no batches, is one shard of several, or has a step that the sharding
            does not divide.
        InvalidTypeError: if the sharding is not a ``NamedSharding``.

    Examples:
        >>> import jax
        >>> from jax.sharding import Mesh, NamedSharding, PartitionSpec
        >>> from cachelayer.adapters.jax import global_batches
        >>> mesh = Mesh(jax.devices()[:1], ("data",))
        >>> stream = cachelayer.wrap(list(range(6)), identity="numbers").stream(4)
        >>> for batch in global_batches(stream, NamedSharding(mesh, PartitionSpec("data"))):
        ...     print(isinstance(batch, jax.Array), batch.tolist())
        True [0, 1, 2, 3]
        True [4, 5]
    """
    if not isinstance(sharding, NamedSharding):
        raise InvalidTypeError(
            f"sharding {sharding!r}: pass a jax.sharding.NamedSharding, such as NamedSharding(mesh, P('data'))"
        )
    check_stream(stream)
    check_numbers(stream, "JAX", lambda dtype: _dtype_for(dtype, wide=True) is not None)
    schedule = stream._reader.schedule
    if not schedule.batched:
        raise InvalidArgumentError("global_batches() needs batches: pass a global_batch_size to stream()")
    if schedule.shard_count > 1:
        raise InvalidArgumentError(
            "global_batches() takes the stream of all shards, because the sharding decides which rows a process "
            "reads: leave shard= out of stream()"
        )
    return GlobalBatches(stream, sharding, None if depth is None else integer("depth", depth, 1))


class GlobalBatches(Epochwise[T]):
    """The batches of a stream as global arrays, each iteration the next epoch. Made by :func:`global_batches`.

    Examples:
        >>> import jax
        >>> from jax.sharding import Mesh, NamedSharding, PartitionSpec
        >>> from cachelayer.adapters.jax import global_batches
        >>> sharding = NamedSharding(Mesh(jax.devices()[:1], ("data",)), PartitionSpec("data"))
        >>> stream = cachelayer.wrap(list(range(6)), identity="numbers").stream(2, shuffle=True, seed=1)
        >>> batches = global_batches(stream, sharding)
        >>> [[batch.tolist() for batch in batches] for epoch in range(2)]
        [[[4, 3], [5, 0], [1, 2]], [[5, 1], [3, 0], [4, 2]]]
    """

    def __init__(self, stream: Stream[T], sharding: NamedSharding, depth: int | None) -> None:
        self._sharding = sharding
        self._depth = depth
        self._rounded: set[str] = set()
        """The first leaf that is rounded, of which a warning has said so."""
        _check_steps(stream._reader, sharding)
        chunks_of = functools.partial(_chunks_of, sharding=sharding)
        super().__init__(EpochCursor(stream._reader, chunks_of, self._global), GlobalBatchIterator)

    def _global(self, reader: StepReader) -> StepReader:
        """Return the reader of the rows that this process holds, which sends them to its devices."""
        # Asked in this thread: another thread does not see what a context manager of JAX sets.
        wide = bool(jax.config.jax_enable_x64)
        sharding = self._sharding
        if not sharding.is_fully_addressable:
            reader = reader.of_rows(lambda size: _local_rows(sharding, size))
        if self._depth is not None:
            reader = reader.with_schedule(prefetch=self._depth)
        convert = functools.partial(_convert, sharding=sharding, wide=wide, rounded=self._rounded)
        return replace(reader, convert=convert)


class GlobalBatchIterator(StreamIterator[T]):
    """An iterator over global batches, with a state. Only one thread may use it at a time.

    It continues from the state of any stream's iterator, on any mesh, if the sharding divides every step from there on.
    Its ``failures`` are those of the rows that this process reads; ``get_state`` is the same on every process.

    Examples:
        >>> import jax
        >>> from jax.sharding import Mesh, NamedSharding, PartitionSpec
        >>> from cachelayer.adapters.jax import global_batches
        >>> sharding = NamedSharding(Mesh(jax.devices()[:1], ("data",)), PartitionSpec("data"))
        >>> stream = cachelayer.wrap(list(range(6)), identity="numbers").stream(2)
        >>> iterator = iter(global_batches(stream, sharding))
        >>> next(iterator).tolist(), iterator.position
        ([0, 1], 2)
        >>> iterator.set_state(stream.state(2))
        >>> next(iterator).tolist()
        [4, 5]
    """

    def save(self, directory: Any) -> Awaited:
        """Save the state beside a model, as ``state.json``; process 0 writes it.

        Args:
            directory: a path, which is written at once; or one that Orbax is about to make, which is written when the
                result is awaited.

        Examples:
            >>> import jax
            >>> from jax.sharding import Mesh, NamedSharding, PartitionSpec
            >>> from cachelayer.adapters.jax import global_batches
            >>> sharding = NamedSharding(Mesh(jax.devices()[:1], ("data",)), PartitionSpec("data"))
            >>> stream = cachelayer.wrap(list(range(6)), identity="numbers").stream(2)
            >>> iterator = iter(global_batches(stream, sharding))
            >>> batch = next(iterator)
            >>> _ = iterator.save(folder)
            >>> resumed = iter(global_batches(stream, sharding))
            >>> _ = resumed.load(folder)
            >>> next(resumed).tolist()
            [2, 3]
        """
        return save_state(self.get_state(), directory, writes=jax.process_index() == 0)


def _chunks_of(reader: StepReader, sharding: NamedSharding) -> Prefetcher[Any]:
    _check_steps(reader, sharding)
    return Prefetcher(reader)


def _check_steps(reader: StepReader, sharding: NamedSharding) -> None:
    """Raise unless the sharding divides every step of a stream."""
    rows = _of_rank(sharding, 1)
    schedule = reader.schedule
    for size in schedule.step_sizes(schedule.start):
        try:
            rows.shard_shape((size,))
        except ValueError:
            what = f"a shorter step, {size} rows,"
            fix = "pass remainder='drop' or 'pad' to stream()"
            if size == schedule.global_batch:
                what = f"global_batch_size {size}"
                fix = "pass a multiple"
            over = f"{sharding.spec} over the mesh {dict(sharding.mesh.shape)}"
            raise InvalidArgumentError(f"{what} is not divisible by {over}: {fix}") from None


@lru_cache(maxsize=256)
def _of_rank(sharding: NamedSharding, rank: int) -> NamedSharding:
    """Return the sharding of leaves with ``rank`` axes."""
    if len(sharding.spec) <= rank:
        return sharding
    return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:rank]), memory_kind=sharding.memory_kind)


@lru_cache(maxsize=256)
def _local_rows(sharding: NamedSharding, size: int) -> NDArray[np.int64]:
    """Return the rows of a global batch that devices of this process hold, ascending."""
    is_local = np.zeros(size, bool)
    for (rows,) in _of_rank(sharding, 1).addressable_devices_indices_map((size,)).values():
        is_local[rows] = True
    local: NDArray[np.int64] = np.flatnonzero(is_local)
    local.setflags(write=False)
    return local


def _convert(batch: Any, size: int, sharding: NamedSharding, *, wide: bool, rounded: set[str]) -> Any:
    """Return a batch of this process's rows as global arrays of ``size``; warn of the first leaf that is rounded."""
    rows = _local_rows(sharding, size)
    leaves, structure = jax.tree.flatten(batch)
    for place, leaf in enumerate(leaves):
        dtype = _dtype_for(leaf.dtype, wide=wide) if isinstance(leaf, (np.ndarray, np.generic, jax.Array)) else None
        if dtype is None or leaf.shape[:1] != (len(rows),):
            raise _leaf_error(_name(batch, place), leaf, len(rows), has_dtype=dtype is not None)
        leaves[place] = np.asarray(leaf)
        if dtype != leaf.dtype:
            leaves[place] = _narrowed(leaves[place], dtype, functools.partial(_name, batch, place), rounded)
    with jax.enable_x64(wide):
        for place, leaf in enumerate(leaves):
            try:
                leaves[place] = _global_array(leaf, rows, size, _of_rank(sharding, leaf.ndim))
            except ValueError as error:
                over = f"{sharding.spec} over the mesh {dict(sharding.mesh.shape)}"
                raise InvalidArgumentError(
                    f"{_name(batch, place)} has shape {[size, *leaf.shape[1:]]}, which is not divisible by {over}: pad "
                    "or cut it with map(), or leave its axes out of the sharding"
                ) from error
        return structure.unflatten(leaves)


def _global_array(array: NDArray[Any], rows: NDArray[np.int64], size: int, sharding: NamedSharding) -> jax.Array:
    """Return the global array of the rows that this process holds: none if it has no device of the mesh.

    ``make_array_from_process_local_data`` fails then, and ``device_put`` takes several times longer for small arrays.
    """

    def part(index: tuple[slice, ...]) -> NDArray[Any]:
        first, last, _ = index[0].indices(size)
        place = int(np.searchsorted(rows, first))
        local: NDArray[Any] = array[(slice(place, place + last - first), *index[1:])]
        return local

    return jax.make_array_from_callback((size, *array.shape[1:]), sharding, part, dtype=array.dtype)


@functools.cache
def _dtype_for(dtype: np.dtype[Any], *, wide: bool) -> np.dtype[Any] | None:
    """Return the dtype that JAX has in place of another one, with or without 64 bits; None if it has none."""
    try:
        with jax.enable_x64(wide):
            dtype_on_device: np.dtype[Any] = jax.device_put(np.empty(0, dtype)).dtype
    except (TypeError, jax.errors.JaxRuntimeError):
        return None
    return dtype_on_device


def _narrowed(
    array: NDArray[Any], dtype: np.dtype[Any], name: functools.partial[str], rounded: set[str]
) -> NDArray[Any]:
    """Return a 64-bit array in the dtype that JAX has for it; warn of the first leaf that is rounded."""
    with np.errstate(over="ignore"):
        narrow: NDArray[Any] = array.astype(dtype)
    if dtype.kind in "iu":
        is_same = np.array_equal(narrow, array)
    else:
        infinite = np.isinf(narrow)
        is_same = not infinite.any() or np.array_equal(infinite, np.isinf(array))
    if not is_same:
        raise InvalidArgumentError(
            f"{name()} has values of {array.dtype} that {dtype} does not hold, and JAX has no {array.dtype}: call "
            "jax.config.update('jax_enable_x64', True), split or scale them with map(), or leave them out"
        )
    if not rounded and dtype.kind in "fc" and not np.array_equal(narrow, array, equal_nan=True):
        rounded.add(name())
        warn(
            f"{name()} has numbers of {array.dtype}, which are rounded to {dtype}, because JAX has no {array.dtype}: "
            f"call jax.config.update('jax_enable_x64', True) to keep them, or make {dtype} of them in map()"
        )
    return narrow


def _name(batch: Any, place: int) -> str:
    path = jax.tree_util.tree_flatten_with_path(batch)[0][place][0]
    return f"leaf {jax.tree_util.keystr(path)}" if path else "the batch"


def _leaf_error(name: str, leaf: Any, rows: int, *, has_dtype: bool) -> CacheLayerError:
    if has_dtype:
        return InvalidArgumentError(
            f"{name} has shape {list(leaf.shape)} for {rows} rows: functions passed to map_batches() must keep every "
            "row, on the first axis"
        )
    value = type(leaf.flat[0]).__name__ if isinstance(leaf, np.ndarray) and leaf.size else tree.describe(leaf)
    return not_taken(name, value, "JAX", f"{CURE_OF_VALUES}, or leave it out")
