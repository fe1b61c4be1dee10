"""Turn streams into global ``jax.Array``s, on any mesh and any number of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Generic, Unpack

from cachelayer.access.dataref import DataRef
from cachelayer.adapters._stream_or_ref import check_stream
from cachelayer.arguments import integer
from cachelayer.builds.build_options import SubmitOptions
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, MissingDependencyError
from cachelayer.protocols import T
from cachelayer.records.memory import aligning
from cachelayer.storage.staleness import OnChange
from cachelayer.storage.storage import Storage
from cachelayer.streams.checkpoint import Awaited, load_state, save_state
from cachelayer.streams.failures import Failure
from cachelayer.streams.step_reader import StepReader
from cachelayer.streams.stream import Stream, is_endless, reader_of
from cachelayer.streams.stream_stats import StreamStats
from cachelayer.user_warnings import warn

try:
    import jax
    from jax.sharding import NamedSharding

    from cachelayer.adapters._jax_arrays import Sender, local_rows, of_rank
except ImportError as error:
    raise MissingDependencyError("this needs JAX: pip install 'cachelayer[jax]'") from error


def shard_by_process() -> tuple[int, int]:
    """Return the shard of this process among all JAX processes, for ``ref.stream(shard=...)``."""
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
    """Return a version, which all JAX processes build together if it is missing; each process makes this call.

    Args:
        storage: the storage, which all processes can reach.
        source, dataset_id, version, on_change, record, options: as in :meth:`cachelayer.Storage.cache`.
        hosts: the index of this process and the number of processes; JAX's by default.

    Raises:
        CacheLayerError: as in :meth:`cachelayer.Storage.cache`.
    """
    together = shard_by_process() if hosts is None else hosts
    ref: DataRef[Any] = storage.cache(
        source, dataset_id, version, hosts=together, on_change=on_change, record=record, **options
    )
    return ref


def _unguarded(send: Callable[[], Any]) -> Any:
    """Send a batch although the consumer's thread, which sends some of them, may forbid transfers for a while."""
    try:
        return send()
    except jax.errors.JaxRuntimeError as error:
        if "Disallowed" not in str(error):
            raise
    # Only then: to ask before each batch would take longer than to send a small leaf.
    with jax.transfer_guard_host_to_device("allow"):
        return send()


def global_batches(stream: Stream[T], sharding: NamedSharding, depth: int | None = None) -> GlobalBatches[T]:
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
        An iterable of batches, which can be iterated any number of times; if the stream is endless, each iteration goes
        on where the last one stopped. A batch has the structure of the stream's,
        with ``jax.Array`` leaves in JAX's dtypes: 64 bits become 32 unless ``jax_enable_x64`` is set. If values of a
        leaf are too large for that, there is one warning for the leaf; floats are rounded without a warning. With
        remainder "pad" an item is ``(batch, mask)``.

    Raises:
        InvalidArgumentError: if the stream has no batches, is one shard of several, or has a step that the sharding
            does not divide.
        InvalidTypeError: if the sharding is not a ``NamedSharding``.
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
            "global_batches() takes the stream of all shards, because the sharding decides which rows a process "
            "reads: leave shard= out of stream()"
        )
    return GlobalBatches(stream, sharding, None if depth is None else integer("depth", depth, 1))


