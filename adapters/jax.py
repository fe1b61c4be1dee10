"""Streams as global ``jax.Array``s, for any mesh and on any number of processes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.dataref import DataRef
from cachelayer.adapters._handed import check_stream
from cachelayer.arguments import integer
from cachelayer.builds.build_options import SubmitOptions
from cachelayer.errors import CacheLayerError, InvalidArgumentError, InvalidTypeError, MissingDependencyError
from cachelayer.protocols import T
from cachelayer.records.values import Nullable, Ragged, Sparse
from cachelayer.storage.staleness import OnChange
from cachelayer.storage.storage import Storage
from cachelayer.streams.block_plan import Block
from cachelayer.streams.checkpoint import Awaited, load_state, save_state
from cachelayer.streams.iterator import END
from cachelayer.streams.steps import Steps
from cachelayer.streams.stream import Stream, reader_of
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
        "make a number of every None with map(), or take its values and valid in map_batches()",
    ),
    (Sparse, "make an array of each element with map(), such as by its to_dense()"),
)
_SMALL_NBYTES = 1 << 20
# Of memory that JAX on a CPU uses without a copy.
_ALIGNMENT = 64


def shard_by_process() -> tuple[int, int]:
    """The shard of this process among all JAX processes, for ``ref.stream(shard=...)``."""
    return jax.process_index(), jax.process_count()


def cache(
    storage: Storage,
    source: Any,
    dataset_id: str,
    version: str | None = None,
    *,
    hosts: tuple[int, int] | None = None,
    on_change: OnChange = "warn",
    record: Iterable[str] = (),
    **options: Unpack[SubmitOptions],
) -> DataRef[Any]:
    """The version, built by all JAX processes together; each of them makes this call.

    Args:
        storage: where it is kept; all processes can reach it.
        source, dataset_id, version, on_change, record, options: as in :meth:`cachelayer.Storage.cache`.
        hosts: index and count of the processes; by default JAX's.

    Raises:
        CacheLayerError: as in :meth:`cachelayer.Storage.cache`.
    """
    together = shard_by_process() if hosts is None else hosts
    ref: DataRef[Any] = storage.cache(
        source, dataset_id, version, hosts=together, on_change=on_change, record=record, **options
    )
    return ref


def global_batches(stream: Stream[T], sharding: NamedSharding, depth: int = 2) -> GlobalBatches[T]:
    """The batches of a stream as global arrays: the same ones on any mesh and any number of processes.

    Each process reads the rows that its devices hold, and no others; functions passed to ``map_batches`` see those, and
    return arrays that nobody changes afterwards. Every process iterates alike.

    Args:
        stream: a batched stream without ``shard``.
        sharding: that of every leaf, ``[global_batch_size, ...]``: its first part is that of the rows, the others are
            those of further axes, for leaves that have them.
        depth: number of batches on their way to the devices, the one that is handed out next among them.

    Returns:
        What gives an iterator of batches as often as it is asked. A batch has the structure of the stream's, with
        ``jax.Array`` leaves in the dtypes that JAX has for them: 64 bits become 32 unless ``jax_enable_x64`` is set,
        which is warned of once for a leaf if its values are too large for that; floats are rounded without a warning.
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
    check_stream(stream)
    options = reader_of(stream).options
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
        # Leaves of which was warned.
        self.changed: set[str] = set()
        self.check_steps(reader_of(stream).options.start)

    def __iter__(self) -> GlobalBatchIterator[T]:
        """An iterator from the stream's start on, independent of others."""
        return GlobalBatchIterator(self)

    def __len__(self) -> int:
        """Number of batches.

        Raises:
            TypeError: where the stream has no end.
        """
        return len(self.stream)

    def rows_at(self, position: int) -> int:
        """Rows of the global batch from a position on, with padding."""
        steps = reader_of(self.stream).options.steps
        step = steps.at(position) if steps.remainder == "keep" else None
        return steps.global_batch if step is None else step.end - step.begin

    def check_steps(self, position: int) -> None:
        """Whether the sharding divides every step from a position on.

        Raises:
            InvalidArgumentError: where it does not.
        """
        rows, over = _of_rank(self.sharding, 1), f"{self.sharding.spec} over the mesh {dict(self.sharding.mesh.shape)}"
        for size in _step_sizes(reader_of(self.stream).options.steps, position):
            try:
                rows.shard_shape((size,))
            except ValueError:
                whole = size == reader_of(self.stream).options.steps.global_batch
                what = f"global_batch_size {size}" if whole else f"the last step of an epoch, {size} rows,"
                fix = "pass a multiple" if whole else "pass remainder='drop' or 'pad' to stream()"
                raise InvalidArgumentError(f"{what} is not divisible by {over}: {fix}") from None


