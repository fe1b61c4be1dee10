"""The options and arguments of commands. A decorator declares an option once, with the type of its value."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from cachelayer.adapters import _named_files as named_files
from cachelayer.errors import CacheLayerError, InvalidArgumentError
from cachelayer.specs import dtypes
from cachelayer.specs.spec import ArraySpec, JsonSpec
from cachelayer.support.arguments import byte_count, quantity
from cachelayer.versions import DEFAULT_SHARD_BYTES

F = TypeVar("F", bound=Callable[..., Any])

_TYPES = {"int": "int64", "float": "float64", "text": "str", "string": "str"}
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Parsed(click.ParamType):  # type: ignore[type-arg]
    """The type of an option whose text a function reads."""

    name = "text"

    def __init__(self, read: Callable[[str], Any]) -> None:
        self._read = read

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._read(value)
        except CacheLayerError as error:
            self.fail(str(error), param, ctx)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        # The text may be a secret.
        raise InvalidArgumentError("write NAME=VALUE")
    return name, value


def _record_range(text: str) -> range:
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text, re.ASCII)
    numbers = range(int(match[1]), int(match[2] or int(match[1]) + 1)) if match else range(0)
    if not numbers:
        raise InvalidArgumentError(f"{text!r}: pass the number of a record, or a range such as 100:200")
    return numbers


def _path(text: str) -> Path:
    if not text.strip():
        raise InvalidArgumentError("write a path")
    return Path(text)


def _root_path(text: str) -> str:
    steps = text.strip("/")
    if not re.fullmatch(r"[A-Za-z0-9._~/-]*", steps) or "//" in steps:
        raise InvalidArgumentError(f"{text!r}: write the beginning of a path, such as /data")
    return f"/{steps}" if steps else ""


def _host_name(text: str) -> str:
    # It is compared with names that have no port and no path.
    if not re.fullmatch(r"[A-Za-z0-9._-]+", text):
        raise InvalidArgumentError(f"{text!r}: write the name alone, such as train.example.com")
    return text.removesuffix(".")


def _hosts(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text, re.ASCII)
    if match is None or not int(match[1]) < int(match[2]):
        raise InvalidArgumentError(f"{text!r}: write INDEX/COUNT, such as 0/4 for the first of four hosts")
    return int(match[1]), int(match[2])


def _typed_field(text: str) -> tuple[str, Any]:
    name, kind = _pair(text)
    if kind == "json":
        return name, JsonSpec()
    try:
        return name, ArraySpec(dtypes.from_name(_TYPES.get(kind, kind)))
    except CacheLayerError:
        raise InvalidArgumentError(
            f"{text!r}: the type is a dtype such as float32, int64 or bool, or str, bytes or json"
        ) from None


ADDRESS = click.types.StringParamType()
"""The type of arguments that the decorator of commands opens, as an :class:`Address`."""
NBYTES = Parsed(byte_count)
SECONDS = Parsed(partial(quantity, units=_SECONDS))
PAIR = Parsed(_pair)
PATH = Parsed(_path)
RECORDS = Parsed(_record_range)
ROOT_PATH = Parsed(_root_path)
HOST_NAME = Parsed(_host_name)


def json_or_text(text: str) -> Any:
    """Decode a text as JSON if possible, otherwise return it."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def once(option: str, pairs: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    """Return pairs of names and values. No name may come twice."""
    twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if twice:
        raise InvalidArgumentError(f"{option} {twice[0]} is given twice: which of the values is meant?")
    return pairs


class Argument(click.Argument):
    """An argument that the help of its command explains, as Click's own are from 8.5 on."""

    def __init__(self, *args: Any, help: str, **settings: Any) -> None:  # noqa: A002
        super().__init__(*args, **settings)
        self.help = help

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:  # noqa: ARG002
        return str(self.metavar), str(self.help)


def argument(name: str, metavar: str, text: str, **settings: Any) -> Callable[[F], F]:
    """Declare an argument of a command."""
    return click.argument(name, cls=Argument, metavar=metavar, help=text, **settings)


def flag(name: str, text: str, *names: str) -> Callable[[F], F]:
    """Declare an option without a value."""
    return click.option(*names or (f"--{name.replace('_', '-')}",), name, is_flag=True, help=text)


def option(name: str, metavar: str | None, text: str, *names: str, **settings: Any) -> Callable[[F], F]:
    """Declare an option with a value. It is spelled like its name, or in the ways of ``names``."""
    return click.option(*names or (f"--{name.replace('_', '-')}",), name, metavar=metavar, help=text, **settings)


def options(*declared: Callable[[F], F]) -> Callable[[F], F]:
    """Declare several options, in this order."""

    def decorate(function: F) -> F:
        for declare in reversed(declared):
            function = declare(function)
        return function

    return decorate


