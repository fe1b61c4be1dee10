"""Streams as global ``jax.Array``s, for any mesh and on any number of processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Iterator
from functools import lru_cache
from typing import Any, Generic, cast

import numpy as np
from numpy.typing import NDArray

from cachelayer.arguments import integer
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, MissingDependencyError
from cachelayer.protocols import T
from cachelayer.sequential.checkpoint import load_state, save_state
from cachelayer.sequential.steps import Steps
from cachelayer.sequential.stream import Stream

try:
    import jax
    from jax.sharding import NamedSharding, PartitionSpec
except ImportError as error:
    raise MissingDependencyError("this needs JAX: pip install 'cachelayer[jax]'") from error


def shard_by_process() -> tuple[int, int]:
    """The shard of this process among all JAX processes, for ``ref.stream(shard=...)``."""
    return jax.process_index(), jax.process_count()


def global_batches(stream: Stream[T], sharding: NamedSharding, depth: int = 2) -> GlobalBatches[T]:
    """The batches of a stream as global arrays: the same ones on any mesh and any number of processes.

    Each process reads the rows that its devices hold, and no others. Every process iterates alike.

    Args:
        stream: a batched stream without ``shard``.
        sharding: that of every leaf, ``[global_batch_size, ...]``: its first part is that of the rows, the others are
            those of further axes, for leaves that have them.
        depth: number of batches on their way to the devices, the one that is handed out next among them.

    Returns:
        What gives an iterator of batches as often as it is asked. A batch has the structure of the stream's, with
        ``jax.Array`` leaves in the dtypes that JAX has for them: 64 bits become 32 unless ``jax_enable_x64`` is set.
        With remainder "pad" it is ``(batch, mask)``.

    Raises:
        InvalidArgumentError: where the stream has no batches, or is that of one shard of several, or where the sharding
            does not divide one of its steps.
        InvalidTypeError: where the sharding is no ``NamedSharding``.
    """
    if not isinstance(sharding, NamedSharding):
        raise InvalidTypeError(
            f"sharding {sharding!r}: pass a jax.sharding.NamedSharding, such as NamedSharding(mesh, P('data'))"
        )
    options = stream.options
    if not options.batched:
        raise InvalidArgumentError("global_batches() needs batches: pass a global_batch_size to stream()")
    if options.steps.shard_count > 1:
        raise InvalidArgumentError(
            "global_batches() takes the stream of all shards, since the sharding tells which rows a process reads: "
            "leave shard= out of stream()"
        )
    return GlobalBatches(stream, sharding, integer("depth", depth, 1))


class GlobalBatches(Generic[T]):
    """The batches of a stream as global arrays. Made by :func:`global_batches`."""

    def __init__(self, stream: Stream[T], sharding: NamedSharding, depth: int) -> None:
        self.stream = stream
        self.sharding = sharding
        self.depth = depth
        self.check_steps(stream.options.start)

    def __iter__(self) -> GlobalBatchIterator[T]:
        """An iterator from the stream's start on, independent of others."""
        return GlobalBatchIterator(self)

    def __len__(self) -> int:
        """Number of batches.

        Raises:
            TypeError: where the stream has no end.
        """
        return len(self.stream)

    def check_steps(self, position: int) -> None:
        """Whether the sharding divides every step from a position on.

        Raises:
            InvalidArgumentError: where it does not.
        """
        rows, over = _of_rank(self.sharding, 1), f"{self.sharding.spec} over the mesh {dict(self.sharding.mesh.shape)}"
        for size in _step_sizes(self.stream.options.steps, position):
            try:
                rows.shard_shape((size,))
            except ValueError:
                whole = size == self.stream.options.steps.global_batch
                what = f"global_batch_size {size}" if whole else f"the last step of an epoch, {size} rows,"
                fix = "pass a multiple" if whole else "pass remainder='drop' or 'pad' to stream()"
                raise InvalidArgumentError(f"{what} is not divisible by {over}: {fix}") from None


