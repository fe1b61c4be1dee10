"""The page of the records behind a bar of a chart: the first ones that have a value, a length, or null."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args
from urllib.parse import urlencode

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from cachelayer.access.dataref import DataRef
from cachelayer.drawing.drawn_records import drawn_records, named
from cachelayer.drawing.text import class_names, shown_path
from cachelayer.errors import InvalidArgumentError
from cachelayer.protocols import records_of
from cachelayer.records import tree
from cachelayer.records.spec import LeafSpec
from cachelayer.statistics.matches import Kind, Wanted, can_have, rows_with
from cachelayer.statistics.numbers import Number
from cachelayer.view.batch import alone
from cachelayer.view.record_pages import LEAVES, THUMBNAIL
from cachelayer.view.render import page, whole
from cachelayer.view.storage_pages import ref_of, shelf_of

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
        told = {
            "leaf": self.leaf if self.leaf != WHOLE_RECORD else None,
            "has": self.wanted.kind,
            "low": self.wanted.low,
            "high": self.wanted.high,
            "from": start or None,
        }
        return urlencode({name: value for name, value in told.items() if value is not None}, errors="surrogatepass")


def find(request: Request) -> Response:
    """Show the first records that have what the query says, from a record on."""
    ref, query = ref_of(request), request.query_params
    raw = ref.raw()
    leaves = tree.leaves(raw.element_spec)
    leaf = whole(query, "leaf", WHOLE_RECORD, 0, max(0, len(leaves) - 1))
    search = Search(leaf, _wanted(query))
    path, spec = ("", None) if leaf == WHOLE_RECORD else leaves[leaf]
    if search.wanted.kind != "length" if spec is None else not can_have(spec, search.wanted.kind):
        raise InvalidArgumentError(f"has={search.wanted.kind}: records cannot be found by this in {shown_path(path)!r}")
    start = whole(query, "from", 0, 0, len(ref))
    numbers, stop = _found(raw, spec, search, start)
    return page(
        "find.html",
        ref=ref,
        records=len(ref),
        words=_words(ref, path, search),
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


def _number(query: Mapping[str, str], name: str) -> Number:
    text = query.get(name, "")
    # Python refuses to convert thousands of digits.
    for read in (int, float) if len(text) <= _LONGEST_NUMBER else ():
        try:
            return read(text)
        except ValueError:
            continue
    raise InvalidArgumentError(f"{name}={text[:_LONGEST_NUMBER]!r}: it must be a number")


def _found(raw: DataRef[Any], spec: LeafSpec | None, search: Search, start: int) -> tuple[list[int], int]:
    """Return the numbers of the first records that match, and the record before which the search ended."""
    narrow, leaf = (raw, 0) if spec is None else alone(raw, search.leaf)
    size = max(1, min(_BATCH_RECORDS, _BATCH_NBYTES // max(1, records_of(narrow).read_nbytes)))
    found: list[int] = []
    ended = time.monotonic() + _PATIENCE
    while start < len(raw):
        numbers = np.arange(start, min(start + size, len(raw)))
        if spec is None:
            rows = np.flatnonzero(search.wanted.holds(raw.stored_nbytes(numbers)))
        else:
            batch = tree.flatten_like(narrow.element_spec, narrow.read(numbers))[leaf]
            rows = rows_with(spec, batch, len(numbers), search.wanted)
        found += (rows + start).tolist()
        if len(found) > PAGE:
            return found[:PAGE], found[PAGE]
        start = int(numbers[-1]) + 1
        if time.monotonic() > ended:
            break
    return found, start


def _words(ref: DataRef[Any], path: str, search: Search) -> str:
    """Return in words what is searched for."""
    wanted, name = search.wanted, "record" if search.leaf == WHOLE_RECORD else shown_path(path)
    if wanted.kind not in ("value", "text", "length"):
        return f"{name}: {wanted.kind}"
    of = " of length" if search.leaf != WHOLE_RECORD and wanted.kind == "length" else ""
    unit = " stored bytes" if search.leaf == WHOLE_RECORD else ""
    ends = f"{wanted.low}" if wanted.high is None else f"{wanted.low} to below {wanted.high}"
    label = named(class_names(ref.metadata), path, wanted.low) if wanted.high is None and not of else ""
    return f"{name}{of} {ends}{unit} {label}".rstrip()
