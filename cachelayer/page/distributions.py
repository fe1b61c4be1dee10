"""The page of the distributions of fields: small charts, whose bars are links to records."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any
from weakref import WeakKeyDictionary

from starlette.requests import Request
from starlette.responses import Response

from cachelayer.drawing.text import class_names, shown_path
from cachelayer.page.render import page, query_integer, ref_of
from cachelayer.specs import tree
from cachelayer.specs.leaf_names import in_condition
from cachelayer.specs.spec import ArraySpec, describe_leaf
from cachelayer.statistics import Statistics, survey
from cachelayer.statistics.shown import Bar, Chart, leaf_charts, length_chart, missing
from cachelayer.views.dataref import DataRef

SAMPLE = 10_000
MOST_FIELDS = 500
"""The most fields that a page shows."""
SMALL_NBYTES = 32 << 20
SMALL_RECORDS = 200_000
"""Versions with at most so many bytes and records are read as soon as somebody looks."""


class Surveys:
    """The statistics of versions; the newest few are kept."""

    def __init__(self) -> None:
        self._survey = lru_cache(8)(partial(survey, progress=False))
        self._asked: WeakKeyDictionary[DataRef[Any], int] = WeakKeyDictionary()

    def of(self, ref: DataRef[Any], records: int | None = None) -> Statistics | None:
        """Return the statistics of some records of a version, or of as many as last time; None if nobody asked yet."""
        is_small = 0 < len(ref) <= SMALL_RECORDS and ref.nbytes <= SMALL_NBYTES
        records = records or self._asked.get(ref) or (len(ref) if is_small else None)
        if records is None:
            return None
        summary = self._survey(ref, records=records)
        self._asked[ref] = records
        return summary


@dataclass(frozen=True)
class FieldColumn:
    """A field of the table of records, with its charts, and bars for the values that the charts leave out."""

    path: str
    spec: str
    charts: list[Chart] = field(default_factory=list)
    others: list[Bar] = field(default_factory=list)


def columns_of(ref: DataRef[Any], summary: Statistics | None, most: int) -> tuple[list[FieldColumn], int]:
    """Return the first fields of a version, with their charts if there are statistics, and how many more there are."""
    every = tree.leaves(ref.raw().element_spec)
    leaves = every[:most]
    more = len(every) - len(leaves)
    if summary is None:
        return [FieldColumn(path, describe_leaf(leaf)) for path, leaf in leaves], more
    names = class_names(ref.metadata)
    columns = []
    for (path, leaf), stats in zip(leaves, summary.leaves[:most], strict=True):
        is_single = path and isinstance(leaf, ArraySpec) and leaf.shape == ()
        field = in_condition(shown_path(path)) if is_single else ""
        columns.append(FieldColumn(path, describe_leaf(leaf), leaf_charts(stats, field, names), missing(stats, field)))
    return columns, more


def statistics(request: Request) -> Response:
    """Show the distributions of fields, or how to have them read."""
    ref = ref_of(request)
    summary = request.app.state.surveys.of(ref, query_integer(request.query_params, "records", 0, 1, 1 << 62))
    columns: list[Any] = []
    more = 0
    if summary:
        columns, more = columns_of(ref, summary, MOST_FIELDS)
    return page(
        "statistics.html",
        ref=ref,
        sample=min(SAMPLE, max(1, len(ref))),
        summary=summary,
        columns=columns,
        more=more,
        sizes=length_chart(summary.record_nbytes) if summary else None,
    )
