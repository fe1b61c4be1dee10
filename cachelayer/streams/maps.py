"""Call the user's functions of elements and batches, with random numbers for augmentation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import ElementError
from cachelayer.locks import ProcessLock
from cachelayer.protocols import Stacking
from cachelayer.streams.block_plan import Dropped, Reading
from cachelayer.streams.interruptible_future import Flag

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class ElementMap:
    """A user's function of one element.

    Args:
        fn: the function; with ``rng`` its second argument is a :class:`numpy.random.Generator`.
        rng: whether it takes random numbers.
        threads: number of threads that call it at once; 0 calls it in one at a time.
        number: its index among the functions of a stream that take random numbers: no two draw the same ones.
        declared: makes batches of what it returns, if the user declared an element spec.
    """

    fn: Callable[..., Any]
    rng: bool
    threads: int
    number: int
    declared: Stacking | None = None
    _lock: ProcessLock = field(default_factory=ProcessLock, compare=False, repr=False)

    def __call__(self, elements: Sequence[Any], positions: NDArray[np.int64], seed: int, reading: Reading) -> list[Any]:
        """Return what the function makes of the elements at these global positions.

        Raises:
            Exception: what the function raises, with a note that names the position.
        """
        run = self._in_threads if self.threads > 1 and len(elements) > 1 else self._run
        return reading.timed(run, elements, positions, seed, reading)

    def _in_threads(
        self, elements: Sequence[Any], positions: NDArray[np.int64], seed: int, reading: Reading
    ) -> list[Any]:
        """Split the elements among threads, in order; each thread has its own generator."""
        splits = [len(elements) * part // self.threads for part in range(self.threads + 1)]
        parts = [slice(start, stop) for start, stop in pairwise(splits) if start < stop]
        # All threads end as soon as one has failed, or the caller was interrupted.
        ended = Flag()
        together = Reading(ended, *reading.stops)
        results: list[list[Any] | BaseException] = [Dropped()] * len(parts)

        def work(number: int, part: slice) -> None:
            try:
                results[number] = self._run(elements[part], positions[part], seed, together)
            except BaseException as error:  # noqa: BLE001 - raised below
                results[number] = error
                ended.set()

        threads = [
            threading.Thread(target=work, args=each, name="cachelayer-map", daemon=True) for each in enumerate(parts)
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            ended.set()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
        try:
            _raise_first(results)
            return [item for part in results for item in cast(list[Any], part)]
        finally:
            # The traceback of an error holds this frame, which must not hold the error.
            results.clear()

    def conform(self, elements: Sequence[Any], numbers: Indices, positions: Indices) -> Sequence[Any]:
        """Return what the function made, converted to the element spec that was declared.

        Args:
            elements: what the function made.
            numbers, positions: the record number and the global position of each.

        Raises:
            ElementError: if an element does not fit; it names the record and the position.
        """
        if self.declared is None:
            return elements
        try:
            return self.declared.conform(elements)
        except ElementError as error:
            if error.record is None:
                raise
            got = f"{error.got} from a function passed to map(), at global position {positions[error.record]}"
            number = int(numbers[error.record])
            hint = error.hint
            raise ElementError(error.expected, got, path=error.path, record=number, hint=hint) from error.__cause__

    def _run(self, elements: Sequence[Any], positions: NDArray[np.int64], seed: int, reading: Reading) -> list[Any]:
        generators = keyed_generators(seed, positions, self.number) if self.rng else None
        fn, check, out = self.fn, reading.check, list[Any]()
        held = nullcontext() if self.threads else self._lock.of_process()
        for element, position in zip(elements, positions.tolist(), strict=True):
            drawn = () if generators is None else (next(generators),)
            check()
            try:
                with held:
                    made = fn(element, *drawn)
            except StopIteration as error:
                raise _ended(error) from error
            except Exception as error:
                error.add_note(f"raised by a function passed to map(), of the element at global position {position}")
                raise
            out.append(made)
        return out


def _raise_first(results: Sequence[Any]) -> None:
    """Raise the first error of some parts; parts that only stopped because another failed come last."""
    for part in results:
        if isinstance(part, BaseException) and not isinstance(part, Dropped):
            raise part
    for part in results:
        if isinstance(part, BaseException):
            raise part


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


def keyed_generators(seed: int, positions: NDArray[np.int64], number: int) -> Iterator[np.random.Generator]:
    """Yield the same generator for each position, reset to the random numbers of (seed, position).

    They are those of ``Generator(Philox(key=[seed, position], counter=[0, 0, 0, number]))``. Writing its key resets a
    counter-based generator, which costs a sixth of making a new one. Source: Salmon et al.: Parallel random numbers: as
    easy as 1, 2, 3, 2011.
    """
    philox = np.random.Philox(key=0)
    generator = np.random.Generator(philox)
    key = np.array([seed, 0], np.uint64)
    state: Any = {
        "bit_generator": "Philox",
        "state": {"counter": np.array([0, 0, 0, number], np.uint64), "key": key},
        "buffer": np.zeros(4, np.uint64),
        "buffer_pos": 4,
        "has_uint32": 0,
        "uinteger": 0,
    }
    for position in positions.astype(np.uint64):
        key[1] = position
        philox.state = state
        yield generator
