"""The page of statistics: read while somebody looks, drawn as bars that lead to their records."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response

from cachelayer.access.dataref import DataRef
from cachelayer.drawing.text import Names, class_names, named
from cachelayer.errors import CacheLayerError
from cachelayer.records import tree
from cachelayer.statistics import LeafStats, NumberStats, Statistics, Survey
from cachelayer.statistics.matches import Kind, Wanted, can_have
from cachelayer.view.find_page import WHOLE_RECORD, Search
from cachelayer.view.render import page, ref_of, version_path, whole

SAMPLE = 10_000
# Each look at the page reads on for so many seconds, and the page looks again until all is read.
PATIENCE = 1.0
_KEPT = 4
_MOST_FORM = 4096


class RunningSurvey:
    """Statistics of a version that are read on whenever somebody looks. Thread-safe.

    Args:
        ref: the version.
        records: how many records to read; None for all.
    """

    def __init__(self, ref: DataRef[Any], records: int | None) -> None:
        self.survey = Survey(ref, records)
        self.is_running = True
        self.problem = ""
        self._lock = threading.Lock()

    def read_on(self) -> None:
        with self._lock:
            end = time.monotonic() + PATIENCE
            try:
                while self.is_running:
                    self.is_running = self.survey.read_batch()
                    if time.monotonic() > end:
                        break
            except CacheLayerError as error:
                self.problem, self.is_running = str(error), False


@dataclass(frozen=True)
class Bar:
    """A bar of a histogram, or a number beside it, with the query that finds its records; empty if none does."""

    label: str
    count: int
    query: str


@dataclass(frozen=True)
class Chart:
    """The distribution of some numbers: of a leaf, or of its lengths; ``others`` are not among them, such as NaN."""

    title: str
    numbers: NumberStats
    bars: list[Bar]
    others: list[Bar]
    longest: int | None = None


@dataclass(frozen=True)
class LeafCharts:
    """A leaf with its charts, and links to the records with nulls and with its most common strings."""

    leaf: LeafStats
    charts: list[Chart]
    nulls: Bar
    strings: list[Bar]


@dataclass(frozen=True)
class Finder:
    """Makes links to the records of one leaf.

    Args:
        leaf: its number; :data:`cachelayer.view.find_page.WHOLE_RECORD` for stored bytes.
        kinds: by what its records can be found.
    """

    leaf: int = WHOLE_RECORD
    kinds: Collection[Kind] = ()

    def query(self, kind: Kind, low: float | str | None = None, high: float | None = None) -> str:
        """Return the query that finds records; empty if they cannot be found by this."""
        return Search(self.leaf, Wanted(kind, low, high)).query() if kind in self.kinds else ""


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
    return await run_in_threadpool(_change, request, dict(parse_qsl(body.decode("ascii", "replace"))))


def _change(request: Request, form: Mapping[str, str]) -> Response:
    ref, surveys = ref_of(request), request.app.state.surveys
    surveys.pop((ref.dataset_id, ref.digest), None)
    if form.get("do") != "stop":
        records = whole(form, "records", SAMPLE, 1, 1 << 62) if form.get("do") == "sample" else None
        surveys[ref.dataset_id, ref.digest] = RunningSurvey(ref, records)
        for key in list(surveys)[:-_KEPT]:
            surveys.pop(key, None)
    return RedirectResponse(f"{version_path(ref.dataset_id, ref.dataset_version)}/statistics", 303)


def statistics(request: Request) -> Response:
    """Show the statistics, or how far they are."""
    ref = ref_of(request)
    running: RunningSurvey | None = request.app.state.surveys.get((ref.dataset_id, ref.digest))
    found = None
    if running is not None:
        running.read_on()
        found = None if running.is_running or running.problem else running.survey.result()
    return page(
        "statistics.html",
        ref=ref,
        records=len(ref),
        sample=min(SAMPLE, max(1, len(ref))),
        running=running,
        found=found,
        record_chart=None if found is None else _record_chart(found),
        leaves=[] if found is None else list(_leaves(ref, found)),
    )


def _record_chart(found: Statistics) -> Chart:
    sizes = found.record_nbytes
    return _chart("stored bytes", sizes.numbers, Finder(WHOLE_RECORD, ["length"]), "length", longest=sizes.longest)


def _leaves(ref: DataRef[Any], found: Statistics) -> Iterator[LeafCharts]:
    names, specs = class_names(ref.metadata), [spec for _, spec in tree.leaves(ref.raw().element_spec)]
    for number, (leaf, spec) in enumerate(zip(found.leaves, specs, strict=True)):
        finder = Finder(number, [kind for kind in get_args(Kind) if can_have(spec, kind)])
        common = () if leaf.strings is None else leaf.strings.common
        strings = [Bar(text, times, finder.query("text", text)) for text, times in common]
        nulls = Bar("null", leaf.nulls, finder.query("null"))
        yield LeafCharts(leaf, list(_charts(leaf, finder, names)), nulls, strings)


def _charts(leaf: LeafStats, finder: Finder, names: Names) -> Iterator[Chart]:
    if leaf.numbers is not None:
        yield _chart("values", leaf.numbers, finder, "value", names, leaf.path)
    for place, lengths in enumerate(leaf.lengths):
        # Other lengths are several in a record.
        is_found = place == 0 and (lengths.of in ("axis 0", "values", "bytes", "characters"))
        own = finder if is_found else Finder()
        yield _chart(f"length: {lengths.of}", lengths.numbers, own, "length", longest=lengths.longest)


def _chart(
    title: str,
    numbers: NumberStats,
    finder: Finder,
    kind: Kind,
    names: Names | None = None,
    path: str = "",
    longest: int | None = None,
) -> Chart:
    """Return a chart with a bar for each value if there are few, otherwise for equal ranges."""
    bars = []
    for low, high, times in numbers.bins():
        label = (
            f"{low} {named(names or {}, path, low)}".rstrip() if high is None else f"{_short(low)} to {_short(high)}"
        )
        bars.append(Bar(label, times, finder.query(kind, low if high is not None else int(low), high) if times else ""))
    others = [
        Bar("NaN", numbers.nans, finder.query("nan")),
        Bar("infinite", numbers.infinities, finder.query("infinite")),
    ]
    is_equal = numbers.minimum == numbers.maximum
    return Chart(title, numbers, bars, [bar for bar in others if bar.count], None if is_equal else longest)


def _short(number: float) -> str:
    return f"{number:.4g}" if isinstance(number, float) else f"{number:,}"
