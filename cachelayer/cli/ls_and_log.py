"""The commands that list: ``ls`` for datasets and versions, ``log`` for their history."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType

from cachelayer.cli.addresses import Address, DatasetArgument, Options, StorageArgument, existing_storage, open_storage
from cachelayer.cli.command import command
from cachelayer.cli.output import FAILURE, WELL, Answer, count, table
from cachelayer.drawing.quantities import ago, size
from cachelayer.errors import CacheLayerError, DatasetNotFoundError, InvalidArgumentError
from cachelayer.storage.storage import Storage
from cachelayer.versions.snapshot import VersionInfo
from cachelayer.versions.unpublished import UnpublishedBuild, begun_datasets

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
        details = "  ".join(f"{name}={_text(value)}" for name, value in event.details.items())
        shown.add_row(str(event.sequence), event.kind, details, event.time, f"{event.user}@{event.host}")
    return Answer([asdict(event) for event in events], [shown, *builds])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
