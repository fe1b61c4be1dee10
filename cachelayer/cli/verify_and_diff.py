"""The commands that check versions: ``verify`` and ``diff``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from cachelayer.cli.addresses import Address, Options, ReferenceArgument, ToOptions, open_reference, open_storage
from cachelayer.cli.command import command
from cachelayer.cli.output import FINDING, WELL, Answer, count
from cachelayer.storage.storage import Storage
from cachelayer.versions.verify import VerifyReport


@command(
    "cachelayer verify gs://bucket/caches/cifar10@v2",
    "cachelayer verify cache/cifar10 --json || echo damaged",
)
def verify(reference: ReferenceArgument, option: Options = None) -> Answer:
    """Read every record of a version, and compare every checksum. Exit code 1 if something is damaged."""
    address = Address.whole(reference)
    storage = open_storage(address.url, option)
    report = storage.verify(address.name)
    verdict = "all is well" if report.ok else count(len(report.problems), "problem")
    summary = f"{report.reference}: {verdict}: {count(report.records, 'record')} in {count(report.shards, 'shard')}"
    document = {**asdict(report), "reference": _reference(storage, report), "ok": report.ok}
    return Answer(document, [*report.problems, summary], WELL if report.ok else FINDING)


def _reference(storage: Storage, report: VerifyReport) -> str:
    """Return the whole reference of a version that may be too damaged to open."""
    dataset_id, _, version = report.reference.partition("@")
    return f"{storage.url}/{report.reference}@sha256:{storage.versions(dataset_id)[version].digest}"


@command(
    "cachelayer diff cache/cifar10@v1 cache/cifar10@v2",
    "cachelayer diff cache/cifar10@v2 gs://bucket/caches/cifar10@v2",
)
def diff(
    reference: ReferenceArgument,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="Another REFERENCE, also in another storage.")],
    option: Options = None,
    to_option: ToOptions = None,
) -> Answer:
    """Compare two versions: spec, counts, shards, provenance. Exit code 1 if the data differ."""
    difference = open_reference(reference, option).diff(open_reference(other, to_option))
    same = difference.same_data
    return Answer({**asdict(difference), "same_data": same}, [str(difference)], WELL if same else FINDING)
