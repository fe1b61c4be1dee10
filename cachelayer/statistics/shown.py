"""Statistics, and how they are shown: the same in text, in notebooks and on the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from cachelayer.drawing.text import Names, named, number_text, shown_path
from cachelayer.statistics.numbers import Histogram, NumberStats

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 16
"""How many characters a chart in text has at most."""
_MOST_LISTED = 4
"""So few distinct numbers are listed with their counts."""
_COMMON = 3
"""How many of the most common strings are named in words."""
_TEXT = 24
"""How many characters of a string are shown."""
_TO_MINUTES = len("2026-01-31T12:30")
_NO_NAMES: Names = {}


@dataclass(frozen=True)
class StringStats:
    """The statistics of a leaf of strings."""

    distinct: int | None
    """How many strings differ; None if more than 1,000 do, or one is longer than 256."""
    common: tuple[tuple[str, int], ...]
    """The ten most common strings with their counts; empty if ``distinct`` is None."""


@dataclass(frozen=True)
class LengthStats:
    """The statistics of lengths."""

    of: str
    """What is counted: ``bytes`` or ``characters`` of strings; ``axis 0``, ``axis 1`` and so on of arrays; ``values``
    of sparse arrays; ``width`` and ``height`` of encoded images, 0 for an image that cannot be read."""
    numbers: NumberStats
    """The statistics of the lengths."""
    longest: int | None
    """The number of the first record with the largest length; None if a record has several lengths."""


@dataclass(frozen=True)
class LeafStats:
    """The statistics of one leaf, over all records that were read."""

    path: str
    """Where the leaf is in an element, such as ``['image']``; "" if it is the whole element."""
    spec: str
    """The dtype and shape, such as ``uint8[32, 32, 3]``."""
    nulls: int
    """In how many records it is None."""
    lengths: tuple[LengthStats, ...]
    """The lengths of strings, of ragged and sparse arrays, and along unknown dimensions; the sizes of encoded images,
    if Pillow is installed."""
    numbers: NumberStats | None
    """None for strings and complex numbers, which have no range."""
    strings: StringStats | None
    """None for numbers and encoded images."""


@dataclass(frozen=True)
class Statistics:
    """The statistics of the records of a version; ``str`` shows them, and notebooks show a table.

    Examples:
        >>> rows = [{"label": "cat", "score": 0.5}, {"label": "dog", "score": 1.5}, {"label": "cat", "score": 1.0}]
        >>> stats = cachelayer.Storage(folder).submit(rows, "rows@v1").stats()
        >>> label, score = stats.leaves
        >>> label.strings.common, score.numbers.minimum, score.numbers.mean, stats.records_read
        ((('cat', 2), ('dog', 1)), 0.5, 1.0, 3)
        >>> print(stats)
        rows@v1: 3 records
        ...
    """

    reference: str
    """The reference of the version."""
    records: int
    """The number of its records."""
    records_read: int
    """How many of these were read; fewer than ``records`` for a sample."""
    record_nbytes: LengthStats
    """The bytes of records, as stored."""
    leaves: tuple[LeafStats, ...]
    """The leaves, in the order of the element."""

    def __str__(self) -> str:
        lines = [_title(self), ""]
        for name, about, charts in _rows(self):
            lines.append(f"{name}  {about}")
            lines += (f"    {_words(chart)}  {_blocks(chart.bars)}".rstrip() for chart in charts if chart.facts)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return a table, which notebooks show."""
        rows = []
        for name, about, charts in _rows(self):
            title = f"<strong>{escape(name)}</strong> {escape(about)}"
            for chart in charts or [Chart("", "", [])]:
                cells = (title, escape(_words(chart)), _blocks(chart.bars))
                rows.append("".join(f'<td style="text-align: left">{cell}</td>' for cell in cells))
                title = ""
        table = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<div><strong>{escape(_title(self))}</strong><table>{table}</table></div>"

    def to_json(self) -> dict[str, Any]:
        """Return the statistics as dicts, lists, numbers and text."""
        return asdict(self)


@dataclass(frozen=True)
class Bar:
    """A bar of a chart, or a number beside the chart."""

    label: str
    count: int
    where: str = ""
    """The condition that chooses the records of the bar; "" if there is none."""


@dataclass(frozen=True)
class Chart:
    """A distribution of a leaf."""

    of: str
    """What is counted, such as ``characters``; "" for the values themselves."""
    facts: str
    """The range, the mean and the like, in words."""
    bars: list[Bar]
    """Empty if all values are equal."""
    longest: int | None = None
    """The number of the first record with the largest length."""


def leaf_charts(leaf: LeafStats, field: str = "", names: Names = _NO_NAMES) -> list[Chart]:
    """Return the distributions of a leaf, with conditions for its bars if ``field`` names it, and names of classes."""
    charts = [] if leaf.numbers is None else [_number_chart(leaf.numbers, field, leaf.path, names)]
    if leaf.strings is not None:
        are_bytes = any(lengths.of == "bytes" for lengths in leaf.lengths)
        charts.append(_string_chart(leaf.strings, field, are_bytes=are_bytes))
    return charts + [length_chart(lengths) for lengths in leaf.lengths]


