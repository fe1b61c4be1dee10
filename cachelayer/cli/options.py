"""Arguments and options of commands: one table of their types and words, and how what they name is opened."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from cachelayer.adapters import _named_files as named_files
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


def pair(text: str) -> tuple[str, str]:
    """Parse the name and the value in ``size=3``."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        # The text may be a secret.
        raise typer.BadParameter("write NAME=VALUE")
    return name, value


def record_range(text: str) -> range:
    """Parse the number of a record, or a range such as ``100:200``."""
    start, colon, stop = text.partition(":")
    try:
        return range(int(start), int(stop) if colon else int(start) + 1)
    except ValueError:
        raise typer.BadParameter(f"{text!r}: pass the number of a record, or a range such as 100:200") from None


def _json_object(text: str) -> dict[str, Any]:
    value = json_or_text(text)
    if not isinstance(value, dict):
        raise typer.BadParameter('pass a JSON object, such as \'{"split": "train"}\'')
    return value


def json_or_text(text: str) -> Any:
    """Decode a text as JSON if possible, otherwise return it."""
    try:
        return json.loads(text)
    except ValueError:
        return text


REACH = "option local_cache"
DIVIDE = "workers engine resume"
SUBMIT = "compression shard_bytes max_records on_error allow_empty description metadata"


@dataclass(frozen=True)
class _Word:
    kind: Any
    default: Any
    names: tuple[str, ...]
    more: dict[str, Any]


def _word(kind: Any, metavar: str | None, text: str, *names: str, default: Any = None, **more: Any) -> _Word:
    return _Word(kind, default, names, {"metavar": metavar, "help": text, **more})


_VERSION = "its name, a tag, latest (default) or sha256:PREFIX"
# By name: the type, what stands for the value, the help, and the names on the command line if they are others.
_WORDS = {
    # What commands work on.
    "function": _word(str, "MODULE:FUNCTION", "A function that returns a source, or FILE.py:FUNCTION."),
    "files": _word(list[str], "FILES", "Paths, 'patterns' or URLs of files, or one folder."),
    "target": _word(str, "STORAGE/ID@VERSION", "The new version; its name never changes."),
    "reference": _word(str, "REFERENCE", f"STORAGE/ID@VERSION, the version by {_VERSION}; \\[a:b] slices it."),
    "whole": _word(str, "STORAGE/ID@VERSION", f"A whole version: {_VERSION}."),
    "other": _word(str, "OTHER", "Another REFERENCE, also in another storage."),
    "dataset": _word(str, "STORAGE/ID", "A dataset in a storage."),
    "storage": _word(str, "STORAGE", "A path, or a URL such as gs://bucket/prefix."),
    "listed": _word(str, "STORAGE[/ID]", "A path or a URL, or a dataset in it."),
    "place": _word(str, "STORAGE[/ID@VERSION]", "A storage, and the version to show first."),
    "to": _word(str, "STORAGE[/ID@VERSION]", "The target; by default with the same names."),
    "tag": _word(str, "TAG", "The tag; it moves if it named another version."),
    "new": _word(str, "VERSION", "The name of the new version."),
    "folder": _word(Path, "FOLDER", "The folder of the cache; by default a new one."),
    "numbers": _word(list[str], "RECORDS", "Numbers of records, or ranges such as 100:200.", parser=record_range),
    "columns": _word(
        list[str],
        "COLUMNS",
        "MODULE:FUNCTION or FILE.py:FUNCTION, which makes a dict of an element; or files of a table.",
    ),
    # Options of one or a few commands.
    "arg": _word(list[str], "NAME=VALUE", "An argument of the function.", parser=pair),
    "record": _word(list[str], "NAME", "Store this argument with the version in clear."),
    "kind": _word(str, "FORMAT", f"{', '.join(named_files.FORMATS)}; by default from the file names.", "--format"),
    "on": _word(str, "FIELD", "The table has a row for each value of this field."),
    "batched": _word(bool, None, "The function takes batches."),
    "replace": _word(bool, None, "Replace fields of the same names."),
    "records": _word(int, "N", "How many records to read.", "--records", "-n", min=1),
    "seed": _word(int, "N", "The seed of the draw."),
    "delete": _word(bool, None, "Remove the tag; the version is then not named: STORAGE/ID."),
    "shuffle_seed": _word(int, "N", "Shuffle the records with this seed; else they keep their order."),
    "field": _word(list[str], "NAME", "Keep only this field, such as image or meta/url."),
    "force": _word(bool, None, "Delete a version that has tags, with its tags."),
    "yes": _word(bool, None, "Do not ask for confirmation.", "--yes", "-y"),
    "grace": _word(
        Any, "TIME", "How long to keep files that others may still use: 30m, 24h, 7d; 0 for none.", parser=seconds
    ),
    "reason": _word(str, "TEXT", "Why; it is stored, and shown for the old digest."),
    "dry_run": _word(bool, None, "Delete nothing: list what would be deleted."),
    "clear": _word(bool, None, "Remove all copies that no program uses."),
    "no_open": _word(bool, None, "Only print the URL: open no browser."),
    "port": _word(int, "N", "The port; 0 for a free one."),
    "host": _word(
        str, "ADDRESS", "The address to listen on. With another than 127.0.0.1, others who know the URL can look."
    ),
    "detokenize": _word(str, "MODULE:FUNCTION", "A function that turns a list of tokens into text."),
    # Options that commands pass on: they have their defaults here.
    "workers": _word(int, "N", "Use N processes, if the source can be divided.", default=1),
    "engine": _word(str, "processes|ray|beam", "Build the parts of a source on this engine."),
    "resume": _word(
        bool, None, "Continue after what an interrupted run has finished.", "--resume/--no-resume", default=True
    ),
    "compression": _word(str, "KIND", "none, zstd or zstd:LEVEL, for each record."),
    "shard_bytes": _word(
        str,
        "SIZE",
        "About how large a shard file gets: 256MB, 1GiB.",
        default=f"{DEFAULT_SHARD_BYTES >> 20}MiB",
        parser=nbytes,
    ),
    "unbatch": _word(bool, None, "Take batches of the source apart into records.", default=False),
    "max_records": _word(int, "N", "Take at most this many records."),
    "on_error": _word(str, "raise|skip", "Fail at elements that do not fit, or leave them out.", default="raise"),
    "allow_empty": _word(bool, None, "Publish a version even if it has no records.", default=False),
    "description": _word(str, "TEXT", "A text to store with the version."),
    "metadata": _word(str, "JSON", "A JSON object to store with the version.", parser=_json_object),
    "option": _word(list[str], "KEY=VALUE", "An option of the storage's client.", "--option", "-o", parser=pair),
    "to_option": _word(list[str], "KEY=VALUE", "An option of the second storage's client.", parser=pair),
    "local_cache": _word(Path, "FOLDER", "The folder for local copies of remote shards."),
    "as_json": _word(bool, None, "Print one JSON document, for scripts.", "--json", default=False),
    "show_traceback": _word(bool, None, "Show where in the code an error was raised.", "--traceback", default=False),
}


