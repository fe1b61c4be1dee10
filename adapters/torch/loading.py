"""Iterate over streams as tensors, read by threads, or by worker processes that take turns at the steps."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any

from torch.utils import data

from cachelayer.adapters.frameworks.stream_or_ref import check_stream
from cachelayer.adapters.torch.as_tensors import check_dtypes, tensors
from cachelayer.adapters.torch.samplers import rank_and_world
from cachelayer.errors import InvalidArgumentError, StorageError
from cachelayer.protocols import T
from cachelayer.streams.ahead.block_feed import WorkerSteps, warn_of_workers
from cachelayer.streams.ahead.prefetch import Chunk, Prefetcher
from cachelayer.streams.epochs import EpochCursor
from cachelayer.streams.epochwise import Epochwise
from cachelayer.streams.reading.failures import picklable
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.streams.schedule import Schedule, StepRange
from cachelayer.streams.stream import Stream
from cachelayer.support.arguments import explains_options, integer
from cachelayer.support.user_warnings import warn

_MANY_WORKERS = (
    "pass num_workers=0, and map(fn, threads=n) if fn releases the GIL; or call mirror() first, to read a local copy"
)


@explains_options
def loader(stream: Stream[T], *, num_workers: int = 0, multiprocessing_context: Any = None) -> Loader[T]:
    """Return an iterable of a stream's items as tensors, with ``state_dict`` and ``load_state_dict``.

    Each iteration has the next epoch, as each iteration of a ``DataLoader`` has a new order. If the stream is endless,
    each goes on where the last one stopped. See :class:`Loader`.

    Args:
        stream: a batched stream gives batches; any other gives elements.
        num_workers: the number of processes that read and map, which take turns at the steps; for heavy functions that
            hold the interpreter lock. They start with the first item, stay from epoch to epoch, and end with the loader
            and its iterators. The items are the same for any number; 0 reads ahead in threads.
        multiprocessing_context: "fork", "spawn" or "forkserver", as in a ``DataLoader``.

    Raises:
        InvalidArgumentError: if there are workers, but no batches.
        InvalidTypeError: if the argument is not a stream, or PyTorch does not have the dtype of a leaf.

    Examples:
        >>> from cachelayer.adapters.torch import loader
        >>> stream = cachelayer.wrap(list(range(5)), identity="numbers").stream(2, shuffle=True, seed=1)
        >>> batches = loader(stream)
        >>> [[batch.tolist() for batch in batches] for epoch in range(2)]
        [[[4, 3], [0, 1], [2]], [[1, 3], [0, 4], [2]]]
    """
    check_stream(stream)
    if not stream._reader.is_mapped:
        check_dtypes(stream.element_spec)
    workers = integer("num_workers", num_workers, 0)
    if workers and not stream._reader.schedule.batched:
        raise InvalidArgumentError("num_workers needs batches: pass a global_batch_size to stream()")
    _, world = rank_and_world()
    if world > 1 and stream._reader.schedule.shard_count == 1:
        warn(
            f"torch.distributed has {world} ranks, and the stream gives each the same items: pass "
            "shard=(torch.distributed.get_rank(), torch.distributed.get_world_size()) to stream(), or ignore this "
            "warning if it is meant, as for tensor parallelism"
        )
    return Loader(stream, workers, multiprocessing_context)


class Loader(Epochwise[T]):
    """The items of a stream as tensors; made by :func:`loader`. For one iteration at a time.

    Each iteration has the next epoch: if the stream has one epoch, iteration k has epoch k; with ``num_epochs=3``, it
    has epochs 3k to 3k + 2. A loop that is left before its last item uses up no epoch: the next one begins where it
    began, at a loaded state too. An endless stream has one iterator in all, which every ``iter()`` returns: it goes on
    after the last item that was returned, or at a loaded state.

    Its state is that of the stream after the last item that was returned, however far workers have read, and the epoch.
    Any stream or loader of the same records in the same order accepts it, on any number of ranks and workers.

    Examples:
        >>> from cachelayer.adapters.torch import loader
        >>> stream = cachelayer.wrap(list(range(6)), identity="numbers").stream(2, num_epochs=None)
        >>> batches = loader(stream)
        >>> next(iter(batches)), next(iter(batches))
        (tensor([0, 1]), tensor([2, 3]))
        >>> resumed = loader(stream)
        >>> resumed.load_state_dict(batches.state_dict())
        >>> next(iter(resumed))
        tensor([4, 5])
    """

    def __init__(self, stream: Stream[T], num_workers: int, context: Any) -> None:
        self._stream = stream
        self._workers = num_workers
        warn_of_workers(stream._reader, num_workers, _MANY_WORKERS)
        chunks_of = partial(WorkerChunks, workers=Workers(num_workers, context)) if num_workers else Prefetcher
        reader = replace(stream._reader, convert=_converted)
        super().__init__(EpochCursor(reader, chunks_of))

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last item that was returned: small, JSON, the same on every rank.

        Its structure is always the same, as ``torch.distributed.checkpoint`` needs it: the epoch under way or, after
        the loop, the next one; the position; and the stream that it belongs to, as a JSON text.

        Examples:
            >>> from cachelayer.adapters.torch import loader
            >>> stream = cachelayer.wrap(list(range(6)), identity="numbers").stream(2)
            >>> batches = loader(stream)
            >>> iterator = iter(batches)
            >>> next(iterator)
            tensor([0, 1])
            >>> {name: batches.state_dict()[name] for name in ("epoch", "position")}
            {'epoch': 0, 'position': 2}
        """
        return self.get_state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Begin the next iteration at a saved state, on any number of ranks and workers.

        Raises:
            StateError: if the state belongs to other records or another order.

        Examples:
            >>> from cachelayer.adapters.torch import loader
            >>> stream = cachelayer.wrap(list(range(6)), identity="numbers").stream(2)
            >>> batches = loader(stream)
            >>> first = next(iter(batches))
            >>> resumed = loader(stream)
            >>> resumed.load_state_dict(batches.state_dict())
            >>> [batch.tolist() for batch in resumed]
            [[2, 3], [4, 5]]
        """
        self.set_state(state_dict)

    def __repr__(self) -> str:
        return f"loader({self._stream!r}, num_workers={self._workers})"


def _converted(item: Any, rows: int) -> Any:  # noqa: ARG001
    return tensors(item)


# Worker processes.


class WorkerChunks:
    """Gives the steps of a stream one by one, read by the worker processes of a ``DataLoader``."""

    def __init__(self, reader: StepReader, workers: Workers) -> None:
        self._reader = reader
        self._workers = workers
        self._user = object()

    def chunk(self, position: int) -> Chunk[Any] | None:
        """Return the step at a position; None at the end."""
        step = self._reader.schedule.at(position, 1)
        if step is None:
            return None
        item, failures = pickle.loads(self._workers.read(step, self._reader, self._user))  # noqa: S301 - of our own process
        return Chunk(position, [step.following], [item], failures=failures)

    def forget(self) -> None:
        """Discard the steps that the processes have read."""
        self._user = object()

    reread = forget


class Workers:
    """The worker processes of a loader, which stay from epoch to epoch. They read for one user at a time.

    A user is whoever reads steps one after another. If another one reads, or the steps of this one do not follow, they
    begin at that step; after an error, new processes do.
    """

    def __init__(self, count: int, context: Any) -> None:
        self._count = count
        self._context = context
        self._reader: StepReader | None = None
        """The reader of the processes: of an endless stream from its begin."""
        self._loader: data.DataLoader | None = None
        self._loading: Iterator[bytes] | None = None
        self._next: tuple[object, int] | None = None
        """The user, and where the step begins that is loaded next."""
        self._steps = _Steps()

    def __reduce__(self) -> tuple[type[Workers], tuple[Any, ...]]:
        return Workers, (self._count, self._context)

    def read(self, step: StepRange, reader: StepReader, user: object) -> bytes:
        """Return the item of a step, with the elements that others stand in for, pickled."""
        loading = self._loading
        # Put back only below, so that after an error no half-read iterator is used again, nor its processes.
        self._loading = None
        if loading is None or self._next != (user, step.begin):
            loading = self._begin(step, reader, keeps_processes=loading is not None)
        item = next(loading)
        self._next = user, step.following
        self._loading = loading
        return item

    def _begin(self, step: StepRange, reader: StepReader, *, keeps_processes: bool) -> Iterator[bytes]:
        """Have the processes begin at a step."""
        endless = reader.with_schedule(start=0, num_epochs=None)
        loader = self._loader
        if loader is None or not keeps_processes or endless != self._reader:
            loader = data.DataLoader(
                _Items(endless, self._count),
                batch_size=None,
                sampler=self._steps,
                num_workers=self._count,
                collate_fn=_same,
                multiprocessing_context=self._context,
                persistent_workers=True,
            )
            self._loader = loader
            self._reader = endless
        self._steps.schedule = reader.schedule
        self._steps.begin = step.begin
        try:
            return iter(loader)
        except OSError as error:
            raise _of_memory(error) from error


class _Steps(data.Sampler):  # type: ignore[misc]
    """The steps of an iteration, from one of them on; each with the number of epochs of its schedule."""

    schedule: Schedule
    begin: int

    def __init__(self) -> None:
        """Make a sampler whose schedule and first step are set later: PyTorch asks it once an epoch."""

    def __iter__(self) -> Iterator[tuple[StepRange, int | None]]:
        schedule = self.schedule
        step = schedule.at(self.begin, 1)
        while step is not None:
            yield step, schedule.num_epochs
            step = schedule.at(step.following, 1)


class _Items(data.Dataset):  # type: ignore[misc]
    """The items of a stream, by their steps, each with the elements that others stand in for, pickled.

    PyTorch pickles tensors, which moves them to shared memory, in a thread of the worker that loses what it cannot
    pickle, so that everybody waits for ever.
    """

    def __init__(self, reader: StepReader, workers: int) -> None:
        self._reader = reader
        self._workers = workers
        # Made by each worker, and for each iteration: its threads are not those of the process that starts it, and
        # nothing is fetched ahead of what comes after the last epoch.
        self._steps: WorkerSteps | None = None

    def __getitem__(self, asked: tuple[StepRange, int | None]) -> bytes:
        step, num_epochs = asked
        if self._steps is None or self._reader.schedule.num_epochs != num_epochs:
            self._reader = self._reader.with_schedule(num_epochs=num_epochs)
            self._steps = WorkerSteps(self._reader, self._workers)
        batch, failures = self._steps.item_and_failures(step)
        item = batch, tuple(map(picklable, failures))
        try:
            return bytes(ForkingPickler.dumps(item))
        except (OSError, RuntimeError) as error:
            raise _of_memory(error) from error


def _of_memory(error: Exception) -> Exception:
    """Return the error of shared memory that is full; any other error as it is."""
    if "No space left" not in str(error):
        return error
    _, _, free = shutil.disk_usage("/dev/shm")  # noqa: S108 - no file is made there
    return StorageError(
        f"loader(num_workers=...): worker processes pass batches in shared memory, and /dev/shm has only {free} bytes "
        "left: pass fewer workers or smaller batches, num_workers=0, or give the container more (docker run --shm-size)"
    )


def _same(item: Any) -> Any:
    return item
