"""The page of statistics: started and stopped by a form, drawn as bars."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, get_args
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response

from cachelayer.access.dataref import DataRef
from cachelayer.drawing.drawn_records import named
from cachelayer.drawing.text import Names, class_names
from cachelayer.records import tree
from cachelayer.records.spec import LeafSpec
from cachelayer.statistics import LeafStats, Statistics
from cachelayer.statistics.matches import Kind, Wanted, can_have
from cachelayer.statistics.numbers import Number, NumberStats
from cachelayer.view.find_page import WHOLE_RECORD, Search
from cachelayer.view.render import page, version_path, whole
from cachelayer.view.storage_pages import ref_of
from cachelayer.view.surveys import Surveys

SAMPLE = 10_000
_WIDTH, _HEIGHT = 320, 80
# So many seconds at most, a page waits for statistics that are nearly ready.
_PATIENCE = 0.3
_MOST_FORM = 4096
_LENGTHS_OF_RECORDS = ("axis 0", "values", "bytes", "characters")


@dataclass(frozen=True)
class Bar:
    """A bar of a histogram: its place and size in the drawing, what it says, and the query that finds its records."""

    x: float
    y: float
    width: float
    height: float
    label: str
    query: str


@dataclass(frozen=True)
class Link:
    """A number of records with the query that finds them; the query is empty if they cannot be found."""

    count: int
    query: str


@dataclass(frozen=True)
class Chart:
    """The distribution of some numbers: of a leaf, or of its lengths; the axis has the first and the last."""

    title: str
    numbers: NumberStats
    bars: list[Bar]
    axis: tuple[str, str] = ("", "")
    longest: int | None = None
    nans: Link = Link(0, "")
    infinities: Link = Link(0, "")


@dataclass(frozen=True)
class LeafCharts:
    """A leaf with its charts, and links to the records with nulls and with its most common strings."""

    leaf: LeafStats
    charts: list[Chart]
    nulls: Link
    strings: list[tuple[str, Link]]


@dataclass(frozen=True)
class Finder:
    """Makes links to the records of one leaf.

    Args:
        leaf: its number; :data:`cachelayer.view.find_page.WHOLE_RECORD` for stored bytes.
        kinds: by what its records can be found.
    """

    leaf: int
    kinds: Collection[Kind]

    @classmethod
    def of(cls, number: int, spec: LeafSpec) -> Finder:
        """Return that of a leaf."""
        return cls(number, [kind for kind in get_args(Kind) if can_have(spec, kind)])

    def query(self, kind: Kind, low: Number | str | None = None, high: Number | None = None) -> str:
        """Return the query that finds records; empty if they cannot be found by this."""
        return Search(self.leaf, Wanted(kind, low, high)).query() if kind in self.kinds else ""


_NOTHING = Finder(0, ())


async def change(request: Request) -> Response:
    """Start or stop, as the form says, and return to the page."""
    body = b""
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > _MOST_FORM:
                return Response(status_code=413)
    except ClientDisconnect:
        # Nobody reads the answer.
        return Response(status_code=400)
    form = dict(parse_qsl(body.decode("ascii", "replace")))
    return await run_in_threadpool(_changed, request, form)


def _changed(request: Request, form: dict[str, str]) -> Response:
    ref, surveys = ref_of(request), _surveys(request)
    running = surveys.find(ref)
    if form.get("do") == "stop":
        if running is not None:
            running.stop()
    else:
        records = whole(form, "records", SAMPLE, 1, 1 << 62) if form.get("do") == "sample" else None
        surveys.start(ref, records).join(_PATIENCE)
    return RedirectResponse(f"{version_path(ref.dataset_id, ref.dataset_version)}/statistics", 303)


def statistics(request: Request) -> Response:
    """Show the statistics, or how far they are."""
    ref = ref_of(request)
    survey = _surveys(request).find(ref)
    found = None if survey is None else survey.found
    return page(
        "statistics.html",
        ref=ref,
        records=len(ref),
        sample=min(SAMPLE, max(1, len(ref))),
        survey=survey,
        found=found,
        record_chart=None if found is None else _record_chart(found),
        leaves=[] if found is None else _leaves(ref, found),
        width=_WIDTH,
        height=_HEIGHT,
    )


def _leaves(ref: DataRef[Any], found: Statistics) -> list[LeafCharts]:
    names, specs = class_names(ref.metadata), [spec for _, spec in tree.leaves(ref.raw().element_spec)]
    finders = [Finder.of(number, spec) for number, spec in enumerate(specs)]
    return [_leaf(leaf, finder, names) for leaf, finder in zip(found.leaves, finders, strict=True)]


def _surveys(request: Request) -> Surveys:
    surveys: Surveys = request.app.state.surveys
    return surveys


def _record_chart(found: Statistics) -> Chart:
    sizes = found.record_nbytes
    return _chart("stored bytes", sizes.numbers, Finder(WHOLE_RECORD, ["length"]), "length", longest=sizes.longest)


def _leaf(leaf: LeafStats, finder: Finder, names: Names) -> LeafCharts:
    strings = [] if leaf.strings is None else leaf.strings.common
    return LeafCharts(
        leaf,
        list(_charts(leaf, finder, names.get(leaf.path, []))),
        Link(leaf.nulls, finder.query("null")),
        [(text, Link(times, finder.query("text", text))) for text, times in strings],
    )


def _charts(leaf: LeafStats, finder: Finder, classes: list[str]) -> Iterator[Chart]:
    if leaf.numbers is not None:
        yield _chart("values", leaf.numbers, finder, "value", classes)
    for lengths in leaf.lengths:
        # Other lengths are several in a record.
        own = finder if lengths.of in _LENGTHS_OF_RECORDS else _NOTHING
        own = own if lengths.of == leaf.lengths[0].of else _NOTHING
        yield _chart(f"length: {lengths.of}", lengths.numbers, own, "length", longest=lengths.longest)
    if leaf.images is not None:
        yield _chart("width of images", leaf.images.width, _NOTHING, "value")
        yield _chart("height of images", leaf.images.height, _NOTHING, "value")


def _chart(
    title: str,
    numbers: NumberStats,
    finder: Finder,
    kind: Kind,
    classes: Sequence[str] = (),
    longest: int | None = None,
) -> Chart:
    """Return a chart with a bar for each value if there are few, otherwise for equal ranges."""
    nans, infinities = (Link(count, finder.query(name)) for name, count in _not_finite(numbers))
    ends, bars = ("", ""), []
    if numbers.values:
        names = [f"{value} {named({'': list(classes)}, '', value)}".rstrip() for value, _ in numbers.values]
        queries = [finder.query(kind, int(value)) for value, _ in numbers.values]
        ends, bars = (names[0], names[-1]), _bars(names, [times for _, times in numbers.values], queries)
    elif numbers.histogram is not None:
        edges = list(map(_short, numbers.histogram.edges))
        names = [f"{low} to {high}" for low, high in pairwise(edges)]
        queries = [finder.query(kind, low, _above(high)) for low, high in pairwise(numbers.histogram.edges)]
        ends, bars = (edges[0], edges[-1]), _bars(names, numbers.histogram.counts, queries)
    return Chart(title, numbers, bars, ends, longest, nans, infinities)


def _above(edge: Number) -> Number:
    """Return the edge above a range, to which no number of it is equal."""
    return math.inf if edge == sys.float_info.max else edge


def _not_finite(numbers: NumberStats) -> tuple[tuple[Kind, int], tuple[Kind, int]]:
    return ("nan", numbers.nans), ("infinite", numbers.infinities)


def _bars(names: Sequence[str], counts: Sequence[int], queries: Sequence[str]) -> list[Bar]:
    most, width = max(counts, default=1) or 1, _WIDTH / max(1, len(counts))
    bars = []
    for place, (name, times, query) in enumerate(zip(names, counts, queries, strict=True)):
        tall = max(1.0, times / most * _HEIGHT) if times else 0.0
        left, top = round(place * width, 2), round(_HEIGHT - tall, 2)
        label = f"{name}: {times:,}"
        bars.append(Bar(left, top, round(width * 0.9, 2), round(tall, 2), label, query if times else ""))
    return bars


def _short(number: Number) -> str:
    return f"{number:.4g}" if isinstance(number, float) else f"{number:,}"
