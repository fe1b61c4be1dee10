"""The worker processes of :func:`cachelayer.adapters.torch.loader`, which take turns at the steps of a stream."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

from torch.utils import data

from cachelayer.errors import StorageError
from cachelayer.streams.ahead.block_feed import WorkerSteps
from cachelayer.streams.ahead.prefetch import Chunk
from cachelayer.streams.reading.failures import picklable
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.streams.schedule import Schedule, StepRange


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
