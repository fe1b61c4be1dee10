"""Call the user's functions of elements and batches, with random numbers for augmentation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import ElementError
from cachelayer.locks import ProcessLock
from cachelayer.protocols import Stacker
from cachelayer.system_threads import Pool

Indices = NDArray[np.int64]
Collate = Callable[..., Any]
Check = Callable[[], None]


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
    """

    fn: Callable[..., Any]
    rng: bool
    threads: int
    number: int
    declared: Stacker | None = None
    max_failures: int | None = None
    _lock: ProcessLock = field(default_factory=ProcessLock, compare=False, repr=False)

    def __call__(
        self, elements: Sequence[Any], numbers: Indices, positions: Indices, seed: int, check: Check, attempt: int
    ) -> Sequence[Any]:
        """Return what the function makes of some elements, converted to the element spec that was declared.

        ``attempt`` is the number of other records that were tried before: each draws other random numbers.
        """
        run = self._in_threads if self.threads > 1 and len(elements) > 1 else self._run
        changed = run(elements, positions, seed, check, attempt)
        if self.declared is None:
            return changed
        try:
            return self.declared.conform(changed)
        except ElementError as error:
            if error.record is None:
                raise
            row = error.record
            got = f"{error.got} from a function passed to map(), at global position {positions[row]}"
            raise ElementError(
                error.expected, got, path=error.path, record=int(numbers[row]), hint=error.hint
            ) from error.__cause__

    def _in_threads(
        self, elements: Sequence[Any], positions: Indices, seed: int, check: Check, attempt: int
    ) -> list[Any]:
        """Split the elements among threads, in order; each thread has its own generator."""
        splits = [len(elements) * part // self.threads for part in range(self.threads + 1)]
        parts = [slice(start, stop) for start, stop in pairwise(splits) if start < stop]
        with Pool(len(parts), "cachelayer-map") as pool:
            futures = [pool.submit(self._run, elements[part], positions[part], seed, check, attempt) for part in parts]
            return [item for future in futures for item in future.result()]

    def _run(self, elements: Sequence[Any], positions: Indices, seed: int, check: Check, attempt: int) -> list[Any]:
        generators = keyed_generators(seed, positions, self.number, attempt) if self.rng else None
        out, lock = list[Any](), nullcontext() if self.threads else self._lock.of_process()
        for element, position in zip(elements, positions.tolist(), strict=True):
            drawn = () if generators is None else (next(generators),)
            check()
            try:
                with lock:
                    out.append(called(self.fn, element, *drawn))
            except Exception as error:
                error.add_note(
                    f"raised by a function passed to map(), of the element at global position {position}; "
                    "map_batches() passes whole batches"
                )
                if self.max_failures is not None:
                    # A failure keeps no traceback.
                    error.add_note(f"raised at {_line(error)}")
                raise
        return out


def _line(error: BaseException) -> str:
    """Return the line of the user's function that raised an error."""
    trace = error.__traceback__
    # Below _run() and called().
    for _ in range(2):
        trace = trace and (trace.tb_next or trace)
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "an unknown line"


def called(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except StopIteration as error:
        raise RuntimeError(f"a function passed to map() or map_batches() raised StopIteration({error})") from error


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
    """Return the error for a function that returned None, with the record that it was called for."""
    return ElementError(
        f"a value from a function passed to {method}, {where}",
        "None",
        record=record,
        hint="Did the function forget to return it?",
    )
