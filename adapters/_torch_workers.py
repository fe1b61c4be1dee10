"""The worker processes that read a stream for :func:`cachelayer.adapters.torch.loader`.

They take turns at the steps. If a stream fetches blocks, that would have each worker fetch and hold all of them. So
each step is cut into parts then, as for further shards, and each worker reads one part: only the blocks of its lanes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import data

from cachelayer.adapters._torch_tensors import tensor_leaf
from cachelayer.records import tree
from cachelayer.records.values import Nullable
from cachelayer.streams.block_plan import Chunk
from cachelayer.streams.failures import Failure
from cachelayer.streams.stream import Stream, reader_of, step_of, with_options
from cachelayer.streams.worker_steps import WorkerSteps, fetches_blocks, warn_of_workers
from cachelayer.user_warnings import warn

_FIX = (
    "pass a num_workers that divides the records of a batch of this shard, remainder='drop' or 'pad', and map() for "
    "map_batches(); or call mirror() first, to read a local copy"
)


def check_workers(stream: Stream[Any], workers: int) -> None:
    """Warn if several workers are going to fetch the same blocks."""
    warn_of_workers(stream, workers // _parts_of(stream, workers), _FIX)


def _parts_of(stream: Stream[Any], workers: int) -> int:
    """Return into how many parts the batches of a stream are cut, each for workers of its own."""
    reader = reader_of(stream)
    steps = reader.options.steps
    # Functions of batches get the rows that they would get without workers. Of a short step, parts of several shards
    # would not be those of one.
    if reader.batch_maps or (steps.remainder == "keep" and steps.shard_count > 1) or not fetches_blocks(stream):
        return 1
    return math.gcd(workers, steps.global_batch // steps.shard_count)


class WorkerBlocks:
    """The steps of a stream as tensors, read by the worker processes of a ``DataLoader``.

    Args:
        stream: the stream.
        workers: the number of processes.
        context: the multiprocessing context that starts them.
    """

    def __init__(self, stream: Stream[Any], workers: int, context: Any) -> None:
        self._stream = stream
        self._workers = workers
        self._context = context
        self._parts = _parts_of(stream, workers)
        self._loading: Iterator[_BatchPart] | None = None
        # The position of the step that is loaded next.
        self._position = reader_of(stream).options.start

    def block(self, position: int) -> Chunk[Any] | None:
        """Return the step at a position; None at the end. After an error new processes begin at that step."""
        steps = reader_of(self._stream).options.steps
        step = steps.at(position)
        if step is None:
            return None
        if self._loading is None or self._position != step.begin:
            self._loading = self._from(step.begin)
        loading, self._loading = self._loading, None
        parts = [next(loading) for _ in range(self._parts)]
        try:
            item = _joined([part.item for part in parts])
        except _DifferError as error:
            # First of all, so that the next call goes on if the warning is an error.
            self._parts = 1
            # The processes that read parts end before others start.
            del loading, parts
            warn(
                f"the batch at global position {step.begin} is not made of parts that workers read: {error}; each "
                "worker reads whole batches from here on, and fetches and holds all blocks"
            )
            return self.block(position)
        failures = sorted((each for part in parts for each in part.failures), key=lambda each: each.position)
        after = steps.after(step)
        # Set only now, so that after an error in between no half-read iterator is used again.
        self._position, self._loading = after, loading
        return Chunk(position, [after], [item], failures=tuple(failures))

    def forget(self) -> None:
        """Discard the steps that the processes have read."""
        self._loading = None

    def _from(self, position: int) -> Iterator[_BatchPart]:
        stream = with_options(self._stream, start=position)
        endless = reader_of(stream).options.steps.end is None
        numbers: Iterable[int] = itertools.count() if endless else range(len(stream) * self._parts)
        loader = data.DataLoader(
            _Steps(stream, self._workers, self._parts),
            batch_size=None,
            sampler=numbers,
            num_workers=self._workers,
            collate_fn=_same,
            multiprocessing_context=self._context,
        )
        return iter(loader)


@dataclass(frozen=True, eq=False, slots=True)
class _TensorLeaf:
    """A leaf of a batch as tensors: in a batch itself, lists may be leaves or structure."""

    value: Any


@dataclass(frozen=True, eq=False, slots=True)
class _BatchPart:
    """What a worker read of a step: the batch with its leaves marked, and the elements that others stand in for."""

    item: Any
    failures: tuple[Failure, ...]


class _Steps(data.Dataset):  # type: ignore[misc]
    """The parts of the steps of a stream, by number: those of the first step, those of the second, and so on.

    PyTorch gives them to its workers in turn. The number of parts divides that of the workers, so a worker gets only
    parts of one kind.

    Args:
        stream: the stream.
        workers: the number of workers.
        parts: the number of parts of a step.
    """

    def __init__(self, stream: Stream[Any], workers: int, parts: int) -> None:
        self._stream = stream
        self._workers = workers
        self._parts = parts
        # Made by each worker: its threads are not those of the process that starts it.
        self._readers: dict[int, WorkerSteps] = {}

    def __getitem__(self, number: int) -> _BatchPart:
        step, part = divmod(number, self._parts)
        if part not in self._readers:
            self._readers[part] = WorkerSteps(self._part(part), self._workers // self._parts)
        batch, failures = self._readers[part].batch_and_failures(step_of(self._stream, step))
        item = tree.map_structure(batch, lambda path, leaf: _TensorLeaf(tensor_leaf(path, leaf)))
        return _BatchPart(item, tuple(each.portable() for each in failures))

    def _part(self, part: int) -> Stream[Any]:
        """Return the stream of a part of the rows: that of one of as many shards within this one."""
        options = reader_of(self._stream).options
        steps = replace(options.steps, shard_count=options.steps.shard_count * self._parts)
        return with_options(self._stream, steps=steps, shard_index=options.shard_index * self._parts + part)


def _same(item: Any) -> Any:
    return item


class _DifferError(Exception):
    """Parts of a batch do not fit together."""


def _joined(parts: Sequence[Any]) -> Any:
    """Return the batch that consists of some parts, one after another.

    Raises:
        _DifferError: if stacking all elements at once would make another batch of them, or an error.
    """
    columns = [tree.leaf_values(part) for part in parts]
    paths = [[path for path, _ in column] for column in columns]
    if any(other != paths[0] for other in paths):
        raise _DifferError(f"their leaves are {paths}")
    rows = zip(*([leaf.value for _, leaf in column] for column in columns), strict=True)
    return tree.map_structure(parts[0], lambda path, _: _joined_leaf(path, next(rows)))


def _joined_leaf(path: str, parts: Sequence[Any]) -> Any:
    first = parts[0]
    if len(parts) == 1:
        return first
    if len({type(part) for part in parts}) == 1:
        if isinstance(first, list):
            return [row for part in parts for row in part]
        if isinstance(first, Nullable):
            values = _joined_leaf(path, [part.values for part in parts])
            return Nullable(values, _joined_leaf(path, [part.valid for part in parts]))
        # NumPy and PyTorch promote dtypes to different ones.
        kinds = {(part.dtype, part.shape[1:]) for part in parts} if isinstance(first, torch.Tensor) else set()
        if len(kinds) == 1:
            return torch.cat(list(parts))
    name = f"leaf {path}" if path else "the batch"
    raise _DifferError(f"{name} is {' and '.join(dict.fromkeys(map(_shown, parts)))}")


def _shown(part: Any) -> str:
    return f"{part.dtype} {list(part.shape)}" if isinstance(part, torch.Tensor) else f"a {type(part).__name__}"