class GlobalBatchIterator(Iterator[T]):
    """Hands out global batches, and knows where it is. For one thread at a time."""

    def __init__(self, batches: GlobalBatches[T]) -> None:
        self._batches = batches
        self._identity = batches.stream.identity
        self._local = iter(batches.stream.of_rows(lambda size: _local_rows(batches.sharding, size)))
        self._begin()

    def _begin(self) -> None:
        self._flight: deque[tuple[T, dict[str, Any]]] = deque()
        self._failure: BaseException | None = None
        self._state = self._local.get_state()

    def __iter__(self) -> GlobalBatchIterator[T]:
        return self

    def __next__(self) -> T:
        self._fill()
        if self._flight:
            batch, self._state = self._flight.popleft()
            return batch
        if self._failure is not None:
            raise self._taken_failure()
        raise StopIteration

    def _fill(self) -> None:
        """Send off batches until enough are on their way."""
        steps = self._batches.stream.options.steps
        while len(self._flight) < self._batches.depth and self._failure is None:
            position = self._local.get_state()["position"]
            try:
                batch = next(self._local)
                step = steps.at(position)
                size = steps.global_batch if step is None or steps.remainder == "pad" else step.end - step.begin
                sent = _global_arrays(batch, size, self._batches.sharding)
            except StopIteration:
                return
            except Exception as error:  # noqa: BLE001 - raised in its place, after the batches before it
                self._failure = error
                return
            self._flight.append((cast(T, sent), self._local.get_state()))

    def _taken_failure(self) -> BaseException:
        failure, self._failure = cast(BaseException, self._failure), None
        return failure

    def get_state(self) -> dict[str, Any]:
        """The state after what was handed out: that of the stream, the same on every process."""
        return self._state

    def set_state(self, state: Any) -> None:
        """Go on where an iterator of the same records in the same order was, on any mesh.

        Args:
            state: what ``get_state`` of this or of any stream's iterator gave, or its JSON.

        Raises:
            StateError: where it belongs to other records or another order, or lies past the end.
            InvalidArgumentError: where the sharding does not divide a step from there on.
        """
        self._batches.check_steps(self._identity.position(state))
        self._local.set_state(state)
        self._begin()

    async def save(self, directory: Any) -> Awaitable[None]:
        """Save the state beside a model: Orbax calls this. Process 0 writes ``state.json``.

        Args:
            directory: a path, or one that Orbax is about to make.
        """
        return await save_state(self.get_state(), directory, writes=jax.process_index() == 0)

    async def load(self, directory: Any) -> Awaitable[None]:
        """Go on from a state that :meth:`save` wrote, on any number of processes: Orbax calls this.

        Raises:
            StateError: where there is none, or it belongs to other records or another order; raised when the result
                is awaited.
        """
        return await load_state(directory, self.set_state)


def _step_sizes(steps: Steps, position: int) -> set[int]:
    """The numbers of rows that steps from a position on may have."""
    sizes = {steps.global_batch}
    if steps.remainder == "keep" and steps.at(position) is not None:
        epoch_end = position - position % steps.records + steps.records
        more = steps.end is None or epoch_end < steps.end
        for left in (epoch_end - position, steps.records if more else 0):
            sizes.add(left % steps.global_batch or steps.global_batch)
    return sizes


@lru_cache(maxsize=256)
def _of_rank(sharding: NamedSharding, rank: int) -> NamedSharding:
    """The sharding of leaves with so many axes."""
    if len(sharding.spec) <= rank:
        return sharding
    return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:rank]), memory_kind=sharding.memory_kind)


@lru_cache(maxsize=256)
def _local_rows(sharding: NamedSharding, size: int) -> NDArray[np.int64]:
    """The rows of a global batch that devices of this process hold, ascending."""
    held = np.zeros(size, bool)
    for (rows,) in _of_rank(sharding, 1).addressable_devices_indices_map((size,)).values():
        held[rows] = True
    found: NDArray[np.int64] = np.flatnonzero(held)
    found.setflags(write=False)
    return found


def _global_arrays(batch: Any, size: int, sharding: NamedSharding) -> Any:
    """Global arrays of ``size`` rows from a batch of the rows that this process holds."""
    rows = _local_rows(sharding, size)
    return jax.tree_util.tree_map_with_path(lambda path, leaf: _global_array(path, leaf, size, rows, sharding), batch)


def _global_array(path: Any, leaf: Any, size: int, rows: NDArray[np.int64], sharding: NamedSharding) -> jax.Array:
    array = _checked(path, leaf, len(rows))

    def part(index: tuple[slice, ...]) -> NDArray[Any]:
        first, last, _ = index[0].indices(size)
        place = int(np.searchsorted(rows, first))
        return array[(slice(place, place + last - first), *index[1:])]

    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    return jax.make_array_from_callback((size, *array.shape[1:]), _of_rank(sharding, array.ndim), part, dtype=dtype)


def _checked(path: Any, leaf: Any, rows: int) -> NDArray[Any]:
    """The leaf, if JAX has a type for it and each row is there."""
    name = f"leaf {jax.tree_util.keystr(path)}" if path else "the batch"
    if not isinstance(leaf, (np.ndarray, jax.Array)):
        raise InvalidTypeError(f"{name} is a {type(leaf).__name__}, which JAX has no array for: {_MEND}")
    try:
        jax.dtypes.canonicalize_dtype(leaf.dtype)
    except TypeError:
        what = f"{type(leaf[0]).__name__} values" if leaf.dtype == object and len(leaf) else f"dtype {leaf.dtype}"
        raise InvalidTypeError(f"{name} holds {what}, which JAX has no array for: {_MEND}") from None
    if leaf.ndim == 0 or len(leaf) != rows:
        raise InvalidArgumentError(
            f"{name} has shape {list(leaf.shape)} for {rows} rows: functions passed to map_batches() keep every row, "
            "on the first axis"
        )
    return np.asarray(leaf)


_MEND = "make numbers of one shape of it with map(), or leave it out"
