"""Samplers that give PyTorch's DataLoader our exact order: record by record, or batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch.utils import data

from cachelayer.adapters.frameworks.stream_or_ref import check_ref
from cachelayer.errors import InvalidArgumentError
from cachelayer.streams.ahead.prefetch import Chunk
from cachelayer.streams.epochs import EpochCursor
from cachelayer.streams.iterator import StreamIterator
from cachelayer.streams.reading.chunk_plan import plan_chunk
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.streams.stream_options import Shuffle
from cachelayer.support.arguments import explains_options, integer
from cachelayer.views.view import View

_RECORDS_AT_ONCE = 1 << 13


def rank_and_world() -> tuple[int, int]:
    """Return the rank and the world size of ``torch.distributed`` if it is initialised, else 0 and 1."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


class _ResumableSampler(data.Sampler):  # type: ignore[misc]
    """An epoch of our order for one rank, from any position in it."""

    def __init__(
        self,
        ref: View[Any],
        global_batch_size: int | None,
        num_replicas: int | None,
        rank: int | None,
        *,
        shuffle: Shuffle,
        seed: int,
        drop_last: bool | None,
    ) -> None:
        check_ref(ref)
        this_rank, world = rank_and_world()
        shards = integer("num_replicas", world if num_replicas is None else num_replicas, 1)
        index = integer("rank", this_rank if rank is None else rank, 0)
        size = shards if global_batch_size is None else global_batch_size
        if drop_last is None and shards != 1 and len(ref) % size:
            raise InvalidArgumentError(
                f"{len(ref)} records do not divide into steps of {size} over {shards} ranks: pass drop_last=True to "
                "skip the last step of an epoch, or False to divide it, so that ranks may get different numbers of "
                "records"
            )
        remainder: Any = "drop" if drop_last else "keep"
        stream: Any = ref.stream(
            global_batch_size, shuffle=shuffle, seed=seed, shard=(index, shards), remainder=remainder
        )
        self._epochs = EpochCursor(stream._reader, _NumberChunks)

    def __repr__(self) -> str:
        reader = self._epochs.reader
        return f"{type(self).__name__}({reader.records!r}, {reader.schedule})"

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the next epoch or the one that was set; after ``load_state_dict``, over the rest of its epoch.

        A ``DataLoader`` with workers makes two iterators and uses the second, so an iterator counts once it is used.
        """
        return SamplerIterator(self._epochs)

    def __len__(self) -> int:
        """Return the number of records of this rank in an epoch, or of batches."""
        return len(self._epochs)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; without this call, it is the one after the last iteration.

        After ``load_state_dict``, the next iteration has what is left of that epoch from the state on.

        Examples:
            >>> from cachelayer.adapters.torch import Sampler
            >>> ref = cachelayer.wrap(list(range(4)), identity="numbers")
            >>> sampler = Sampler(ref, seed=3)
            >>> sampler.set_epoch(5)
            >>> list(sampler) == [int(number) for number in ref.stream(shuffle=True, seed=3).epoch(5)]
            True
        """
        self._epochs.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of a stream after the last item asked for. After whole steps it is the same on all ranks.

        A ``DataLoader`` with workers asks ahead: use a ``StatefulDataLoader`` or :func:`loader` instead.

        Examples:
            >>> from cachelayer.adapters.torch import Sampler
            >>> sampler = Sampler(cachelayer.wrap(list(range(4)), identity="numbers"), seed=3)
            >>> iterator = iter(sampler)
            >>> next(iterator)
            1
            >>> sampler.state_dict()["position"]
            1
        """
        return self._epochs.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Begin the next iteration at a saved state, on any number of ranks.

        Examples:
            >>> from cachelayer.adapters.torch import Sampler
            >>> ref = cachelayer.wrap(list(range(4)), identity="numbers")
            >>> sampler = Sampler(ref, seed=3)
            >>> first = next(iter(sampler))
            >>> resumed = Sampler(ref, seed=3)
            >>> resumed.load_state_dict(sampler.state_dict())
            >>> sorted([first, *resumed])
            [0, 1, 2, 3]
        """
        self._epochs.restore(state_dict)


