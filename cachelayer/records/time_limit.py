"""A limit of time for a loop whose steps are quick mostly: to read the clock takes longer than many of them."""

from __future__ import annotations

from time import monotonic

_STEPS = 16
_SLOW_SECONDS = 0.05


class TimeLimit:
    """Tells a loop when to look at the clock: after every step if they are slow, else after some of them.

    ::

        limit, look = TimeLimit(seconds), 0
        for step, item in enumerate(items):
            ...
            if step >= look and (look := limit.next_look(step)) == step:
                break

    Args:
        seconds: how long the loop may take.
    """

    def __init__(self, seconds: float) -> None:
        self._looked = monotonic()
        self._until = self._looked + seconds

    def next_look(self, step: int) -> int:
        """Return the step at which to look again; this step if the time is over."""
        before, self._looked = self._looked, monotonic()
        if self._looked >= self._until:
            return step
        return step + (1 if self._looked - before > _SLOW_SECONDS else _STEPS)
