"""The page of statistics: started and stopped by a form, drawn as bars."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

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
    """The distribution of some numbers: of a leaf, or of its lengths."""

    title: str
    numbers: NumberStats
    bars: list[Bar]
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
        leaves=[] if found is None else [_leaf(leaf) for leaf in found.leaves],
        width=_WIDTH,
        height=_HEIGHT,
    )


def _surveys(request: Request) -> Surveys:
    surveys: Surveys = request.app.state.surveys
    return surveys


def _record_chart(found: Statistics) -> Chart:
    sizes = found.record_nbytes
    return Chart("stored bytes", sizes.numbers, _bars(sizes.numbers), sizes.longest)


def _leaf(leaf: LeafStats) -> LeafCharts:
    return LeafCharts(leaf, list(_charts(leaf)))


def _charts(leaf: LeafStats) -> Iterator[Chart]:
    if leaf.numbers is not None:
        yield Chart("values", leaf.numbers, _bars(leaf.numbers))
    for lengths in leaf.lengths:
        yield Chart(f"length: {lengths.of}", lengths.numbers, _bars(lengths.numbers), lengths.longest)
    if leaf.images is not None:
        yield Chart("width of images", leaf.images.width, _bars(leaf.images.width))
        yield Chart("height of images", leaf.images.height, _bars(leaf.images.height))


def _bars(numbers: NumberStats) -> list[Bar]:
    """Return a bar for each value if there are few, otherwise for equal ranges."""
    if numbers.values is not None:
        labelled = [(f"{value}: {times:,}", times) for value, times in numbers.values]
    elif numbers.histogram is not None:
        edges, counts = numbers.histogram.edges, numbers.histogram.counts
        ranges = zip(edges[:-1], edges[1:], counts, strict=True)
        labelled = [(f"{_short(low)} to {_short(high)}: {times:,}", times) for low, high, times in ranges]
    else:
        return []
    most, width = max((times for _, times in labelled), default=1) or 1, _WIDTH / max(1, len(labelled))
    return [
        Bar(round(place * width, 2), round(_HEIGHT - tall, 2), round(width * 0.9, 2), round(tall, 2), label)
        for place, (label, times) in enumerate(labelled)
        for tall in [max(1.0, times / most * _HEIGHT) if times else 0.0]
    ]


def _short(number: Number) -> str:
    return f"{number:.4g}" if isinstance(number, float) else f"{number:,}"
