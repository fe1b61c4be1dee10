"""Samplers that give PyTorch's DataLoader our exact order: record by record, or batch by batch."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from cachelayer.access.view import View
from cachelayer.adapters._stream_or_ref import check_ref
from cachelayer.arguments import integer
from cachelayer.errors import InvalidArgumentError, MissingDependencyError
from cachelayer.protocols import records_of
from cachelayer.streams.order import shares
from cachelayer.streams.state import StreamIdentity
from cachelayer.streams.steps import Steps
from cachelayer.streams.stream_options import Shuffle, make_options

try:
    import torch
    from torch.utils import data
except ImportError as error:
    raise MissingDependencyError("this needs PyTorch: pip install 'cachelayer[torch]'") from error

_BLOCK_RECORDS = 1 << 13


def rank_and_world() -> tuple[int, int]:
    """Return the rank and the world size of ``torch.distributed`` if it is initialised, else 0 and 1."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


class _ElasticSampler(data.Sampler):  # type: ignore[misc]
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
        num_replicas = world if num_replicas is None else num_replicas
        rank = this_rank if rank is None else rank
        shards, index = integer("num_replicas", num_replicas, 1), integer("rank", rank, 0)
        size = shards if global_batch_size is None else global_batch_size
        if drop_last is None and shards != 1 and len(ref) % integer("global_batch_size", size, 1):
            raise InvalidArgumentError(
                f"{len(ref)} records do not divide into steps of {size} over {shards} ranks: pass drop_last=True to "
                "skip the last step of an epoch, or False to divide it, so that ranks may get different numbers of "
                "records"
            )
        options = make_options(
            len(ref),
            size,
            records_of(ref).record_nbytes,
            shuffle=shuffle,
            seed=seed,
            reshuffle=True,
            num_epochs=1,
            shard=(index, shards),
            remainder="drop" if drop_last else "keep",
            start=0,
            prefetch=0,
        )
        self._steps = dataclasses.replace(options.steps, num_epochs=None)
        self._order = options.order
        self._rank = options.shard_index
        self._identity = StreamIdentity(ref.digest, options.order)
        self._go_to(0)

    def _go_to(self, position: int) -> None:
        self._start = self._position = position
        self._epoch = position // max(1, self._steps.records)

    def _epoch_of(self, position: int) -> Steps:
        """Return the steps up to the end of the epoch that a position is in."""
        return dataclasses.replace(self._steps, num_epochs=position // max(1, self._steps.records) + 1)

    @abstractmethod
    def _from(self, position: int) -> Iterator[tuple[Any, int]]:
        """Yield the items from a position to the end of its epoch, each with the position after it."""

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the epoch that was set; the first time after ``load_state_dict``, over the rest of it.

        A ``DataLoader`` with workers makes two iterators and uses the second, so an iterator counts once it is used.
        """
        return _SamplerIterator(self, self._start)

    def _began(self) -> None:
        """Begin the following iterations at the start of the epoch: an iterator has taken over a loaded position."""
        self._start = self._epoch * self._steps.records

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iterations; each has its own order. A loaded position within that epoch stays."""
        if integer("epoch", epoch, 0) != self._epoch:
            self._go_to(epoch * self._steps.records)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of a stream after the last item asked for. After whole steps it is the same on all ranks.

        A ``DataLoader`` with workers asks ahead: use a ``StatefulDataLoader`` or :func:`loader` instead.
        """
        return self._identity.state(self._position)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Begin the next iteration at a saved state, on any number of ranks.

        Raises:
            StateError: if the state belongs to other records or another order.
        """
        self._go_to(self._steps.next_start(self._identity.position(state_dict)))


class _SamplerIterator(Iterator[Any]):
    """An iterator over one epoch, with its own state for loaders that read ahead."""

    def __init__(self, sampler: _ElasticSampler, position: int) -> None:
        self._sampler = sampler
        self._is_new = True
        self._go_to(position)

    def _go_to(self, position: int) -> None:
        self._items = self._sampler._from(position)
        self._position = self._sampler._position = position
        records = self._sampler._steps.records
        # A rank without records in the last step must reach the end of the epoch too.
        self._end = (position // records + 1) * records if records else 0

    def __next__(self) -> Any:
        if self._is_new:
            self._is_new = False
            self._sampler._began()
        item_and_position = next(self._items, None)
        if item_and_position is None:
            self._position = self._sampler._position = self._end
            raise StopIteration
        item, self._position = item_and_position
        self._sampler._position = self._position
        return item

    def state_dict(self) -> dict[str, Any]:
        return self._sampler._identity.state(self._position)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._go_to(self._sampler._identity.position(state_dict))


class Sampler(_ElasticSampler):
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
    """

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

    def __len__(self) -> int:
        """Return the number of records of this rank in an epoch."""
        return self._steps.per_epoch(0, self._rank)

    def _from(self, position: int) -> Iterator[tuple[int, int]]:
        steps = self._epoch_of(position)
        stride = steps.shard_count
        while (block := steps.block(position, _BLOCK_RECORDS)) is not None:
            epoch, place = divmod(block.begin, steps.records)
            offsets = shares(self._order, epoch, place, place + block.end - block.begin, self._rank, stride)
            numbers = self._order.at(epoch, place + offsets).tolist()
            for step, number in enumerate(numbers, 1):
                yield number, steps.next_start(min(block.begin + step * stride, block.end))
            position = steps.after(block)


class BatchSampler(_ElasticSampler):
    """Batches of record numbers: those of ``ref.stream(global_batch_size, ...)``, epoch by epoch.

    The global batch, and the order within it, is the same for any number of ranks that divides it.

    Args:
        ref: the records that were passed to :func:`to_torch`.
        global_batch_size: the number of records in a batch over all ranks.
        num_replicas, rank: by default those of ``torch.distributed`` if it is initialised, else 1 and 0.
        shuffle: permute all records exactly, by the seed and the epoch that :meth:`set_epoch` sets; or in blocks, with
            ``"blocks"`` or a :class:`cachelayer.Blocks`.
        seed: an integer in [0, 2**64).
        drop_last: what to do with a shorter last batch of an epoch: True skips it, False divides it, so that a rank may
            get fewer records, or none. Required if there are several ranks and the records do not divide evenly.

    Raises:
        InvalidArgumentError: if an argument is invalid; the message names it and the fix.
    """

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

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return self._steps.per_epoch()

    def _from(self, position: int) -> Iterator[tuple[list[Any], int]]:
        steps = self._epoch_of(position)
        while (step := steps.at(position)) is not None:
            epoch, place = divmod(step.begin, steps.records)
            first, last = steps.part(step, self._rank)
            position = steps.after(step)
            arranged = self._order.arranged(epoch, place, place + step.end - step.begin)
            if arranged is None:
                yield self._order(epoch, place + first, place + last).tolist(), position
            else:
                yield self._order.at(epoch, place + arranged[first:last]).tolist(), position
