"""The calls that make a view of a version, as references write them: ``[:45000]``, ``.where('score > 0.5')``.

Calls are written as in Python, one after another, and their arguments are literals:

* ``[start:stop:step]``;
* a method of a view, such as ``.fields('tokens', 'meta/url')``, with numbers, texts, bools, None, and lists, tuples and
  dicts of these; record numbers are a list, or ``range(start, stop, step)``;
* ``.split({'train': 0.9, 'val': 0.1}, seed=0)['train']``: a split is followed by the name of a part;
* ``.folds(5, seed=0)[2][0]``: folds are followed by the number of a fold, and 0 for its training part or 1 for the part
  that is held out.

:func:`parse_calls` reads nothing else, and runs nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import CacheLayerError, InvalidArgumentError

METHODS = (
    "clips",
    "decoded",
    "exclude",
    "fields",
    "folds",
    "packed",
    "padded",
    "raw",
    "rolling",
    "sample",
    "select",
    "split",
    "where",
    "windows",
)
_PARTS = {"split": "['train']", "folds": "[2][0]"}
"""The methods that give several views, with an example of how one view is named."""
MOST_NUMBERS = 256
"""The most record numbers that a reference lists one by one."""
PUBLISH = "publish the records with storage.derive(id, base, new, keep=view), and take the reference of that version"
"""The advice for a view that no text can name."""
_NAMES_VALUES = re.compile(r"['\"]|[=!]=|\bin\b")
"""What a condition has that names values: texts, or numbers that are equal to a field."""
_PINNED = 16
_SHOWN = 80


@dataclass(frozen=True)
class ViewCall:
    """A call that makes a view of a view."""

    method: str
    """The name of the method; empty for a slice."""
    arguments: tuple[Any, ...] = ()
    """The positional arguments; for a slice, the slice."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The keyword arguments."""
    parts: tuple[str | int, ...] = ()
    """If the call gives several views, the name or the numbers of one of them."""
    why_unnamed: str = ""
    """The reason why no text can name the call, and what to do; empty if a text can."""

    def apply(self, view: Any) -> Any:
        """Return the view that the call gives; raise if there is no such method, or it takes no such arguments."""
        if not self.method:
            return view[self.arguments[0]]
        try:
            method = "_split" if self.method == "split" else self.method
            result = getattr(view, method)(*self.arguments, **self.options)
            for part in self.parts:
                result = result[part]
        except CacheLayerError:
            raise
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise InvalidArgumentError(f"the reference has {self}, which fits no {view!r}: {error}") from error
        return result

    def __str__(self) -> str:
        if not self.method:
            rows = self.arguments[0]
            ends = ["" if number is None else str(number) for number in (rows.start, rows.stop, rows.step)]
            return f"[{':'.join(ends if ends[2] else ends[:2])}]"
        options = [f"{name}={value!r}" for name, value in self.options.items()]
        parts = "".join(f"[{part!r}]" for part in self.parts)
        return f".{self.method}({', '.join([*map(repr, self.arguments), *options])}){parts}"

    @property
    def lacks_part(self) -> bool:
        """True if the call gives several views, and nothing chooses one of them."""
        return len(self.parts) < _PARTS.get(self.method, "").count("[")


