"""Arguments and options of commands: one table of those that several take, and what they are converted to."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from cachelayer.access.dataref import DataRef
from cachelayer.builds.shard_cuts import DEFAULT_SHARD_BYTES
from cachelayer.errors import DatasetNotFoundError, InvalidArgumentError
from cachelayer.objects.local import LocalStore
from cachelayer.objects.open_store import without_credentials
from cachelayer.storage.storage import Storage
from cachelayer.versions.reference import Reference

_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII)
_BYTES = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BYTES |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def _quantity(text: str, units: dict[str, int], expected: str) -> float:
    match = _NUMBER.fullmatch(text.strip().lower())
    if match is None or match[2] not in units:
        raise typer.BadParameter(f"{text!r}: pass {expected}")
    return float(match[1]) * units[match[2]]


def nbytes(text: str) -> int:
    """Parse a size: ``256MB``, ``1.5GiB``, ``4096``."""
    return int(_quantity(text, _BYTES, "bytes such as 4096, 256MB or 1GiB"))


def seconds(text: str) -> float:
    """Parse a time: ``90``, ``30m``, ``24h``, ``7d``."""
    return _quantity(text, _SECONDS, "a time such as 90s, 30m, 24h or 7d")


def _json_object(text: str) -> dict[str, Any]:
    value = json_or_text(text)
    if not isinstance(value, dict):
        raise typer.BadParameter('pass a JSON object, such as \'{"split": "train"}\'')
    return value


StorageArgument = Annotated[str, typer.Argument(metavar="STORAGE", help="A path, or a URL such as gs://bucket/prefix.")]
ReferenceArgument = Annotated[
    str,
    typer.Argument(
        metavar="REFERENCE",
        help="STORAGE/ID@VERSION. The version is a name, a tag, latest (default) or sha256:PREFIX; \\[a:b] slices it.",
    ),
]
WholeArgument = Annotated[
    str,
    typer.Argument(
        metavar="STORAGE/ID@VERSION",
        help="A whole version: its name, a tag, latest (default) or sha256:PREFIX.",
    ),
]
TargetArgument = Annotated[
    str, typer.Argument(metavar="STORAGE/ID@VERSION", help="The new version; its name never changes.")
]
DatasetArgument = Annotated[str, typer.Argument(metavar="STORAGE/ID", help="A dataset in a storage.")]
_KEY_VALUE = "KEY=VALUE"
_GRACE = "How long files stay for current readers: 30m, 24h, 7d; 0 for none."

# By name: the type, the default, and how it is written.
_TABLE: dict[str, tuple[Any, Any, Any]] = {
    "option": (
        list[str] | None,
        None,
        typer.Option("--option", "-o", metavar=_KEY_VALUE, help="An option of the storage's client."),
    ),
    "to_option": (
        list[str] | None,
        None,
        typer.Option(metavar=_KEY_VALUE, help="An option of the second storage's client."),
    ),
    "local_cache": (
        Path | None,
        None,
        typer.Option(metavar="FOLDER", help="The folder for local copies of remote shards.", show_default=False),
    ),
    "compression": (
        str | None,
        None,
        typer.Option(metavar="KIND", help="Compress each record: zstd, or zstd:LEVEL."),
    ),
    "shard_bytes": (
        Any,
        f"{DEFAULT_SHARD_BYTES >> 20}MiB",
        typer.Option(metavar="SIZE", parser=nbytes, help="About how large a shard file gets: 256MB, 1GiB."),
    ),
    "max_records": (int | None, None, typer.Option(metavar="N", help="Take at most this many records.")),
    "on_error": (
        str,
        "raise",
        typer.Option(metavar="raise|skip", help="Fail at elements that do not fit, or leave them out."),
    ),
    "allow_empty": (bool, False, typer.Option("--allow-empty", help="Publish a version even if it has no records.")),
    "description": (str | None, None, typer.Option(metavar="TEXT", help="A text to store with the version.")),
    "metadata": (
        Any,
        None,
        typer.Option(metavar="JSON", parser=_json_object, help="A JSON object to store with the version."),
    ),
    "workers": (int, 1, typer.Option(metavar="N", help="Use N processes, if the source can be divided.")),
    "engine": (
        str | None,
        None,
        typer.Option(metavar="processes|ray|beam", help="Build the parts of a source on this engine."),
    ),
    "resume": (
        bool,
        True,
        typer.Option("--resume/--no-resume", help="Continue after what an interrupted run has finished."),
    ),
    "yes": (bool, False, typer.Option("--yes", "-y", help="Do not ask for confirmation.")),
    "grace": (Any, "24h", typer.Option(metavar="TIME", parser=seconds, help=_GRACE)),
    "records": (int, 5, typer.Option("--records", "-n", min=1, metavar="N", help="How many records to show.")),
    "as_json": (bool, False, typer.Option("--json", help="Print one JSON document, for scripts.")),
    "show_traceback": (bool, False, typer.Option("--traceback", help="Show where in the code an error was raised.")),
}
OPTIONS = {
    name: Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, how])
    for name, (kind, default, how) in _TABLE.items()
}
REACH = "option local_cache"
DIVIDE = "workers engine resume"
SUBMIT = "compression shard_bytes max_records on_error allow_empty description metadata"


def storage_options(options: Sequence[str] | None) -> dict[str, Any]:
    """Parse ``KEY=VALUE`` options. Values are JSON if possible, otherwise text."""
    pairs = (split_pair("--option", option) for option in options or ())
    return {name: json_or_text(value) for name, value in pairs}


def split_pair(option: str, text: str) -> tuple[str, str]:
    """Return the name and the value of an argument such as ``size=3``."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InvalidArgumentError(f"{option} is written as NAME=VALUE")
    return name, value


