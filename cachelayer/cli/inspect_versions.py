"""The commands that list, describe, check and compare versions, and show records: from ``ls`` to ``view``."""

from __future__ import annotations

import base64
import math
import re
import secrets
import webbrowser
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np

from cachelayer.cli.addresses import Address
from cachelayer.cli.app import command
from cachelayer.cli.exit_codes import ExitCode, code_of, finding_if
from cachelayer.cli.functions import load
from cachelayer.cli.output import Result, bold, cell, facts, table, text_of, version_document
from cachelayer.drawing.text import class_names, counted, leaf_text, named, shown_path, spec_rows
from cachelayer.errors import CacheLayerError, InvalidArgumentError
from cachelayer.specs import dtypes, spec_json, tree
from cachelayer.specs.values import Nullable, Ragged, Sparse
from cachelayer.statistics import survey
from cachelayer.storage.storage import Storage
from cachelayer.support.extras import packages_of
from cachelayer.versions.snapshot import Snapshot
from cachelayer.views.dataref import DataRef

_SHARDS_SHOWN = 10


@command("ls", "List", "gs://bucket/caches          # its datasets", "gs://bucket/caches/cifar10  # versions of one")
def list_storage(listed: tuple[Storage, Address | None]) -> Result:
    """List the datasets of a storage, or a dataset's versions and unfinished builds (STORAGE/ID), newest last."""
    storage, address = listed
    return _list_datasets(storage) if address is None else _list_versions(address)


def _list_datasets(storage: Storage) -> Result:
    document = []
    problems = []
    code = ExitCode.SUCCESS
    for dataset_id, head in storage._catalog.datasets().items():
        versions = list(head.versions.values()) if isinstance(head, Snapshot) else []
        problem = None
        if isinstance(head, CacheLayerError):
            problem = str(head)
            code = code_of(head)
            problems.append(f"{dataset_id} cannot be read: {problem}")
        newest = {"newest": versions[-1].version, **asdict(versions[-1])} if versions else {}
        document.append({**newest, "dataset_id": dataset_id, "versions": len(versions), "problem": problem})
    title = f"{storage.url} is a storage of {counted(len(document), 'dataset')}"
    shown = table(document, "dataset_id", "newest", "versions", "records", "nbytes", "time")
    return Result(document, [title, *shown, *problems], code)


def _list_versions(address: Address) -> Result:
    storage = address.storage
    builds = storage.builds(address.text)
    dataset_id = address.reference.dataset_id
    versions = address.versions()
    tags = storage.tags(dataset_id) if versions else {}
    document: list[dict[str, Any]] = [
        {"state": "published", **asdict(info), "tags": _tags_of(name, tags)} for name, info in versions.items()
    ]
    title = f"{dataset_id} is a dataset of {counted(len(versions), 'version')} in {storage.url}"
    if not versions:
        title = f"no version of {dataset_id} is published in {storage.url}"
    shown = [title, *table(document, "version", "records", "nbytes", "time", "digest", "tags")]
    if builds:
        shown += ["builds", *table(builds, "version", "state", "done", "total", "shards", "idle", "status")]
    # The newest version stays the last.
    return Result([*map(asdict, builds), *document], shown)


@command("log", "List", "gs://bucket/caches/cifar10")
def log(dataset: Address) -> Result:
    """Show the history of a dataset, oldest first: who published, tagged, copied or deleted what, and when."""
    events = dataset.storage.history(dataset.text)
    return Result(events, table(events, "sequence", "kind", "time", "user", "host", "details"))


def _tags_of(version: str, tags: Mapping[str, str]) -> list[str]:
    return sorted(tag for tag, name in tags.items() if name == version)


@command("show", "List", "gs://bucket/caches/cifar10", "cache/cifar10@sha256:3fcda2 --json | jq .provenance")
def show(reference: Address) -> Result:
    """Show a version: its element spec, counts, sizes, shards, tags and how it was made."""
    ref = reference.rows()
    manifest = ref._base.version.manifest
    tags = _tags_of(ref.dataset_version, reference.storage.tags(ref.dataset_id))
    about = {**version_document(ref), "tags": tags, "codec": manifest.rows.codec}
    shards = [{"name": shard.name, **asdict(shard.stats)} for shard in manifest.shards]
    spec = ["    " * depth + f"{name}: {text}" for depth, name, text in spec_rows(ref.raw().element_spec)]
    rows = table(shards[:_SHARDS_SHOWN], "records", "nbytes", "sha256", "name")
    more = [f"and {len(shards) - _SHARDS_SHOWN:,} more: --json shows all"] * (len(shards) > _SHARDS_SHOWN)
    provenance = {name: text_of(value) for name, value in ref.provenance.items() if value not in (None, "", [], {})}
    shown = [*facts((name, cell(name, value)) for name, value in about.items()), "", *spec, ""]
    return Result(
        {**about, "element_spec": spec_json.to_json(ref.element_spec), "shards": shards, "provenance": ref.provenance},
        [*shown, *rows, *more, "", *facts(provenance.items())],
    )


@command("head", "Inspect", "cache/cifar10@v2", "cache/cifar10 -n 20 --json | jq '.[].element.label'")
def head(ref: DataRef[Any], records: int = 5) -> Result:
    """Show the first records."""
    return _records(ref, list(range(min(records, len(ref)))))


