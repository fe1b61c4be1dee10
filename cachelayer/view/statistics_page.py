"""The page of statistics: started and stopped by a form, drawn as bars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from cachelayer.drawing.class_names import Names, class_names
from cachelayer.drawing.drawn_leaf import named
from cachelayer.statistics import LeafStats, Statistics
from cachelayer.statistics.histogram import Number
from cachelayer.statistics.numbers import NumberStats
from cachelayer.view.render import page, version_path, whole
from cachelayer.view.storage_pages import ref_of
from cachelayer.view.surveys import Surveys

SAMPLE = 10_000
_WIDTH, _HEIGHT = 320, 80
# So many seconds at most, a page waits for statistics that are nearly ready.
_PATIENCE = 0.3
_MOST_FORM = 4096


@dataclass(frozen=True)
class Bar:
    """A bar of a histogram: its place and size in the drawing, and what it says."""

    x: float
    y: float
    width: float
    height: float
    label: str


@dataclass(frozen=True)
class Chart:
    """The distribution of some numbers: of a leaf, or of its lengths; the axis has the first and the last."""

    title: str
    numbers: NumberStats
    bars: list[Bar]
    axis: tuple[str, str] = ("", "")
    longest: int | None = None


@dataclass(frozen=True)
class LeafCharts:
    """A leaf with its charts."""

    leaf: LeafStats
    charts: list[Chart]


async def change(request: Request) -> Response:
    """Start or stop, as the form says, and return to the page."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > _MOST_FORM:
            return Response(status_code=413)
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
        leaves=[] if found is None else [_leaf(leaf, class_names(ref.metadata)) for leaf in found.leaves],
        width=_WIDTH,
        height=_HEIGHT,
    )


def _surveys(request: Request) -> Surveys:
    surveys: Surveys = request.app.state.surveys
    return surveys


def _record_chart(found: Statistics) -> Chart:
    sizes = found.record_nbytes
    return _chart("stored bytes", sizes.numbers, longest=sizes.longest)


def _leaf(leaf: LeafStats, names: Names) -> LeafCharts:
    return LeafCharts(leaf, list(_charts(leaf, names.get(leaf.path, []))))


def _charts(leaf: LeafStats, classes: list[str]) -> Iterator[Chart]:
    if leaf.numbers is not None:
        yield _chart("values", leaf.numbers, classes)
    for lengths in leaf.lengths:
        yield _chart(f"length: {lengths.of}", lengths.numbers, longest=lengths.longest)
    if leaf.images is not None:
        yield _chart("width of images", leaf.images.width)
        yield _chart("height of images", leaf.images.height)


def _chart(title: str, numbers: NumberStats, classes: Sequence[str] = (), longest: int | None = None) -> Chart:
    """Return a chart with a bar for each value if there are few, otherwise for equal ranges."""
    if numbers.values is not None:
        names = [f"{value} {named({'': list(classes)}, '', value)}".rstrip() for value, _ in numbers.values]
        counts = [times for _, times in numbers.values]
        ends = (names[0], names[-1]) if names else ("", "")
    elif numbers.histogram is not None:
        edges, counts = list(map(_short, numbers.histogram.edges)), list(numbers.histogram.counts)
        names = [f"{low} to {high}" for low, high in pairwise(edges)]
        ends = (edges[0], edges[-1])
    else:
        return Chart(title, numbers, [], longest=longest)
    return Chart(title, numbers, _bars(names, counts), ends, longest)


def _bars(names: Sequence[str], counts: Sequence[int]) -> list[Bar]:
    most, width = max(counts, default=1) or 1, _WIDTH / max(1, len(counts))
    bars = []
    for place, (name, times) in enumerate(zip(names, counts, strict=True)):
        tall = max(1.0, times / most * _HEIGHT) if times else 0.0
        left, top = round(place * width, 2), round(_HEIGHT - tall, 2)
        bars.append(Bar(left, top, round(width * 0.9, 2), round(tall, 2), f"{name}: {times:,}"))
    return bars


def _short(number: Number) -> str:
    return f"{number:.4g}" if isinstance(number, float) else f"{number:,}"