_VERSION = "its name, a tag, latest (default) or sha256:PREFIX"

# What commands name.
reference = argument(
    "reference", "REFERENCE", f"STORAGE/ID@VERSION, the version by {_VERSION}; [a:b] slices it.", type=ADDRESS
)
whole_version = argument("whole", "STORAGE/ID@VERSION", f"A whole version: {_VERSION}.", type=ADDRESS)
target = argument("target", "STORAGE/ID@VERSION", "The new version; its name never changes.", type=ADDRESS)

# How a storage is reached.
client_options = option(
    "option", "KEY=VALUE", "An option of the storage's client.", "--option", "-o", type=PAIR, multiple=True
)
to_client_options = option(
    "to_option", "KEY=VALUE", "An option of the second storage's client.", type=PAIR, multiple=True
)
from_client_options = option(
    "from_option", "KEY=VALUE", "An option of the client of the storage after --from.", type=PAIR, multiple=True
)
local_cache = option("local_cache", "FOLDER", "The folder for local copies of remote shards.", type=PATH)
storage_access = options(client_options, local_cache)

progress = option(
    "progress",
    None,
    "Show the progress, or nothing; by default in a terminal, elsewhere a line every half minute.",
    "--progress/--no-progress",
    default=None,
)

# How a version is written.
_SHARD_BYTES = f"{DEFAULT_SHARD_BYTES >> 20}MiB"


shard_bytes = option("shard_bytes", "SIZE", "The size of a shard.", type=NBYTES, default=_SHARD_BYTES)
parallel_build = options(
    option("workers", "N", "Use N processes, if the source can be divided.", type=click.IntRange(1), default=1),
    option(
        "engine",
        None,
        "Build the parts of a source on this engine.",
        type=click.Choice(["processes", "ray", "beam"]),
    ),
    option("resume", None, "Go on after an interrupted run.", "--resume/--no-resume", default=True),
    progress,
)


compression = option(
    "compression", "KIND", "none, zstd or zstd:LEVEL, for each record; by default as the base, if there is one."
)
record_options = options(
    option("unbatch", None, "Take batches of the source apart into records.", is_flag=True, default=False),
    compression,
    shard_bytes,
    option("max_records", "N", "Take at most this many records.", type=click.IntRange(0)),
    option(
        "on_error",
        None,
        "Fail at elements that do not fit, or leave them out.",
        type=click.Choice(["raise", "skip"]),
        default="raise",
    ),
)
build_hosts = option(
    "hosts",
    "INDEX/COUNT",
    "Build with other hosts that run this command: 0/4 on the first of four.",
    type=Parsed(_hosts),
)
build_options = options(
    record_options,
    parallel_build,
    build_hosts,
    flag("allow_empty", "Publish a version even if it has no records."),
    option("description", "TEXT", "A text to store with the version."),
    option("metadata", "JSON", "A JSON object to store with the version.", type=Parsed(json_or_text)),
)
arguments = option("arg", "NAME=VALUE", "An argument of the function.", type=PAIR, multiple=True)
file_format = option("kind", "FORMAT", f"{', '.join(named_files.FORMATS)}; by default from the file names.", "--format")
field_types = option(
    "types",
    "FIELD=TYPE",
    "The type of a field, such as age=float32; those of other fields are as in the files.",
    "--type",
    type=Parsed(_typed_field),
    multiple=True,
)
add_column_options = options(
    option("on", "FIELD", "The table has a row for each value of this field, or of several fields.", multiple=True),
    option(
        "how",
        None,
        "Each record must find its row, or may find none.",
        type=click.Choice(["inner", "left"]),
        default="inner",
    ),
    option("fill", "NAME=VALUE", "The value of a column where a record finds no row.", type=PAIR, multiple=True),
    flag("batched", "The function takes batches."),
    flag("replace", "Replace fields of the same names."),
    parallel_build,
    build_hosts,
)
rewrite_options = options(
    option(
        "shuffle_seed",
        "N",
        "Shuffle the records with this seed, or keep their order.",
        type=click.IntRange(0),
    ),
    option("fields", "NAME", "Keep only this field, such as image or meta/url.", "--field", multiple=True),
    shard_bytes,
    parallel_build,
    build_hosts,
)

# How bytes are freed.
yes = flag("yes", "Do not ask for confirmation.", "--yes", "-y")
now = flag("now", "Delete the files at once, though other programs may be reading them.")
grace = option(
    "grace", "TIME", "Keep what was written within this time: 30m, 24h, 7d; 0 for none.", type=SECONDS, default="24h"
)


def number_of_records(**settings: Any) -> Callable[[F], F]:
    """Declare the number of records that are read."""
    text = "How many records to read, at most."
    return option("records", "N", text, "--records", "-n", type=click.IntRange(1), **settings)
