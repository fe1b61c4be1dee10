"""A user's function of one element: how it is called, in how many threads, and with which random numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from cachelayer.errors import ElementError
from cachelayer.locks import ProcessLock
from cachelayer.protocols import Attempted, Failed, Stacker
from cachelayer.streams.order.permutation import Indices
from cachelayer.streams.reading.failures import ReadContext, attempt, is_of_element


@dataclass(frozen=True)
class ElementMap:
    """A user's function of one element."""

    fn: Callable[..., Any]
    """The function; with ``generators`` its second argument is one of them."""
    generators: Callable[[Indices, int], Iterator[Any]] | None
    """If it takes random numbers: given positions and the number of other records that were tried before, returns the
    generator of each position."""
    threads: int
    """The number of threads that call it at once; with 0, the threads of the stream call it one at a time."""
    declared: Stacker | None = None
    """Makes batches of what it returns, if the user declared an element spec."""
    max_failures: int | None = None
    """The number of failures that an iterator replaces by other elements; None to raise the first."""
    _lock: ProcessLock = field(default_factory=ProcessLock, compare=False, repr=False)

    def apply(
        self,
        elements: Sequence[Any],
        numbers: Indices,
        positions: Indices,
        attempts: int,
        context: ReadContext,
        is_nullable: Callable[[], bool],
    ) -> Attempted:
        """Call the function once for each element, and convert what it returns to the element spec that was declared.

        Return also the error of each row for which it failed. If failures are not replaced, it ends before the first.
        """
        threads = max(1, self.threads)
        splits = [len(elements) * thread // threads for thread in range(threads + 1)]
        parts = [slice(start, stop) for start, stop in pairwise(splits) if start < stop]
        # Other chunks, which are read at once, may have their elements in the threads of the functions.
        if self.threads < 2 or (len(parts) < 2 and context.closed is None):
            attempted = self._call(elements, positions, attempts, context)
        else:
            calls = [partial(self._call, elements[part], positions[part], attempts, context) for part in parts]
            attempted = _joined(context.run_at_once(calls), parts)
        if self.declared is not None:
            return self._conformed(self.declared, attempted, numbers, positions)
        values, errors = attempted
        if not any(value is None for value in values) or is_nullable():
            return attempted
        for row, value in enumerate(values):
            if value is None and elements[row] is not None and row not in errors:
                errors[row] = returned_none("map()", f"at position {positions[row]}", int(numbers[row]))
        return self._until_error(values, errors)

    def _call(self, elements: Sequence[Any], positions: Indices, attempts: int, context: ReadContext) -> Attempted:
        generators = None if self.generators is None else self.generators(positions, attempts)
        values = list[Any]()
        errors = Failed()
        lock = nullcontext() if self.threads else self._lock.of_process()
        for element, position in zip(elements, positions.tolist(), strict=True):
            arguments = (element,) if generators is None else (element, next(generators))
            context.check()
            with lock:
                value, error = context.attempt(self.fn, *arguments)
            if error is not None:
                errors[len(values)] = self._with_notes(error, position)
                if not self.replaces(error):
                    break
            values.append(value)
        return values, errors

    def replaces(self, error: BaseException) -> bool:
        """Return whether another element stands in for an element that failed with this error."""
        return self.max_failures is not None and is_of_element(error)

    def _with_notes(self, error: BaseException, position: int) -> BaseException:
        """Return an error of the function with notes that say for which element, and at which line it was raised."""
        error.add_note(
            f"raised by a function passed to map(), of the element at position {position}; "
            "map_batches() passes whole batches"
        )
        if self.max_failures is not None:
            # A failure keeps no traceback.
            error.add_note(f"raised at {_line(error)}")
        return error

    def _conformed(self, declared: Stacker, attempted: Attempted, numbers: Indices, positions: Indices) -> Attempted:
        """Return values converted to the declared spec; a value that does not fit has failed."""
        values, errors = attempted
        rows = [row for row in range(len(values)) if row not in errors]
        conformed, error = attempt(declared.conform, [values[row] for row in rows])
        if error is None:
            for row, value in zip(rows, conformed, strict=True):
                values[row] = value
            return values, errors
        # Once more one by one, to find the rows that do not fit.
        for row in rows:
            conformed, error = attempt(declared.conform, [values[row]])
            if error is None:
                values[row] = conformed[0]
                continue
            values[row] = None
            errors[row] = _misfit(error, int(numbers[row]), int(positions[row]))
            if not self.replaces(errors[row]):
                break
        return self._until_error(values, errors)

    def _until_error(self, values: list[Any], errors: Failed) -> Attempted:
        """Return values and errors up to the first error that is not replaced."""
        for row in sorted(errors):
            if not self.replaces(errors[row]):
                return values[:row], {failed: error for failed, error in errors.items() if failed <= row}
        return values, errors


def _joined(results: Sequence[Attempted], parts: Sequence[slice]) -> Attempted:
    """Return what several threads made of parts of the elements, up to the first error that is not replaced."""
    values = list[Any]()
    errors = Failed()
    for (values_of_part, errors_of_part), part in zip(results, parts, strict=True):
        errors |= {row + part.start: error for row, error in errors_of_part.items()}
        values += values_of_part
        if len(values) < part.stop:
            break
    return values, errors


def _misfit(error: Exception, record: int, position: int) -> Exception:
    """Return the error of what a function returned, with the record and the position of its element."""
    if not isinstance(error, ElementError) or error.record is None:
        return error
    got = f"{error.got} from a function passed to map(), at position {position}"
    misfit = ElementError(error.expected, got, path=error.path, record=record, hint=error.hint)
    misfit.__cause__ = error.__cause__
    return misfit


def _line(error: BaseException) -> str:
    """Return the line of the user's function that raised an error."""
    # An error that replaces a StopIteration was never raised: its cause was.
    trace = error.__traceback__
    if trace is None and error.__cause__ is not None:
        trace = error.__cause__.__traceback__
    if trace is None:
        return "an unknown line"
    if trace.tb_next is not None:
        # The first frame is that of attempt().
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def keyed_generators(seed: int, function: int, positions: Indices, attempts: int) -> Iterator[np.random.Generator]:
    """Yield a generator for each position, the same object with the random numbers of that position.

    They are the numbers of ``Generator(Philox(key=[seed, position], counter=[0, 0, attempts, function]))``. To write
    the key into a counter-based generator resets it, which costs a sixth of making a new one. Source: Salmon et al.:
    Parallel random numbers: as easy as 1, 2, 3, 2011.
    """
    philox = np.random.Philox(key=0)
    generator = np.random.Generator(philox)
    key = np.array([seed, 0], np.uint64)
    state: Any = {
        "bit_generator": "Philox",
        "state": {"counter": np.array([0, 0, attempts, function], np.uint64), "key": key},
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
