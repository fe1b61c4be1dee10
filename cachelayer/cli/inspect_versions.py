"""The commands that list, describe, check and compare versions: ``ls``, ``log``, ``show``, ``verify``, ``diff``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.tree import Tree as RichTree

from cachelayer.access.dataref import DataRef
from cachelayer.cli.addresses import (
    Address,
    DatasetArgument,
    LocalCache,
    Options,
    ReferenceArgument,
    StorageArgument,
    ToOptions,
    existing_storage,
    open_reference,
    open_storage,
)
from cachelayer.cli.command import command
from cachelayer.cli.output import FAILURE, FINDING, WELL, Answer, count, facts, table
from cachelayer.drawing.text import ago, size
from cachelayer.errors import CacheLayerError, DatasetNotFoundError, InvalidArgumentError
from cachelayer.json_values import flattened
from cachelayer.provenance.environment import OF_COMPARISONS
from cachelayer.records import spec_json, tree
from cachelayer.records.spec import EncodedSpec, LeafSpec
from cachelayer.storage.storage import Storage
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.snapshot import VersionInfo
from cachelayer.versions.unfinished import UnpublishedBuild, begun_datasets
from cachelayer.versions.verify import VerifyReport

_NUMBERS = ("versions", "shards", "records", "size")


@command(
    "cachelayer ls gs://bucket/caches            # its datasets",
    "cachelayer ls gs://bucket/caches/cifar10    # the versions of one",
)
def ls(place: StorageArgument, option: Options = None) -> Answer:
    """List the datasets of a storage, or a dataset's versions and unfinished builds (STORAGE/ID), newest last."""
    storage = existing_storage(place, option)
    dataset = _dataset(place, option)
    if dataset is None:
        return _datasets(storage)
    storage, dataset_id = dataset
    return _versions(storage, dataset_id)


def _dataset(place: str, option: Options) -> tuple[Storage, str] | None:
    """Return the storage and the dataset that an address names; None if it names a storage."""
    try:
        address = Address.parse(place)
        storage = open_storage(address.url, option)
        if not _builds(storage, address.dataset_id):
            storage.versions(address.dataset_id)
    except (InvalidArgumentError, DatasetNotFoundError):
        return None
    return storage, address.dataset_id


def _datasets(storage: Storage) -> Answer:
    problems: dict[str, str] = {}
    datasets = {dataset_id: _known(storage, dataset_id, problems) for dataset_id in storage.datasets()}
    shown = table("dataset", "newest", "versions", "records", "size", "published", right=_NUMBERS)
    for dataset_id, versions in datasets.items():
        newest = next(reversed(versions.values()), None)
        shown.add_row(dataset_id, newest.version if newest else "-", count(len(versions)), *_columns(newest))
    document = [
        {
            "dataset_id": dataset_id,
            "versions": len(versions),
            "newest": _newest(versions),
            "problem": problems.get(dataset_id),
        }
        for dataset_id, versions in datasets.items()
    ]
    begun = begun_datasets(storage._store, datasets)
    lines = [f"{dataset_id} cannot be read: {problem}" for dataset_id, problem in problems.items()]
    lines += [_begun(f"{storage.url}/{dataset_id}", builds) for dataset_id, builds in begun.items()]
    code = FAILURE if problems else WELL
    return Answer(document, [shown if datasets else f"no dataset in {storage.url}", *lines], code)


def _known(storage: Storage, dataset_id: str, problems: dict[str, str]) -> dict[str, VersionInfo]:
    """Return the versions of a dataset; if it cannot be read, none, and add the problem."""
    try:
        return storage.versions(dataset_id)
    except CacheLayerError as error:
        problems[dataset_id] = str(error)
        return {}


def _begun(url: str, builds: Sequence[UnpublishedBuild]) -> str:
    """Return a line about a dataset that has builds, but no version."""
    states = Counter(build.state for build in builds)
    counted = ", ".join(f"{number} {state}" for state, number in states.items())
    return f"{url}: no version is published; builds: {counted}"


def _newest(versions: dict[str, VersionInfo]) -> dict[str, Any] | None:
    newest = next(reversed(versions.values()), None)
    return None if newest is None else asdict(newest)


def _columns(info: VersionInfo | None) -> tuple[str, ...]:
    return ("-", "-", "-") if info is None else (count(info.records), size(info.nbytes), info.time)


def _builds(storage: Storage, dataset_id: str) -> list[RenderableType]:
    """Return a table of the builds that are running or were interrupted; nothing if there are none."""
    builds = storage.builds(dataset_id)
    shown = table("build of", "state", "shards", "records", "size", "began", "last seen", "", right=_NUMBERS)
    for each in builds:
        records = "-" if each.records is None else count(each.records)
        numbers = count(each.shards), records, size(each.nbytes)
        times = "-" if each.age is None else ago(each.age), ago(each.idle)
        can = "" if each.can_be_resumed else "cannot be resumed"
        shown.add_row(each.version or each.attempt, each.state, *numbers, *times, each.status or can)
    return [shown] if builds else []


def _versions(storage: Storage, dataset_id: str) -> Answer:
    try:
        versions, tags = storage.versions(dataset_id), storage.tags(dataset_id)
    except DatasetNotFoundError:
        # The first build of it is running or was interrupted.
        versions, tags = {}, {}
    named = {name: sorted(tag for tag, version in tags.items() if version == name) for name in versions}
    shown = table("version", "records", "size", "published", "digest", "tags", right=_NUMBERS)
    for name, info in versions.items():
        shown.add_row(name, *_columns(info), f"sha256:{info.digest[:12]}", ", ".join(named[name]))
    document = [{**asdict(info), "tags": named[name]} for name, info in versions.items()]
    published = shown if versions else f"no version of {dataset_id} is published"
    return Answer(document, [published, *_builds(storage, dataset_id)])


