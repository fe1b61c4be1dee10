"""The numbers of samples of sounds, which are known when they were decoded: counted once, and stored as a plan."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from cachelayer.datasets.origins import derived_digest
from cachelayer.datasets.stored_plans import PlanMaker, plan_of
from cachelayer.protocols import Dataset
from cachelayer.records.media import MediaFiles
from cachelayer.specs.schema import Schema
from cachelayer.support.memory import Ints
from cachelayer.support.progress import Progress, unless_short

_TOGETHER = 64
"""Sounds that are decoded at a time."""


def sound_lengths(sounds: Dataset[Any], name: str, files: MediaFiles, digest: str) -> Ints:
    """Return the number of samples of each sound of a dataset; 0 for None, and for an erased record.

    ``name`` is that of the leaf, ``files`` decodes it, and ``digest`` is that of the rows, by which it is known.
    """

    def is_sound(plan: Ints) -> bool:
        return plan.shape == (1, len(sounds)) and int(plan.min(initial=0)) >= 0

    of_plan = derived_digest(digest, "sounds", {"leaf": name})
    maker = PlanMaker(of_plan, 1, sounds.__len__, partial(_counted, sounds, name, files), is_sound)
    lengths: Ints = plan_of(sounds.origins.home, maker)[0]
    return lengths


def _counted(sounds: Dataset[Any], name: str, files: MediaFiles) -> Iterator[Ints]:
    schema = Schema.of(sounds.element_spec)
    lengths = np.zeros(len(sounds), np.int64)
    rows = np.setdiff1d(np.arange(len(sounds)), sounds.origins.erased)
    together = range(0, len(rows), _TOGETHER)
    with Progress(f"count the samples of {name}", len(rows), unless_short(None, len(together))) as progress:
        for start in together:
            some = rows[start : start + _TOGETHER]
            values = [schema.flatten(element)[0] for element in sounds.elements(some)]
            lengths[some] = [_length(files, value) for value in values]
            progress.update(len(some), 0)
    yield lengths[None]


def _length(files: MediaFiles, value: Any) -> int:
    # Of a view of raw() it is the file.
    if isinstance(value, bytes):
        value = files.value(np.frombuffer(value, np.uint8))
    return 0 if value is None else len(value)
