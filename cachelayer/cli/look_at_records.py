"""The commands that show records: ``head``, ``sample``, ``stats``."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cachelayer.access.dataref import DataRef
from cachelayer.cli.addresses import LocalCache, Options, ReferenceArgument, open_reference
from cachelayer.cli.command import command
from cachelayer.cli.output import Answer, count, facts, table
from cachelayer.drawing.text import class_names, leaf_text, named, shown_path
from cachelayer.records import dtypes, tree
from cachelayer.records.values import Ragged, Sparse
from cachelayer.statistics import LeafStats, NumberStats, Statistics, survey

Count = Annotated[int, typer.Option("--records", "-n", min=1, help="How many records to show.")]


@command(
    "Inspect",
    "cachelayer head cache/cifar10@v2",
    "cachelayer head gs://bucket/caches/cifar10 -n 20 --json | jq '.[].element.label'",
)
def head(
    reference: ReferenceArgument,
    records: Count = 5,
    option: Options = None,
    local_cache: LocalCache = None,
) -> Answer:
    """Show the first records."""
    ref = open_reference(reference, option, local_cache)
    return _records(ref, list(range(min(records, len(ref)))))


@command(
    "Inspect",
    "cachelayer sample cache/cifar10@v2",
    "cachelayer sample cache/cifar10@v2 -n 20 --seed 7",
)
def sample(
    reference: ReferenceArgument,
    records: Count = 5,
    seed: Annotated[int, typer.Option(min=0, max=2**64 - 1, help="The seed of the draw.")] = 0,
    option: Options = None,
    local_cache: LocalCache = None,
) -> Answer:
    """Show records drawn at random: the first ones of a stream shuffled with this seed."""
    ref = open_reference(reference, option, local_cache)
    drawn = ref.stream(records, shuffle=True, seed=seed).records(0).tolist() if len(ref) else []
    return _records(ref, drawn)


@command(
    "Inspect",
    "cachelayer stats cache/cifar10@v2",
    "cachelayer stats gs://bucket/caches/cifar10 --records 10000    # of a sample",
    "cachelayer stats cache/cifar10@v2 --json | jq '.leaves[].numbers.mean'",
)
def stats(
    reference: ReferenceArgument,
    records: Annotated[
        int | None, typer.Option("--records", "-n", min=1, help="Read only this many records, drawn at random.")
    ] = None,
    option: Options = None,
    local_cache: LocalCache = None,
) -> Answer:
    """Show statistics of the records: sizes, ranges, lengths, nulls and histograms, in one pass."""
    ref = open_reference(reference, option, local_cache)
    statistics = survey(ref, records=records)
    read = f", {count(statistics.records_read)} of them read" * (statistics.records_read < statistics.records)
    title = f"{ref.dataset_id}@{ref.dataset_version}: {count(statistics.records)} records{read}"
    return Answer(statistics.to_json(), [Text(title, style="bold"), "", statistics_table(statistics)])


def _records(ref: DataRef[Any], numbers: list[int]) -> Answer:
    erased = set(ref.erased.tolist())
    numbers = [number for number in numbers if number not in erased]
    elements = ref.__getitems__(np.array(numbers, np.int64))
    names = class_names(ref.metadata)
    document, shown = [], list[RenderableType]()
    for number, element in zip(numbers, elements, strict=True):
        document.append({"record": number, "element": element_json(element)})
        leaves = [
            (shown_path(path), f"{leaf_text(value)}  {named(names, path, value)}".rstrip())
            for path, value in tree.leaf_values(element)
        ]
        shown += [Text(f"record {number:,}", style="bold"), facts(leaves), ""]
    return Answer(document, shown or ["no records"])


def element_json(element: Any) -> Any:
    """Convert an element to a value that JSON can hold.

    Dicts and namedtuples are objects; lists, tuples and arrays are lists; bytes are base64; NaN and the infinities are
    ``"nan"``, ``"inf"`` and ``"-inf"``, which Python's ``float`` reads.
    """
    if isinstance(element, np.ndarray) and not element.ndim:
        element = element[()]
    if element is None or isinstance(element, str):
        return element
    if isinstance(element, bytes):
        return base64.b64encode(element).decode()
    if isinstance(element, Mapping):
        return {key: element_json(child) for key, child in element.items()}
    if tree.is_namedtuple(element):
        return {name: element_json(child) for name, child in zip(element._fields, element, strict=True)}
    if isinstance(element, Sparse):
        parts = ("dense_shape", "indices", "values")
        return {name: element_json(getattr(element, name)) for name in parts}
    if isinstance(element, (tuple, list, Ragged)) or (isinstance(element, np.ndarray) and element.ndim):
        return [element_json(child) for child in element]
    value = dtypes.plain_scalar(np.asarray(element))
    if isinstance(value, complex):
        return [element_json(value.real), element_json(value.imag)]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 16
_COMMON = 3
_COLUMNS = ("min", "mean", "max", "std")


def statistics_table(statistics: Statistics) -> Table:
    """Return a table with a row for each leaf and for each of its lengths."""
    shown = table("leaf", "of", *_COLUMNS, "histogram", "notes", right=_COLUMNS)
    for column in shown.columns[2:-1]:
        column.no_wrap = True
    shown.add_row("record", "stored bytes", *_numbers(statistics.record_nbytes.numbers))
    for leaf in statistics.leaves:
        name, notes = shown_path(leaf.path), ", ".join(_notes(leaf))
        for of, numbers in _distributions(leaf):
            shown.add_row(name, of, *_numbers(numbers), notes)
            name, notes = "", ""
    return shown


def _distributions(leaf: LeafStats) -> Iterator[tuple[str, NumberStats | None]]:
    if leaf.numbers is not None or not leaf.lengths:
        yield leaf.spec, leaf.numbers
    yield from ((lengths.of, lengths.numbers) for lengths in leaf.lengths)


def _numbers(numbers: NumberStats | None) -> tuple[str, ...]:
    if numbers is None:
        return ("",) * 5
    cells = (getattr(numbers, name) for name in ("minimum", "mean", "maximum", "std"))
    return (*map(_number, cells), bars([times for _, _, times in numbers.bins()]))


def _number(value: float | str | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def bars(counts: list[int]) -> str:
    """Draw a histogram in block characters: a bar for each count, or for some together, blank only for 0."""
    together = -(-len(counts) // _WIDTH)
    tall = [sum(counts[start : start + together]) for start in range(0, len(counts), together or 1)]
    return "".join(" " if one == 0 else _BARS[one * (len(_BARS) - 1) // max(tall)] for one in tall)


def _notes(leaf: LeafStats) -> Iterator[str]:
    if leaf.nulls:
        yield f"{count(leaf.nulls)} null"
    if leaf.numbers is not None and leaf.numbers.nans:
        yield f"{count(leaf.numbers.nans)} NaN"
    if leaf.numbers is not None and leaf.numbers.infinities:
        yield f"{count(leaf.numbers.infinities)} infinite"
    if leaf.strings is not None and leaf.strings.distinct is None:
        yield "many different"
    elif leaf.strings is not None:
        common = ", ".join(f"{text[:24]!r} {count(times)}" for text, times in leaf.strings.common[:_COMMON])
        yield f"{count(leaf.strings.distinct or 0)} different: {common}"