@dataclass(frozen=True)
class ViewName:
    """The name of a view in references: the version, and the calls that made the view of it."""

    version: str
    """The reference of the version, pinned by its digest."""
    records: int
    """How many records the version has."""
    calls: tuple[ViewCall, ...] = ()

    def then(self, call: ViewCall) -> ViewName:
        """Return the name of the view that a call makes of this view."""
        return ViewName(self.version, self.records, (*self.calls, call))

    def sliced(self, rows: range) -> ViewName:
        """Return the name of a slice of this view. A slice of a slice is one slice."""
        calls = self.calls
        if calls and not calls[-1].method:
            rows = _range_of(calls[-1].arguments[0])[_slice_of(rows)]
            calls = calls[:-1]
        return ViewName(self.version, self.records, (*calls, ViewCall("", (_slice_of(rows),))))

    @property
    def stored(self) -> ViewName:
        """The name as it is stored: with hashes of the conditions that name values, which an erasure does not reach."""
        return replace(self, calls=tuple(map(_stored_call, self.calls)))

    @property
    def conditions(self) -> list[str]:
        """The conditions by which the records were chosen, as they are stored; a function is its name."""
        return [call.arguments[0] for call in self.stored.calls if call.method == "where"]

    def __str__(self) -> str:
        return self.version + "".join(map(str, self.calls))

    @property
    def shown(self) -> str:
        """The name for people: without the storage and the digest, and with long calls cut short."""
        calls = [text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…" for text in map(str, self.calls)]
        return self.version.rpartition("/")[2].partition("@sha256:")[0] + "".join(calls)

    def reference(self, digest: str) -> str:
        """Return the reference of the view, pinned by its digest; raise if no text can name one of the calls."""
        if not self.calls:
            return self.version
        for call in self.calls:
            if call.why_unnamed or not _is_literal(call):
                why = call.why_unnamed or f"{call} has an argument that is no literal: {PUBLISH}"
                raise InvalidArgumentError(f"{self.shown} has no reference that opens it again: {why}")
        return f"{self}@sha256:{digest[:_PINNED]}"


def _stored_call(call: ViewCall) -> ViewCall:
    from cachelayer.provenance.stored_values import hashed, stored

    if call.method == "where" and _NAMES_VALUES.search(call.arguments[0]):
        return replace(call, arguments=(stored(hashed(call.arguments[0].encode())),))
    return call


def _slice_of(rows: range) -> slice:
    """Return the slice that chooses these numbers, none of which is negative."""
    if len(rows) < 2:
        return slice(rows[0], rows[0] + 1) if rows else slice(0, 0)
    stop = rows[-1] + (1 if rows.step > 0 else -1)
    return slice(rows.start, None if stop < 0 else stop, None if rows.step == 1 else rows.step)


def _range_of(rows: slice) -> range:
    """Return the numbers that a slice of :func:`_slice_of` chooses."""
    return range(rows.start, -1 if rows.stop is None else rows.stop, 1 if rows.step is None else rows.step)


def _is_literal(call: ViewCall) -> bool:
    try:
        return parse_calls(str(call)) == (call,)
    except InvalidArgumentError:
        return False


def literal(value: Any) -> Any:
    """Return an argument of a call as a literal writes it: with Python's numbers for numpy's, in new containers."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {literal(key): literal(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(literal, value)) if type(value) in (list, tuple) else value
    return value


def rows_call(method: str, indices: NDArray[Any]) -> ViewCall:
    """Return the call of ``select`` or ``exclude`` with record numbers, int64, or with a bool for each record."""
    if indices.dtype == np.bool_:
        count = int(np.count_nonzero(indices))
        first = int(indices.argmax()) if count else 0
        if indices[first : first + count].all():
            return ViewCall(method, (range(first, first + count),))
        indices = np.flatnonzero(indices)
    count = len(indices)
    steps = np.diff(indices)
    if count > 2 and steps[0] and (steps == steps[0]).all():
        first = int(indices[0])
        step = int(steps[0])
        return ViewCall(method, (range(first, first + step * count, step),))
    if count <= MOST_NUMBERS:
        return ViewCall(method, (indices.tolist(),))
    return ViewCall(method, why_unnamed=f"{method}() got {count:,} record numbers: {PUBLISH}")


def parse_calls(text: str) -> tuple[ViewCall, ...] | None:
    """Return the calls that a text writes; None if it is no chain of slices and methods. Raise for an unknown one."""
    try:
        node: ast.expr = ast.parse(f"_{text}", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    parts: list[ast.Subscript | ast.Call] = []
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Subscript):
            parts.append(node)
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            parts.append(node)
            node = node.func.value
        else:
            return None
    if node.id != "_":
        return None
    calls: list[ViewCall] = []
    for part in reversed(parts):
        if isinstance(part, ast.Call):
            calls.append(_method_call(part))
        elif isinstance(part.slice, ast.Slice):
            calls.append(ViewCall("", (_slice(part.slice),)))
        elif calls and calls[-1].lacks_part:
            calls[-1] = replace(calls[-1], parts=(*calls[-1].parts, _literal(part.slice)))
        else:
            raise InvalidArgumentError(
                f"the reference has [{ast.unparse(part.slice)}]: write a slice such as [:45000], or the name of a part "
                "after .split(...) or .folds(...)"
            )
    unfinished = next((call for call in calls if call.lacks_part), None)
    if unfinished is not None:
        whole = replace(unfinished, parts=())
        raise InvalidArgumentError(
            f"the reference has {unfinished}: name a part of it, such as {whole}{_PARTS[unfinished.method]}"
        )
    return tuple(calls)


def _method_call(node: ast.Call) -> ViewCall:
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if method not in METHODS:
        raise InvalidArgumentError(
            f"the reference has .{method}(...): the methods that a reference may have are {', '.join(METHODS)}; if a "
            "newer release wrote it, update cachelayer"
        )
    if any(keyword.arg is None for keyword in node.keywords):
        raise InvalidArgumentError(f"the reference has {ast.unparse(node)[1:]}: write each keyword")
    options = {str(keyword.arg): _literal(keyword.value) for keyword in node.keywords}
    return ViewCall(method, tuple(map(_literal, node.args)), options)


def _slice(node: ast.Slice) -> slice:
    ends = [None if end is None else _literal(end) for end in (node.lower, node.upper, node.step)]
    if not all(end is None or type(end) is int for end in ends):
        raise InvalidArgumentError(f"the reference has [{ast.unparse(node)}]: a slice has integers")
    return slice(*ends)


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal, or of ``range(...)`` with integers."""
    try:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
            return range(*map(ast.literal_eval, node.args))
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidArgumentError(
            f"the reference has {ast.unparse(node)}: an argument is a number, a text, or a list, tuple or dict of these"
        ) from error
