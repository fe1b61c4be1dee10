"""The commands that make versions: ``build``, ``import`` and ``add-column``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from cachelayer.adapters import _named_files as named_files
from cachelayer.builds.shard_cuts import DEFAULT_SHARD_BYTES
from cachelayer.cli import user_function
from cachelayer.cli.addresses import (
    LocalCache,
    Options,
    ReferenceArgument,
    TargetArgument,
    json_or_text,
    nbytes,
    open_address,
    open_target,
)
from cachelayer.cli.command import command
from cachelayer.cli.output import Answer, version_answer
from cachelayer.errors import InvalidArgumentError
from cachelayer.objects.local import LocalStore
from cachelayer.storage.storage import Storage
from cachelayer.versions.reference import Reference

Compression = Annotated[str | None, typer.Option(metavar="KIND", help="Compress each record: zstd, or zstd:LEVEL.")]
ShardBytes = Annotated[str | None, typer.Option(metavar="SIZE", help="About how large a shard file gets: 256MB, 1GiB.")]
MaxRecords = Annotated[int | None, typer.Option(metavar="N", help="Take at most this many records.")]
OnError = Annotated[
    str, typer.Option(metavar="raise|skip", help="Fail at elements that do not fit, or leave them out.")
]
AllowEmpty = Annotated[bool, typer.Option("--allow-empty", help="Publish a version even if it has no records.")]
Description = Annotated[str | None, typer.Option(metavar="TEXT", help="A text to store with the version.")]
Metadata = Annotated[str | None, typer.Option(metavar="JSON", help="A JSON object to store with the version.")]
Workers = Annotated[int, typer.Option(metavar="N", help="Use N processes, if the source can be divided.")]
Engine = Annotated[
    str | None, typer.Option(metavar="processes|ray|beam", help="Build the parts of a source on this engine.")
]
Resume = Annotated[
    bool, typer.Option("--resume/--no-resume", help="Continue after what an interrupted run has finished.")
]


@command(
    "Build",
    "cachelayer build pipeline:train gs://bucket/caches/cifar10@v1",
    "cachelayer build pipelines/text.py:tokens cache/tokens@v3 --arg length=512 --compression zstd",
    "cachelayer build pipeline:train 'cache/cifar10@size-{size}' --arg size=32",
    "cachelayer build pipeline:train gs://bucket/caches/cifar10@v1 --engine ray",
)
def build(
    function: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="A function that returns a source, or FILE.py:FUNCTION.")
    ],
    target: TargetArgument,
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
    resume: Resume = True,
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
    given = locals()
    source = user_function.load(function)
    parts = {"unbatch": unbatch, "workers": workers, "engine": engine, "resume": resume, "record": record or ()}
    arguments = user_function.arguments(source, arg or ())
    storage, address = open_target(target, option, local_cache)
    return _publish(storage, address, source, arguments, {**_submit_options(given), **parts})


@command(
    "Build",
    "cachelayer import 'train-*.parquet' gs://bucket/caches/rows@v1",
    "cachelayer import part-0.jsonl part-1.jsonl cache/texts@v1 --compression zstd",
    "cachelayer import photos cache/pets@v1 --format images",
    name="import",
)
def import_(
    files: Annotated[
        list[str], typer.Argument(metavar="FILES...", help="Paths, 'patterns' or URLs of files, or one folder.")
    ],
    target: TargetArgument,
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
    given = locals()
    storage, address = open_target(target, option, local_cache)
    _refuse_own_folder(files, storage)
    arguments = {"kind": named_files.format_of(files, kind), "files": files}
    options = {**_submit_options(given), "record": tuple(arguments)}
    return _publish(storage, address, named_files.imported, arguments, options)


@command(
    "Build",
    "cachelayer add-column gs://bucket/caches/docs@v3 pipeline:quality --new v4 --workers 8",
    "cachelayer add-column cache/docs@v3 scores.parquet --new v4 --on url",
    name="add-column",
)
def add_column(
    reference: ReferenceArgument,
    columns: Annotated[
        list[str],
        typer.Argument(
            metavar="COLUMNS...",
            help="MODULE:FUNCTION or FILE.py:FUNCTION, which makes a dict of an element; or files of a table.",
        ),
    ],
    new: Annotated[str, typer.Option("--new", metavar="VERSION", help="The name of the new version.")],
    on: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="The table has a row for each value of this field."),
    ] = None,
    batched: Annotated[bool, typer.Option("--batched", help="The function takes batches.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace fields of the same names.")] = False,
    workers: Workers = 1,
    engine: Engine = None,
    resume: Resume = True,
    option: Options = None,
    local_cache: LocalCache = None,
) -> Answer:
    """Publish a version with more columns: those of a function, or of a table. No record is copied."""
    storage, address = open_address(reference, option, local_cache)
    place, _, name = columns[0].rpartition(":")
    is_function = len(columns) == 1 and place and name.isidentifier() and not Path(columns[0]).exists()
    source: Any = user_function.load(columns[0]) if is_function else columns
    how: dict[str, Any] = {
        "on": on,
        "batched": batched,
        "replace": replace,
        "workers": workers,
        "engine": engine,
        "resume": resume,
    }
    ref = storage.add_columns(address.dataset_id, address.name, new, source, **how)
    return version_answer(ref, "published")


def _refuse_own_folder(files: list[str], storage: Storage) -> None:
    """Raise if a folder of files holds the storage: its shards would be taken for files of the dataset."""
    store = storage._store
    for place in files if isinstance(store, LocalStore) else ():
        if "://" not in place and Path(store.url).is_relative_to(Path(place).expanduser().resolve()):
            raise InvalidArgumentError(
                f"{place!r} holds the storage {store.url}: name the files, or a storage outside of this folder"
            )


def _submit_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of :meth:`cachelayer.Storage.submit` out of the arguments of a command."""
    shard_bytes, metadata = given["shard_bytes"], given["metadata"]
    decoded = None if metadata is None else json_or_text(metadata)
    if decoded is not None and not isinstance(decoded, dict):
        raise InvalidArgumentError('--metadata takes a JSON object, such as \'{"split": "train"}\'')
    return {
        "shard_bytes": DEFAULT_SHARD_BYTES if shard_bytes is None else nbytes("--shard-bytes", shard_bytes),
        "metadata": decoded,
        **{name: given[name] for name in ("compression", "max_records", "on_error", "allow_empty", "description")},
    }


def _publish(
    storage: Storage,
    target: Reference,
    function: Callable[..., Any],
    arguments: dict[str, Any],
    options: dict[str, Any],
) -> Answer:
    is_built = False

    @functools.wraps(function)
    def noted(**given: Any) -> Any:
        nonlocal is_built
        is_built = True
        return function(**given)

    try:
        ref = storage.cacheable(target.dataset_id, target.name, **options)(noted)(**arguments)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "run the same command again: it continues after the shards that are finished, if any"
        ) from None
    how = "published" if is_built else "exists already, nothing was built"
    return version_answer(ref, how, built=is_built, left_out=ref.provenance.get("left_out"))
