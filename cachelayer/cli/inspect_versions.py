"""The commands that list, describe, check and compare versions, and show records: from ``ls`` to ``diff``."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from cachelayer.access.dataref import DataRef
from cachelayer.cli.app import command
from cachelayer.cli.build_and_import import versions_of
from cachelayer.cli.options import REACH, only_dataset, open_address, open_place
from cachelayer.cli.output import (
    FAILURE,
    FINDING,
    SUCCESS,
    Answer,
    cell,
    count,
    facts,
    table,
    text_of,
    version_document,
)
from cachelayer.drawing.text import class_names, leaf_text, named, shown_path, spec_rows
from cachelayer.errors import CacheLayerError
from cachelayer.records import dtypes, spec_json, tree
from cachelayer.records.values import Ragged, Sparse
from cachelayer.statistics import survey
from cachelayer.storage.storage import Storage
from cachelayer.versions.snapshot import VersionInfo

_SHARDS_SHOWN = 10


@command(
    "List",
    "cachelayer ls gs://bucket/caches            # its datasets",
    "cachelayer ls gs://bucket/caches/cifar10    # the versions of one",
    options="option",
)
def ls(listed: str, *, option: Any) -> Answer:
    """List the datasets of a storage, or a dataset's versions and unfinished builds (STORAGE/ID), newest last."""
    storage, dataset = open_place(listed, option)
    return _list_datasets(storage) if dataset is None else _list_versions(storage, only_dataset(dataset))


def _list_datasets(storage: Storage) -> Answer:
    rows, problems = [], dict[str, str]()
    for dataset_id in storage.datasets():
        versions = list[VersionInfo]()
        try:
            versions += storage.versions(dataset_id).values()
        except CacheLayerError as error:
            problems[dataset_id] = str(error)
        newest = versions[-1] if versions else None
        about = {"records": newest.records, "nbytes": newest.nbytes, "published": newest.time} if newest else {}
        rows.append({"dataset_id": dataset_id, "newest": newest and newest.version, "versions": len(versions), **about})
    document = [{**row, "problem": problems.get(str(row["dataset_id"]))} for row in rows]
    shown = table(rows) if rows else f"no dataset in {storage.url}"
    lines = [f"{dataset_id} cannot be read: {problem}" for dataset_id, problem in problems.items()]
    return Answer(document, [shown, *lines], FAILURE if problems else SUCCESS)


def _list_versions(storage: Storage, dataset_id: str) -> Answer:
    builds, versions = storage.builds(dataset_id), versions_of(storage, dataset_id)
    tags = storage.tags(dataset_id) if versions else {}
    rows = []
    for name, info in versions.items():
        tagged = sorted(tag for tag, version in tags.items() if version == name)
        about = {"version": name, "records": info.records, "nbytes": info.nbytes, "published": info.time}
        rows.append({**about, "digest": info.digest, "tags": tagged})
    shown = table(rows) if rows else f"no version of {dataset_id} is published"
    names = ("version", "state", "shards", "records", "nbytes", "idle")
    running = [{name: getattr(build, name) for name in names} for build in builds]
    return Answer(rows, [shown, "builds", table(running)] if running else [shown])


@command("List", "cachelayer log gs://bucket/caches/cifar10", options="option")
def log(dataset: str, *, option: Any) -> Answer:
    """Show the history of a dataset, oldest first: who published, tagged, copied or deleted what, and when."""
    storage, text = open_address(dataset, option)
    events = storage.history(only_dataset(text))
    rows = [
        {
            "entry": event.sequence,
            "what": event.kind,
            "": event.details,
            "when": event.time,
            "who": f"{event.user}@{event.host}",
        }
        for event in events
    ]
    return Answer(events, [table(rows)])


@command(
    "List",
    "cachelayer show gs://bucket/caches/cifar10",
    "cachelayer show cache/cifar10@v2",
    "cachelayer show cache/cifar10@sha256:3fcda2 --json | jq .provenance",
    options=REACH,
)
def show(reference: str, **reach: Any) -> Answer:
    """Show a version: its element spec, counts, sizes, shards, tags and how it was made."""
    storage, text = open_address(reference, **reach)
    ref = storage.fetch(text)
    tags = sorted(tag for tag, version in storage.tags(ref.dataset_id).items() if version == ref.dataset_version)
    manifest = ref._base.version.manifest
    about = {**version_document(ref), "tags": tags, "codec": manifest.codec}
    shards = [{"name": shard.name, **asdict(shard.stats)} for shard in manifest.shards]
    spec = "\n".join("    " * depth + f"{name}: {text}" for depth, name, text in spec_rows(ref.raw().element_spec))
    rows = [{name: shard[name] for name in ("name", "records", "nbytes", "sha256")} for shard in shards[:_SHARDS_SHOWN]]
    more = [f"and {len(shards) - _SHARDS_SHOWN:,} more: --json shows all"] * (len(shards) > _SHARDS_SHOWN)
    made = {name: text_of(value) for name, value in ref.provenance.items() if value not in (None, "", [], {})}
    shown: list[RenderableType] = [facts((name, cell(name, value)) for name, value in about.items()), "", spec, ""]
    return Answer(
        {**about, "element_spec": spec_json.to_json(ref.element_spec), "shards": shards, "provenance": ref.provenance},
        [*shown, *[table(rows)] * bool(rows), *more, "", facts(made.items())],
    )


