"""Draw statistics as a table with small histograms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from cachelayer.cli.output import count, table
from cachelayer.statistics import LeafStats, LengthStats, Statistics
from cachelayer.statistics.histogram import Number
from cachelayer.statistics.images import ImageStats
from cachelayer.statistics.numbers import NumberStats
from cachelayer.statistics.text import StringStats

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 16
_COMMON = 3
_LONG = 10**9
_COLUMNS = ("min", "mean", "max", "std")
Row = tuple[str, str, str, str, str]


def statistics_table(found: Statistics) -> Table:
    """Return a table with a row for each leaf and for each of its lengths."""
    shown = table("leaf", "of", *_COLUMNS, "histogram", "notes", right=_COLUMNS)
    for column in shown.columns[2:-1]:
        column.no_wrap = True
    sizes = found.record_nbytes
    shown.add_row("record", "stored bytes", *_numbers(sizes.numbers), _longest(sizes))
    for leaf in found.leaves:
        for row in _rows(leaf):
            shown.add_row(*row)
    return shown


def _rows(leaf: LeafStats) -> Iterator[tuple[str, ...]]:
    name = leaf.path or "element"
    notes = [f"{count(leaf.nulls)} null"] * (leaf.nulls > 0)
    if leaf.strings is not None:
        notes.append(_strings(leaf.strings))
    if leaf.images is not None:
        notes.append(_images(leaf.images))
    if leaf.numbers is not None or not leaf.lengths:
        others = [] if leaf.numbers is None else _not_finite(leaf.numbers)
        columns = ("", "", "", "", "") if leaf.numbers is None else _numbers(leaf.numbers)
        yield (name, leaf.spec, *columns, ", ".join(notes + others))
        name, notes = "", []
    for lengths in leaf.lengths:
        yield (name, lengths.of, *_numbers(lengths.numbers), "; ".join([*notes, _longest(lengths)]).strip("; "))
        name, notes = "", []
    if leaf.images is not None:
        yield ("", "width", *_numbers(leaf.images.width), "")
        yield ("", "height", *_numbers(leaf.images.height), "")


def _numbers(numbers: NumberStats) -> Row:
    return (*(_number(one) for one in (numbers.minimum, numbers.mean, numbers.maximum, numbers.std)), bars(numbers))  # type: ignore[return-value]


def _number(value: Number | str | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    is_short = isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LONG
    return count(int(value)) if is_short else str(value)


def bars(numbers: NumberStats) -> str:
    """Draw a histogram in block characters: a bar for each value if there are few, otherwise for equal ranges."""
    if numbers.values is not None and len(numbers.values) <= _WIDTH:
        return _drawn([times for _, times in numbers.values])
    if numbers.histogram is None:
        return ""
    counts = numbers.histogram.counts
    together = -(-len(counts) // _WIDTH)
    return _drawn([sum(counts[start : start + together]) for start in range(0, len(counts), together)])


def _drawn(counts: Sequence[int]) -> str:
    """Draw a bar for each count, blank only for 0."""
    most = max(counts)
    return "".join(" " if one == 0 else _BARS[(one * (len(_BARS) - 1) + most // 2) // most] for one in counts)


def _longest(lengths: LengthStats) -> str:
    differ = lengths.longest is not None and lengths.numbers.minimum != lengths.numbers.maximum
    return f"longest: record {lengths.longest:,}" if differ else ""


def _not_finite(numbers: NumberStats) -> list[str]:
    found = (("NaN", numbers.nans), ("infinite", numbers.infinities))
    different = [] if numbers.values is None else [f"{count(len(numbers.values))} different"]
    return [f"{count(number)} {name}" for name, number in found if number] + different


def _strings(strings: StringStats) -> str:
    if strings.distinct is None:
        return "many different"
    common = ", ".join(f"{text[:24]!r} {count(times)}" for text, times in strings.common[:_COMMON])
    more = " …" if strings.distinct > _COMMON else ""
    return f"{count(strings.distinct)} different: {common}{more}" if common else ""


def _images(images: ImageStats) -> str:
    parts = [f"{name} {count(number)}" for name, number in (*images.formats, *images.modes)]
    return ", ".join(parts + [f"{count(images.unreadable)} unreadable"] * (images.unreadable > 0))
