"""The distributions of fields: read while somebody looks, and drawn as small charts whose bars choose records."""

from __future__ import annotations

import keyword
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response

from cachelayer.access.dataref import DataRef
from cachelayer.drawing.text import Names, class_names, named, number_text, shown_path
from cachelayer.errors import CacheLayerError
from cachelayer.records import tree
from cachelayer.records.spec import LeafSpec
from cachelayer.statistics import LeafStats, LengthStats, NumberStats, Survey
from cachelayer.view.render import page, ref_of, version_path, whole

SAMPLE = 10_000
# Versions of at most so many bytes and records are read as soon as somebody looks.
SMALL_NBYTES, SMALL_RECORDS = 32 << 20, 200_000
# Each look at a page reads on for so many seconds, and the page looks again until all is read.
PATIENCE = 1.0
_KEPT = 4
_MOST_FORM = 4096
_MOST_LISTED = 4
_TO_MINUTES = len("2026-01-31T12:30")


class Reading:
    """Something that is read on whenever somebody looks. Thread-safe.

    Args:
        read_batch: reads a little, and returns whether there is more.
    """

    def __init__(self, read_batch: Callable[[], bool]) -> None:
        self.is_running = True
        self.error: CacheLayerError | None = None
        self._read_batch = read_batch
        self._lock = threading.Lock()

    def read_on(self) -> None:
        with self._lock:
            end = time.monotonic() + PATIENCE
            try:
                while self.is_running:
                    self.is_running = self._read_batch()
                    if time.monotonic() > end:
                        break
            except CacheLayerError as error:
                self.error, self.is_running = error, False


class RunningSurvey(Reading):
    """Statistics of a version that are being read; ``records`` as for :class:`Survey`."""

    def __init__(self, ref: DataRef[Any], records: int | None) -> None:
        self.survey = Survey(ref, records)
        super().__init__(self.survey.read_batch)


@dataclass(frozen=True)
class Bar:
    """A bar of a chart, or a number beside it, with the condition that chooses its records; empty if none does."""

    label: str
    count: int
    where: str


@dataclass(frozen=True)
class Chart:
    """A distribution of a field.

    Args:
        of: what is counted, such as ``characters``; empty for the values themselves.
        facts: their range and mean, in words.
        bars: those of the chart; empty if all are equal.
        longest: the number of the first record with the largest length; None if there is none.
    """

    of: str
    facts: str
    bars: list[Bar]
    longest: int | None = None


@dataclass(frozen=True)
class Column:
    """A field of the table of records, with its charts, and what of it lies outside the charts."""

    path: str
    spec: str
    charts: list[Chart]
    others: list[Bar]


def survey_of(request: Request, ref: DataRef[Any]) -> RunningSurvey | None:
    """Return the statistics of a version, read on; None if it is large, and nobody has asked for them."""
    surveys: dict[Any, RunningSurvey | None] = request.app.state.surveys
    key = ref.dataset_id, ref.digest
    if key not in surveys and 0 < len(ref) <= SMALL_RECORDS and ref.nbytes <= SMALL_NBYTES:
        remember(surveys, key, RunningSurvey(ref, None))
    running = surveys.get(key)
    if running is not None:
        running.read_on()
    return running


def remember(kept: dict[Any, Any], key: Any, value: Any) -> None:
    """Keep the newest few of what was read."""
    kept[key] = value
    for old in list(kept)[:-_KEPT]:
        kept.pop(old, None)


def columns_of(ref: DataRef[Any], running: RunningSurvey | None) -> list[Column]:
    """Return the fields of a version, with their charts as soon as all is read."""
    leaves = tree.leaves(ref.raw().element_spec)
    if running is None or running.is_running or running.error:
        return [Column(path, leaf.describe(), [], []) for path, leaf in leaves]
    names = class_names(ref.metadata)
    stats = running.survey.result().leaves
    return [_column(path, leaf, one, names) for (path, leaf), one in zip(leaves, stats, strict=True)]


