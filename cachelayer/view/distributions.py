"""The distributions of fields: read while somebody looks, and drawn as small charts whose bars choose records."""

from __future__ import annotations

import keyword
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from cachelayer.access.dataref import DataRef
from cachelayer.drawing.text import class_names, shown_path
from cachelayer.errors import CacheLayerError
from cachelayer.records import tree
from cachelayer.records.spec import ArraySpec, LeafSpec
from cachelayer.statistics import Survey
from cachelayer.statistics.shown import Bar, Chart, leaf_charts, length_chart, missing
from cachelayer.view.render import page, ref_of, whole

SAMPLE = 10_000
# Versions of at most so many bytes and records are read as soon as somebody looks.
SMALL_NBYTES, SMALL_RECORDS = 32 << 20, 200_000
# Each look at a page reads on for so many seconds, and the page looks again until all is read.
PATIENCE = 1.0
_KEPT = 8


class RunningWork:
    """Something that is read on whenever somebody looks. Thread-safe.

    ``work.read_batch()`` reads a little, and returns whether there is more.
    """

    def __init__(self, work: Any) -> None:
        self.work = work
        self.is_running = True
        self.error: CacheLayerError | None = None
        self._lock = threading.Lock()

    def read_on(self) -> None:
        with self._lock:
            end = time.monotonic() + PATIENCE
            try:
                while self.is_running:
                    self.is_running = bool(self.work.read_batch())
                    if time.monotonic() > end:
                        break
            except CacheLayerError as error:
                self.error, self.is_running = error, False


def read_on(request: Request, key: tuple[Any, ...], begin: Callable[[], Any]) -> RunningWork:
    """Return what is read under a key, read on; begun if it is new, or failed. The newest few are kept."""
    readings: dict[Any, RunningWork] = request.app.state.readings
    reading = readings.get(key)
    if reading is None or reading.error:
        reading = readings[key] = RunningWork(begin())
        for old in list(readings)[:-_KEPT]:
            readings.pop(old, None)
    reading.read_on()
    return reading


def survey_of(request: Request, ref: DataRef[Any], records: int | None = None) -> RunningWork | None:
    """Return the statistics of so many records of a version, read on.

    Without a number, those that were asked for last, or those of a small version; None for a large one.
    """
    version = "statistics", ref.dataset_id, ref.digest
    if records is None:
        begun = [key for key in list(request.app.state.readings) if key[:-1] == version]
        is_small = 0 < len(ref) <= SMALL_RECORDS and ref.nbytes <= SMALL_NBYTES
        if not begun and not is_small:
            return None
        records = begun[-1][-1] if begun else len(ref)
    return read_on(request, (*version, records), lambda: Survey(ref, records))


@dataclass(frozen=True)
class FieldColumn:
    """A field of the table of records, with its charts, and what of it lies outside the charts."""

    path: str
    spec: str
    charts: list[Chart] = field(default_factory=list)
    others: list[Bar] = field(default_factory=list)


def columns_of(ref: DataRef[Any], survey: RunningWork | None) -> list[FieldColumn]:
    """Return the fields of a version, with their charts as soon as all is read."""
    leaves = tree.leaves(ref.raw().element_spec)
    if survey is None or survey.is_running or survey.error:
        return [FieldColumn(path, leaf.describe()) for path, leaf in leaves]
    names = class_names(ref.metadata)
    columns = []
    for (path, leaf), stats in zip(leaves, survey.work.result().leaves, strict=True):
        field = _in_condition(path, leaf)
        columns.append(FieldColumn(path, leaf.describe(), leaf_charts(stats, field, names), missing(stats, field)))
    return columns


def _in_condition(path: str, leaf: LeafSpec) -> str:
    """Return a field as conditions name it, such as ``meta.lang``; an empty text if they cannot."""
    steps = shown_path(path).split("/")
    can_be_named = path and all(step.isidentifier() and not keyword.iskeyword(step) for step in steps)
    return ".".join(steps) if can_be_named and isinstance(leaf, ArraySpec) and leaf.shape == () else ""


def statistics(request: Request) -> Response:
    """Show the distributions of all fields, or how far they are."""
    ref = ref_of(request)
    survey = survey_of(request, ref, whole(request.query_params, "records", 0, 1, 1 << 62) or None)
    found = None if survey is None or survey.is_running or survey.error else survey.work.result()
    return page(
        "statistics.html",
        ref=ref,
        records=len(ref),
        sample=min(SAMPLE, max(1, len(ref))),
        survey=survey,
        found=found,
        columns=columns_of(ref, survey) if found else [],
        sizes=length_chart(found.record_nbytes) if found else None,
    )