def json_or_text(text: str) -> Any:
    """Decode a text as JSON if possible, otherwise return it."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def open_storage(url: str, option: Sequence[str] | None) -> Storage:
    """Open the storage that an argument names."""
    parent, _, name = url.rstrip("/").rpartition("/")
    if "@" in name:
        raise InvalidArgumentError(
            f"{without_credentials(url)!r} names a version: here a storage is asked for, such as "
            f"{without_credentials(parent or '.')!r}"
        )
    return Storage(url, storage_options=storage_options(option))


def existing_storage(url: str, option: Sequence[str] | None) -> Storage:
    storage = open_storage(url, option)
    if isinstance(storage._store, LocalStore) and not storage._store.root.is_dir():
        raise InvalidArgumentError(f"there is nothing at {url}: name the folder that builds publish to")
    return storage


def open_address(text: str, option: Sequence[str] | None, local_cache: Path | None = None) -> tuple[Storage, Reference]:
    """Open the storage of a text such as ``gs://bucket/caches/cifar10@v2``, and return what the text names in it."""
    reference = Reference.split(text.rstrip("/"))
    if not reference.url:
        raise InvalidArgumentError(
            f"{without_credentials(text)!r} names no dataset: write STORAGE/ID, or STORAGE/ID@VERSION"
        )
    storage = Storage(reference.url, local_cache=local_cache, storage_options=storage_options(option))
    return storage, reference


def open_target(text: str, option: Sequence[str] | None, local_cache: Path | None = None) -> tuple[Storage, Reference]:
    """Open the storage of a version that is to be made: ``STORAGE/ID@VERSION``."""
    storage, target = open_address(text, option, local_cache)
    if target.name is None or target.rows is not None:
        raise InvalidArgumentError(f"{without_credentials(text)!r} names no new version: write STORAGE/ID@VERSION")
    return storage, target


def open_place(text: str, option: Sequence[str] | None) -> tuple[Storage, Reference | None]:
    """Open what an argument names: a dataset or a version, or else a storage."""
    with suppress(InvalidArgumentError, DatasetNotFoundError):
        storage, reference = open_address(text, option)
        if reference.name is None:
            storage.versions(reference.dataset_id)
        return storage, reference
    return existing_storage(text, option), None


def open_reference(text: str, option: Sequence[str] | None, local_cache: Path | None = None) -> DataRef[Any]:
    """Open the version, or the slice of one, that an argument names."""
    return open_address(text, option, local_cache)[0].fetch(text.rstrip("/"))
