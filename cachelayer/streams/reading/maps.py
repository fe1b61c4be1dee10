"""Call the user's functions of elements and batches, with random numbers for augmentation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import ElementError
from cachelayer.locks import ProcessLock
from cachelayer.protocols import Attempted, Failed, Stacker
from cachelayer.streams.reading.failures import ReadContext, attempt, is_of_element

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class ElementMap:
    """A user's function of one element.

    Args:
        fn: the function; with ``generators`` its second argument is a :class:`numpy.random.Generator`.
        generators: if it takes random numbers, given positions and the number of other records that were tried before,
            returns the generator of each position.
        threads: number of threads that call it at once; 0 calls it in one at a time.
        declared: makes batches of what it returns, if the user declared an element spec.
        max_failures: the number of failures that an iterator replaces by other elements; None to raise each.
    """

    fn: Callable[..., Any]
    generators: Callable[[Indices, int], Iterator[np.random.Generator]] | None
    threads: int
    declared: Stacker | None = None
    max_failures: int | None = None
    _lock: ProcessLock = field(default_factory=ProcessLock, compare=False, repr=False)

    def apply(
        self,
        elements: Sequence[Any],
        numbers: Indices,
        positions: Indices,
        tried: int,
        context: ReadContext,
        is_nullable: Callable[[], bool],
    ) -> Attempted:
        """Call the function once for each element, and convert what it returns to the element spec that was declared.

        Args:
            elements: the elements.
            numbers: the record of each.
            positions: the global position of each.
            tried: the number of other records that were tried before at these positions.
            context: ends the calls if nobody waits for them any longer.
            is_nullable: returns whether elements may be None.

        Returns:
            What the function returned, and the error of each row for which it failed. If failures are not replaced,
            it ends before the first of them.
        """
        splits = [len(elements) * part // max(1, self.threads) for part in range(max(1, self.threads) + 1)]
        parts = [slice(start, stop) for start, stop in pairwise(splits) if start < stop]
        if len(parts) < 2:
            attempted = self._run(elements, positions, tried, context)
        else:
            runs = [partial(self._run, elements[part], positions[part], tried, context) for part in parts]
            attempted = _joined(context.run_at_once(runs), parts)
        if self.declared is not None:
            return self._conformed(attempted, numbers, positions)
        if not any(value is None for value in attempted[0]) or is_nullable():
            return attempted

        def refuse_none(row: int, value: Any) -> tuple[Any, Exception | None]:
            if value is not None or elements[row] is None:
                return value, None
            return None, returned_none("map()", f"at global position {positions[row]}", int(numbers[row]))

        return self._one_by_one(attempted, refuse_none)

    def _run(self, elements: Sequence[Any], positions: Indices, tried: int, context: ReadContext) -> Attempted:
        generators = None if self.generators is None else self.generators(positions, tried)
        values, errors = list[Any](), Failed()
        lock = nullcontext() if self.threads else self._lock.of_process()
        for element, position in zip(elements, positions.tolist(), strict=True):
            arguments = (element,) if generators is None else (element, next(generators))
            context.check()
            with lock:
                value, error = context.attempt(self.fn, *arguments)
            if error is not None:
                errors[len(values)] = self._noted(error, position)
                if not self.replaces(error):
                    break
            values.append(value)
        return values, errors

    def replaces(self, error: BaseException) -> bool:
        """Return whether another element stands in for one that failed with this error."""
        return self.max_failures is not None and is_of_element(error)

    def _noted(self, error: BaseException, position: int) -> BaseException:
        """Return an error of the function with notes that say where it was raised."""
        error.add_note(
            f"raised by a function passed to map(), of the element at global position {position}; "
            "map_batches() passes whole batches"
        )
        if self.max_failures is not None:
            # A failure keeps no traceback.
            error.add_note(f"raised at {_line(error)}")
        return error

    def _conformed(self, attempted: Attempted, numbers: Indices, positions: Indices) -> Attempted:
        """Return values converted to the declared spec; those that do not fit have failed."""
        conform = cast(Stacker, self.declared).conform
        values, errors = attempted
        rows = [row for row in range(len(values)) if row not in errors]
        conformed, error = attempt(conform, [values[row] for row in rows])
        if error is None:
            for row, value in zip(rows, conformed, strict=True):
                values[row] = value
            return values, errors

        def conform_one(row: int, value: Any) -> tuple[Any, Exception | None]:
            conformed, error = attempt(conform, [value])
            if error is not None:
                return None, _misfit(error, int(numbers[row]), int(positions[row]))
            return conformed[0], None

        return self._one_by_one(attempted, conform_one)

    def _one_by_one(self, attempted: Attempted, check: Callable[[int, Any], tuple[Any, Exception | None]]) -> Attempted:
        """Return what a check makes of each value, up to the first error that is not replaced."""
        values, errors = attempted
        for row in range(len(values)):
            if row in errors:
                continue
            values[row], error = check(row, values[row])
            if error is None:
                continue
            errors[row] = error
            if not self.replaces(error):
                return values[:row], {before: each for before, each in errors.items() if before <= row}
        return values, errors


def _joined(parts: Sequence[Attempted], rows: Sequence[slice]) -> Attempted:
    """Return what several threads made of parts of the elements, up to the first that ends the calls."""
    values, errors = list[Any](), Failed()
    for (made, failed), part in zip(parts, rows, strict=True):
        errors |= {row + part.start: error for row, error in failed.items()}
        values += made
        if len(values) < part.stop:
            break
    return values, errors


def _misfit(error: Exception, record: int, position: int) -> Exception:
    """Return the error of what a function returned, with the record and the position of its element."""
    if not isinstance(error, ElementError) or error.record is None:
        return error
    got = f"{error.got} from a function passed to map(), at global position {position}"
    named = ElementError(error.expected, got, path=error.path, record=record, hint=error.hint)
    named.__cause__ = error.__cause__
    return named


def _line(error: BaseException) -> str:
    """Return the line of the user's function that raised an error."""
    trace = (error if error.__traceback__ else error.__cause__ or error).__traceback__
    # Below attempt().
    trace = trace and (trace.tb_next or trace)
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "an unknown line"


def keyed_generators(seed: int, number: int, positions: Indices, tried: int) -> Iterator[np.random.Generator]:
    """Yield the same generator for each position, reset to the random numbers of (seed, position, tried).

    They are those of ``Generator(Philox(key=[seed, position], counter=[0, 0, tried, number]))``, with the index of the
    function among those of a stream that draw: no two draw the same numbers. Writing its key resets a counter-based
    generator, which costs a sixth of making a new one. Source: Salmon et al.: Parallel random numbers: as easy as 1, 2,
    3, 2011.
    """
    philox = np.random.Philox(key=0)
    generator = np.random.Generator(philox)
    key = np.array([seed, 0], np.uint64)
    state: Any = {
        "bit_generator": "Philox",
        "state": {"counter": np.array([0, 0, tried, number], np.uint64), "key": key},
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
