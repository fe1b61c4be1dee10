"""The commands that make versions: ``build`` and ``import``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any

import typer

from cachelayer.access.dataref import DataRef
from cachelayer.adapters import _named_files as named_files
from cachelayer.builds.shard_cuts import DEFAULT_SHARD_BYTES
from cachelayer.cli import user_function
from cachelayer.cli.addresses import LocalCache, Options, StorageArgument, json_or_text, nbytes, open_storage
from cachelayer.cli.command import command
from cachelayer.cli.output import Answer, count
from cachelayer.drawing.text import size
from cachelayer.errors import CacheLayerError, InvalidArgumentError
from cachelayer.storage.storage import Storage

Id = Annotated[str, typer.Option("--id", metavar="ID", help="The id of the dataset.")]
Version = Annotated[
    str, typer.Option("--version", metavar="VERSION", help="The name of the version, which never changes.")
]
Compression = Annotated[str | None, typer.Option(metavar="KIND", help="Compress each record: zstd, or zstd:LEVEL.")]
ShardBytes = Annotated[str | None, typer.Option(metavar="SIZE", help="About how large a shard file gets: 256MB, 1GiB.")]
MaxRecords = Annotated[int | None, typer.Option(metavar="N", help="Take at most this many records.")]
Workers = Annotated[int, typer.Option(metavar="N", help="Build with N processes, if the source can be divided.")]
Engine = Annotated[
    str | None,
    typer.Option(metavar="processes|ray|beam", help="Build the parts of a source on this engine."),
]
OnError = Annotated[
    str, typer.Option(metavar="raise|skip", help="Fail at elements that do not fit, or leave them out.")
]
AllowEmpty = Annotated[bool, typer.Option("--allow-empty", help="Publish a version even if it has no records.")]
Description = Annotated[str | None, typer.Option(metavar="TEXT", help="A text to store with the version.")]
Metadata = Annotated[str | None, typer.Option(metavar="JSON", help="A JSON object to store with the version.")]


@command(
    "cachelayer build pipeline:train gs://bucket/caches --id cifar10 --version v1",
    "cachelayer build pipelines/text.py:tokens cache --id tokens --version v3 --arg length=512 --compression zstd",
    "cachelayer build pipeline:train cache --id cifar10 --version 'size-{size}' --arg size=32",
    "cachelayer build pipeline:train gs://bucket/caches --id cifar10 --version v1 --engine ray",
)
def build(
    function: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="A function that returns a source, or FILE.py:FUNCTION.")
    ],
    storage: StorageArgument,
    dataset_id: Id,
    version: Version,
    arg: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="An argument of the function.")] = None,
    record: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Store this argument with the version in clear.")
    ] = None,
    compression: Compression = None,
    shard_bytes: ShardBytes = None,
    max_records: MaxRecords = None,
    unbatch: Annotated[bool, typer.Option("--unbatch", help="Take batches of the source apart into records.")] = False,
    workers: Workers = 1,
    engine: Engine = None,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Continue after what an interrupted build has finished.")
    ] = True,
    on_error: OnError = "raise",
    allow_empty: AllowEmpty = False,
    description: Description = None,
    metadata: Metadata = None,
    option: Options = None,
    local_cache: LocalCache = None,
) -> Answer:
    """Call a function that returns a source, and publish its elements as a version.

    A version that exists is not built again: its arguments and code are compared.
    """
    target = open_storage(storage, option, local_cache)
    source_function = user_function.load(function)
    arguments = user_function.arguments(source_function, arg or ())
    options = _options(compression, shard_bytes, max_records, on_error, allow_empty, description, metadata)
    return _published(
        target,
        dataset_id,
        version,
        source_function,
        arguments,
        {
            **options,
            "unbatch": unbatch,
            "workers": workers,
            "engine": engine,
            "resume": resume,
            "record": record or (),
        },
    )


@command(
    "cachelayer import 'train-*.parquet' gs://bucket/caches --id rows --version v1",
    "cachelayer import part-0.jsonl part-1.jsonl cache --id texts --version v1 --compression zstd",
    "cachelayer import photos cache --id pets --version v1 --format images",
)
def import_(
    files: Annotated[
        list[str], typer.Argument(metavar="FILES...", help="Paths, 'patterns' or URLs of files, or one folder.")
    ],
    storage: StorageArgument,
    dataset_id: Id,
    version: Version,
    kind: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="FORMAT", help=f"{', '.join(named_files.FORMATS)}; by default from the file names."
        ),
    ] = None,
    compression: Compression = None,
    shard_bytes: ShardBytes = None,
    max_records: MaxRecords = None,
    on_error: OnError = "raise",
    allow_empty: AllowEmpty = False,
    description: Description = None,
    metadata: Metadata = None,
    option: Options = None,
    local_cache: LocalCache = None,
) -> Answer:
    """Publish the records of files as a version: TFRecord, Parquet, Arrow, WebDataset, CSV, JSON lines, a folder."""
    target = open_storage(storage, option, local_cache)
    chosen = named_files.format_of(files, kind)
    options = _options(compression, shard_bytes, max_records, on_error, allow_empty, description, metadata)
    arguments = {"kind": chosen, "files": files}
    recorded = {**options, "record": tuple(arguments)}
    return _published(target, dataset_id, version, named_files.imported, arguments, recorded)


def _options(
    compression: str | None,
    shard_bytes: str | None,
    max_records: int | None,
    on_error: str,
    allow_empty: bool,
    description: str | None,
    metadata: str | None,
) -> dict[str, Any]:
    """Return the options of :meth:`cachelayer.Storage.submit` that were typed."""
    return {
        "compression": compression,
        "shard_bytes": DEFAULT_SHARD_BYTES if shard_bytes is None else nbytes("--shard-bytes", shard_bytes),
        "max_records": max_records,
        "on_error": on_error,
        "allow_empty": allow_empty,
        "description": description,
        "metadata": _object("--metadata", metadata),
    }


def _object(name: str, text: str | None) -> dict[str, Any] | None:
    value = None if text is None else json_or_text(text)
    if value is not None and not isinstance(value, dict):
        raise InvalidArgumentError(f'{name} takes a JSON object, such as \'{{"split": "train"}}\'')
    return value


def _published(
    storage: Storage,
    dataset_id: str,
    version: str,
    function: Callable[..., Any],
    arguments: dict[str, Any],
    options: dict[str, Any],
) -> Answer:
    calls: list[None] = []

    @functools.wraps(function)
    def called(**given: Any) -> Any:
        calls.append(None)
        return function(**given)

    try:
        ref = storage.cacheable(dataset_id, version, **options)(called)(**arguments)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_after_interrupt(storage, dataset_id, version)) from None
    return _answer(ref, built=bool(calls))


def _after_interrupt(storage: Storage, dataset_id: str, version: str) -> str:
    try:
        published = version in storage.versions(dataset_id)
    except CacheLayerError:
        published = False
    if published:
        return f"{dataset_id}@{version} is published nevertheless"
    return (
        f"{dataset_id}@{version} is not published; run the same command again: it continues after the "
        "shards that are finished, if any"
    )


def _answer(ref: DataRef[Any], *, built: bool) -> Answer:
    name = f"{ref.dataset_id}@{ref.dataset_version}"
    left_out = ref.provenance.get("left_out")
    document = {
        "reference": ref.reference,
        "dataset_id": ref.dataset_id,
        "version": ref.dataset_version,
        "digest": ref.digest,
        "built": built,
        "records": len(ref),
        "nbytes": ref.nbytes,
        "left_out": left_out,
    }
    how = "published" if built else "exists already, nothing was built"
    return Answer(document, [f"{name} {how}: {count(len(ref), 'record')}, {size(ref.nbytes)}", ref.reference])
