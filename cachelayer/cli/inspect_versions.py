"""The commands that list, describe, check and compare versions: ``ls``, ``log``, ``show``, ``verify``, ``diff``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from cachelayer.cli.addresses import (
    DatasetArgument,
    LocalCache,
    Options,
    ReferenceArgument,
    StorageArgument,
    ToOptions,
    existing_storage,
    open_address,
    open_reference,
)
from cachelayer.cli.command import command
from cachelayer.cli.output import FAILURE, FINDING, SUCCESS, Answer, count, facts, table, version_document
from cachelayer.drawing.text import ago, size, spec_rows
from cachelayer.errors import CacheLayerError, DatasetNotFoundError, InvalidArgumentError
from cachelayer.json_values import flattened
from cachelayer.records import spec_json
from cachelayer.storage.storage import Storage
from cachelayer.versions.snapshot import VersionInfo

_NUMBERS = ("versions", "shards", "records", "size")
_SHARDS_SHOWN = 10


@command(
    "List",
    "cachelayer ls gs://bucket/caches            # its datasets",
    "cachelayer ls gs://bucket/caches/cifar10    # the versions of one",
)
def ls(place: StorageArgument, option: Options = None) -> Answer:
    """List the datasets of a storage, or a dataset's versions and unfinished builds (STORAGE/ID), newest last."""
    try:
        return _list_versions(*_open_dataset(place, option))
    except (InvalidArgumentError, DatasetNotFoundError):
        return _list_datasets(existing_storage(place, option))


def _open_dataset(text: str, option: Options) -> tuple[Storage, str]:
    storage, reference = open_address(text, option)
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


@command("List", "cachelayer log gs://bucket/caches/cifar10")
def log(dataset: DatasetArgument, option: Options = None) -> Answer:
    """Show the history of a dataset, oldest first: who published, tagged, copied or deleted what, and when."""
    storage, dataset_id = _open_dataset(dataset, option)
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
)
def show(reference: ReferenceArgument, option: Options = None, local_cache: LocalCache = None) -> Answer:
    """Show a version: its element spec, counts, sizes, shards, tags and how it was made."""
    storage, _ = open_address(reference, option, local_cache)
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
    return [
        (
            name,
            "\n".join(f"{key} = {_text(item)}" for key, item in flattened(value))
            if isinstance(value, dict)
            else _text(value),
        )
        for name, value in provenance.items()
        if value not in (None, {}, [])
    ]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@command(
    "Check",
    "cachelayer verify gs://bucket/caches/cifar10@v2",
    "cachelayer verify cache/cifar10 --json || echo damaged",
)
def verify(reference: ReferenceArgument, option: Options = None) -> Answer:
    """Read every record of a version, and compare every checksum. Exit code 1 if something is damaged."""
    report = open_address(reference, option)[0].verify(reference)
    verdict = "all is well" if report.ok else count(len(report.problems), "problem")
    summary = f"{report.reference}: {verdict}: {count(report.records, 'record')} in {count(report.shards, 'shard')}"
    return Answer({**asdict(report), "ok": report.ok}, [*report.problems, summary], SUCCESS if report.ok else FINDING)


@command(
    "Check",
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
    return Answer({**asdict(difference), "same_data": same}, [str(difference)], SUCCESS if same else FINDING)
