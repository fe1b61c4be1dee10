"""The commands that show records: ``head``, ``sample``, ``stats``."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import RenderableType
from rich.text import Text

from cachelayer.access.dataref import DataRef
from cachelayer.cli.addresses import LocalCache, Options, ReferenceArgument, open_reference
from cachelayer.cli.command import command
from cachelayer.cli.output import Answer, facts
from cachelayer.drawing.text import class_names, leaf_text, named, shown_path
from cachelayer.records import dtypes, tree
from cachelayer.records.values import Ragged, Sparse
from cachelayer.statistics import survey

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
    return Answer(statistics.to_json(), [Text(str(statistics))])


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
