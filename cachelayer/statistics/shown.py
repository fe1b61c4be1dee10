"""Statistics as text and as HTML: the names of the leaves whole and first, their numbers after them."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from cachelayer.drawing.text import number_text, shown_path

if TYPE_CHECKING:
    from cachelayer.statistics.numbers import NumberStats
    from cachelayer.statistics.survey import LeafStats, Statistics

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 16
_COMMON = 3
_NUMBERS = {"min": "minimum", "mean": "mean", "max": "maximum", "std": "std"}
Row = tuple[str, str, list[tuple[str, "NumberStats | None"]]]
"""The name of a leaf, what is said of it, and its distributions, each with what it is of."""


def statistics_text(statistics: Statistics) -> str:
    """Return a line for each leaf, and below it one for each of its distributions."""
    lines = [_title(statistics), ""]
    for name, about, distributions in _rows(statistics):
        lines.append(f"{name}  {about}".rstrip())
        for of, numbers in distributions:
            if numbers is not None:
                lines.append(f"    {f'{of}: ' if of else ''}{_line(numbers)}")
    return "\n".join(lines)


def _line(numbers: NumberStats) -> str:
    if numbers.minimum is not None and numbers.minimum == numbers.maximum:
        return f"all {number_text(numbers.minimum)}"
    shown = "  ".join(f"{label} {value}" for label, value in _numbers(numbers))
    return f"{shown}  {bars(_counts(numbers))}".rstrip()


def statistics_html(statistics: Statistics) -> str:
    """Return a table with a row for each distribution of a leaf."""
    rows = []
    for name, about, distributions in _rows(statistics):
        title = f"<strong>{escape(name)}</strong> {escape(about)}"
        for of, numbers in distributions or [("", None)]:
            cells = [value for _, value in _numbers(numbers)] if numbers is not None else [""] * len(_NUMBERS)
            shown = "".join(f"<td>{escape(cell)}</td>" for cell in (of, *cells, bars(_counts(numbers))))
            rows.append(f'<tr><td style="text-align: left">{title}</td>{shown}</tr>')
            title = ""
    heads = "".join(f"<th>{head}</th>" for head in ("field", "of", *_NUMBERS, ""))
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f"<div><strong>{escape(_title(statistics))}</strong>{table}</div>"


def _title(statistics: Statistics) -> str:
    read = f", {statistics.records_read:,} of them read" * (statistics.records_read < statistics.records)
    name = statistics.reference.rpartition("/")[2].partition("@sha256")[0]
    return f"{name}: {statistics.records:,} records{read}"


def _rows(statistics: Statistics) -> Iterator[Row]:
    yield "record", "stored bytes", [("", statistics.record_nbytes.numbers)]
    for leaf in statistics.leaves:
        distributions: list[tuple[str, NumberStats | None]] = [(of.of, of.numbers) for of in leaf.lengths]
        if leaf.numbers is not None:
            distributions.insert(0, ("values" if leaf.lengths else "", leaf.numbers))
        yield shown_path(leaf.path), ", ".join([leaf.spec, *_notes(leaf)]), distributions


def _numbers(numbers: NumberStats) -> list[tuple[str, str]]:
    found = ((label, getattr(numbers, name)) for label, name in _NUMBERS.items())
    return [(label, number_text(value)) for label, value in found if value is not None]


def _counts(numbers: NumberStats | None) -> list[int]:
    if numbers is None or numbers.minimum == numbers.maximum:
        return []
    return [times for _, _, times in numbers.bins()]


def bars(counts: list[int]) -> str:
    """Draw a histogram in block characters: a bar for each count, or for some together, blank only for 0."""
    together = -(-len(counts) // _WIDTH)
    tall = [sum(counts[start : start + together]) for start in range(0, len(counts), together or 1)]
    return "".join(" " if one == 0 else _BARS[one * (len(_BARS) - 1) // max(tall)] for one in tall)


def _notes(leaf: LeafStats) -> Iterator[str]:
    if leaf.nulls:
        yield f"{leaf.nulls:,} null"
    if leaf.numbers is not None and leaf.numbers.nans:
        yield f"{leaf.numbers.nans:,} NaN"
    if leaf.numbers is not None and leaf.numbers.infinities:
        yield f"{leaf.numbers.infinities:,} infinite"
    if leaf.strings is not None and leaf.strings.distinct is None:
        yield "many different"
    elif leaf.strings is not None:
        common = ", ".join(f"{text[:24]!r} {times:,}" for text, times in leaf.strings.common[:_COMMON])
        yield f"{leaf.strings.distinct or 0:,} different: {common}"
