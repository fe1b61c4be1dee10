"""The user's functions of elements and batches: how they are called, in which threads, with which random numbers.

Functions that take the global generators of random numbers instead are warned of.
"""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import numpy as np

from cachelayer.errors import ElementError
from cachelayer.protocols import Attempted, Stacker
from cachelayer.streams.order.permutation import Indices
from cachelayer.streams.reading.failures import ReadContext, attempt, is_of_element
from cachelayer.support.locks import ProcessLock
from cachelayer.support.user_warnings import warn


class ElementRows(NamedTuple):
    """Rows that elements are made for."""

    numbers: Indices
    """The record of each row."""
    positions: Indices
    """The position of each row."""
    attempts: int = 0
    """How many other records were tried before at these positions."""

    def some(self, rows: Any) -> ElementRows:
        return ElementRows(self.numbers[rows], self.positions[rows], self.attempts)


Stage = Callable[[Sequence[Any], ElementRows], Attempted]
"""Makes elements of the elements of some rows."""


@dataclass(eq=False)
class Learned:
    """Facts about the functions of a stream that reading has shown. All readers of the stream share them."""

    passed_on: Mapping[str, Any] | None = None
    """The spec of each leaf of the dataset that the functions return unchanged, by its path in the returned element.
    Leaves whose batches are plain arrays are left out. None before the first batch."""
    has_warned: bool = False
    """Whether there was a warning of a failure that no iterator counts."""
    has_watched: bool = False
    """Whether a chunk was read to see if functions change global generators of random numbers."""