@command("cachelayer log gs://bucket/caches/cifar10")
def log(dataset: DatasetArgument, option: Options = None) -> Answer:
    """Show the history of a dataset, oldest first: who published, tagged, copied or deleted what, and when."""
    address = Address.parse(dataset)
    if address.version is not None or address.rows is not None:
        raise InvalidArgumentError(f"{dataset!r} is a version: name only the dataset, STORAGE/ID")
    storage = open_storage(address.url, option)
    builds = _builds(storage, address.dataset_id)
    try:
        events = storage.history(address.dataset_id)
    except DatasetNotFoundError:
        # Its first build is running or was interrupted: nothing has happened yet.
        events = []
    shown = table("entry", "what", "", "when", "who", right=("entry",))
    for event in events:
        details = "  ".join(f"{name}={_one_line(value)}" for name, value in event.details.items())
        shown.add_row(str(event.sequence), event.kind, details, event.time, f"{event.user}@{event.host}")
    return Answer([asdict(event) for event in events], [shown, *builds])


def _one_line(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


_SHARDS_SHOWN = 10


@command(
    "cachelayer show gs://bucket/caches/cifar10",
    "cachelayer show cache/cifar10@v2",
    "cachelayer show cache/cifar10@sha256:3fcda2 --json | jq .provenance",
)
def show(reference: ReferenceArgument, option: Options = None, local_cache: LocalCache = None) -> Answer:
    """Show a version: its element spec, counts, sizes, shards, tags and how it was made."""
    address = Address.parse(reference)
    storage = open_storage(address.url, option, local_cache)
    whole = storage.fetch(address.name)
    ref = whole if address.rows is None else whole[address.rows]
    tags = sorted(tag for tag, version in storage.tags(ref.dataset_id).items() if version == ref.dataset_version)
    return Answer(_document(ref, tags), _shown(ref, tags))


def _document(ref: DataRef[Any], tags: list[str]) -> dict[str, Any]:
    manifest = ref._base.version.manifest
    return {
        "reference": ref.reference,
        "dataset_id": ref.dataset_id,
        "version": ref.dataset_version,
        "tags": tags,
        "digest": ref.digest,
        "records": len(ref),
        "nbytes": ref.nbytes,
        "codec": manifest.codec,
        "element_spec": spec_json.to_json(ref.element_spec),
        "shards": [{"name": shard.name, **asdict(shard.stats)} for shard in manifest.shards],
        "provenance": ref.provenance,
    }


def _shown(ref: DataRef[Any], tags: list[str]) -> list[RenderableType]:
    manifest = ref._base.version.manifest
    rows = [
        ("dataset", ref.dataset_id),
        ("version", ref.dataset_version),
        ("tags", ", ".join(tags) or "none"),
        ("records", _records(ref)),
        ("size", f"{size(ref.nbytes)} in {count(len(manifest.shards), 'shard')}"),
        ("codec", manifest.codec),
        ("digest", f"sha256:{ref.digest}"),
        ("reference", ref.reference),
    ]
    return [facts(rows), "", spec_tree(ref.raw().element_spec), "", _shards(manifest), "", _provenance(ref.provenance)]


def _records(ref: DataRef[Any]) -> str:
    stored = ref._base.version.manifest.shard_records
    return count(len(ref)) if len(ref) == stored else f"{count(len(ref))} of {count(stored)} in the shards"


def spec_tree(spec: Any) -> RichTree:
    """Draw an element spec as a tree."""
    root = RichTree(_label("element", spec))
    _grow(root, spec)
    return root


def _grow(branch: RichTree, spec: Any) -> None:
    if spec is None or isinstance(spec, LeafSpec):
        return
    for step, child in tree.children(spec):
        name = step[2:-2] if step.startswith(("['", '["')) else step
        _grow(branch.add(_label(name, child)), child)


def _label(name: str, spec: Any) -> str:
    if spec is None or isinstance(spec, LeafSpec):
        decoded = f", decoded to {spec.decoded!r}" if isinstance(spec, EncodedSpec) else ""
        return f"{name}: {spec!r}{decoded}"
    kind = type(spec).__name__ if tree.is_namedtuple(spec) else type(spec).__name__.lower()
    return f"{name}: {kind}"


def _shards(manifest: Manifest) -> RenderableType:
    shown = table("shard", "records", "size", "sha256 of the records", right=("records", "size"))
    for shard in manifest.shards[:_SHARDS_SHOWN]:
        stats = shard.stats
        shown.add_row(shard.name, count(stats.records), size(stats.nbytes), stats.sha256[:12])
    more = len(manifest.shards) - _SHARDS_SHOWN
    if more > 0:
        shown.add_row(f"and {count(more)} more: --json shows all")
    return shown


def _provenance(provenance: Mapping[str, Any]) -> RenderableType:
    shown = {name: value for name, value in provenance.items() if name not in OF_COMPARISONS}
    return facts((name, _text(value)) for name, value in shown.items() if value not in (None, {}, []))


def _text(value: Any) -> str:
    """Format a value. A dict has a line for each key, with dots in the keys of nested dicts."""
    if isinstance(value, dict):
        return "\n".join(f"{name} = {_text(item)}" for name, item in flattened(value) if item != {})
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


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
