"""Read PyTorch datasets and loaders as sources, and turn records and streams into tensors.

``storage.cache(x, ...)`` takes a ``Dataset``, ``IterableDataset`` or ``DataLoader`` as it is. :func:`loader` iterates
over a stream as tensors, with a state. :func:`to_torch` returns a map-style ``Dataset``; :class:`Sampler` and
:class:`BatchSampler` let any ``torch.utils.data.DataLoader`` read it in our exact order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np

from cachelayer.access.view import View
from cachelayer.adapters._stream_or_ref import check_ref, check_stream
from cachelayer.adapters._torch_samplers import BatchSampler, Sampler
from cachelayer.adapters._torch_tensors import array_of, tensor_of, tensors
from cachelayer.arguments import integer
from cachelayer.builds.array_source import ArraySource
from cachelayer.builds.source import Source
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, MissingDependencyError
from cachelayer.protocols import T
from cachelayer.records import tree
from cachelayer.records.spec import ArraySpec, LeafSpec
from cachelayer.records.tree import Tree
from cachelayer.records.user_indices import record_numbers
from cachelayer.streams.block_plan import Chunk
from cachelayer.streams.epochs import Iterations
from cachelayer.streams.iterator import StreamIterator
from cachelayer.streams.stream import Stream, is_endless, iteration, reader_of, with_options
from cachelayer.streams.stream_stats import StreamStats

try:
    import torch
    from torch.utils import data

    from cachelayer.adapters._torch_source import source_of_dataset, source_of_loader
    from cachelayer.adapters._torch_workers import WorkerBlocks, check_workers
except ImportError as error:
    raise MissingDependencyError("this needs PyTorch: pip install 'cachelayer[torch]'") from error

__all__ = [
    "BatchSampler",
    "Loader",
    "Sampler",
    "as_source",
    "loader",
    "tensors",
    "to_torch",
]

_HUGGING_FACE = {"datasets.arrow_dataset", "datasets.iterable_dataset"}


# In.


def as_source(obj: Any, *, unbatch: bool = False, element_spec: Tree | None = None) -> Source | None:  # noqa: ARG001
    """Return the source of a tensor, ``Dataset``, ``IterableDataset`` or ``DataLoader``; None for anything else."""
    if unbatch:
        _check_columns(obj)
    if isinstance(obj, torch.Tensor) and obj.ndim and not unbatch:
        return ArraySource(array_of("", obj))
    # A subclass may make other elements of its tensors.
    if type(obj) is data.TensorDataset and not unbatch:
        return ArraySource(tree.map_structure(obj.tensors, array_of))
    if isinstance(obj, data.DataLoader):
        return source_of_loader(obj, unbatch=unbatch)
    if isinstance(obj, data.Dataset) and not _is_hugging_face(obj):
        return source_of_dataset(obj, unbatch=unbatch)
    return None


def _check_columns(obj: Any) -> None:
    """Raise if an object yields batches that this module made, in which a list may be the rows of a leaf.

    Raises:
        InvalidTypeError: says what to pass instead.
    """
    whole = isinstance(obj, data.DataLoader) and obj.batch_size is None and obj.batch_sampler is None
    dataset = obj.dataset if whole else obj
    lists = dataset.lists if isinstance(dataset, _RefDataset) else ["its leaves"] if isinstance(obj, Loader) else []
    if lists:
        raise InvalidTypeError(
            f"unbatch=True: batches of tensors have lists for {lists[0]}, which may be rows or columns: pass the "
            "DataRef or the stream itself"
        )


def _is_hugging_face(dataset: Any) -> bool:
    """Return whether the Hugging Face adapter must take a dataset: its IterableDataset is one of torch's too."""
    return any(cls.__module__ in _HUGGING_FACE for cls in type(dataset).__mro__)


# Out.