@command("sample", "Inspect", "cache/cifar10@v2", "cache/cifar10@v2 -n 20 --seed 7")
def sample(ref: DataRef[Any], seed: int, records: int = 5) -> Result:
    """Show records drawn at random: the first ones of a stream shuffled with this seed."""
    return _records(ref, ref.stream(records, shuffle=True, seed=seed).record_numbers(0).tolist() if len(ref) else [])


@command("stats", "Inspect", "gs://bucket/rows --records 10000", "cache/cifar10 --json | jq '.leaves[].numbers.mean'")
def stats(ref: DataRef[Any], records: int | None, progress: bool | None) -> Result:
    """Show statistics of the records, or of a sample: sizes, ranges, lengths, nulls and histograms, in one pass."""
    statistics = survey(ref, records=records, progress=progress)
    return Result(statistics.to_json(), [str(statistics)])


def _records(ref: DataRef[Any], numbers: list[int]) -> Result:
    erased = set(ref.erased.tolist())
    numbers = [number for number in numbers if number not in erased]
    elements = ref.__getitems__(np.array(numbers, np.int64))
    names = class_names(ref.metadata)
    document = []
    shown = list[str]()
    for number, element in zip(numbers, elements, strict=True):
        document.append({"record": number, "element": element_json(element)})
        leaves = [
            (shown_path(path), f"{leaf_text(value)}  {named(names, path, value)}".rstrip())
            for path, value in tree.leaf_values(element)
        ]
        shown += [bold(f"record {number:,}"), *facts(leaves), ""]
    return Result(document, shown or ["no records"])


def element_json(value: Any) -> Any:
    """Convert an element to what JSON can hold: bytes as base64, NaN and complex numbers as text."""
    if isinstance(value, np.ndarray) and not value.ndim:
        value = value[()]
    elif isinstance(value, Sparse):
        value = {name: getattr(value, name) for name in ("dense_shape", "indices", "values")}
    elif tree.is_namedtuple(value):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {key: element_json(child) for key, child in value.items()}
    if isinstance(value, tuple | list | Ragged | Nullable | np.ndarray):
        return [element_json(child) for child in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if value is None or isinstance(value, str):
        return value
    plain = dtypes.plain_scalar(np.asarray(value))
    is_json = isinstance(plain, int | str) or (isinstance(plain, float) and math.isfinite(plain))
    return plain if is_json else str(plain)


@command("verify", "Check", "gs://bucket/caches/cifar10@v2", "cache/cifar10 --json || echo damaged")
def verify(whole: Address, progress: bool | None) -> Result:
    """Read every record of a version, and compare every checksum. Exit code 1 if something is damaged."""
    report = whole.storage.verify(whole.text, progress=progress)
    verdict = "all is well" if report.ok else counted(len(report.problems), "problem")
    summary = f"{report.reference}: {verdict}: {counted(report.records, 'record')} in {counted(report.shards, 'shard')}"
    shown = [*report.problems, *report.damaged, summary]
    if report.damaged:
        shown.append(f"to repair it: cachelayer repair {whole.text} --from STORAGE")
    return Result(report.to_json(), shown, finding_if(not report.ok))


@command("diff", "Check", "cache/docs@v1 cache/docs@v2 --key url", "cache/docs@v2 gs://bucket/caches/docs@v2 --no-rows")
def diff(ref: DataRef[Any], other: DataRef[Any], key: tuple[str, ...], rows: bool, progress: bool | None) -> Result:
    """Compare two versions: spec, counts, shards, provenance, and rows, by number or by a key.

    Exit code 1 if the data differ.
    """
    difference = ref.diff(other, key=key or None, rows=rows, progress=progress)
    return Result(difference.to_json(), [str(difference)], finding_if(not difference.same_data))


@command(
    "view",
    "Inspect",
    "cache",
    "gs://bucket/caches/cifar10@v2",
    "cache/tokens@v1 --detokenize tokens.py:decode",
    more=("host", "port", "root_path", "allowed_hosts"),
)
def view(
    viewed: tuple[Storage, Address | None],
    no_open: bool,
    detokenize: str | None,
    token_file: Path | None,
    **serving: Any,
) -> Result:
    """Show a storage as a page in the browser: versions, records, statistics, the order of training."""
    storage, address = viewed
    with packages_of("view", "the page needs Jinja2, Starlette and uvicorn"):
        from cachelayer.page.render import OpenVersions, path_of
        from cachelayer.page.server import PageServer
    open_versions = OpenVersions(storage, None if detokenize is None else load(detokenize))
    path = "/" if address is None else path_of(open_versions.ref(address.text, None))
    token = None if token_file is None else _token_in(token_file)
    server = PageServer(open_versions, token=token, **serving)
    url = server.url(path)
    # The browser shows the page, even if nobody reads the output.
    with suppress(OSError):
        click.echo(f"{url}\nCtrl-C ends it.")
    if not no_open:
        webbrowser.open(url)
    with suppress(KeyboardInterrupt):  # Ctrl-C is the usual way to end it
        server.run()
    return Result({"url": url})


def _token_in(file: Path) -> str:
    """Return the token in a file. If there is no such file, write a new token there."""
    try:
        with suppress(FileExistsError):
            file.touch(0o600, exist_ok=False)
            file.write_text(f"{secrets.token_urlsafe(24)}\n")
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"--token-file {file}: {error}") from error
    if not re.fullmatch(r"[A-Za-z0-9._~-]{16,}", token):
        raise InvalidArgumentError(f"--token-file {file}: a token is 16 or more of A-Z a-z 0-9 . _ ~ -")
    return token