class GlobalBatches(Generic[T]):
    """The batches of a stream as global arrays. Made by :func:`global_batches`."""

    def __init__(self, stream: Stream[T], sharding: NamedSharding, depth: int | None) -> None:
        self.stream = stream
        self.sharding = sharding
        self.depth = depth
        self._sender = Sender(sharding)
        # The leaves that a warning was given for.
        self._warned: set[str] = set()
        # Of an endless stream.
        self._only: GlobalBatchIterator[T] | None = None
        self.check_steps(reader_of(stream).options.start)

    def reader(self) -> StepReader:
        """Return what reads the rows that this process holds, and sends them to its devices."""
        # In this thread: another does not see what a context manager of JAX sets.
        wide = bool(jax.config.jax_enable_x64)
        reader = reader_of(self.stream)
        if not self.sharding.is_fully_addressable:
            reader = reader.of_rows(lambda size: local_rows(self.sharding, size))
        if self.depth is not None:
            reader = replace(reader, options=replace(reader.options, prefetch=self.depth))
        on_cpu = self.sharding.mesh.devices.flat[0].platform == "cpu"
        return replace(
            reader,
            sent=lambda batch, size: _unguarded(lambda: self._sender(batch, size, wide=wide)),
            within=aligning if on_cpu else nullcontext,
        )

    def warn(self) -> None:
        """Warn of leaves with values that JAX does not hold, once for each, in the thread of the consumer."""
        for leaf in [*self._sender.lost.keys() - self._warned]:
            self._warned.add(leaf)
            warn(self._sender.lost[leaf])

    def __iter__(self) -> GlobalBatchIterator[T]:
        """Return an iterator from the start, independent of others; of an endless stream, the only one."""
        if not is_endless(self.stream):
            return GlobalBatchIterator(self)
        if self._only is None:
            self._only = GlobalBatchIterator(self)
        return self._only

    def __len__(self) -> int:
        """Return the number of batches.

        Raises:
            TypeError: if the stream has no end.
        """
        return len(self.stream)

    def rows_at(self, position: int) -> int:
        """Return the number of rows of the global batch at a position, including padding."""
        steps = reader_of(self.stream).options.steps
        step = steps.at(position) if steps.remainder == "keep" else None
        return steps.global_batch if step is None else step.end - step.begin

    def check_steps(self, position: int) -> None:
        """Raise unless the sharding divides every step from a position on.

        Raises:
            InvalidArgumentError: names the number of rows that it does not divide.
        """
        rows, over = of_rank(self.sharding, 1), f"{self.sharding.spec} over the mesh {dict(self.sharding.mesh.shape)}"
        for size in reader_of(self.stream).options.steps.sizes(position):
            try:
                rows.shard_shape((size,))
            except ValueError:
                whole = size == reader_of(self.stream).options.steps.global_batch
                what = f"global_batch_size {size}" if whole else f"the last step of an epoch, {size} rows,"
                fix = "pass a multiple" if whole else "pass remainder='drop' or 'pad' to stream()"
                raise InvalidArgumentError(f"{what} is not divisible by {over}: {fix}") from None


class GlobalBatchIterator(Iterator[T]):
    """An iterator over global batches, with a state. Only one thread may use it at a time."""

    def __init__(self, batches: GlobalBatches[T]) -> None:
        self._batches = batches
        reader = batches.reader()
        self._identity = reader.identity
        # Batches are sent in the thread that reads ahead, and handed out in the order of the stream.
        self._local = iter(Stream[T](reader))

    def __iter__(self) -> GlobalBatchIterator[T]:
        return self

    def __next__(self) -> T:
        batch = next(self._local)
        self._batches.warn()
        return batch

    @property
    def failures(self) -> list[Failure]:
        """The elements of the batches so far that others stand in for, in the rows that this process reads.

        See :attr:`cachelayer.StreamIterator.failures`.
        """
        return self._local.failures

    def get_state(self) -> dict[str, Any]:
        """Return the state of the stream after the last batch that was returned; it is the same on every process."""
        return self._local.get_state()

    def set_state(self, state: Any) -> None:
        """Continue where an iterator of the same records in the same order was, on any mesh.

        Args:
            state: the result of ``get_state`` of this or of any stream's iterator, or its JSON.

        Raises:
            StateError: if the state belongs to other records or another order, or lies past the end.
            InvalidArgumentError: if the sharding does not divide a step from there on.
        """
        self._batches.check_steps(self._identity.position(state))
        self._local.set_state(state)

    def stats(self) -> StreamStats:
        """Return what the iterator of this process has done."""
        return self._local.stats()

    def save(self, directory: Any) -> Awaited:
        """Save the state beside a model, as ``state.json``; process 0 writes it.

        Args:
            directory: a path, which is written at once; or one that Orbax is about to make, which is written when the
                result is awaited.
        """
        return save_state(self.get_state(), directory, writes=jax.process_index() == 0)

    def load(self, directory: Any) -> Awaited:
        """Continue at once from a state that :meth:`save` wrote, on any number of processes; Orbax calls this too.

        Raises:
            StateError: if there is no state, or it belongs to other records or another order.
        """
        return load_state(directory, self.set_state)
