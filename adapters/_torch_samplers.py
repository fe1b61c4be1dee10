"""Our exact order for PyTorch's DataLoader: record by record, or batch by batch."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from cachelayer.access.view import View
from cachelayer.adapters._handed import check_ref
from cachelayer.arguments import integer
from cachelayer.errors import InvalidArgumentError, MissingDependencyError
from cachelayer.streams.state import StreamIdentity
from cachelayer.streams.steps import Steps
from cachelayer.streams.stream_options import make_options

try:
    import torch
    from torch.utils import data
except ImportError as error:
    raise MissingDependencyError("this needs PyTorch: pip install 'cachelayer[torch]'") from error

_BLOCK_RECORDS = 1 << 13


class _ElasticSampler(data.Sampler):  # type: ignore[misc]
    """An epoch of our order for one rank, from any position of it."""

    def __init__(
        self,
        ref: View[Any],
        global_batch_size: int | None,
        num_replicas: int | None,
        rank: int | None,
        *,
        shuffle: bool,
        seed: int,
        drop_last: bool | None,
    ) -> None:
        check_ref(ref)
        world = torch.distributed if torch.distributed.is_available() and torch.distributed.is_initialized() else None
        if num_replicas is None:
            num_replicas = world.get_world_size() if world else 1
        if rank is None:
            rank = world.get_rank() if world else 0
        shards, index = integer("num_replicas", num_replicas, 1), integer("rank", rank, 0)
        size = shards if global_batch_size is None else global_batch_size
        if drop_last is None and shards != 1 and len(ref) % integer("global_batch_size", size, 1):
            raise InvalidArgumentError(
                f"{len(ref)} records do not divide into steps of {size} over {shards} ranks: pass drop_last=True to "
                "skip the last step of an epoch, or False to share it out, so that ranks may get different numbers of "
                "records"
            )
        options = make_options(
            len(ref),
            size,
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
        """The steps, to the end of the epoch of a position."""
        return dataclasses.replace(self._steps, num_epochs=position // max(1, self._steps.records) + 1)

    @abstractmethod
    def _from(self, position: int) -> Iterator[tuple[Any, int]]:
        """What comes from a position to the end of its epoch, each with the position after it."""

    def __iter__(self) -> Iterator[Any]:
        """The epoch that was set; the first time after ``load_state_dict`` what is left of it."""
        start, self._start = self._start, self._epoch * self._steps.records
        return _SamplerIterator(self, start)

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next iterations: each has an order of its own. A loaded place within it stays."""
        if integer("epoch", epoch, 0) != self._epoch:
            self._go_to(epoch * self._steps.records)

    def state_dict(self) -> dict[str, Any]:
        """The state after what was asked for: that of a stream, the same on every rank after whole steps.

        A ``DataLoader`` with workers asks ahead: there, take a ``StatefulDataLoader``, or :func:`loader`.
        """
        return self._identity.state(self._position)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Begin the next iteration there, on any number of ranks.

        Raises:
            StateError: where it belongs to other records or another order.
        """
        self._go_to(self._steps.next_start(self._identity.position(state_dict)))


class _SamplerIterator(Iterator[Any]):
    """One epoch, with a state of its own for loaders that read ahead."""

    def __init__(self, sampler: _ElasticSampler, position: int) -> None:
        self._sampler = sampler
        self._go_to(position)

    def _go_to(self, position: int) -> None:
        self._items = self._sampler._from(position)
        self._position = self._sampler._position = position
        records = self._sampler._steps.records
        # A rank that has no part of the last step comes to the end of the epoch too.
        self._end = (position // records + 1) * records if records else 0

    def __next__(self) -> Any:
        found = next(self._items, None)
        if found is None:
            self._position = self._sampler._position = self._end
            raise StopIteration
        item, self._position = found
        self._sampler._position = self._position
        return item

    def state_dict(self) -> dict[str, Any]:
        return self._sampler._identity.state(self._position)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._go_to(self._sampler._identity.position(state_dict))


class Sampler(_ElasticSampler):
    """Record numbers in our exact order, in place of ``torch.utils.data.DistributedSampler``.

    Rank r of R gets every R-th position of the epoch from r on: what all ranks have got is the begin of the same
    permutation for any number of ranks, and each record comes once an epoch.

    Args:
        ref: the records, or what :func:`to_torch` was given.
        num_replicas, rank: those of ``torch.distributed`` where it is initialised, else 1 and 0.
        shuffle: permute all records exactly, by the seed and the epoch that :meth:`set_epoch` sets.
        seed: an integer in [0, 2**64).
        drop_last: whether the last few records of an epoch are skipped where they do not divide into the ranks, or the
            first ranks get one more; required there.

    Raises:
        InvalidArgumentError: where an argument cannot be; the message names it and the fix.
    """

    def __init__(
        self,
        ref: View[Any],
        num_replicas: int | None = None,
        rank: int | None = None,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool | None = None,
    ) -> None:
        super().__init__(ref, None, num_replicas, rank, shuffle=shuffle, seed=seed, drop_last=drop_last)

    def __len__(self) -> int:
        """Records of this rank in an epoch."""
        return self._steps.per_epoch(0, self._rank)

    def _from(self, position: int) -> Iterator[tuple[int, int]]:
        steps = self._epoch_of(position)
        stride = steps.shard_count
        while (block := steps.block(position, _BLOCK_RECORDS)) is not None:
            epoch, place = divmod(block.begin, steps.records)
            numbers = self._order(epoch, place, place + block.end - block.begin)[self._rank :: stride].tolist()
            for step, number in enumerate(numbers, 1):
                yield number, steps.next_start(min(block.begin + step * stride, block.end))
            position = steps.after(block)


class BatchSampler(_ElasticSampler):
    """Batches of record numbers: those of ``ref.stream(global_batch_size, ...)``, epoch by epoch.

    The global batch, and the order in it, is the same for any number of ranks that divides it.

    Args:
        ref: the records, or what :func:`to_torch` was given.
        global_batch_size: records of a batch over all ranks.
        num_replicas, rank: those of ``torch.distributed`` where it is initialised, else 1 and 0.
        shuffle: permute all records exactly, by the seed and the epoch that :meth:`set_epoch` sets.
        seed: an integer in [0, 2**64).
        drop_last: whether a shorter last batch of an epoch is skipped, or shared out, so that a rank may get fewer
            records, or none; required where there are several ranks and the records do not divide.

    Raises:
        InvalidArgumentError: where an argument cannot be; the message names it and the fix.
    """

    def __init__(
        self,
        ref: View[Any],
        global_batch_size: int,
        num_replicas: int | None = None,
        rank: int | None = None,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool | None = None,
    ) -> None:
        size = integer("global_batch_size", global_batch_size, 1)
        super().__init__(ref, size, num_replicas, rank, shuffle=shuffle, seed=seed, drop_last=drop_last)

    def __len__(self) -> int:
        """Batches of an epoch."""
        return self._steps.per_epoch()

    def _from(self, position: int) -> Iterator[tuple[list[int], int]]:
        steps = self._epoch_of(position)
        while (step := steps.at(position)) is not None:
            epoch, place = divmod(step.begin, steps.records)
            first, last = steps.part(step, self._rank)
            position = steps.after(step)
            yield self._order(epoch, place + first, place + last).tolist(), position
