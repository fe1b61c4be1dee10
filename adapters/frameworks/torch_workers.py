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

from cachelayer.adapters.frameworks.torch_tensors import tensor_leaf
from cachelayer.errors import ElementError
from cachelayer.records import tree
from cachelayer.records.values import Nullable
from cachelayer.streams.ahead.block_plan import Chunk
from cachelayer.streams.ahead.worker_steps import WorkerSteps, fetches_blocks, warn_of_workers
from cachelayer.streams.reading.failures import Failure
from cachelayer.streams.stream import Stream, reader_of, step_of, with_options

_FIX = (
    "pass a num_workers that divides the records of a batch of this shard, remainder='drop' or 'pad', and map() for "
    "map_batches(); or call mirror() first, to read a local copy"
)


class WorkerBlocks:
    """The steps of a stream as tensors, read by the worker processes of a ``DataLoader``.

    Args:
        stream: the stream.
        workers: the number of processes.
        parts: into how many parts each step is cut, as :func:`parts_of_step` says.
        context: the multiprocessing context that starts them.
    """

    def __init__(self, stream: Stream[Any], workers: int, parts: int, context: Any) -> None:
        self._stream = stream
        self._workers = workers
        self._parts = parts
        self._context = context
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
        # Put back only in the end, so that after an error in between no half-read iterator is used again.
        loading, self._loading = self._loading, None
        parts = [next(loading) for _ in range(self._parts)]
        failures = sorted((each for part in parts for each in part.failures), key=lambda each: each.position)
        item = _joined(parts)
        self._position, self._loading = steps.after(step), loading
        return Chunk(position, [self._position], [item], failures=tuple(failures))

    def forget(self) -> None:
        """Discard the steps that the processes have read."""
        self._loading = None

    def _from(self, position: int) -> Iterator[_BatchPart]:
        stream = with_options(self._stream, start=position)
        endless = reader_of(stream).options.steps.end is None
        numbers: Iterable[int] = itertools.count() if endless else range(len(stream) * self._parts)
        loader = data.DataLoader(
            _StepParts(stream, self._workers, self._parts),
            batch_size=None,
            sampler=numbers,
            num_workers=self._workers,
            collate_fn=_same,
            multiprocessing_context=self._context,
        )
        return iter(loader)


def parts_of_step(stream: Stream[Any], workers: int) -> int:
    """Return into how many parts the batches of a stream are cut, each for workers of its own.

    Warns if several workers are going to fetch the same blocks.
    """
    reader = reader_of(stream)
    steps = reader.options.steps
    # Functions of batches get the rows that they would get without workers. Of a short step, parts of several shards
    # would not be those of one.
    if reader.batch_maps or (steps.remainder == "keep" and steps.shard_count > 1) or not fetches_blocks(stream):
        parts = 1
    else:
        parts = math.gcd(workers, steps.global_batch // steps.shard_count)
    warn_of_workers(stream, workers // parts, _FIX)
    return parts


@dataclass(frozen=True, eq=False, slots=True)
class _BatchPart:
    """What a worker read of a step.

    Args:
        paths: the structure of the batch, with its path in place of each leaf.
        leaves: the leaves by their paths, as tensors. In a batch itself, lists may be leaves or structure.
        failures: the elements that others stand in for.
    """

    paths: Any
    leaves: dict[str, Any]
    failures: tuple[Failure, ...]


class _StepParts(data.Dataset):  # type: ignore[misc]
    """The parts of the steps of a stream, by number: those of the first step, those of the second, and so on.

    PyTorch gives them to its workers in turn. The number of parts divides that of the workers, so a worker gets only
    parts of one kind.
    """

    def __init__(self, stream: Stream[Any], workers: int, parts: int) -> None:
        self._stream = stream
        self._workers = workers
        self._parts = parts
        # Made by each worker: its threads are not those of the process that starts it.
        self._reader: WorkerSteps | None = None

    def __getitem__(self, number: int) -> _BatchPart:
        step, part = divmod(number, self._parts)
        if self._reader is None:
            self._reader = WorkerSteps(self._of_part(part), self._workers // self._parts)
        batch, failures = self._reader.batch_and_failures(step_of(self._stream, step))
        leaves = {path: tensor_leaf(path, leaf) for path, leaf in tree.leaf_values(batch)}
        paths = tree.map_structure(batch, lambda path, _: path)
        return _BatchPart(paths, leaves, tuple(each.portable() for each in failures))

    def _of_part(self, part: int) -> Stream[Any]:
        """Return the stream of a part of the rows: that of one of as many shards within this one."""
        options = reader_of(self._stream).options
        steps = replace(options.steps, shard_count=options.steps.shard_count * self._parts)
        return with_options(self._stream, steps=steps, shard_index=options.shard_index * self._parts + part)


def _same(item: Any) -> Any:
    return item


def _joined(parts: Sequence[_BatchPart]) -> Any:
    """Return the batch that consists of some parts, one after another."""
    if any(part.leaves.keys() != parts[0].leaves.keys() for part in parts):
        raise _unlike("", [list(part.leaves) for part in parts])
    return tree.map_structure(parts[0].paths, lambda _, path: _joined_leaf(path, [part.leaves[path] for part in parts]))


def _joined_leaf(path: str, parts: Sequence[Any]) -> Any:
    first = parts[0]
    if len(parts) == 1 or all(part is None for part in parts):
        return first
    if len({type(part) for part in parts}) == 1:
        if isinstance(first, list):
            return [row for part in parts for row in part]
        if isinstance(first, Nullable):
            values = _joined_leaf(path, [part.values for part in parts])
            return Nullable(values, _joined_leaf(path, [part.valid for part in parts]))
        # NumPy and PyTorch promote dtypes to different ones.
        if len({(part.dtype, part.shape[1:]) for part in parts}) == 1:
            return torch.cat(list(parts))
    raise _unlike(path, [tree.describe(part) for part in parts])


def _unlike(path: str, parts: list[Any]) -> ElementError:
    return ElementError(
        "the same structure, dtype and shape in all parts of a batch, each read by a worker",
        " and ".join(dict.fromkeys(map(str, parts))),
        path=path,
        hint="Pass element_spec= to map(), or num_workers=0.",
    )