def to_torch(ref: View[Any]) -> data.Dataset:
    """Return a map-style ``Dataset`` of tensors: ``dataset[3]``, a batch ``dataset[[3, 1, 2]]``, ``__getitems__``.

    A list of numbers, or a mask, returns a batch in one read, which is the fast way: pass ``batch_size=None`` and a
    :class:`BatchSampler` as ``sampler`` to a ``DataLoader``. ``__getitems__`` is for loaders that collate.

    Args:
        ref: the records.

    Returns:
        A picklable Dataset. Leaves are tensors that share memory with the data that was read. A str or bytes leaf stays
        as it is, and becomes a list in batches. A leaf of unknown shape becomes a list of tensors in batches. A Sparse
        becomes a sparse COO tensor.

    Raises:
        InvalidTypeError: if the argument is not a ref, or PyTorch does not have the dtype of a leaf.
    """
    check_ref(ref)
    for path, leaf in tree.leaves(ref.element_spec):
        if isinstance(leaf.dtype, np.dtype) and leaf.dtype.kind not in "SU":
            tensor_of(path, np.empty(0, leaf.dtype))
    return _RefDataset(ref)


class _RefDataset(data.Dataset):  # type: ignore[misc]
    """The records of a ref as tensors."""

    def __init__(self, ref: View[Any]) -> None:
        self._ref = ref
        self._spec = ref.element_spec
        self._stacks = all(_stacks(leaf) for _, leaf in tree.leaves(self._spec))
        # Leaves that are lists in batches, except a list with one text per row.
        self.lists = [f"leaf {path}" for path, leaf in tree.leaves(self._spec) if not _has_columns(leaf)]

    def __len__(self) -> int:
        return len(self._ref)

    def __getitem__(self, index: Any) -> Any:
        """Return an element for a number, or a batch for several numbers or a mask."""
        if isinstance(index, slice):
            return _RefDataset(self._ref[index])
        if isinstance(index, (str, bytes)) or not isinstance(index, Iterable) or getattr(index, "ndim", None) == 0:
            return tensors(self._ref[index])
        return tensors(self._ref.read(record_numbers(index, len(self._ref))))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the elements with these numbers; they are views of one batch."""
        if not self._stacks:
            return [tensors(element) for element in self._ref.__getitems__(indices)]
        numbers = record_numbers(indices, len(self._ref))
        columns = map(tensors, tree.flatten_like(self._spec, self._ref.read(numbers)))
        rows = [column if isinstance(column, list) else column.unbind(0) for column in columns]
        return tree.row_packer(self._spec)(rows, len(numbers))

    def __repr__(self) -> str:
        return f"to_torch({self._ref!r})"


def _stacks(leaf: LeafSpec) -> bool:
    """Return whether row i of a batch's leaf is the leaf of element i."""
    return isinstance(leaf, ArraySpec) and None not in leaf.shape and not leaf.nullable


def _has_columns(leaf: LeafSpec) -> bool:
    """Return whether a batch's leaf is a tensor, or a list with one str or bytes per row."""
    is_text = not isinstance(leaf.dtype, np.dtype) or leaf.dtype.kind in "SU"
    return isinstance(leaf, ArraySpec) and None not in leaf.shape and not (is_text and leaf.shape)


# Streams.


def loader(stream: Stream[T], *, num_workers: int = 0, multiprocessing_context: Any = None) -> Loader[T]:
    """Return an iterable of a stream's items as tensors, with ``state_dict`` and ``load_state_dict``.

    Each iteration has the next epoch, as each iteration of a ``DataLoader`` has a new order. If the stream is endless,
    each goes on where the last one stopped. See :class:`Loader`.

    Args:
        stream: a batched stream gives batches; any other gives elements.
        num_workers: the number of processes that read and map, which take turns at the steps; for heavy functions that
            hold the interpreter lock. The items are the same for any number; 0 reads ahead in threads. If blocks are
            fetched, each reads a part of each step instead, and so only its own blocks.
        multiprocessing_context: "fork", "spawn" or "forkserver", as in a ``DataLoader``.

    Raises:
        InvalidArgumentError: if there are workers, but no batches.
        InvalidTypeError: if the argument is not a stream.
    """
    check_stream(stream)
    workers = integer("num_workers", num_workers, 0)
    if workers and not reader_of(stream).options.batched:
        raise InvalidArgumentError("num_workers needs batches: pass a global_batch_size to stream()")
    check_workers(stream, workers)
    return Loader(stream, workers, multiprocessing_context)


