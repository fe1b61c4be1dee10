"""The worker processes of :func:`cachelayer.adapters.torch.loader`, which take turns at the steps of a stream."""

from __future__ import annotations

import itertools
import pickle
import shutil
from collections.abc import Iterable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

from torch.utils import data

from cachelayer.errors import StorageError
from cachelayer.streams.ahead.block_feed import WorkerSteps
from cachelayer.streams.ahead.prefetch import Chunk
from cachelayer.streams.reading.failures import picklable
from cachelayer.streams.reading.step_reader import StepReader


class WorkerChunks:
    """Gives the steps of a stream one by one, read by the worker processes of a ``DataLoader``."""

    def __init__(self, reader: StepReader, workers: int, context: Any) -> None:
        self._reader = reader
        self._workers = workers
        self._context = context
        self._loading: Iterator[bytes] | None = None
        # The position of the step that is loaded next.
        self._position = reader.schedule.start

    def chunk(self, position: int) -> Chunk[Any] | None:
        """Return the step at a position; None at the end. After an error new processes begin at that step."""
        step = self._reader.schedule.at(position, 1)
        if step is None:
            return None
        loading = self._loading
        self._loading = None
        if loading is None or self._position != step.begin:
            loading = self._from(step.begin)
        item, failures = pickle.loads(next(loading))  # noqa: S301 - of our own process
        # Put back only now, so that after an error no half-read iterator is used again.
        self._position = step.following
        self._loading = loading
        return Chunk(position, [self._position], [item], failures=failures)

    def forget(self) -> None:
        """Discard the steps that the processes have read."""
        self._loading = None

    reread = forget

    def _from(self, position: int) -> Iterator[bytes]:
        reader = self._reader.starting_at(position)
        schedule = reader.schedule
        numbers: Iterable[int] = itertools.count() if schedule.is_endless else range(schedule.item_count)
        loader = data.DataLoader(
            _Steps(reader, self._workers),
            batch_size=None,
            sampler=numbers,
            num_workers=self._workers,
            collate_fn=_same,
            multiprocessing_context=self._context,
        )
        try:
            return iter(loader)
        except OSError as error:
            raise _of_memory(error) from error


class _Steps(data.Dataset):  # type: ignore[misc]
    """The steps of a stream, by number, each with the elements that others stand in for, pickled.

    PyTorch pickles tensors, which moves them to shared memory, in a thread of the worker that loses what it cannot
    pickle, so that everybody waits for ever.
    """

    def __init__(self, reader: StepReader, workers: int) -> None:
        self._reader = reader
        self._workers = workers
        # Made by each worker: its threads are not those of the process that starts it.
        self._steps: WorkerSteps | None = None

    def __getitem__(self, number: int) -> bytes:
        if self._steps is None:
            self._steps = WorkerSteps(self._reader, self._workers)
        batch, failures = self._steps.item_and_failures(self._reader.schedule.step(number))
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
