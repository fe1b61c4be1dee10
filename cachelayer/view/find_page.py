"""The page of the records behind a bar of a chart: the first ones that have a value, a length, or null."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from cachelayer.access.dataref import DataRef
from cachelayer.drawing.drawn_records import drawn_records
from cachelayer.drawing.text import class_names, named, shown_path
from cachelayer.errors import InvalidArgumentError
from cachelayer.protocols import records_of
from cachelayer.records import tree
from cachelayer.statistics.matches import Kind, Wanted, can_have, rows_with
from cachelayer.view.record_pages import LEAVES, THUMBNAIL
from cachelayer.view.render import page, ref_of, shelf_of, whole

PAGE = 48
# The leaf of links to stored bytes, which are no leaf.
WHOLE_RECORD = -1
# A page searches for so many seconds, and then says how far it came.
_PATIENCE = 1.0
_BATCH_NBYTES, _BATCH_RECORDS = 4 << 20, 65_536
_LONGEST_NUMBER = 40


@dataclass(frozen=True)
class Search:
    """What is searched for.

    Args:
        leaf: the number of the leaf; :data:`WHOLE_RECORD` for the stored bytes of records.
        wanted: what the leaf must have.
    """

    leaf: int
    wanted: Wanted

    def query(self, start: int = 0) -> str:
        """Return the query of its page from a record on."""
        parts = {
            "leaf": self.leaf if self.leaf != WHOLE_RECORD else None,
            "has": self.wanted.kind,
            "low": self.wanted.low,
            "high": self.wanted.high,
            "from": start or None,
        }
        return urlencode({name: value for name, value in parts.items() if value is not None}, errors="surrogatepass")


def find(request: Request) -> Response:
    """Show the first records that have what the query says, from a record on."""
    ref, query = ref_of(request), request.query_params
    raw = ref.raw()
    leaves = tree.leaves(raw.element_spec)
    search = Search(whole(query, "leaf", WHOLE_RECORD, 0, max(0, len(leaves) - 1)), _wanted(query))
    kind = search.wanted.kind
    if not (kind == "length" if search.leaf == WHOLE_RECORD else can_have(leaves[search.leaf][1], kind)):
        raise InvalidArgumentError(f"has={kind}: the records cannot be found by this")
    start = whole(query, "from", 0, 0, len(ref))
    numbers, stop = _found(raw, search, start)
    return page(
        "find.html",
        ref=ref,
        records=len(ref),
        words=_words(ref, "" if search.leaf == WHOLE_RECORD else leaves[search.leaf][0], search),
        start=start,
        stop=stop,
        more=search.query(stop),
        drawn=drawn_records(raw, numbers, shelf_of(request).look(ref, THUMBNAIL, LEAVES)),
    )


def _wanted(query: Mapping[str, str]) -> Wanted:
    kind: Any = query.get("has", "value")
    if kind not in get_args(Kind):
        raise InvalidArgumentError(f"has={kind[:40]!r}: it is one of {', '.join(get_args(Kind))}")
    if kind == "text":
        return Wanted(kind, query.get("low", ""))
    if kind in ("value", "length"):
        return Wanted(kind, _number(query, "low"), _number(query, "high") if "high" in query else None)
    return Wanted(kind)


def _number(query: Mapping[str, str], name: str) -> int | float:
    text = query.get(name, "")
    # Python refuses to convert thousands of digits.
    for read in (int, float) if len(text) <= _LONGEST_NUMBER else ():
        try:
            return read(text)
        except ValueError:
            continue
    raise InvalidArgumentError(f"{name}={text[:_LONGEST_NUMBER]!r}: it must be a number")


def _found(raw: DataRef[Any], search: Search, start: int) -> tuple[list[int], int]:
    """Return the numbers of the first records that match, and the record before which the search ended."""
    size = max(1, min(_BATCH_RECORDS, _BATCH_NBYTES // max(1, records_of(raw).facts.read_nbytes)))
    found: list[int] = []
    end = time.monotonic() + _PATIENCE
    while start < len(raw):
        stop = min(start + size, len(raw))
        numbers = np.setdiff1d(np.arange(start, stop), raw.erased)
        if search.leaf == WHOLE_RECORD:
            rows = np.flatnonzero(search.wanted.holds(raw.stored_nbytes(numbers)))
        else:
            spec = tree.leaves(raw.element_spec)[search.leaf][1]
            rows = rows_with(spec, read_leaf(raw, search.leaf, numbers), len(numbers), search.wanted)
        found += numbers[rows].tolist()
        if len(found) > PAGE:
            return found[:PAGE], found[PAGE]
        start = stop
        if time.monotonic() > end:
            break
    return found, start


def read_leaf(raw: DataRef[Any], leaf: int, numbers: NDArray[np.int64]) -> Any:
    """Return one leaf of some records, stacked. Of dicts, only the value that holds it is read."""
    spec = raw.element_spec
    if not isinstance(spec, dict):
        return tree.flatten_like(spec, raw.read(numbers))[leaf]
    for key, child in spec.items():
        count = len(tree.leaves(child))
        if leaf < count:
            return tree.flatten_like(child, raw.read(numbers, fields=(key,))[key])[leaf]
        leaf -= count
    raise IndexError(leaf)


def _words(ref: DataRef[Any], path: str, search: Search) -> str:
    wanted, is_record = search.wanted, search.leaf == WHOLE_RECORD
    name = "stored bytes of the record" if is_record else shown_path(path)
    if wanted.kind not in ("value", "text", "length"):
        return f"{name}: {wanted.kind}"
    of = " of length" if wanted.kind == "length" and not is_record else ""
    if wanted.high is not None:
        return f"{name}{of} {wanted.low} to below {wanted.high}"
    label = named(class_names(ref.metadata), path, wanted.low) if wanted.kind == "value" else ""
    return f"{name}{of} {wanted.low} {label}".rstrip()