def parameters(function: Callable[..., Any], options: str) -> list[Parameter]:
    """Return the parameters of a command as typer takes them.

    Args:
        function: what it takes by position are arguments, and its keywords options, with their defaults.
        options: names of more options, whose defaults are in the table; it may take them as ``**options``.
    """
    own = [one for one in signature(function).parameters.values() if one.kind != Parameter.VAR_KEYWORD]
    shared = options.split()
    return [
        *(_parameter(one.name, one.default, one.kind) for one in own if one.name not in shared),
        *(_parameter(name, _WORDS[name].default, Parameter.KEYWORD_ONLY) for name in shared),
    ]


def _parameter(name: str, default: Any, kind: Any) -> Parameter:
    word = _WORDS[name]
    # With its name, a flag gets no --no-flag.
    names = word.names or (f"--{name.replace('_', '-')}",)
    is_option = kind == Parameter.KEYWORD_ONLY
    how = typer.Option(*names, **word.more) if is_option else typer.Argument(**word.more)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[word.kind, how])


def storage_options(option: Sequence[tuple[str, str]] | None) -> dict[str, Any]:
    """Return the options of a storage's client. Values are JSON if possible, otherwise text."""
    return {name: json_or_text(value) for name, value in option or ()}


def open_storage(url: str, option: Sequence[tuple[str, str]] | None = None, **where: Any) -> Storage:
    """Open a storage that exists."""
    storage = Storage(url, storage_options=storage_options(option), **where)
    is_local = isinstance(storage._store, LocalStore)
    if "@" in url.rstrip("/").rpartition("/")[2] or (is_local and not Path(storage.url).is_dir()):
        raise InvalidArgumentError(
            f"{without_credentials(url)!r} is no storage: name the folder or the URL that builds publish to"
        )
    return storage


def open_address(text: str, option: Sequence[tuple[str, str]] | None = None, **where: Any) -> tuple[Storage, str]:
    """Open the storage of a text such as ``gs://bucket/caches/cifar10@v2``; its methods take the text, as returned."""
    text = text.rstrip("/")
    url = Reference.split(text).url
    if not url:
        raise InvalidArgumentError(
            f"{without_credentials(text)!r} names no dataset: write STORAGE/ID, or STORAGE/ID@VERSION"
        )
    return Storage(url, storage_options=storage_options(option), **where), text


def open_place(text: str, option: Sequence[tuple[str, str]] | None, **where: Any) -> tuple[Storage, str | None]:
    """Open what a text names: a dataset or a version, as :func:`open_address` does, or else a storage."""
    with suppress(InvalidArgumentError, DatasetNotFoundError):
        storage, address = open_address(text, option, **where)
        if "@" not in address:
            # It raises if there is no dataset, nor a build of one.
            storage.builds(Reference.split(address).dataset_id)
        return storage, address
    return open_storage(text, option, **where), None


def only_dataset(text: str) -> str:
    """Return the id of the dataset that a text names, if it names no version of it."""
    reference = Reference.split(text)
    if reference.name is not None or reference.rows is not None:
        raise InvalidArgumentError(f"{without_credentials(text)!r} is a version: name only the dataset, STORAGE/ID")
    return reference.dataset_id
