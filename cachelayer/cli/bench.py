"""The command ``bench``: how fast this machine reads records."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from cachelayer.cli.addresses import LocalCache, Options, ReferenceArgument, open_reference
from cachelayer.cli.command import command
from cachelayer.cli.measurements import Measurement, measure
from cachelayer.cli.output import Answer, console_of, count, table
from cachelayer.drawing.quantities import size
from cachelayer.errors import InvalidArgumentError
from cachelayer.protocols import records_of

_NUMBERS = ("records/s", "per second", "records read")


@command(
    "cachelayer bench cache/cifar10@v2",
    "cachelayer bench gs://bucket/caches/cifar10 --batch-size 1024 --seconds 10",
    "cachelayer bench cache/cifar10@v2 --json | jq '.measurements[].records_per_second'",
)
def bench(
    reference: ReferenceArgument,
    batch_size: Annotated[int, typer.Option(min=1, help="Records in a batch.")] = 256,
    seconds: Annotated[float, typer.Option(min=0.01, help="About how long to measure each way of reading.")] = 3.0,
    option: Options = None,
    local_cache: LocalCache = None,
) -> Answer:
    """Measure how fast records are read: in order, shuffled and one by one, from disk and from memory."""
    ref = open_reference(reference, option, local_cache)
    if len(ref) == 0:
        raise InvalidArgumentError(f"{reference} has no records to read")
    with console_of(stderr=True).status(f"reading {reference}"):
        measurements = list(measure(ref, batch_size, seconds))
    document = {
        "reference": ref.reference,
        "records": len(ref),
        "record_nbytes": records_of(ref).record_nbytes,
        "batch_size": batch_size,
        "measurements": [_document(one) for one in measurements],
    }
    shown = table("reading", "from", *_NUMBERS, "", right=_NUMBERS)
    for one in measurements:
        shown.add_row(one.reading, one.state, *_columns(one), one.note)
    title = f"{ref.dataset_id}@{ref.dataset_version}: {count(len(ref))} records, batches of {count(batch_size)}"
    verdicts = [f"{one.reading}, {one.state}: {one.stats}" for one in measurements if one.stats is not None]
    return Answer(document, [title, "", shown, "", *verdicts])


def _document(one: Measurement) -> dict[str, object]:
    speeds = {"records_per_second": one.records_per_second, "bytes_per_second": one.bytes_per_second}
    return {**asdict(one), **speeds, "verdict": None if one.stats is None else str(one.stats)}


def _columns(one: Measurement) -> tuple[str, ...]:
    if one.records_per_second is None or one.bytes_per_second is None:
        return ("-", "-", "-")
    return (count(round(one.records_per_second)), size(round(one.bytes_per_second)), count(one.records))
