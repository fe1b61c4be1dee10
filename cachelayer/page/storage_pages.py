"""The pages of a storage, of a dataset, of a version, and of the difference of two versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from cachelayer.drawing.drawn_records import DrawnLeaf, drawn_records
from cachelayer.drawing.text import spec_rows
from cachelayer.errors import CacheLayerError, DatasetNotFoundError
from cachelayer.page.distributions import SMALL_NBYTES, SMALL_RECORDS
from cachelayer.page.render import OpenVersions, open_versions_of, page, ref_of
from cachelayer.storage.storage import Storage
from cachelayer.support.json_values import flattened
from cachelayer.support.system_threads import Pool
from cachelayer.versions.notes import UnpublishedBuild, begun_datasets
from cachelayer.versions.reference import Reference
from cachelayer.versions.snapshot import VersionInfo
from cachelayer.views.dataref import DataRef

_THREADS = 32
_EVENTS = 200
_SHARDS = 20
_SPEC_ROWS = 2000
_CHOICES = 100
_THUMBNAILS = 6
_THUMBNAIL_NBYTES = 1 << 20


@dataclass(frozen=True)
class DatasetRow:
    """A dataset in the list of a storage."""

    dataset_id: str
    versions: Sequence[VersionInfo] = ()
    """The versions, the newest last."""
    builds: Sequence[UnpublishedBuild] = ()
    problem: str = ""
    """Why the dataset cannot be read; empty if it can."""
    thumbnails: Sequence[DrawnLeaf] = ()
    """Some leaves of the newest version."""


def storage(request: Request) -> Response:
    """List the datasets, and the builds that are running or were interrupted."""
    open_versions = open_versions_of(request)
    storage = open_versions.storage
    published = storage.datasets()
    names = sorted([*published, *begun_datasets(storage._store, published)])
    with Pool(_THREADS, "cachelayer-view") as threads:
        rows = list(threads.map(lambda name: _row(open_versions, name), names))
    return page("storage.html", url=storage.url, rows=rows)


def _row(open_versions: OpenVersions, name: str) -> DatasetRow:
    try:
        versions, builds = _published(open_versions.storage, name)
        return DatasetRow(name, versions, builds, thumbnails=_thumbnails(open_versions, name) if versions else ())
    except CacheLayerError as error:
        return DatasetRow(name, problem=str(error))


def _thumbnails(open_versions: OpenVersions, name: str) -> list[DrawnLeaf]:
    """Return pictures of the first records, or, if they have none, leaves of the first record."""
    ref = open_versions.ref(name, "latest")
    numbers = range(min(_THUMBNAILS, len(ref)))
    drawn = [
        record.leaves
        for record in drawn_records(ref.raw(), numbers, open_versions.draw_options(ref, 48, 8), _THUMBNAIL_NBYTES)
    ]
    pictures = [leaf for leaves in drawn for leaf in leaves if leaf.kind == "picture"]
    return pictures[:_THUMBNAILS] or [leaf for leaves in drawn[:1] for leaf in leaves[:3]]


def _published(storage: Storage, name: str) -> tuple[list[VersionInfo], list[UnpublishedBuild]]:
    """Return the versions and the builds of a dataset."""
    builds = storage.builds(name)
    try:
        return list(storage.versions(name).values()), builds
    except DatasetNotFoundError:
        # The first build of the dataset is running or was interrupted.
        return [], builds


def dataset(request: Request) -> Response:
    """Show the versions of a dataset, its tags, builds and history."""
    storage = open_versions_of(request).storage
    name = request.path_params["dataset"]
    versions, builds = _published(storage, name)
    events = storage.history(name)[::-1] if versions else []
    return page(
        "dataset.html",
        dataset_id=name,
        versions=versions[::-1],
        builds=builds,
        tags=storage.tags(name) if versions else {},
        events=events[:_EVENTS],
        more_events=len(events) - _EVENTS,
    )


def version(request: Request) -> Response:
    """Show a version: spec, sizes, provenance, digest, and the line of Python that opens it."""
    storage = open_versions_of(request).storage
    ref = ref_of(request)
    manifest = ref._base.version.manifest
    spec = list(spec_rows(ref.raw().element_spec))
    return page(
        "version.html",
        ref=ref,
        stored_records=manifest.rows.records,
        tags=storage.tags(ref.dataset_id),
        codec=manifest.rows.codec,
        shards=manifest.shards[:_SHARDS],
        shard_count=len(manifest.shards),
        spec=spec[:_SPEC_ROWS],
        more_spec=len(spec) - _SPEC_ROWS,
        provenance=[pair for pair in flattened(dict(ref.provenance)) if pair[1] not in (None, [], "", {})],
        python=f"ref = cachelayer.open({ref.reference!r})",
    )


def diff(request: Request) -> Response:
    """Compare two versions of the storage, named as ``<dataset id>@<version>``.

    Their rows are compared if the versions are small, or the query asks for it.
    """
    open_versions = open_versions_of(request)
    query = request.query_params
    one, other, key = (query.get(name, "").strip() for name in ("one", "other", "key"))
    difference = None
    refs = list[DataRef[Any]]()
    if one and other:
        refs += open_versions.ref(one, None), open_versions.ref(other, None)
        is_small = all(len(ref) <= SMALL_RECORDS and ref.nbytes <= SMALL_NBYTES for ref in refs)
        fields = [name.strip() for name in key.split(",")] if key else None
        rows = bool(fields or is_small or query.get("rows"))
        difference = refs[0].diff(refs[1], key=fields, rows=rows, progress=False)
    known = []
    if one or other:
        name = Reference.parse(one or other).dataset_id
        known = [f"{name}@{version}" for version in list(open_versions.storage.versions(name))[::-1][:_CHOICES]]
    return page("diff.html", one=one, other=other, key=key, difference=difference, refs=refs, known=known)
