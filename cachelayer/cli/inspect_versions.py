"""The commands that list, describe, check and compare versions, and show records: from ``ls`` to ``diff``."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import RenderableType
from rich.text import Text

from cachelayer.access.dataref import DataRef
from cachelayer.cli.app import command
from cachelayer.cli.options import (
    REACH,
    DatasetArgument,
    ReferenceArgument,
    WholeArgument,
    existing_storage,
    open_address,
    open_reference,
)
from cachelayer.cli.output import FAILURE, FINDING, SUCCESS, Answer, count, facts, table, version_document
from cachelayer.drawing.text import ago, class_names, leaf_text, named, shown_path, size, spec_rows
from cachelayer.errors import CacheLayerError, DatasetNotFoundError, InvalidArgumentError
from cachelayer.json_values import flattened
from cachelayer.records import dtypes, spec_json, tree
from cachelayer.records.values import Ragged, Sparse
from cachelayer.statistics import survey
from cachelayer.storage.storage import Storage
from cachelayer.versions.snapshot import VersionInfo

_NUMBERS = ("versions", "shards", "records", "size")
_SHARDS_SHOWN = 10


@command(
    "List",
    "cachelayer ls gs://bucket/caches            # its datasets",
    "cachelayer ls gs://bucket/caches/cifar10    # the versions of one",
    options="option",
)
def ls(
    place: Annotated[str, typer.Argument(metavar="STORAGE[/ID]", help="A path or a URL, or a dataset in it.")],
    **reach: Any,
) -> Answer:
    """List the datasets of a storage, or a dataset's versions and unfinished builds (STORAGE/ID), newest last."""
    try:
        return _list_versions(*_open_dataset(place, **reach))
    except (InvalidArgumentError, DatasetNotFoundError):
        return _list_datasets(existing_storage(place, **reach))


def _open_dataset(text: str, **reach: Any) -> tuple[Storage, str]:
    storage, reference = open_address(text, **reach)
    if reference.name is not None or reference.rows is not None:
        raise InvalidArgumentError(f"{text!r} is a version: name only the dataset, STORAGE/ID")
    return storage, reference.dataset_id


def _list_datasets(storage: Storage) -> Answer:
    rows = table("dataset", "newest", "versions", "records", "size", "published", right=_NUMBERS)
    document, problems = [], []
    for dataset_id in storage.datasets():
        versions, problem = list[VersionInfo](), None
        try:
            versions = list(storage.versions(dataset_id).values())
        except CacheLayerError as error:
            problem = str(error)
            problems.append(f"{dataset_id} cannot be read: {problem}")
        newest = versions[-1] if versions else None
        rows.add_row(dataset_id, newest.version if newest else "-", count(len(versions)), *_columns(newest))
        about = {"dataset_id": dataset_id, "versions": len(versions), "newest": newest and asdict(newest)}
        document.append({**about, "problem": problem})
    shown = rows if document else f"no dataset in {storage.url}"
    return Answer(document, [shown, *problems], FAILURE if problems else SUCCESS)


def _list_versions(storage: Storage, dataset_id: str) -> Answer:
    builds = storage.builds(dataset_id)
    try:
        versions, tags = storage.versions(dataset_id), storage.tags(dataset_id)
    except DatasetNotFoundError:
        # Its first build is running or was interrupted.
        versions, tags = {}, {}
    rows, document = table("version", "records", "size", "published", "digest", "tags", right=_NUMBERS), []
    for name, info in versions.items():
        tagged = sorted(tag for tag, version in tags.items() if version == name)
        rows.add_row(name, *_columns(info), f"sha256:{info.digest[:12]}", ", ".join(tagged))
        document.append({**asdict(info), "tags": tagged})
    running = table("build of", "state", "shards", "records", "size", "last seen", right=_NUMBERS)
    for build in builds:
        done = count(build.shards), count(build.records), size(build.nbytes)
        running.add_row(build.version, build.state, *done, ago(build.idle))
    shown = rows if versions else f"no version of {dataset_id} is published"
    return Answer(document, [shown, running] if builds else [shown])


def _columns(info: VersionInfo | None) -> tuple[str, ...]:
    return ("-", "-", "-") if info is None else (count(info.records), size(info.nbytes), info.time)


@command("List", "cachelayer log gs://bucket/caches/cifar10", options="option")
def log(dataset: DatasetArgument, **reach: Any) -> Answer:
    """Show the history of a dataset, oldest first: who published, tagged, copied or deleted what, and when."""
    storage, dataset_id = _open_dataset(dataset, **reach)
    events = storage.history(dataset_id)
    rows = table("entry", "what", "", "when", "who", right=("entry",))
    for event in events:
        details = "  ".join(f"{name}={_text(value)}" for name, value in event.details.items())
        rows.add_row(str(event.sequence), event.kind, details, event.time, f"{event.user}@{event.host}")
    return Answer([asdict(event) for event in events], [rows])


