"""Warn of pipelines that are cached with steps of the training: what makes batches, and what draws at random."""

from __future__ import annotations

from cachelayer.user_warnings import warn


def warn_of_steps(kind: str, *, batch: str = "", random: str = "", shuffle: str = "") -> None:
    """Warn if a pipeline gives batches, or draws at random; the arguments name its steps, "" if there is none."""
    if not batch and not random:
        return
    what = []
    if batch:
        what.append("each of its batches becomes one record")
    if random:
        what.append(f"what {random} draws at random is the same in every epoch")
    steps = ", ".join(dict.fromkeys(filter(None, (shuffle, random, batch))))
    warn(
        f"the {kind} is cached as it is: {' and '.join(what)}. Leave out {steps}: a stream shuffles, augments by "
        f"map(fn, rng=True) and batches anew in every epoch"
    )
