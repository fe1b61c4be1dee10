"""Warn of functions that seed, or draw from, the random generators that the whole program shares."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from typing import Any

import numpy as np

from cachelayer.support.user_warnings import warn


@contextmanager
def warning_of_global_random(*, draws: bool) -> Iterator[None]:
    """Warn if what runs within changes the state of a global generator: of Python, numpy or PyTorch.

    With ``draws``, functions get generators: in a process that reads only, they may seed the global ones from these.
    """
    if draws and parent_process() is not None:
        yield
        return
    before = _states()
    yield
    changed = [name for name, state in _states().items() if state != before.get(name, state)]
    if changed:
        warn(
            f"a function passed to map() or map_batches() seeds or draws from the global generator of "
            f"{' and '.join(changed)}, which other threads and your program use too: its numbers differ from run to "
            "run. Take them from the generator that map(fn, rng=True) passes, or rng='torch' for a torch.Generator; "
            "functions that have no argument for one need loader(num_workers=...), and must be seeded by rng each time"
        )


def _states() -> dict[str, Any]:
    of_numpy = np.random.get_state(legacy=False)
    states: dict[str, Any] = {"random": random.getstate(), "numpy.random": pickle.dumps(of_numpy)}
    torch = sys.modules.get("torch")
    if hasattr(torch, "get_rng_state"):
        states["torch"] = torch.get_rng_state().numpy().tobytes()  # type: ignore[union-attr]
    return states
