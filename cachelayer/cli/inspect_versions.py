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

from cachelayer.cli import options
from cachelayer.cli.addresses import Address, Pairs, open_place
from cachelayer.cli.app import command
from cachelayer.cli.exit_codes import ExitCode, code_of
from cachelayer.cli.functions import load
from cachelayer.cli.options import argument, flag, option
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
@argument("listed", "STORAGE[/ID]", "A path or a URL, or a dataset in it.")
@options.client_options
def list_storage(listed: str, option: Pairs) -> Result:
    """List the datasets of a storage, or a dataset's versions and unfinished builds (STORAGE/ID), newest last."""
    storage, address = open_place(listed, option)
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
        {"state": "published", **asdict(info), "tags": sorted(tag for tag, version in tags.items() if version == name)}
        for name, info in versions.items()
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
@argument("dataset", "STORAGE/ID", "A dataset in a storage.", type=options.ADDRESS)
@options.client_options
def log(dataset: Address) -> Result:
    """Show the history of a dataset, oldest first: who published, tagged, copied or deleted what, and when."""
    events = dataset.storage.history(dataset.text)
    return Result(events, table(events, "sequence", "kind", "time", "user", "host", "details"))


@command("show", "List", "gs://bucket/caches/cifar10", "cache/cifar10@sha256:3fcda2 --json | jq .provenance")
@options.reference
@options.storage_access
def show(reference: Address) -> Result:
    """Show a version: its element spec, counts, sizes, shards, tags and how it was made."""
    ref = reference.rows()
    tags = sorted(
        tag for tag, version in reference.storage.tags(ref.dataset_id).items() if version == ref.dataset_version
    )
    manifest = ref._base.version.manifest
    about = {**version_document(ref), "tags": tags, "codec": manifest.rows.codec}
    shards = [{"name": shard.name, **asdict(shard.stats)} for shard in manifest.shards]
    spec = "\n".join("    " * depth + f"{name}: {text}" for depth, name, text in spec_rows(ref.raw().element_spec))
    rows = table(shards[:_SHARDS_SHOWN], "records", "nbytes", "sha256", "name")
    more = [f"and {len(shards) - _SHARDS_SHOWN:,} more: --json shows all"] * (len(shards) > _SHARDS_SHOWN)
    provenance = {name: text_of(value) for name, value in ref.provenance.items() if value not in (None, "", [], {})}
    shown = [*facts((name, cell(name, value)) for name, value in about.items()), "", spec, ""]
    return Result(
        {**about, "element_spec": spec_json.to_json(ref.element_spec), "shards": shards, "provenance": ref.provenance},
        [*shown, *rows, *more, "", *facts(provenance.items())],
    )


@command("head", "Inspect", "cache/cifar10@v2", "cache/cifar10 -n 20 --json | jq '.[].element.label'")
@options.reference
@options.number_of_records(default=5)
@options.storage_access
def head(reference: Address, records: int) -> Result:
    """Show the first records."""
    ref = reference.rows()
    return _records(ref, list(range(min(records, len(ref)))))


@command("sample", "Inspect", "cache/cifar10@v2", "cache/cifar10@v2 -n 20 --seed 7")
@options.reference
@options.number_of_records(default=5)
@option("seed", "N", "The seed of the draw.", type=click.IntRange(0), default=0)
@options.storage_access
def sample(reference: Address, records: int, seed: int) -> Result:
    """Show records drawn at random: the first ones of a stream shuffled with this seed."""
    ref = reference.rows()
    numbers = ref.stream(records, shuffle=True, seed=seed).record_numbers(0).tolist() if len(ref) else []
    return _records(ref, numbers)


@command("stats", "Inspect", "gs://bucket/rows --records 10000", "cache/cifar10 --json | jq '.leaves[].numbers.mean'")
@options.reference
@options.number_of_records()
@options.storage_access
@options.progress
def stats(reference: Address, records: int | None, progress: bool | None) -> Result:
    """Show statistics of the records, or of a sample: sizes, ranges, lengths, nulls and histograms, in one pass."""
    statistics = survey(reference.rows(), records=records, progress=progress)
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
@options.whole_version
@options.client_options
@options.progress
def verify(whole: Address, progress: bool | None) -> Result:
    """Read every record of a version, and compare every checksum. Exit code 1 if something is damaged."""
    report = whole.storage.verify(whole.text, progress=progress)
    verdict = "all is well" if report.ok else counted(len(report.problems), "problem")
    summary = f"{report.reference}: {verdict}: {counted(report.records, 'record')} in {counted(report.shards, 'shard')}"
    shown = [*report.problems, *report.damaged, summary]
    if report.damaged:
        shown.append(f"to repair it: cachelayer repair {whole.text} --from STORAGE")
    return Result(report.to_json(), shown, ExitCode.SUCCESS if report.ok else ExitCode.FINDING)


@command("diff", "Check", "cache/docs@v1 cache/docs@v2 --key url", "cache/docs@v2 gs://bucket/caches/docs@v2 --no-rows")
@options.reference
@argument("other", "OTHER", "Another REFERENCE, also in another storage.")
@option("key", "FIELD", "Compare rows that have one value of this field, or of several.", multiple=True)
@option(
    "rows",
    None,
    "Compare rows; this reads the records that are not in shards of both.",
    "--rows/--no-rows",
    default=True,
)
@options.client_options
@options.to_client_options
@options.progress
def diff(
    reference: Address, other: str, key: tuple[str, ...], rows: bool, to_option: Pairs, progress: bool | None
) -> Result:
    """Compare two versions: spec, counts, shards, provenance, and rows, by number or by a key.

    Exit code 1 if the data differ.
    """
    another = Address.open(other, to_option).rows()
    difference = reference.rows().diff(another, key=key or None, rows=rows, progress=progress)
    return Result(
        difference.to_json(), [str(difference)], ExitCode.SUCCESS if difference.same_data else ExitCode.FINDING
    )


@command("view", "Inspect", "cache", "gs://bucket/caches/cifar10@v2", "cache/tokens@v1 --detokenize tokens.py:decode")
@argument("place", "STORAGE[/ID@VERSION]", "A storage, and the version to show first.")
@flag("no_open", "Only print the URL: open no browser.")
@option("detokenize", "MODULE:FUNCTION", "A function that turns a list of tokens into text.")
@options.client_options
@option("host", "ADDRESS", "Where to listen; others who know the URL can look there.", default="127.0.0.1")
@option("port", "N", "The port; 0 for a free one.", type=click.IntRange(0), default=0)
@option("root_path", "PATH", "What a proxy puts before every path, such as /data.", type=options.ROOT_PATH, default="")
@option(
    "allowed_hosts",
    "NAME",
    "A name of the server besides those of this machine.",
    "--allow-host",
    type=options.HOST_NAME,
    multiple=True,
)
@option("token_file", "FILE", "Holds the token of the URL; made if there is no such file.", type=options.PATH)
def view(
    place: str, no_open: bool, detokenize: str | None, option: Pairs, token_file: Path | None, **serving: Any
) -> Result:
    """Show a storage as a page in the browser: versions, records, statistics, the order of training."""
    # Records are read in ranges: a look at a bucket downloads no shard.
    storage, address = open_place(place, option, local_cache_bytes=0)
    with packages_of("view", "the page needs Jinja2, Starlette and uvicorn"):
        from cachelayer.page.render import OpenVersions, path_of
        from cachelayer.page.server import PageServer
    open_versions = OpenVersions(storage, None if detokenize is None else load(detokenize))
    path = "/"
    if address is not None:
        path = path_of(open_versions.ref(address.text, None))
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