class Loader(Generic[T]):
    """The items of a stream as tensors; made by :func:`loader`. For one iteration at a time.

    Each iteration has the next epoch: if the stream has one epoch, iteration k has epoch k; with ``num_epochs=3``, it
    has epochs 3k to 3k + 2. An iteration that ends early counts. If all epochs have the same order
    (``reshuffle=False``, or no shuffle), each iteration is the stream from its start. An endless stream has one
    iterator in all, which every ``iter()`` returns: it goes on after the last item that was returned, or at a loaded
    state.

    Its state is that of the stream after the last item that was returned, however far workers have read. Any stream or
    loader of the same records in the same order accepts it, on any number of ranks and workers.
    """

    def __init__(self, stream: Stream[T], num_workers: int, context: Any) -> None:
        self._stream = stream
        self._workers = num_workers
        self._context = context
        # Where the next iteration begins, and the iterator of the last one.
        self._next = _Begin(0, None)
        self._last: StreamIterator[T] | None = None

    def __iter__(self) -> StreamIterator[T]:
        """Iterate over the next epoch; after ``load_state_dict``, over the rest of the epoch."""
        if self._last is not None and is_endless(self._stream):
            return self._last
        begin = self._next
        iterator = self._iterator(begin)
        self._next, self._last = _Begin(begin.iteration + 1, None), iterator
        return iterator

    def _iterator(self, begin: _Begin) -> StreamIterator[T]:
        stream = iteration(self._stream, begin.iteration)
        if begin.position is not None:
            stream = with_options(stream, start=begin.position)
        if self._workers:
            return StreamIterator(reader_of(stream), WorkerBlocks(stream, self._workers, self._context))
        return _TensorIterator(reader_of(stream))

    def __len__(self) -> int:
        """Return the number of items of the first iteration; raise TypeError if the stream has no end."""
        return len(self._stream)

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration with an epoch; with ``num_epochs=3``, that is epoch 3 * epoch.

        A loaded position within that epoch stays. An endless stream goes on as it would without this call.
        """
        if integer("epoch", epoch, 0) != self._next.iteration and not is_endless(self._stream):
            self._next, self._last = _Begin(epoch, None), None

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last item that was returned: small, JSON, the same on every rank."""
        iterator = self._iterator(self._next) if self._last is None else self._last
        return iterator.get_state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Begin the next iteration at a saved state.

        Raises:
            StateError: if the state belongs to other records or another order, or lies past the end.
        """
        reader = reader_of(self._stream)
        number = Iterations(reader.options).number_at(reader.identity.position(state_dict))
        iterator = self._iterator(_Begin(number, None))
        iterator.set_state(state_dict)
        self._next, self._last = _Begin(number, iterator.position), None

    def stats(self) -> StreamStats:
        """Return what the last iteration has done; of worker processes, only how long they were waited for."""
        iterator = self._iterator(self._next) if self._last is None else self._last
        return iterator.stats()

    def __repr__(self) -> str:
        return f"loader({self._stream!r}, num_workers={self._workers})"


@dataclass(frozen=True)
class _Begin:
    """The place where an iteration begins: its start, or a position within it."""

    iteration: int
    position: int | None


class _TensorIterator(StreamIterator[T]):
    """An iterator over a stream's items as tensors."""

    def _shown(self, block: Chunk[Any]) -> Chunk[T]:
        return block.replaced(lambda item, _: tensors(item))
