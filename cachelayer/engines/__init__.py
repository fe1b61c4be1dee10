"""Independent tasks in other processes, here or on a cluster. Nothing in here knows of datasets."""

from __future__ import annotations

from cachelayer.engines.beam import Beam
from cachelayer.engines.engine import Engine
from cachelayer.engines.here import Here
from cachelayer.engines.processes import Processes
from cachelayer.engines.ray import Ray
from cachelayer.errors import InvalidArgumentError

__all__ = ["Beam", "Engine", "Processes", "Ray", "engine_of"]


def engine_of(engine: str | Engine | None, workers: int) -> Engine:
    """Return the engine that a user asks for.

    Args:
        engine: a name or an engine; None for this process, or processes of this host.
        workers: number of these.

    Raises:
        InvalidArgumentError: for anything else.
    """
    if engine is None and workers == 1:
        return Here()
    if engine is None or engine == "processes":
        return Processes(workers)
    if engine == "ray":
        return Ray()
    if engine == "beam":
        return Beam()
    if isinstance(engine, Engine):
        return engine
    raise InvalidArgumentError(
        f"engine={engine!r}: expected None, 'processes', 'ray', 'beam' or an object with the method "
        "run(task, numbers) of cachelayer.engines.Engine"
    )