def _column(path: str, leaf: LeafSpec, stats: LeafStats, names: Names) -> Column:
    field = _in_condition(path) if leaf.shape == () else ""
    numbers, strings = stats.numbers, stats.strings
    is_time = isinstance(leaf.dtype, np.dtype) and leaf.dtype.kind in "Mm"
    charts = [] if numbers is None else [_values(numbers, field, lambda value: named(names, path, value))]
    others = [_bar("null", stats.nulls, _in_condition(path), "{} is None")]
    if numbers is not None:
        others.append(_bar("NaT" if is_time else "NaN", numbers.nans, field, "{0} != {0}"))
        others.append(_bar("infinite", numbers.infinities, field, "{} in [1e999, -1e999]"))
    if strings is not None and strings.distinct == len(strings.common):
        literal = "{} == {}" if leaf.dtype is bytes else "{} == {!r}"
        bars = [Bar(text, count, literal.format(field, text) if field else "") for text, count in strings.common]
        charts.append(Chart("", _facts(bars), bars if len(bars) > 1 else []))
    elif strings is not None:
        many = "many" if strings.distinct is None else f"{strings.distinct:,}"
        charts.append(Chart("", f"{many} different", []))
    charts += map(lengths_chart, stats.lengths)
    return Column(path, leaf.describe(), charts, [bar for bar in others if bar.count])


def _facts(bars: list[Bar]) -> str:
    """Return what is said of a few values: each with its count if there are very few."""
    if len(bars) > _MOST_LISTED:
        return f"{len(bars)} different"
    return f"all {bars[0].label}" if len(bars) == 1 else ", ".join(f"{bar.label} {bar.count:,}" for bar in bars)


def _bar(label: str, count: int, field: str, condition: str) -> Bar:
    return Bar(label, count, condition.format(field) if field else "")


def _in_condition(path: str) -> str:
    """Return a field as conditions name it, such as ``meta.lang``; an empty text if they cannot."""
    steps = shown_path(path).split("/")
    can_be_named = path and all(step.isidentifier() and not keyword.iskeyword(step) for step in steps)
    return ".".join(steps) if can_be_named else ""


def lengths_chart(lengths: LengthStats) -> Chart:
    chart = _values(lengths.numbers, "", lambda _: "")
    of = "length" if lengths.of == "axis 0" else lengths.of
    return Chart(of, chart.facts, chart.bars, lengths.longest if chart.bars else None)


def _values(numbers: NumberStats, field: str, name: Callable[[Any], str]) -> Chart:
    low, high = numbers.minimum, numbers.maximum
    if low == high:
        return Chart("", "" if low is None else f"all {_named(low, name)}", [])
    bars = list(_bars(numbers, field, name))
    facts = f"{_named(low, name)} to {_named(high, name)}"
    if numbers.values is not None and len(bars) <= _MOST_LISTED:
        facts = _facts(bars)
    elif numbers.mean is not None and not name(low):
        facts += f", mean {number_text(numbers.mean)}, std {number_text(numbers.std)}"
    return Chart("", facts, bars)


def _bars(numbers: NumberStats, field: str, name: Callable[[Any], str]) -> Iterator[Bar]:
    """Yield a bar for each value if there are few, otherwise for equal ranges."""
    for low, high, count in numbers.bins():
        if high is None:
            yield Bar(_named(low, name), count, f"{field} == {low}" if field else "")
        else:
            # Of durations there are no conditions.
            has_condition = field and count and not str(low).endswith("s")
            label = f"{_end(low)} to {_end(high)}"
            yield Bar(label, count, f"{low!r} <= {field} < {high!r}" if has_condition else "")


def _end(value: Any) -> str:
    """Return the end of a range: of a time, its day or its minute."""
    is_long = isinstance(value, str) and len(value) > _TO_MINUTES
    return value[:_TO_MINUTES].replace("T", " ") if is_long else number_text(value)


def _named(value: Any, name: Callable[[Any], str]) -> str:
    shown, of_class = number_text(value), name(value)
    return shown if of_class in ("", shown) else f"{shown} {of_class}"


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
    key = ref.dataset_id, ref.digest
    # A small version that is stopped does not begin again by itself.
    remember(surveys, key, None)
    if form.get("do") != "stop":
        records = whole(form, "records", SAMPLE, 1, 1 << 62) if form.get("do") == "sample" else None
        remember(surveys, key, RunningSurvey(ref, records))
    return RedirectResponse(f"{version_path(ref.dataset_id, ref.dataset_version)}/statistics", 303)


def statistics(request: Request) -> Response:
    """Show the distributions of all fields, or how far they are."""
    ref = ref_of(request)
    running = survey_of(request, ref)
    is_done = running is not None and not running.is_running and not running.error
    found = running.survey.result() if running is not None and is_done else None
    return page(
        "statistics.html",
        ref=ref,
        records=len(ref),
        sample=min(SAMPLE, max(1, len(ref))),
        running=running,
        found=found,
        columns=columns_of(ref, running) if found else [],
        sizes=lengths_chart(found.record_nbytes) if found else None,
    )