@dataclass(frozen=True)
class ElementMap:
    """A user's function of one element. Its two stages are to :meth:`call` it, and to :meth:`conform` its results.

    A row for which a stage raises an error has failed; or the error ends the rows, if failures are not replaced.
    """

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

    def call(
        self, context: ReadContext, may_be_none: Callable[[], bool], elements: Sequence[Any], rows: ElementRows
    ) -> Attempted:
        """Call the function once for each element, in its threads.

        Only if elements of the stream may be None may the function make None of others.
        """
        threads = max(1, self.threads)
        splits = [len(elements) * thread // threads for thread in range(threads + 1)]
        parts = [range(start, stop) for start, stop in pairwise(splits) if start < stop]
        # Other chunks, which are read at once, may have their elements in the threads of the functions.
        if self.threads < 2 or (len(parts) < 2 and context.closed is None):
            return self._call_here(context, may_be_none, elements, rows)
        attempted = Attempted.of_rows(len(elements))
        slices = [slice(part.start, part.stop) for part in parts]
        calls = [partial(self._call_here, context, may_be_none, elements[some], rows.some(some)) for some in slices]
        for part, of_part in zip(parts, context.run_at_once(calls), strict=True):
            attempted.put(part, of_part)
        return attempted

    def _call_here(
        self, context: ReadContext, may_be_none: Callable[[], bool], elements: Sequence[Any], rows: ElementRows
    ) -> Attempted:
        attempted = Attempted.of_rows(len(elements))
        drawn: Iterable[tuple[Any, ...]] = repeat(())
        if self.generators is not None:
            drawn = zip(self.generators(rows.positions, rows.attempts))
        lock = nullcontext() if self.threads else self._lock.of_process()
        for row, (element, generator) in enumerate(zip(elements, drawn, strict=False)):
            context.check()
            with lock:
                value, error = context.attempt(self.fn, element, *generator)
            if error is not None:
                self._add_notes(error, rows.positions[row])
            elif value is None and self.declared is None and element is not None and not may_be_none():
                error = returned_none("map()", f"at position {rows.positions[row]}", int(rows.numbers[row]))
            if error is None:
                attempted.elements[row] = value
            elif not self._fail(attempted, row, error):
                break
        return attempted

    def conform(self, declared: Stacker, values: Sequence[Any], rows: ElementRows) -> Attempted:
        """Convert what the function returned to the declared spec."""
        conformed, error = attempt(declared.conform, values)
        if error is None:
            return Attempted(conformed, {}, {})
        # Once more one by one, to find the rows that do not fit.
        attempted = Attempted.of_rows(len(values))
        for row, value in enumerate(values):
            conformed, error = attempt(declared.conform, [value])
            if error is None:
                attempted.elements[row] = conformed[0]
            else:
                self._fail(attempted, row, _misfit(error, int(rows.numbers[row]), int(rows.positions[row])))
        return attempted

    def _fail(self, attempted: Attempted, row: int, error: BaseException) -> bool:
        """Note the error of a row; return False if it ends the rows, because no other element may stand in."""
        is_replaced = self.max_failures is not None and is_of_element(error)
        (attempted.failed if is_replaced else attempted.ended)[row] = error
        return is_replaced

    def _add_notes(self, error: BaseException, position: int) -> None:
        """Add to an error of the function for which element, and at which line it was raised."""
        error.add_note(
            f"raised by a function passed to map(), of the element at position {position}; "
            "map_batches() passes whole batches"
        )
        if self.max_failures is not None:
            # A failure keeps no traceback.
            error.add_note(f"raised at {_line(error)}")


@dataclass(frozen=True)
class BatchMap:
    """A user's function of one batch."""

    fn: Callable[..., Any]
    """The function; with ``generators`` its second argument is one of them."""
    generators: Callable[[Indices, int], Iterator[Any]] | None = None
    """As for an :class:`ElementMap`; the position is that of the first row of the batch."""
    is_global: bool = False
    """True if it is called with the rows of all shards, of which each shard then takes its own."""

    def call(self, batch: Any, position: int) -> Any:
        """Call the function for a batch whose first row has a position."""
        drawn = () if self.generators is None else (next(self.generators(np.array([position]), 0)),)
        changed = self.fn(batch, *drawn)
        if changed is None and batch is not None:
            raise returned_none("map_batches()", f"of the batch at position {position}", None)
        return changed


def rows_of_batch(batch: Any, rows: Indices, count: int, path: str = "") -> Any:
    """Return some rows of what a function made of a global batch.

    Args:
        batch: arrays, lists or other sequences of rows, also in dicts and tuples.
        rows: the rows.
        count: the number of rows that the batch must have.
        path: where the batch is in what the function returned.

    Raises:
        ElementError: if a part of it has another number of rows.
    """
    if isinstance(batch, dict):
        return {key: rows_of_batch(part, rows, count, f"{path}/{key}".lstrip("/")) for key, part in batch.items()}
    if isinstance(batch, tuple):
        parts = [rows_of_batch(part, rows, count, f"{path}/{n}".lstrip("/")) for n, part in enumerate(batch)]
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    got, _ = attempt(len, batch)
    if got != count:
        raise ElementError(
            f"{count} rows of the global batch from a function passed to map_batches(on='global')",
            f"a {type(batch).__name__} " + ("without rows" if got is None else f"of {got} rows"),
            path=path,
            hint="Return arrays of all rows, in dicts or tuples: each shard takes its own.",
        )
    begin = int(rows[0]) if len(rows) else 0
    if (rows != np.arange(begin, begin + len(rows))).any():
        return [batch[row] for row in rows.tolist()] if isinstance(batch, list) else batch[rows]
    end = begin + len(rows)
    # A Ragged is cut by a method of its own.
    return batch.rows(begin, end) if hasattr(batch, "row_splits") else batch[begin:end]


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


@contextmanager
def warning_of_global_random(*, draws: bool) -> Iterator[None]:
    """Warn if what runs within changes the state of a global generator: of Python, numpy or PyTorch.

    With ``draws``, functions get generators: in a process that reads only, they may seed the global ones from these.
    """
    from multiprocessing import parent_process

    if draws and parent_process() is not None:
        yield
        return
    before = _states()
    yield
    changed = [name for name, state in _states().items() if state != before.get(name, state)]
    if changed:
        warn(
            f"a function passed to map() or map_batches() seeds or draws from the global generator of "
            f"{' and '.join(changed)}, which other threads and your program use too: its numbers differ from run to "
            "run. Take them from the generator that map(fn, rng=True) passes, or rng='torch' for a torch.Generator; "
            "functions that have no argument for one need loader(num_workers=...), and must be seeded by rng each time"
        )


def _states() -> dict[str, Any]:
    of_numpy = np.random.get_state(legacy=False)
    states: dict[str, Any] = {"random": random.getstate(), "numpy.random": pickle.dumps(of_numpy)}
    torch = sys.modules.get("torch")
    if hasattr(torch, "get_rng_state"):
        states["torch"] = torch.get_rng_state().numpy().tobytes()  # type: ignore[union-attr]
    return states
