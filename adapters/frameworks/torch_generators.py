"""Random numbers of PyTorch for the functions of a stream: ``map(fn, rng="torch")``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from cachelayer.extras import packages_of
from cachelayer.streams.order.permutation import Indices

with packages_of("torch", "map(rng='torch') needs PyTorch"):
    import torch


def torch_generators(
    keyed: Callable[[Indices, int], Iterator[np.random.Generator]], positions: Indices, attempts: int
) -> Iterator[torch.Generator]:
    """Yield a generator for each position, the same object, seeded by the first number of numpy's of that position."""
    generator = torch.Generator()
    for each in keyed(positions, attempts):
        yield generator.manual_seed(int(each.integers(2**63)))
