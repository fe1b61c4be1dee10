"""The pages of a storage, a dataset, a version, and the difference of two versions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from cachelayer.access.dataref import DataRef
from cachelayer.errors import CacheLayerError, DatasetNotFoundError, StorageError
from cachelayer.json_values import flattened
from cachelayer.objects import paths
from cachelayer.provenance.environment import OF_COMPARISONS
from cachelayer.records import tree
from cachelayer.records.spec import LeafSpec
from cachelayer.storage.storage import Storage
from cachelayer.system_threads import Pool
from cachelayer.versions.log import Log, has_log
from cachelayer.versions.reference import Reference
from cachelayer.versions.snapshot import VersionInfo
from cachelayer.versions.unfinished import UnpublishedBuild, unpublished
from cachelayer.view.render import Shelf, page

_THREADS = 32
_EVENTS = 200
_SHARDS = 20
_SPEC_ROWS = 2000
_CHOICES = 100


@dataclass(frozen=True)
class DatasetRow:
    """A dataset in the list: its versions and builds, or why it cannot be listed, with the error of the storage."""

    dataset_id: str
    versions: int = 0
    newest: VersionInfo | None = None
    builds: Sequence[UnpublishedBuild] = ()
    problem: str = ""
    error: StorageError | None = None


@dataclass(frozen=True)
class SpecRow:
    """A node of an element spec: how deep it is, its name, and its spec."""

    depth: int
    name: str
    spec: str


def shelf_of(request: Request) -> Shelf:
    """Return the shelf that the application shows."""
    shelf: Shelf = request.app.state.shelf
    return shelf


def ref_of(request: Request) -> DataRef[Any]:
    """Return the version that a path names."""
    return shelf_of(request).ref(request.path_params["dataset"], request.path_params["version"])


def storage(request: Request) -> Response:
    """List the datasets, and the builds that are running or were interrupted."""
    shelf = shelf_of(request)
    names = [name for name in shelf.storage._store.names("") if paths.is_dataset_id(name)]
    with Pool(_THREADS, "cachelayer-view") as threads:
        rows = [row for row in threads.map(lambda name: _row(shelf, name), names) if row is not None]
    if rows and all(row.error is not None for row in rows):
        raise next(row.error for row in rows if row.error is not None)
    return page("storage.html", url=shelf.storage.url, rows=rows)


def _row(shelf: Shelf, name: str) -> DatasetRow | None:
    """Return the row of a folder; None if it is somebody else's."""
    store = shelf.storage._store
    is_dataset = False
    try:
        is_dataset = has_log(store, name)
        # The error that a dataset does not exist would list all datasets.
        versions = list(Log(store, name).head().versions.values()) if is_dataset else []
        builds = unpublished(store, name)
        if not versions and not builds:
            return None
        return DatasetRow(name, len(versions), versions[-1] if versions else None, builds)
    except StorageError as error:
        # A folder that this user may not read is somebody else's.
        if not is_dataset and isinstance(error.__cause__, PermissionError):
            return None
        return DatasetRow(name, problem=str(error), error=error)
    except CacheLayerError as error:
        return DatasetRow(name, problem=str(error))


@dataclass(frozen=True)
class Published:
    """The versions of a dataset, and its builds that are not published."""

    versions: dict[str, VersionInfo]
    builds: list[UnpublishedBuild]


def _published(storage: Storage, name: str) -> Published:
    """Return the versions and the builds of a dataset.

    Raises:
        DatasetNotFoundError: if it has neither.
    """
    builds = unpublished(storage._store, paths.check_name("dataset id", name))
    try:
        return Published(storage.versions(name), builds)
    except DatasetNotFoundError:
        if not builds:
            raise
        # Its first build is running or was interrupted.
        return Published({}, builds)


def dataset(request: Request) -> Response:
    """Show the versions of a dataset, its tags, builds and history."""
    storage, name = shelf_of(request).storage, request.path_params["dataset"]
    published = _published(storage, name)
    versions, tags = published.versions, storage.tags(name) if published.versions else {}
    tagged = {version: sorted(tag for tag, of in tags.items() if of == version) for version in versions}
    last = Log(storage._store, name).head().sequence
    events = storage.history(name)[::-1] if 0 < last <= _EVENTS else []
    newest = list(versions.values())[::-1]
    return page(
        "dataset.html",
        url=storage.url,
        dataset_id=name,
        versions=newest,
        builds=published.builds,
        tagged=tagged,
        events=events,
        entries=last,
    )


def version(request: Request) -> Response:
    """Show a version: spec, sizes, provenance, digest, and the line of Python that opens it."""
    storage, ref = shelf_of(request).storage, ref_of(request)
    manifest = ref._base.version.manifest
    tags = sorted(tag for tag, of in storage.tags(ref.dataset_id).items() if of == ref.dataset_version)
    return page(
        "version.html",
        ref=ref,
        records=len(ref),
        stored_records=manifest.shard_records,
        tags=tags,
        codec=manifest.codec,
        shards=manifest.shards[:_SHARDS],
        shard_count=len(manifest.shards),
        spec=list(islice(spec_rows("element", ref.raw().element_spec), _SPEC_ROWS)),
        provenance=list(_facts(ref.provenance)),
        python=f"ref = cachelayer.open({ref.reference!r})",
    )


def spec_rows(name: str, spec: Any, depth: int = 0) -> Iterator[SpecRow]:
    """Yield the nodes of an element spec, each before its children."""
    if spec is None or isinstance(spec, LeafSpec):
        yield SpecRow(depth, name, "None" if spec is None else spec.describe() + " or None" * spec.nullable)
        return
    yield SpecRow(depth, name, type(spec).__name__)
    for step, child in tree.children(spec):
        yield from spec_rows(step[2:-2] if step.startswith(("['", '["')) else step, child, depth + 1)


def _facts(provenance: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what a provenance says, with the keys of nested dicts joined by dots."""
    shown = {name: value for name, value in provenance.items() if name not in OF_COMPARISONS}
    for name, value in flattened(shown):
        if value not in (None, [], "", {}):
            yield name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def diff(request: Request) -> Response:
    """Compare two versions of the storage, named as ``<dataset id>@<version>``."""
    shelf = shelf_of(request)
    one, other = (request.query_params.get(name, "").strip() for name in ("one", "other"))
    found = shelf.ref(one, None).diff(shelf.ref(other, None)) if one and other else None
    return page("diff.html", one=one, other=other, found=found, known=_known(shelf, one or other))


def _known(shelf: Shelf, reference: str) -> list[str]:
    """Return versions of the dataset that a reference names, the newest first, to choose from."""
    if not reference:
        return []
    name = Reference.parse(reference, None).dataset_id
    return [f"{name}@{version}" for version in list(shelf.storage.versions(name))[::-1][:_CHOICES]]
