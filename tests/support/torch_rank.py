"""A process among several that torch starts: it imports this file, and nothing of the tests."""

from __future__ import annotations

import json
from pathlib import Path

import torch

import cachelayer
from cachelayer.adapters.torch import Sampler


def write_indices(rank: int, folder: str, port_file: str) -> None:
    """Write the indices of this rank's sampler of ten numbers to a file that has the rank's name."""
    store = torch.distributed.FileStore(port_file, 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    numbers = cachelayer.wrap(list(range(10)), identity="numbers")
    Path(folder, str(rank)).write_text(json.dumps(list(Sampler(numbers, seed=6))))
    torch.distributed.destroy_process_group()
