"""Run tasks in an Apache Beam pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from cachelayer.engines.engine import Engine, as_worker, errors_of, name_of, pickled, unpickled
from cachelayer.errors import SourceError
from cachelayer.support.extras import packages_of

R = TypeVar("R")

_IN_PROCESS = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"


class Beam(Engine):
    """Runs all tasks in one Apache Beam pipeline, and yields nothing, because a runner does not return results.

    All numbers are drawn before the first task runs. The runner decides how often a task that died is run again.

    Args:
        options: an ``apache_beam.options.pipeline_options.PipelineOptions``. If it names no runner, the tasks run in
            this process.

    Examples:
        >>> import cachelayer.engines
        >>> engine = cachelayer.engines.Beam()  # or Beam(PipelineOptions(["--runner=DataflowRunner", ...]))
        >>> isinstance(engine, cachelayer.engines.Engine)  # then: storage.cache(..., engine=engine)
        True
    """

    def __init__(self, options: Any = None) -> None:
        self._options = options

    def __repr__(self) -> str:
        return f"Beam({'' if self._options is None else self._options})"

    def run(self, task: Callable[[int], R], numbers: Iterable[int]) -> Iterator[R]:
        """See :meth:`cachelayer.engines.Engine.run`."""
        function = pickled(task)
        with packages_of("beam", "engine='beam' needs Apache Beam"):
            import apache_beam
            from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
        options = PipelineOptions([]) if self._options is None else self._options
        runner = options.view_as(StandardOptions).runner or _IN_PROCESS
        pipeline = apache_beam.Pipeline(runner=runner, options=options)
        tasks = pipeline | apache_beam.Create(list(numbers)) | apache_beam.Reshuffle()
        _ = tasks | apache_beam.Map(_run, function)
        try:
            job = pipeline.run()
            try:
                job.wait_until_finish()
            except KeyboardInterrupt:
                job.cancel()
                raise
        except _TaskError as error:
            raise error.args[1] from error.args[1].__cause__
        except Exception as error:
            raise SourceError(f"the pipeline failed: {type(error).__name__}: {error}") from error
        yield from ()


class _TaskError(Exception):
    """The error of a task, as Beam carries it. Its arguments are a text, which Beam extends, and the error itself."""

    def __str__(self) -> str:
        return str(self.args[0])


def _run(number: int, function: bytes) -> None:
    try:
        with as_worker():
            task = unpickled(function)
            with errors_of(name_of(task, number)):
                task(number)
    # Beam would convert a KeyboardInterrupt.
    except BaseException as error:
        raise _TaskError(f"{type(error).__name__}: {error}", error) from error
