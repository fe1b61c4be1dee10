"""Call a user's function of elements, of those that have not failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cachelayer.streams.block_plan import Reading
from cachelayer.streams.maps import ElementMap, Trial, returned_none
from cachelayer.streams.replacing import ReplacedRows


@dataclass(frozen=True)
class FunctionCalls:
    """Calls functions of the elements of a stream.

    Args:
        seed: the seed of the stream.
        may_be_none: returns whether an element may be None; called only if one is: records that are wrapped are read to
            find it out.
    """

    seed: int
    may_be_none: Callable[[], bool]

    def __call__(
        self, fn: ElementMap, elements: Sequence[Any], rows: ReplacedRows, trial: Trial, reading: Reading
    ) -> Sequence[Any]:
        """Return what a function makes of those elements that have not failed; None for the others."""
        if trial.failed:
            left = trial.left(range(len(elements)))
            out: list[Any] = [None] * len(elements)
            part = Trial(trial.attempt, {})
            found = self(fn, trial.left(elements), rows[np.array(left, np.int64)], part, reading)
            for row, element in zip(left, found, strict=True):
                out[row] = element
            trial.failed.update({left[row]: error for row, error in (part.failed or {}).items()})
            return out
        if fn.max_failures is None:
            trial = Trial(trial.attempt)
        made = fn(elements, rows.positions, self.seed, reading, trial)
        if fn.declared is None and any(element is None for element in made) and not self.may_be_none():
            _check_returned(elements, made, rows, trial)
        return fn.conform(made, rows.numbers, rows.positions, trial)


def _check_returned(elements: Sequence[Any], made: Sequence[Any], rows: ReplacedRows, trial: Trial) -> None:
    """Raise if a function returned None for an element, unless the trial takes the error."""
    for row, (before, after) in enumerate(zip(elements, made, strict=True)):
        if after is None and before is not None and row not in (trial.failed or ()):
            error = returned_none("map()", f"at global position {rows.positions[row]}", int(rows.numbers[row]))
            if trial.failed is None:
                raise error
            trial.failed[row] = error