class GlobalBatchIterator(Iterator[T]):
    """Hands out global batches, and knows where it is. For one thread at a time."""

    def __init__(self, batches: GlobalBatches[T]) -> None:
        self._batches = batches
        reader = reader_of(batches.stream)
        self._identity = reader.identity
        self._local = iter(Stream[T](reader.of_rows(lambda size: _local_rows(batches.sharding, size))))
        # Batches on their way; replaced as a whole, by one assignment.
        self._flight: Block[T] = Block(self._local.position)

    def __iter__(self) -> GlobalBatchIterator[T]:
        return self

    if TYPE_CHECKING:

        def __next__(self) -> T: ...

    else:

        @property
        def __next__(self) -> Callable[[], T]:
            """What hands out the next batch; as in :class:`cachelayer.StreamIterator`, ``next()`` calls it in C."""
            self._fill()
            if not self._flight.items and self._flight.failure is not None:
                raise self._taken_failure()
            return self._flight.items.popleft if self._flight.items else END

    def _fill(self) -> None:
        """Send off batches until enough are on their way."""
        while len(self._flight.items) < self._batches.depth and self._flight.failure is None:
            flight = self._flight
            if self._local.position != flight.end:
                # A call was interrupted between taking a batch and sending it off.
                self._local.set_state(self._identity.state(flight.end))
            size = self._batches.rows_at(flight.end)
            try:
                batch = _global_arrays(next(self._local), size, self._batches.sharding, self._batches.changed)
            except StopIteration:
                return
            except Exception as error:  # noqa: BLE001 - raised in its place, after the batches before it
                self._flight = flight.failed(error)
                return
            self._flight = flight.extended(batch, self._local.position)

    def _taken_failure(self) -> BaseException:
        failure = cast(BaseException, self._flight.failure)
        self._flight = Block(self._flight.position)
        return failure

    def get_state(self) -> dict[str, Any]:
        """The state after what was handed out: that of the stream, the same on every process."""
        return self._identity.state(self._flight.position)

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
        self._flight = Block(self._local.position)

    def save(self, directory: Any) -> Awaited:
        """Save the state beside a model, as ``state.json``; process 0 writes it.

        Args:
            directory: a path, to which it is written at once; or one that Orbax is about to make, and awaits.
        """
        return save_state(self.get_state(), directory, writes=jax.process_index() == 0)

    def load(self, directory: Any) -> Awaited:
        """Go on from a state that :meth:`save` wrote, on any number of processes, at once; Orbax calls this too.

        Raises:
            StateError: where there is none, or it belongs to other records or another order.
        """
        return load_state(directory, self.set_state)


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


def _global_arrays(batch: Any, size: int, sharding: NamedSharding, changed: set[str]) -> Any:
    """Return global arrays of ``size`` rows from a batch of the rows that this process holds.

    Args:
        batch: the rows.
        size: number of rows of the global batch.
        sharding: where they go.
        changed: the leaves with values that JAX does not hold, of which was warned; more are added.
    """
    rows = _local_rows(sharding, size)
    leaves, structure = jax.tree.flatten(batch)
    for place, leaf in enumerate(leaves):
        if not isinstance(leaf, (np.ndarray, jax.Array)) or not _is_known(leaf.dtype) or leaf.shape[:1] != rows.shape:
            raise _refusal(jax.tree_util.tree_flatten_with_path(batch)[0][place], len(rows))
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
    """Return an array of 64 bits in the dtype that JAX has for it; warn if its values are not held."""
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    with np.errstate(over="ignore"):
        narrow: NDArray[Any] = array.astype(dtype)
    held = np.array_equal(narrow, array) if dtype.kind in "iu" else _as_finite(narrow, array)
    if not held and name() not in changed:
        changed.add(name())
        warn(
            f"{name()} has values of {array.dtype} that {dtype} does not hold, and JAX has no {array.dtype}, so they "
            "change: set jax.config.update('jax_enable_x64', True), split or scale them with map(), or leave them out"
        )
    return narrow


def _as_finite(narrow: NDArray[Any], array: NDArray[Any]) -> bool:
    infinite = np.isinf(narrow)
    return not infinite.any() or np.array_equal(infinite, np.isinf(array))


@lru_cache(maxsize=64)
def _sender(sharding: NamedSharding, ranks: tuple[int, ...]) -> Any:
    """A function that sends arrays to the one device, in one call: one each would cost more than the bytes."""
    return jax.jit(lambda *leaves: leaves, out_shardings=tuple([_of_rank(sharding, rank) for rank in ranks]))


def _global_array(leaf: Any, size: int, rows: NDArray[np.int64], sharding: NamedSharding) -> jax.Array:
    array = np.asarray(leaf)
    on_cpu = sharding.mesh.devices.flat[0].platform == "cpu"

    def part(index: tuple[slice, ...]) -> NDArray[Any]:
        first, last, _ = index[0].indices(size)
        place = int(np.searchsorted(rows, first))
        found = array[(slice(place, place + last - first), *index[1:])]
        return _aligned(found) if on_cpu else found

    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    return jax.make_array_from_callback((size, *array.shape[1:]), _of_rank(sharding, array.ndim), part, dtype=dtype)


def _aligned(array: NDArray[Any]) -> NDArray[Any]:
    """The array in memory that JAX on a CPU takes as it is; it copies other arrays itself, several times slower."""
    if array.ctypes.data % _ALIGNMENT == 0 and array.flags.c_contiguous:
        return array
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    copy: NDArray[Any] = np.ndarray(array.shape, array.dtype, memory, -memory.ctypes.data % _ALIGNMENT)
    copy[...] = array
    return copy


@functools.cache
def _is_known(dtype: np.dtype[Any]) -> bool:
    """Whether JAX has arrays of a dtype."""
    try:
        jax.device_put(np.empty(0, dtype))
    except TypeError:
        return False
    return True


def _refusal(found: tuple[Any, Any], rows: int) -> CacheLayerError:
    path, leaf = found
    name = f"leaf {jax.tree_util.keystr(path)}" if path else "the batch"
    if hasattr(leaf, "dtype") and _is_known(leaf.dtype):
        return InvalidArgumentError(
            f"{name} has shape {list(leaf.shape)} for {rows} rows: functions passed to map_batches() keep every row, "
            "on the first axis"
        )
    dtype = getattr(leaf, "dtype", type(leaf).__name__)
    what = type(leaf.flat[0]).__name__ if str(dtype) == "object" and leaf.size else dtype
    fix = next(
        (fix for kind, fix in _FIXES if isinstance(leaf, kind)), "make numbers of it with map(), or leave it out"
    )
    return InvalidTypeError(f"{name} is of type {what}, which JAX has no array for: {fix}")
