"""The commands that show records: ``head``, ``sample``, ``stats``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import RenderableType
from rich.text import Text

from cachelayer.access.dataref import DataRef
from cachelayer.cli import pictures
from cachelayer.cli.addresses import LocalCache, Options, ReferenceArgument, open_reference
from cachelayer.cli.charts import statistics_table
from cachelayer.cli.command import command
from cachelayer.cli.output import Answer, count
from cachelayer.cli.rendering import ElementView, element_json
from cachelayer.drawing.class_names import Names, class_names
from cachelayer.statistics import survey
from cachelayer.streams.order import Order

Count = Annotated[int, typer.Option("--records", "-n", min=1, help="How many records to show.")]
Images = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Write images as files into FOLDER: encoded ones as they are, others as PNG."),
]


@command(
    "cachelayer head cache/cifar10@v2",
    "cachelayer head gs://bucket/caches/cifar10 -n 20 --json | jq '.[].element.label'",
    "cachelayer head cache/cifar10@v2 --save-images pictures",
)
def head(
    reference: ReferenceArgument,
    records: Count = 5,
    save_images: Images = None,
    option: Options = None,
    local_cache: LocalCache = None,
) -> Answer:
    """Show the first records. Images are drawn if the terminal has colour."""
    ref = open_reference(reference, option, local_cache)
    return _records(ref, np.arange(min(records, len(ref))), save_images)


@command(
    "cachelayer sample cache/cifar10@v2",
    "cachelayer sample cache/cifar10@v2 -n 20 --seed 7",
    "cachelayer sample cache/cifar10@v2 --save-images pictures",
)
def sample(
    reference: ReferenceArgument,
    records: Count = 5,
    seed: Annotated[int, typer.Option(min=0, max=2**64 - 1, help="The seed of the draw.")] = 0,
    save_images: Images = None,
    option: Options = None,
    local_cache: LocalCache = None,
) -> Answer:
    """Show records drawn at random: the first ones of a stream shuffled with this seed."""
    ref = open_reference(reference, option, local_cache)
    drawn = Order(len(ref), shuffle=True, seed=seed)(0, 0, min(records, len(ref)))
    return _records(ref, drawn, save_images)


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


def _records(ref: DataRef[Any], numbers: np.ndarray[Any, np.dtype[np.int64]], folder: Path | None) -> Answer:
    elements = ref.__getitems__(numbers)
    document = [
        {"record": number, "element": element_json(element)}
        for number, element in zip(numbers.tolist(), elements, strict=True)
    ]
    shown = list(_shown(numbers.tolist(), elements, class_names(ref.metadata)))
    if folder is not None:
        written = _saved(ref, numbers, folder)
        shown.append(f"{count(written)} images in {folder}" if written else "no leaf of these records is an image")
    return Answer(document, shown or ["no records"])


def _shown(numbers: Sequence[int], elements: Sequence[Any], names: Names) -> Iterator[RenderableType]:
    for number, element in zip(numbers, elements, strict=True):
        yield Text(f"record {number:,}", style="bold")
        yield ElementView(element, names)
        yield ""


def _saved(ref: DataRef[Any], numbers: np.ndarray[Any, np.dtype[np.int64]], folder: Path) -> int:
    raw = ref.raw()
    elements = zip(numbers.tolist(), raw.__getitems__(numbers), strict=True)
    return sum(len(pictures.save_images(raw.element_spec, number, element, folder)) for number, element in elements)