def length_chart(lengths: LengthStats) -> Chart:
    """Return the distribution of lengths."""
    chart = _number_chart(lengths.numbers)
    of = "length" if lengths.of == "axis 0" else lengths.of
    return Chart(of, chart.facts, chart.bars, lengths.longest if chart.bars else None)


def missing(leaf: LeafStats, field: str = "") -> list[Bar]:
    """Return how many records and values of a leaf lie outside its distributions."""
    counts = [("null", leaf.nulls, f"{field} is None")]
    if leaf.numbers is not None:
        no_number = "NaT" if "datetime64" in leaf.spec or "timedelta64" in leaf.spec else "NaN"
        counts.append((no_number, leaf.numbers.nans, f"{field} != {field}"))
        counts.append(("infinite", leaf.numbers.infinities, f"{field} in [1e999, -1e999]"))
    return [Bar(label, count, where if field else "") for label, count, where in counts if count]


def _number_chart(numbers: NumberStats, field: str = "", path: str = "", names: Names = _NO_NAMES) -> Chart:
    def label(value: Any) -> str:
        text = number_text(value)
        name = named(names, path, value)
        return text if name in ("", text) else f"{text} {name}"

    low = numbers.minimum
    high = numbers.maximum
    if low == high or numbers.histogram is None:
        return Chart("", "" if low is None else f"all {label(low)}", [])
    if numbers.values is None:
        bars = list(_ranges(numbers.histogram, field))
    else:
        bars = [Bar(label(value), count, f"{field} == {value}" if field else "") for value, count in numbers.values]
        if len(bars) <= _MOST_LISTED:
            return Chart("", _listed({bar.label: bar.count for bar in bars}), bars)
    facts = f"{label(low)} to {label(high)}"
    if numbers.mean is not None and label(low) == number_text(low):
        facts += f", mean {number_text(numbers.mean)}, std {number_text(numbers.std)}"
    return Chart("", facts, bars)


def _ranges(histogram: Histogram, field: str) -> Iterator[Bar]:
    for low, high, count in zip(histogram.edges[:-1], histogram.edges[1:], histogram.counts, strict=True):
        # Conditions cannot name durations.
        has_condition = field and count and not str(low).endswith("s")
        where = f"{low!r} <= {field} < {high!r}" if has_condition else ""
        yield Bar(f"{_edge(low)} to {_edge(high)}", count, where)


def _edge(value: Any) -> str:
    """Return an edge of a bin as text; a time is shortened to its minute."""
    is_long = isinstance(value, str) and len(value) > _TO_MINUTES
    return value[:_TO_MINUTES].replace("T", " ") if is_long else number_text(value)


def _string_chart(strings: StringStats, field: str, *, are_bytes: bool) -> Chart:
    if not strings.common:
        return Chart("", "many different" if strings.distinct is None else "", [])
    labels = {text if are_bytes else repr(text[:_TEXT]): count for text, count in strings.common[:_COMMON]}
    if strings.distinct == 1:
        return Chart("", f"all {next(iter(labels))}", [])
    bars = []
    for text, count in strings.common:
        # Bytes are the text of a literal already.
        literal = text if are_bytes else repr(text)
        bars.append(Bar(text, count, f"{field} == {literal}" if field else ""))
    facts = f"{strings.distinct:,} different: {_listed(labels)}"
    return Chart("", facts, bars if len(bars) == strings.distinct else [])


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{label} ({count:,})" for label, count in counts.items())


def _title(statistics: Statistics) -> str:
    read = f", {statistics.records_read:,} of them read" * (statistics.records_read < statistics.records)
    version, _, rest = statistics.reference.partition("@sha256:")
    # The digest of the version is left out; the calls that make a view of it come after it.
    name = version.rpartition("/")[2] + rest[64:]
    return f"{name}: {statistics.records:,} records{read}"


def _rows(statistics: Statistics) -> Iterator[tuple[str, str, list[Chart]]]:
    """Yield the name of each leaf, what it is, and its distributions."""
    yield "record", "stored", [length_chart(statistics.record_nbytes)]
    for leaf in statistics.leaves:
        about = [leaf.spec, *(f"{bar.count:,} {bar.label}" for bar in missing(leaf))]
        yield shown_path(leaf.path), ", ".join(about), leaf_charts(leaf)


def _words(chart: Chart) -> str:
    return f"{chart.of}: {chart.facts}" if chart.of else chart.facts


def _blocks(bars: list[Bar]) -> str:
    """Draw bars as block characters. If there are many, several bars share a character; a blank means 0."""
    bars_per_block = max(1, -(-len(bars) // _WIDTH))
    starts = range(0, len(bars), bars_per_block)
    counts = [sum(bar.count for bar in bars[start : start + bars_per_block]) for start in starts]
    return "".join(" " if count == 0 else _BARS[count * (len(_BARS) - 1) // max(counts)] for count in counts)
