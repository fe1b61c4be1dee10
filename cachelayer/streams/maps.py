"""Call the user's functions of elements and batches, with random numbers for augmentation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import ElementError
from cachelayer.locks import ProcessLock
from cachelayer.protocols import Failed, Stacker
from cachelayer.streams.block_plan import Reading
from cachelayer.streams.failures import Notice, bare, is_of_element, noted
from cachelayer.system_threads import Pool

Indices = NDArray[np.int64]
U = TypeVar("U")


@dataclass(frozen=True)
class Trial:
    """An attempt to make the elements of some positions.

    Args:
        attempt: how many other records have been drawn for the positions: 0 for the elements that belong there.
        failed: takes the error of each row that fails; None to raise it.
    """

    attempt: int = 0
    failed: Failed | None = None

    def left(self, rows: Sequence[U]) -> Sequence[U]:
        """Return the items of those rows that have not failed."""
        return [item for row, item in enumerate(rows) if row not in self.failed] if self.failed else rows


FIRST = Trial()


@dataclass(frozen=True)
class ElementMap:
    """A user's function of one element.

    Args:
        fn: the function; with ``rng`` its second argument is a :class:`numpy.random.Generator`.
        rng: whether it takes random numbers.
        threads: number of threads that call it at once; 0 calls it in one at a time.
        number: its index among the functions of a stream that take random numbers: no two draw the same ones.
        declared: makes batches of what it returns, if the user declared an element spec.
        max_failures: the number of failures that an iterator replaces by other elements; None to raise each.
        notice: warns of failures that no iterator counts.
    """

    fn: Callable[..., Any]
    rng: bool
    threads: int
    number: int
    declared: Stacker | None = None
    max_failures: int | None = None
    notice: Notice = field(default_factory=Notice, compare=False, repr=False)
    _lock: ProcessLock = field(default_factory=ProcessLock, compare=False, repr=False)

    def __call__(
        self, elements: Sequence[Any], positions: Indices, seed: int, reading: Reading, trial: Trial = FIRST
    ) -> list[Any]:
        """Return what the function makes of the elements at these global positions; None for those that fail.

        Raises:
            Exception: what the function raises, with a note that names the position, if the trial does not take it.
        """
        run = self._in_threads if self.threads > 1 and len(elements) > 1 else self._run
        return reading.timed(run, elements, positions, seed, reading, trial)

    def _in_threads(
        self, elements: Sequence[Any], positions: Indices, seed: int, reading: Reading, trial: Trial
    ) -> list[Any]:
        """Split the elements among threads, in order; each thread has its own generator."""
        splits = [len(elements) * part // self.threads for part in range(self.threads + 1)]
        parts = [slice(start, stop) for start, stop in pairwise(splits) if start < stop]
        with Pool(len(parts), "cachelayer-map") as pool:
            futures = [
                pool.submit(self._run, elements[part], positions[part], seed, reading, trial, part.start)
                for part in parts
            ]
            return [item for future in futures for item in future.result()]

    def conform(
        self, elements: Sequence[Any], numbers: Indices, positions: Indices, trial: Trial = FIRST
    ) -> Sequence[Any]:
        """Return what the function made, converted to the element spec that was declared; None for those that fail.

        Args:
            elements: what the function made.
            numbers, positions: the record number and the global position of each.
            trial: knows those that have failed.

        Raises:
            ElementError: if an element does not fit, and the trial does not take it; it names the record and the
                position.
        """
        if self.declared is None:
            return elements
        out: list[Any] = [None] * len(elements)
        # The parts to convert: elements that have failed lie between them.
        edges = [-1, *sorted(trial.failed or ()), len(elements)]
        parts = [(before + 1, after) for before, after in pairwise(edges)]
        while parts:
            start, stop = parts.pop()
            if start == stop:
                continue
            try:
                out[start:stop] = self.declared.conform(elements[start:stop])
            except ElementError as error:
                if error.record is None:
                    raise
                row = start + error.record
                misfit = _misfit(error, int(numbers[row]), int(positions[row]))
                if trial.failed is None:
                    raise misfit from error.__cause__
                trial.failed[row] = bare(misfit)
                parts += [(start, row), (row + 1, stop)]
        return out

    def _run(
        self, elements: Sequence[Any], positions: Indices, seed: int, reading: Reading, trial: Trial, first: int = 0
    ) -> list[Any]:
        generators = keyed_generators(seed, positions, self.number, trial.attempt) if self.rng else None
        fn, check, out = self.fn, reading.check, list[Any]()
        held = nullcontext() if self.threads else self._lock.of_process()
        for row, (element, position) in enumerate(zip(elements, positions.tolist(), strict=True), first):
            drawn = () if generators is None else (next(generators),)
            check()
            try:
                with held:
                    made = fn(element, *drawn)
            except StopIteration as error:
                if trial.failed is None:
                    raise _ended(error) from error
                made, trial.failed[row] = None, bare(_ended(error))
            except Exception as error:
                noted(error, f"raised by a function passed to map(), of the element at global position {position}")
                if trial.failed is None or not is_of_element(error):
                    raise
                made, trial.failed[row] = None, bare(noted(error, f"raised at {_line(error)}"))
            out.append(made)
        return out


def _misfit(error: ElementError, record: int, position: int) -> ElementError:
    """Return the error of an element that does not fit the declared spec, with its record and position."""
    got = f"{error.got} from a function passed to map(), at global position {position}"
    return ElementError(error.expected, got, path=error.path, record=record, hint=error.hint)


def _line(error: BaseException) -> str:
    """Return the line of the user's function that raised an error."""
    trace = error.__traceback__
    trace = trace and (trace.tb_next or trace)
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "an unknown line"


def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a user's function returns.

    Raises:
        RuntimeError: if it raises StopIteration, which would end the stream.
    """
    try:
        return function(*arguments)
    except StopIteration as error:
        raise _ended(error) from error


def _ended(error: StopIteration) -> RuntimeError:
    return RuntimeError(f"a function passed to map() or map_batches() raised StopIteration({error})")


def keyed_generators(seed: int, positions: Indices, number: int, attempt: int = 0) -> Iterator[np.random.Generator]:
    """Yield the same generator for each position, reset to the random numbers of (seed, position, attempt).

    They are those of ``Generator(Philox(key=[seed, position], counter=[0, 0, attempt, number]))``. Writing its key
    resets a counter-based generator, which costs a sixth of making a new one. Source: Salmon et al.: Parallel random
    numbers: as easy as 1, 2, 3, 2011.
    """
    philox = np.random.Philox(key=0)
    generator = np.random.Generator(philox)
    key = np.array([seed, 0], np.uint64)
    state: Any = {
        "bit_generator": "Philox",
        "state": {"counter": np.array([0, 0, attempt, number], np.uint64), "key": key},
        "buffer": np.zeros(4, np.uint64),
        "buffer_pos": 4,
        "has_uint32": 0,
        "uinteger": 0,
    }
    for position in positions.astype(np.uint64):
        key[1] = position
        philox.state = state
        yield generator


def returned_none(method: str, where: str, record: int | None) -> ElementError:
    """Return the error for a function that returned None.

    Args:
        method: the method that it was passed to.
        where: what it was called for.
        record: the number of the record, if it was called for one.
    """
    return ElementError(
        f"a value from a function passed to {method}, {where}",
        "None",
        record=record,
        hint="Did the function forget to return it?",
    )
