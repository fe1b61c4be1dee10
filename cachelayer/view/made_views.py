"""Views of a version, written as in a program, such as ``[:45000].windows("tokens", 512)``.

Nothing of the text is run: it is parsed, its arguments are literals, and only the methods listed here are called.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cachelayer.access.dataref import DataRef
from cachelayer.access.sampling import Sampled
from cachelayer.access.sequences.packs import Packed
from cachelayer.access.sequences.padded import Padded
from cachelayer.access.sequences.windows import Windows
from cachelayer.access.version_records import VersionRecords
from cachelayer.access.view import View
from cachelayer.drawing.drawn_records import Stored
from cachelayer.errors import CacheLayerError, InvalidArgumentError
from cachelayer.records.selection import Selection
from cachelayer.streams.buckets import Buckets, buckets_of

LONGEST_TEXT = 4000
_MOST_STEPS = 16
# A window may hold values of millions of records.
_ORIGINS = 4
# Python does not write integers of many thousands of bits in decimal, which messages do.
_MOST_BITS = 128
_METHODS = ("exclude", "fields", "packed", "padded", "sample", "select", "split", "windows")
# They change how records are decoded, not their order. The page decodes images itself, within limits.
_OTHER_DECODING = ("decoded", "raw")
_EXAMPLE = '[:45000].windows("tokens", 512)'
_ARGUMENTS = "numbers, texts, lists and dicts are, and nothing else is accepted here"


@dataclass(frozen=True)
class MadeView:
    """What a stream of a program reads.

    Args:
        view: the elements that are drawn.
        sampled: its weighted samples; None if it is streamed itself.
        buckets: those of the stream; None if it has none.
    """

    view: View[Any]
    sampled: Sampled[Any] | None = None
    buckets: Buckets | None = None


class _Unwritten(VersionRecords):
    """The records of a version, beside which nothing is stored: pages only read."""

    @property
    def home(self) -> None:
        return None


def made_view(ref: DataRef[Any], text: str, buckets: str = "") -> MadeView:
    """Return the view of a version that a text describes.

    Args:
        ref: the version.
        text: what stands between the version and ``.stream(...)`` in a program; empty if nothing does.
        buckets: the argument ``buckets`` of the stream in Python; empty for none.

    Raises:
        InvalidArgumentError: if it is not such a text.
        CacheLayerError: if the library refuses it.
    """
    source = ref._base
    made: Any = ref.raw()._with_source(_Unwritten(source.version, source.verify, source.copies))
    # The page shows what is in a batch: how records that are too long are treated is up to the program.
    found = _buckets(buckets) if buckets else None
    before = made
    for step in _steps(text) if text else ():
        before, made = made, _applied(made, step)
    if isinstance(made, Sampled):
        if found is not None:
            raise InvalidArgumentError("a weighted sample has no buckets: leave one of them out")
        return MadeView(before, made)
    if not isinstance(made, View):
        raise InvalidArgumentError(f'view={text!r}: name one part of the split, as in ["train"]')
    return MadeView(made, None, found)


def _steps(text: str) -> list[ast.Subscript | ast.Call]:
    """Return the steps of a text, from the first to the last."""
    node = _parsed("view", f"ref{text}")
    steps: list[ast.Subscript | ast.Call] = []
    while not (isinstance(node, ast.Name) and node.id == "ref"):
        if isinstance(node, ast.Subscript):
            steps.append(node)
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            steps.append(node)
            node = node.func.value
        else:
            raise InvalidArgumentError(f"view={text[:200]!r}: write it as in your program, such as {_EXAMPLE}")
        if len(steps) > _MOST_STEPS:
            raise InvalidArgumentError(f"view: more than {_MOST_STEPS} steps")
    return steps[::-1]


def _parsed(name: str, text: str) -> ast.expr:
    if len(text) > LONGEST_TEXT:
        raise InvalidArgumentError(f"{name} of {len(text):,} characters: at most {LONGEST_TEXT:,}")
    try:
        node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidArgumentError(f"{name}={text[:200]!r} is not Python: {error}") from error
    constants = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
    if any(isinstance(each, int) and each.bit_length() > _MOST_BITS for each in constants):
        raise InvalidArgumentError(f"{name}: an integer has more than {_MOST_BITS} bits, which is out of range")
    return node


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise InvalidArgumentError(f"an argument of a view or of buckets is not written out: {_ARGUMENTS}") from error


def _applied(made: Any, step: ast.Subscript | ast.Call) -> Any:
    """Return what a step of a text makes of a view."""
    if isinstance(step, ast.Subscript):
        return _subscript(made, step.slice)
    name = step.func.attr if isinstance(step.func, ast.Attribute) else ""
    if name in _OTHER_DECODING and isinstance(made, View):
        return made
    if name not in _METHODS or not isinstance(made, View) or not hasattr(made, name):
        raise InvalidArgumentError(f".{name[:40]}() does not fit here: {', '.join(_METHODS)} and slices make views")
    return _called(getattr(made, name), step)


def _subscript(made: Any, index: ast.expr) -> Any:
    if isinstance(made, View) and isinstance(index, ast.Slice):
        ends = (index.lower, index.upper, index.step)
        return made[slice(*(None if each is None else _literal(each) for each in ends))]
    key = None if isinstance(index, ast.Slice) else _literal(index)
    if isinstance(made, dict) and isinstance(key, str) and key in made:
        return made[key]
    raise InvalidArgumentError(
        "[...] does not fit here: a view takes a slice, and a split the name of one of its parts"
    )


def _called(function: Any, call: ast.Call) -> Any:
    if any(each.arg is None for each in call.keywords):
        raise InvalidArgumentError(f"**: {_ARGUMENTS}")
    arguments = [_literal(each) for each in call.args]
    named = {str(each.arg): _literal(each.value) for each in call.keywords}
    try:
        return function(*arguments, **named)
    except CacheLayerError:
        raise
    except TypeError as error:
        raise InvalidArgumentError(str(error)) from error


def _buckets(text: str) -> Buckets:
    node = _parsed("buckets", text)
    found = _called(Buckets, node) if isinstance(node, ast.Call) else buckets_of(_literal(node))
    return Buckets(found.leaves, found.bounds, found.value, "truncate")


def stored_of(view: View[Any]) -> Stored:
    """Return what reads the elements of a view to be drawn."""
    return view if isinstance(view, DataRef) else _Looked(view)


@dataclass(frozen=True)
class _Looked:
    """The elements of a view that is made of records: they have no stored bytes of their own."""

    view: View[Any]

    @property
    def element_spec(self) -> Any:
        return self.view.element_spec

    def __getitems__(self, indices: Any) -> list[Any]:
        return self.view.__getitems__(indices)

    def stored_nbytes(self, indices: Any) -> Any:
        return np.full(len(indices), self.view._elements.record_nbytes, np.int64)


@dataclass(frozen=True)
class Origins:
    """The first records of a version that an element of a view is made of, and how many there are."""

    first: list[int]
    count: int


def records_of_version(ref: DataRef[Any], view: View[Any], numbers: Sequence[int]) -> list[Origins]:
    """Return for each element of a view the records of the version that it is made of."""
    stored = [_stored_origins(view, number) for number in numbers]
    known = _numbers_in(ref._selection, {number for each in stored for number in each.first})
    return [Origins([known[number] for number in each.first], each.count) for each in stored]


def _stored_origins(view: Any, number: int) -> Origins:
    if isinstance(view, (Windows, Packed)):
        documents = view._elements.documents_of(np.array([view._selection.number(number)]))
        source: Any = view._elements.documents.view
        return Origins([_stored_number(source, each) for each in documents[:_ORIGINS].tolist()], len(documents))
    return Origins([_stored_number(view, number)], 1)


def _stored_number(view: Any, number: int) -> int:
    base_number: int = view._selection.number(number)
    return _stored_number(view._elements.view, base_number) if isinstance(view, Padded) else base_number


def _numbers_in(selection: Selection, stored: set[int]) -> dict[int, int]:
    """Return the rows of a selection that hold some numbers of its base."""
    if isinstance(selection.numbers, range):
        return {number: selection.numbers.index(number) for number in stored}
    wanted, found, first = np.array(sorted(stored), np.int64), dict[int, int](), 0
    for piece in selection.pieces():
        rows = np.flatnonzero(np.isin(piece, wanted))
        for row in rows.tolist():
            found.setdefault(int(piece[row]), first + row)
        first += len(piece)
        if len(found) == len(wanted):
            break
    return found