@command(
    "List",
    "cachelayer show gs://bucket/caches/cifar10",
    "cachelayer show cache/cifar10@v2",
    "cachelayer show cache/cifar10@sha256:3fcda2 --json | jq .provenance",
    options=REACH,
)
def show(reference: ReferenceArgument, **reach: Any) -> Answer:
    """Show a version: its element spec, counts, sizes, shards, tags and how it was made."""
    storage, _ = open_address(reference, **reach)
    ref = storage.fetch(reference)
    tags = sorted(tag for tag, version in storage.tags(ref.dataset_id).items() if version == ref.dataset_version)
    manifest = ref._base.version.manifest
    document = {
        **version_document(ref),
        "tags": tags,
        "codec": manifest.codec,
        "element_spec": spec_json.to_json(ref.element_spec),
        "shards": [{"name": shard.name, **asdict(shard.stats)} for shard in manifest.shards],
        "provenance": ref.provenance,
    }
    stored = manifest.shard_records
    about = [
        ("dataset", ref.dataset_id),
        ("version", ref.dataset_version),
        ("tags", ", ".join(tags) or "none"),
        ("records", count(len(ref)) + (f" of {count(stored)} in the shards" if len(ref) != stored else "")),
        ("size", f"{size(ref.nbytes)} in {count(len(manifest.shards), 'shard')}"),
        ("codec", manifest.codec),
        ("digest", f"sha256:{ref.digest}"),
        ("reference", ref.reference),
    ]
    spec = "\n".join("    " * depth + f"{name}: {text}" for depth, name, text in spec_rows(ref.raw().element_spec))
    shards = table("shard", "records", "size", "sha256 of the records", right=_NUMBERS)
    for shard in manifest.shards[:_SHARDS_SHOWN]:
        shards.add_row(shard.name, count(shard.stats.records), size(shard.stats.nbytes), shard.stats.sha256[:12])
    if len(manifest.shards) > _SHARDS_SHOWN:
        shards.add_row(f"and {count(len(manifest.shards) - _SHARDS_SHOWN)} more: --json shows all")
    shown: list[RenderableType] = [facts(about), "", spec, "", shards, "", facts(provenance_rows(ref.provenance))]
    return Answer(document, shown)


def provenance_rows(provenance: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what a provenance says to people; a dict has a line for each key."""
    rows = []
    for name, value in provenance.items():
        if isinstance(value, dict):
            value = "\n".join(f"{key} = {_text(item)}" for key, item in flattened(value))
        if value not in (None, "", []):
            rows.append((name, _text(value)))
    return rows


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@command(
    "Inspect",
    "cachelayer head cache/cifar10@v2",
    "cachelayer head cache/cifar10 -n 20 --json | jq '.[].element.label'",
    options=f"records {REACH}",
)
def head(reference: ReferenceArgument, *, records: int, **reach: Any) -> Answer:
    """Show the first records."""
    ref = open_reference(reference, **reach)
    return _records(ref, list(range(min(records, len(ref)))))


@command(
    "Inspect",
    "cachelayer sample cache/cifar10@v2",
    "cachelayer sample cache/cifar10@v2 -n 20 --seed 7",
    options=f"records {REACH}",
)
def sample(
    reference: ReferenceArgument,
    seed: Annotated[int, typer.Option(metavar="N", min=0, max=2**64 - 1, help="The seed of the draw.")] = 0,
    *,
    records: int,
    **reach: Any,
) -> Answer:
    """Show records drawn at random: the first ones of a stream shuffled with this seed."""
    ref = open_reference(reference, **reach)
    drawn = ref.stream(records, shuffle=True, seed=seed).records(0).tolist() if len(ref) else []
    return _records(ref, drawn)


@command(
    "Inspect",
    "cachelayer stats cache/cifar10@v2",
    "cachelayer stats gs://bucket/caches/rows --records 10000    # of a sample",
    "cachelayer stats cache/cifar10 --json | jq '.leaves[].numbers.mean'",
    options=REACH,
)
def stats(
    reference: ReferenceArgument,
    records: Annotated[
        int | None,
        typer.Option("--records", "-n", min=1, metavar="N", help="Read only this many records, drawn at random."),
    ] = None,
    **reach: Any,
) -> Answer:
    """Show statistics of the records: sizes, ranges, lengths, nulls and histograms, in one pass."""
    ref = open_reference(reference, **reach)
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
    """Convert an element to what JSON can hold: bytes as base64, NaN and the infinities as ``float`` reads them."""
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


@command(
    "Check",
    "cachelayer verify gs://bucket/caches/cifar10@v2",
    "cachelayer verify cache/cifar10 --json || echo damaged",
    options="option",
)
def verify(reference: WholeArgument, **reach: Any) -> Answer:
    """Read every record of a version, and compare every checksum. Exit code 1 if something is damaged."""
    report = open_address(reference, **reach)[0].verify(reference)
    verdict = "all is well" if report.ok else count(len(report.problems), "problem")
    summary = f"{report.reference}: {verdict}: {count(report.records, 'record')} in {count(report.shards, 'shard')}"
    return Answer({**asdict(report), "ok": report.ok}, [*report.problems, summary], SUCCESS if report.ok else FINDING)


@command(
    "Check",
    "cachelayer diff cache/cifar10@v1 cache/cifar10@v2",
    "cachelayer diff cache/cifar10@v2 gs://bucket/caches/cifar10@v2",
    options="option to_option",
)
def diff(
    reference: ReferenceArgument,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="Another REFERENCE, also in another storage.")],
    *,
    option: Any,
    to_option: Any,
) -> Answer:
    """Compare two versions: spec, counts, shards, provenance. Exit code 1 if the data differ."""
    difference = open_reference(reference, option).diff(open_reference(other, to_option))
    same = difference.same_data
    return Answer({**asdict(difference), "same_data": same}, [str(difference)], SUCCESS if same else FINDING)