class SamplerIterator(Iterator[Any]):
    """The numbers of one epoch of a sampler.

    It has a state, because torchdata's ``StatefulDataLoader`` saves the states of a sampler and of its iterator. After
    the last number, the sampler goes on with the next epoch, and the iterator is at its end.
    """

    def __init__(self, epochs: EpochCursor[Any]) -> None:
        self._epochs = epochs
        self._iterator = StreamIterator(epochs.started())

    def __next__(self) -> Any:
        return next(self._iterator)

    def state_dict(self) -> dict[str, Any]:
        return self._epochs.state_within()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on at a state. Unless the sampler has the same state, it does not count what this iterator gives."""
        restored = EpochCursor(self._epochs.reader, _NumberChunks)
        restored.restore(state_dict)
        if restored.state_within() != self._epochs.state_within():
            self._epochs = restored
            self._iterator = StreamIterator(restored.started())


class _NumberChunks:
    """Gives the numbers of the records of some steps at once."""

    def __init__(self, reader: StepReader) -> None:
        self._reader = reader
        self._schedule = reader.schedule

    def chunk(self, position: int) -> Chunk[Any] | None:
        most = max(1, _RECORDS_AT_ONCE // self._schedule.global_batch)
        plan = plan_chunk(self._schedule, position, most)
        if plan is None:
            return None
        numbers = plan.numbers.tolist()
        batches = [numbers[begin:end] for begin, end in pairwise(plan.splits)]
        after = self._reader.positions_after(plan.steps)
        return Chunk(position, after, batches if self._schedule.batched else numbers)

    def forget(self) -> None:
        """Nothing is read ahead."""

    reread = forget


class Sampler(_ResumableSampler):
    """Record numbers in our exact order, in place of ``torch.utils.data.DistributedSampler``.

    Each R positions of the epoch in a row are divided among the R ranks. So at any time all ranks together have seen
    the beginning of the same permutation, whatever their number, and each record comes once in an epoch.

    Args:
        ref: the records that were passed to :func:`to_torch`.
        num_replicas, rank: by default those of ``torch.distributed`` if it is initialised, else 1 and 0.
        shuffle: permute all records exactly, by the seed and the epoch that :meth:`set_epoch` sets; or in blocks, with
            ``"blocks"`` or a :class:`cachelayer.Blocks`.
        seed: an integer in [0, 2**64).
        drop_last: what to do with the last few records of an epoch if the records do not divide evenly into the ranks:
            True skips them, False gives the first ranks one more. Then it is required.

    Raises:
        InvalidArgumentError: if an argument is invalid; the message names it and the fix.

    Examples:
        >>> from torch.utils.data import DataLoader
        >>> from cachelayer.adapters.torch import Sampler, to_torch
        >>> ref = cachelayer.wrap(list(range(6)), identity="numbers")
        >>> list(Sampler(ref, num_replicas=2, rank=0, seed=3)), list(Sampler(ref, num_replicas=2, rank=1, seed=3))
        ([1, 2, 5], [3, 0, 4])
        >>> loading = DataLoader(to_torch(ref), batch_size=3, sampler=Sampler(ref, seed=3))
        >>> [batch.tolist() for batch in loading]
        [[1, 3, 2], [0, 5, 4]]
    """

    @explains_options
    def __init__(
        self,
        ref: View[Any],
        num_replicas: int | None = None,
        rank: int | None = None,
        *,
        shuffle: Shuffle = True,
        seed: int = 0,
        drop_last: bool | None = None,
    ) -> None:
        super().__init__(ref, None, num_replicas, rank, shuffle=shuffle, seed=seed, drop_last=drop_last)


class BatchSampler(_ResumableSampler):
    """Batches of record numbers: those of ``ref.stream(global_batch_size, ...)``, epoch by epoch.

    The global batch, and the order within it, is the same for any number of ranks that divides it.

    Args:
        ref, num_replicas, rank, shuffle, seed: as in :class:`Sampler`.
        global_batch_size: the number of records in a batch over all ranks.
        drop_last: what to do with a shorter last batch of an epoch: True skips it, False divides it, so that a rank may
            get fewer records, or none. Required if there are several ranks and the records do not divide evenly.

    Raises:
        InvalidArgumentError: if an argument is invalid; the message names it and the fix.

    Examples:
        >>> from torch.utils.data import DataLoader
        >>> from cachelayer.adapters.torch import BatchSampler, to_torch
        >>> ref = cachelayer.wrap(list(range(6)), identity="numbers")
        >>> sampler = BatchSampler(ref, 4, seed=3)
        >>> [batch.tolist() for batch in DataLoader(to_torch(ref), batch_size=None, sampler=sampler)]
        [[1, 3, 2, 0], [5, 4]]
    """

    @explains_options
    def __init__(
        self,
        ref: View[Any],
        global_batch_size: int,
        num_replicas: int | None = None,
        rank: int | None = None,
        *,
        shuffle: Shuffle = True,
        seed: int = 0,
        drop_last: bool | None = None,
    ) -> None:
        size = integer("global_batch_size", global_batch_size, 1)
        super().__init__(ref, size, num_replicas, rank, shuffle=shuffle, seed=seed, drop_last=drop_last)
