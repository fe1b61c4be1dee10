"""Run independent tasks in other processes, on this host or on a cluster. Nothing here knows about datasets.

A build gives an engine a task and the numbers of the parts that are not finished::

    task(3) ──> builds part 3, puts its shards and its note into the store, returns what is known of them

A task and its errors go to other processes as bytes (``engine.py``).
"""

from __future__ import annotations

from cachelayer.engines.beam import Beam
from cachelayer.engines.engine import Engine
from cachelayer.engines.processes import Processes
from cachelayer.engines.ray import Ray
from cachelayer.errors import InvalidArgumentError

__all__ = ["Beam", "Engine", "Processes", "Ray"]


def engine_of(engine: str | Engine, workers: int) -> Engine:
    """Return the engine that a user names with ``engine=``, or passes."""
    if engine == "processes":
        return Processes(workers)
    if engine == "ray":
        return Ray()
    if engine == "beam":
        return Beam()
    if isinstance(engine, Engine) and not isinstance(engine, type):
        return engine
    raise InvalidArgumentError(
        f"engine={engine!r}: expected None, 'processes', 'ray', 'beam' or an object with the method "
        "run(task, numbers) of cachelayer.engines.Engine, not its class"
    )
