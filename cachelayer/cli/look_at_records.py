"""The commands that show records: ``head``, ``sample``, ``stats``."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from cachelayer.access.dataref import DataRef
from cachelayer.cli.addresses import LocalCache, Options, ReferenceArgument, open_reference
from cachelayer.cli.command import command
from cachelayer.cli.output import Answer, count, table
from cachelayer.drawing.text import FIRST, TEXT, Names, class_names, first_rows, leaf_text, name_of, plain_scalar
from cachelayer.records import dtypes, tree
from cachelayer.records.values import Ragged, Sparse
from cachelayer.statistics import LeafStats, LengthStats, Statistics, survey
from cachelayer.statistics.numbers import Number, NumberStats
from cachelayer.statistics.texts_and_images import ImageStats, StringStats
from cachelayer.streams.order import Order

Count = Annotated[int, typer.Option("--records", "-n", min=1, help="How many records to show.")]


@command(
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
    return _records(ref, np.arange(min(records, len(ref))))


@command(
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
    drawn = Order(len(ref), shuffle=True, seed=seed)(0, 0, min(records, len(ref)))
    return _records(ref, drawn)


@command(
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
    is_whole = statistics.records_read == statistics.records
    read = "" if is_whole else f", {count(statistics.records_read)} of them read"
    title = f"{ref.dataset_id}@{ref.dataset_version}: {count(statistics.records)} records{read}"
    return Answer(statistics.to_json(), [Text(title, style="bold"), "", statistics_table(statistics)])


def _records(ref: DataRef[Any], numbers: np.ndarray[Any, np.dtype[np.int64]]) -> Answer:
    elements = ref.__getitems__(numbers)
    document = [
        {"record": number, "element": element_json(element)}
        for number, element in zip(numbers.tolist(), elements, strict=True)
    ]
    shown = list(_shown(numbers.tolist(), elements, class_names(ref.metadata)))
    return Answer(document, shown or ["no records"])


def _shown(numbers: Sequence[int], elements: Sequence[Any], names: Names) -> Iterator[RenderableType]:
    for number, element in zip(numbers, elements, strict=True):
        yield Text(f"record {number:,}", style="bold")
        yield ElementView(element, names)
        yield ""


# The limit for scripts, in values or bytes.
_WHOLE_IN_JSON = 1000


class ElementView:
    """An element in the terminal: a line for each leaf.

    Args:
        element: an element as ``ref[i]`` returns it.
        names: the class names of leaves that are labels, by path.
    """

    def __init__(self, element: Any, names: Names | None = None) -> None:
        self._leaves = tree.leaf_values(element)
        self._names = names or {}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = Table.grid(padding=(0, 2))
        shown.add_column(style="cyan", overflow="fold", ratio=None)
        shown.add_column(overflow="fold")
        for path, value in self._leaves:
            name = name_of(value, self._names[path]) if path in self._names else ""
            cell = Text(f"{leaf_text(value)}  {leaf_text(name)}" if name else leaf_text(value))
            if path:
                shown.add_row(Text(path), cell)
            else:
                shown.add_row(cell)
        yield shown


def element_json(element: Any) -> Any:
    """Convert an element to a value that JSON can hold.

    Dicts and namedtuples are objects; lists, tuples and arrays are lists; NaN and the infinities are the strings
    ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, which Python's ``float`` reads. Bytes are
    ``{"nbytes": ..., "base64": ...}``. Arrays, strings and bytes of more than 1,000 values are shortened to their
    first few values, with dtype and shape, or the length.
    """
    if isinstance(element, Mapping):
        return {_printable(key): element_json(child) for key, child in element.items()}
    if tree.is_namedtuple(element):
        return {name: element_json(child) for name, child in zip(element._fields, element, strict=True)}
    if isinstance(element, (tuple, list)):
        return [element_json(child) for child in element]
    return _leaf_json(element)


def _leaf_json(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, bytes):
        whole = len(value) <= _WHOLE_IN_JSON
        content = {"base64": base64.b64encode(value).decode()} if whole else {"first": repr(value[:FIRST])}
        return {"nbytes": len(value), **content}
    if isinstance(value, str):
        whole = len(value) <= _WHOLE_IN_JSON
        return _printable(value) if whole else {"characters": len(value), "first": _printable(value[:TEXT])}
    if isinstance(value, Ragged):
        whole = len(value) + value.flat_values.size <= _WHOLE_IN_JSON
        first = [_leaf_json(row) for row in (value if whole else first_rows(value))]
        return first if whole else {"rows": len(value), "first": first}
    if isinstance(value, Sparse):
        count = len(value.values) if len(value.values) <= _WHOLE_IN_JSON else FIRST
        more = {} if count == len(value.values) else {"count": len(value.values)}
        entries = {"indices": value.indices[:count].tolist(), "values": _leaf_json(value.values[:count])}
        return {"dense_shape": value.dense_shape.tolist(), **more, **entries}
    array = np.asarray(value)
    if array.size <= _WHOLE_IN_JSON:
        return _list_json(array)
    name = "strings" if array.dtype == object else dtypes.to_name(array.dtype)
    return {"dtype": name, "shape": list(array.shape), "first": _list_json(array.reshape(-1)[:FIRST])}


def _list_json(array: NDArray[Any]) -> Any:
    if array.ndim:
        return [_list_json(array[place, ...]) for place in range(len(array))]
    value: Any = array[()]
    if isinstance(value, (str, bytes)):
        return _leaf_json(str(value) if isinstance(value, str) else bytes(value))
    plain = plain_scalar(array)
    if isinstance(plain, complex):
        return [_float_json(plain.real), _float_json(plain.imag)]
    return _float_json(plain) if isinstance(plain, float) else plain


def _float_json(number: float) -> float | str:
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _printable(text: str) -> str:
    # No encoding has half a surrogate pair.
    return text.encode("utf-8", "backslashreplace").decode()


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
