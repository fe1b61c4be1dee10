"""Warn of pipelines that are cached with steps of the training: what makes batches, and what draws at random."""

from __future__ import annotations

from collections.abc import Iterable

from cachelayer.support.user_warnings import warn


def warn_of_steps(kind: str, steps: Iterable[str]) -> None:
    """Warn if steps that should be left out, such as ``.shuffle()``, make batches, or draw at random in a ``map``."""
    names = ", ".join(dict.fromkeys(steps))
    what = []
    if "batch" in names:
        what.append("each of its batches becomes one record")
    if "map" in names:
        what.append("what it draws at random is the same in every epoch")
    if what:
        warn(
            f"the {kind} is cached as it is: {' and '.join(what)}. Leave out {names}: a stream shuffles, augments by "
            f"map(fn, rng=True) and batches anew in every epoch"
        )
