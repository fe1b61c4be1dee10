"""A ``DataLoader`` that somebody else made, in our order and with our state."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from cachelayer.access.view import View
from cachelayer.adapters._stream_or_ref import check_ref
from cachelayer.adapters._torch_samplers import BatchSampler, rank_and_world
from cachelayer.arguments import integer
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, MissingDependencyError
from cachelayer.streams.stream_options import Shuffle

try:
    import torch
    from torch.utils import data
except ImportError as error:
    raise MissingDependencyError("this needs PyTorch: pip install 'cachelayer[torch]'") from error


class ResumableLoader:
    """The batches of a ``DataLoader`` in our order, epoch by epoch; made by :func:`resumable`.

    Each iteration has the next epoch, and an iteration that ends early counts. After ``load_state_dict`` the next
    iteration begins within its epoch. The state counts the batches that were returned here, however far workers, or a
    loader around the ``DataLoader``, have read ahead. It is the state of ``ref.stream(...)`` with the batch size of all
    ranks together.
    """

    def __init__(self, loader: Any, inner: data.DataLoader, ref: View[Any], shuffle: Shuffle, seed: int) -> None:
        rank, world = rank_and_world()
        size = inner.batch_size * world
        if world > 1 and len(ref) % size and not inner.drop_last:
            raise InvalidArgumentError(
                f"{len(ref)} records do not divide into steps of {size} over {world} ranks, so a rank could get an "
                "empty batch: pass drop_last=True to the DataLoader"
            )
        seed = integer("seed", seed, 0)
        self._rows = _Rows(ref, size, world, rank, shuffle=shuffle, seed=seed, drop_last=inner.drop_last)
        ordered = _with_order(inner, _Seeded(inner.dataset, seed), self._rows)
        if loader is inner:
            self._loader = ordered
        else:
            self._loader = loader
            loader.loader = ordered
        self._begin = self._position = 0

    @property
    def loader(self) -> Any:
        """The loader that this one iterates over."""
        return self._loader

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch."""
        return len(self._rows)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the next epoch; after ``load_state_dict``, over the rest of the epoch."""
        begin, self._begin = self._begin, self._rows.epoch_after(self._begin)
        self._position = begin
        return self._from(begin)

    def _from(self, begin: int) -> Iterator[Any]:
        # Not earlier: another iteration may have begun meanwhile.
        self._rows.go_to(begin)
        for number, batch in enumerate(self._loader):
            self._position = self._rows.after(begin, number)
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration with an epoch. A loaded position within that epoch stays."""
        first = self._rows.epoch_begin(integer("epoch", epoch, 0))
        if not first <= self._begin < self._rows.epoch_after(first):
            self._begin = self._position = first

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch that was returned: small, JSON, the same on every rank."""
        return self._rows.state(self._position)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Begin the next iteration at a saved state, on any number of ranks.

        Raises:
            StateError: if the state belongs to other records or another order.
        """
        self._begin = self._position = self._rows.position(state_dict)

    def __repr__(self) -> str:
        return f"resumable({self._loader!r})"


def resumable(loader: Any, ref: View[Any], *, seed: int, shuffle: Shuffle = True) -> ResumableLoader:
    """Return the batches of a ``DataLoader`` in our order, with ``state_dict`` and ``load_state_dict``.

    It keeps the loader's dataset, batch size, ``drop_last``, collation and workers, and replaces its sampler. Random
    transformations of the dataset that draw from the global generators of Python, NumPy and PyTorch get the same
    numbers for a record, in any worker and after any restore: the generators are seeded by (seed, global position)
    before each element. Outside of worker processes they are restored after it.

    Args:
        loader: a ``DataLoader`` of a map-style dataset, or what has one as its ``loader``, such as timm's
            ``PrefetchLoader``. Rank and world size are those of ``torch.distributed`` if it is initialised.
        ref: the records that the dataset reads: element i of the dataset is made of record i.
        seed: an integer in [0, 2**64).
        shuffle: permute all records exactly, differently in each epoch; or in blocks, with ``"blocks"`` or a
            :class:`cachelayer.Blocks`; False keeps their order.

    Raises:
        InvalidArgumentError: if the dataset and the ref differ in length, if the loader has no batch size of its own,
            or if a rank could get an empty batch.
        InvalidTypeError: if the loader is not one of a map-style dataset, or the ref is not a ref.
    """
    check_ref(ref)
    inner = loader if isinstance(loader, data.DataLoader) else getattr(loader, "loader", None)
    if not isinstance(inner, data.DataLoader):
        raise InvalidTypeError(f"a {type(loader).__name__} is not a DataLoader, and has none as its .loader")
    if isinstance(inner.dataset, data.IterableDataset):
        raise InvalidTypeError("the dataset of the loader is iterable, so it decides the order: pass a map-style one")
    if inner.batch_size is None:
        raise InvalidArgumentError("the loader has no batch size of its own: pass batch_size=, and no batch_sampler=")
    if len(inner.dataset) != len(ref):
        raise InvalidArgumentError(
            f"the dataset of the loader has {len(inner.dataset)} elements, and the ref has {len(ref)} records: pass "
            "the ref that the dataset reads"
        )
    return ResumableLoader(loader, inner, ref, shuffle, seed)