@command(
    "Inspect",
    "cachelayer head cache/cifar10@v2",
    "cachelayer head cache/cifar10 -n 20 --json | jq '.[].element.label'",
    options=REACH,
)
def head(reference: str, *, records: int = 5, **reach: Any) -> Answer:
    """Show the first records."""
    ref = _open(reference, **reach)
    return _records(ref, list(range(min(records, len(ref)))))


@command(
    "Inspect",
    "cachelayer sample cache/cifar10@v2",
    "cachelayer sample cache/cifar10@v2 -n 20 --seed 7",
    options=REACH,
)
def sample(reference: str, *, records: int = 5, seed: int = 0, **reach: Any) -> Answer:
    """Show records drawn at random: the first ones of a stream shuffled with this seed."""
    ref = _open(reference, **reach)
    drawn = ref.stream(records, shuffle=True, seed=seed).records(0).tolist() if len(ref) else []
    return _records(ref, drawn)


@command(
    "Inspect",
    "cachelayer stats cache/cifar10@v2",
    "cachelayer stats gs://bucket/caches/rows --records 10000    # of a sample",
    "cachelayer stats cache/cifar10 --json | jq '.leaves[].numbers.mean'",
    options=REACH,
)
def stats(reference: str, *, records: int | None = None, **reach: Any) -> Answer:
    """Show statistics of the records, or of a sample: sizes, ranges, lengths, nulls and histograms, in one pass."""
    statistics = survey(_open(reference, **reach), records=records)
    return Answer(statistics.to_json(), [Text(str(statistics))])


def _open(reference: str, option: Any, **where: Any) -> DataRef[Any]:
    storage, text = open_address(reference, option, **where)
    return storage.fetch(text)


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


def element_json(value: Any) -> Any:
    """Convert an element to what JSON can hold: bytes as base64, NaN and the infinities as ``float`` reads them."""
    if isinstance(value, np.ndarray) and not value.ndim:
        value = value[()]
    elif isinstance(value, Sparse):
        value = {name: getattr(value, name) for name in ("dense_shape", "indices", "values")}
    elif tree.is_namedtuple(value):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {key: element_json(child) for key, child in value.items()}
    if isinstance(value, tuple | list | Ragged | np.ndarray):
        return [element_json(child) for child in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if value is None or isinstance(value, str):
        return value
    plain = dtypes.plain_scalar(np.asarray(value))
    if isinstance(plain, complex):
        return [element_json(plain.real), element_json(plain.imag)]
    return str(plain) if isinstance(plain, float) and not math.isfinite(plain) else plain


@command(
    "Check",
    "cachelayer verify gs://bucket/caches/cifar10@v2",
    "cachelayer verify cache/cifar10 --json || echo damaged",
    options="option",
)
def verify(whole: str, *, option: Any) -> Answer:
    """Read every record of a version, and compare every checksum. Exit code 1 if something is damaged."""
    storage, text = open_address(whole, option)
    report = storage.verify(text)
    verdict = "all is well" if report.ok else count(len(report.problems), "problem")
    summary = f"{report.reference}: {verdict}: {count(report.records, 'record')} in {count(report.shards, 'shard')}"
    return Answer({"ok": report.ok, **asdict(report)}, [*report.problems, summary], SUCCESS if report.ok else FINDING)


@command(
    "Check",
    "cachelayer diff cache/cifar10@v1 cache/cifar10@v2",
    "cachelayer diff cache/cifar10@v2 gs://bucket/caches/cifar10@v2",
    options="option to_option",
)
def diff(reference: str, other: str, *, option: Any, to_option: Any) -> Answer:
    """Compare two versions: spec, counts, shards, provenance. Exit code 1 if the data differ."""
    difference = _open(reference, option).diff(_open(other, to_option))
    return Answer(difference, [str(difference)], SUCCESS if difference.same_data else FINDING)
