"""Samplers that give PyTorch's DataLoader our exact order: record by record, or batch by batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils import data

from cachelayer.access.view import View
from cachelayer.adapters.frameworks.stream_or_ref import check_ref
from cachelayer.arguments import integer
from cachelayer.errors import InvalidArgumentError
from cachelayer.streams.reading.step_rows import StepRows
from cachelayer.streams.stream import reader_of
from cachelayer.streams.stream_options import Shuffle

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
        stream = ref.stream(size, shuffle=shuffle, seed=seed, shard=(index, shards), remainder=remainder)
        self._options, self._identity = reader_of(stream).options, reader_of(stream).identity
        self._go_to(0)

    @property
    def _records(self) -> int:
        return max(1, self._options.steps.records)

    def _go_to(self, position: int) -> None:
        self._start = self._position = position
        self._epoch = position // self._records

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the epoch that was set; the first time after ``load_state_dict``, over the rest of it.

        A ``DataLoader`` with workers makes two iterators and uses the second, so an iterator counts once it is used.
        """
        start, self._start = self._start, self._epoch * self._records
        epoch = start // self._records
        steps = replace(self._options.steps, num_epochs=epoch + 1)
        rows, position = StepRows(replace(self._options, steps=steps), None), start
        most = max(1, _RECORDS_AT_ONCE // steps.global_batch)
        while (several := steps.several(position, most)) is not None:
            found, position = rows.of(several), steps.after(several)
            numbers, ends = found.numbers.tolist(), [*steps.borders(several), position]
            for part, end in zip(found.parts, ends, strict=True):
                for item in self._items(numbers[part]):
                    self._position = end
                    yield item
        # A rank without records in the last step must reach the end of the epoch too.
        self._position = (epoch + 1) * self._options.steps.records

    @abstractmethod
    def _items(self, numbers: list[int]) -> Sequence[Any]:
        """Return what is yielded for a step with these records."""

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iterations; each has its own order. A loaded position within that epoch stays."""
        if integer("epoch", epoch, 0) != self._epoch:
            self._go_to(epoch * self._records)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of a stream after the last item asked for. After whole steps it is the same on all ranks.

        A ``DataLoader`` with workers asks ahead: use a ``StatefulDataLoader`` or :func:`loader` instead.
        """
        return self._identity.state(self._position)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Begin the next iteration at a saved state, on any number of ranks."""
        self._go_to(replace(self._options.steps, num_epochs=None).next_start(self._identity.position(state_dict)))


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
        return self._options.steps.per_epoch(0, self._options.shard_index)

    def _items(self, numbers: list[int]) -> Sequence[Any]:
        return numbers


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
        return self._options.steps.per_epoch()

    def _items(self, numbers: list[int]) -> Sequence[Any]:
        return [numbers]