class _Rows(BatchSampler):
    """Batches of pairs: the global position of a row, and the number of its record."""

    def _from(self, position: int) -> Iterator[tuple[list[tuple[int, int]], int]]:
        for positions, (numbers, after) in zip(self._positions(position), super()._from(position), strict=True):
            yield list(zip(positions, numbers, strict=True)), after

    def _positions(self, position: int) -> Iterator[list[int]]:
        steps = self._epoch_of(position)
        while (step := steps.at(position)) is not None:
            epoch, place = divmod(step.begin, steps.records)
            first, last = steps.part(step, self._rank)
            arranged = self._order.arranged(epoch, place, place + step.end - step.begin)
            rows = np.arange(first, last) if arranged is None else arranged[first:last]
            yield (step.begin + rows).tolist()
            position = steps.after(step)

    def go_to(self, position: int) -> None:
        """Begin the next iteration at a position."""
        self._go_to(position)

    def epoch_begin(self, epoch: int) -> int:
        """Return the position where an epoch begins."""
        return epoch * self._steps.records

    def epoch_after(self, position: int) -> int:
        """Return the position where the epoch after that of a position begins."""
        return self.epoch_begin(position // max(1, self._steps.records) + 1)

    def after(self, begin: int, number: int) -> int:
        """Return the position after batch ``number``, counted from a position in the same epoch."""
        step = self._steps.nth(begin, number)
        return begin if step is None else self._steps.after(step)

    def state(self, position: int) -> dict[str, Any]:
        """Return the state of a stream at a position."""
        return self._identity.state(position)

    def position(self, state: dict[str, Any]) -> int:
        """Return the position of a state; raise StateError if it is that of another stream."""
        return self._steps.next_start(self._identity.position(state))


class _Seeded(data.Dataset):  # type: ignore[misc]
    """A dataset whose element at a global position draws the same random numbers, whichever worker makes it."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, position_and_number: tuple[int, int]) -> Any:
        position, number = position_and_number
        if data.get_worker_info() is not None:
            # Nobody else draws from the generators of a worker process.
            return self._drawn(position, number)
        before = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
        try:
            return self._drawn(position, number)
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
            torch.random.set_rng_state(before[2])

    def _drawn(self, position: int, number: int) -> Any:
        key = self._seed.to_bytes(8, "little") + position.to_bytes(8, "little")
        seed = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
        random.seed(seed)
        np.random.seed(seed % (1 << 32))
        torch.random.default_generator.manual_seed(seed)
        return self._dataset[number]

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the dataset, such as its ``transform``, for code that looks through the loader."""
        if name.startswith("__") or name == "_dataset":
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the dataset: one that is set here alone would change nothing."""
        if name in ("_dataset", "_seed"):
            super().__setattr__(name, value)
        else:
            setattr(self._dataset, name, value)


def _with_order(loader: data.DataLoader, dataset: _Seeded, batches: _Rows) -> data.DataLoader:
    """Return a loader like another, of other batches, which come in order. Its random numbers change nobody else's."""
    return data.DataLoader(
        dataset,
        batch_sampler=batches,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=torch.Generator(),
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )
