"""The parameters of commands: a function that is a command has those that its own parameters name.

::

    def head(ref: DataRef[Any], records: int = 5) -> Result      $ cachelayer head REFERENCE -n 5
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import click

from cachelayer.adapters import _named_files as named_files
from cachelayer.cli.addresses import Address, open_copy, open_place, open_rows, open_storage, open_target
from cachelayer.errors import CacheLayerError, InvalidArgumentError
from cachelayer.specs import dtypes
from cachelayer.specs.spec import ArraySpec, JsonSpec
from cachelayer.support.arguments import byte_count, quantity
from cachelayer.versions import DEFAULT_SHARD_BYTES

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


class Opened(click.types.StringParamType):
    """The type of a text that a command gets opened, with options that the command does not see."""

    def __init__(self, opens: Callable[..., Any], client: str = "option", *, has_copies: bool = True) -> None:
        self.opens = opens
        self.options = {"storage_options": client} | ({"local_cache": "local_cache"} if has_copies else {})
        """The option for each keyword."""


class Argument(click.Argument):
    """An argument that the help of its command explains, as Click's own are from 8.5 on."""

    def __init__(self, *args: Any, help: str, **settings: Any) -> None:  # noqa: A002
        super().__init__(*args, **settings)
        self.help = help

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:  # noqa: ARG002
        return str(self.metavar), str(self.help)


def parameters_of(function: Callable[..., Any], more: Iterable[str]) -> list[click.Parameter]:
    """Return the parameters of a command: those that its function names, more, and the options of what is opened."""
    declared = []
    for name, param in signature(function).parameters.items():
        if param.kind is not Parameter.VAR_KEYWORD:
            declared.append(copy(_PARAMETERS[name]))
            if param.default is not Parameter.empty:
                declared[-1].default = param.default
    declared += [_PARAMETERS[name] for name in more]
    hidden = [name for param in declared if isinstance(param.type, Opened) for name in param.type.options.values()]
    return declared + [_PARAMETERS[name] for name in dict.fromkeys(hidden)]


def opened(parameters: Sequence[click.Parameter], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a function, with what its texts name opened."""
    kinds = {str(param.name): param.type for param in parameters if isinstance(param.type, Opened)}
    hidden = {name for kind in kinds.values() for name in kind.options.values()}
    values = {name: arguments.pop(name) for name in hidden}
    for name, kind in kinds.items():
        if arguments[name] is not None:
            access = {keyword: values[option] for keyword, option in kind.options.items()}
            arguments[name] = kind.opens(arguments[name], **access)
    return arguments


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


def json_or_text(text: str) -> Any:
    """Decode a text as JSON if possible, otherwise return it."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _values(context: click.Context, param: click.Parameter, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the values of an option by their names. No name may come twice."""
    values = dict(pairs)
    names = [name for name, _ in pairs]
    if len(values) < len(names):
        twice = next(name for name in values if names.count(name) > 1)
        raise click.UsageError(f"{param.opts[0]} {twice} is given twice: which of the values is meant?", context)
    return values


def _json_values(context: click.Context, param: click.Parameter, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the values of an option by their names: JSON if possible, otherwise texts."""
    return {name: json_or_text(text) for name, text in _values(context, param, pairs).items()}


def _nested(context: click.Context, param: click.Parameter, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the partial element spec of fields with types; ``meta/age`` is a key of a dict."""
    spec: dict[str, Any] = {}
    for name, kind in _values(context, param, pairs).items():
        *parents, last = name.split("/")
        within = spec
        for key in parents:
            within = within.setdefault(key, {})
            if not isinstance(within, dict):
                raise click.UsageError(f"{param.opts[0]} {name}: {key} has a type already, and so no fields", context)
        within[last] = kind
    return spec


NBYTES = Parsed(byte_count)
SECONDS = Parsed(partial(quantity, units=_SECONDS))
PATH = Parsed(_path)
PAIR = Parsed(_pair)
_COUNT = click.IntRange(1)
_NATURAL = click.IntRange(0)
_ADDRESS = Opened(Address.open)
_STORAGE = Opened(open_storage, has_copies=False)
_PLACE = Opened(open_place, has_copies=False)
# Records are read in ranges: a look at a bucket downloads no shard.
_VIEWED = Opened(partial(open_place, local_cache_bytes=0), has_copies=False)
_TEXTS = {"type": PAIR, "callback": _values, "multiple": True}
_VALUES = {"type": PAIR, "callback": _json_values, "multiple": True}
_TYPED = {"type": Parsed(_typed_field), "callback": _nested, "multiple": True}


def _argument(name: str, metavar: str, text: str, type: Any = None, **settings: Any) -> click.Parameter:  # noqa: A002
    return Argument([name], type=type, metavar=metavar, help=text, **settings)


def _option(names: str, metavar: str | None, text: str, type: Any = None, **settings: Any) -> click.Parameter:  # noqa: A002
    """Return an option; its name comes first. It is spelled so, or in the ways that follow."""
    name, *spelled = names.split()
    spelled = spelled or [f"--{name.replace('_', '-')}"]
    return click.Option([name, *spelled], type=type, metavar=metavar, help=text, **settings)


def _flag(names: str, text: str) -> click.Parameter:
    return _option(names, None, text, is_flag=True)


def _switch(name: str, text: str, default: bool | None = True) -> click.Parameter:
    return _option(f"{name} --{name}/--no-{name}", None, text, default=default)


def _choice(name: str, text: str, *choices: str, default: str | None = None) -> click.Parameter:
    return _option(name, None, text, click.Choice(choices), default=default)


_BY = "its name, a tag, latest (default) or sha256:PREFIX"
_REFERENCE = f"STORAGE/ID@VERSION, the version by {_BY}; [a:b] slices it."
_URL = "A path, or a URL such as gs://bucket/prefix."
_PROGRESS = "Show the progress, or nothing; by default in a terminal, elsewhere a line every half minute."
_TYPE = "The type of a field, such as age=float32; those of other fields are as in the files."
_OR_STORAGE = "STORAGE[/ID@VERSION]"
_ALL = [
    # Datasets and versions that commands name.
    _argument("ref", "REFERENCE", _REFERENCE, Opened(open_rows)),
    _argument("reference", "REFERENCE", _REFERENCE, _ADDRESS),
    _argument("whole", "STORAGE/ID@VERSION", f"A whole version: {_BY}.", _ADDRESS),
    _argument("target", "STORAGE/ID@VERSION", "The new version; its name never changes.", _ADDRESS),
    _argument("dataset", "STORAGE/ID", "A dataset in a storage.", Opened(Address.open, has_copies=False)),
    _argument("storage", "STORAGE", _URL, _STORAGE),
    _argument("probed", "[STORAGE]", _URL, required=False),
    _argument("listed", "STORAGE[/ID]", "A path or a URL, or a dataset in it.", _PLACE),
    _argument("viewed", _OR_STORAGE, "A storage, and the version to show first.", _VIEWED),
    _argument("other", "OTHER", "Another REFERENCE, also in another storage.", Opened(open_rows, "to_option")),
    _argument("to", _OR_STORAGE, "The target; by default with the same names.", Opened(open_target, "to_option")),
    _option(
        "from_ --from", _OR_STORAGE, "Where the version is too, with the same digest.", Opened(open_copy, "from_option")
    ),
    _argument("function", "MODULE:FUNCTION", "A function that returns a source, or FILE.py:FUNCTION."),
    _option("arg", "NAME=VALUE", "An argument of the function.", **_TEXTS),
    _argument("files", "FILES...", "Paths, 'patterns' or URLs of files, or one folder.", nargs=-1, required=True),
    _argument(
        "columns",
        "COLUMNS...",
        "A MODULE:FUNCTION that makes a dict of an element, or tables.",
        nargs=-1,
        required=True,
    ),
    _option("new", "VERSION", "The name of the new version.", required=True),
    _argument("name", "VERSION", "The name of the new version."),
    _argument("tag", "TAG", "The tag; it moves if it named another version."),
    _argument(
        "numbers", "[RECORDS...]", "Numbers of records, or ranges such as 100:200.", Parsed(_record_range), nargs=-1
    ),
    _argument("folder", "[FOLDER]", "The folder of the cache; by default a new one.", PATH, required=False),
    # How a storage is reached.
    _option("option --option -o", "KEY=VALUE", "An option of the storage's client.", **_VALUES),
    _option("to_option", "KEY=VALUE", "An option of the second storage's client.", **_VALUES),
    _option("from_option", "KEY=VALUE", "An option of the client of the storage after --from.", **_VALUES),
    _option("local_cache", "FOLDER", "The folder for local copies of remote shards.", PATH),
    # How records are taken and written.
    _flag("unbatch", "Take batches of the source apart into records."),
    _option("compression", "KIND", "none, zstd or zstd:LEVEL, for each record; by default as the base, if any."),
    _option("shard_bytes", "SIZE", "The size of a shard.", NBYTES, default=f"{DEFAULT_SHARD_BYTES >> 20}MiB"),
    _option("max_records", "N", "Take at most this many records.", _NATURAL),
    _choice("on_error", "Fail at elements that do not fit, or leave them out.", "raise", "skip", default="raise"),
    _option("workers", "N", "Use N processes, if the source can be divided.", _COUNT, default=1),
    _choice("engine", "Build the parts of a source on this engine.", "processes", "ray", "beam"),
    _switch("resume", "Go on after an interrupted run."),
    _switch("progress", _PROGRESS, default=None),
    _option("hosts", "INDEX/COUNT", "Build with other hosts that run this command: 0/4 on the first.", Parsed(_hosts)),
    _flag("allow_empty", "Publish a version even if it has no records."),
    _option("description", "TEXT", "A text to store with the version."),
    _option("metadata", "JSON", "A JSON object to store with the version.", Parsed(json_or_text)),
    _option("kind --format", "FORMAT", f"{', '.join(named_files.FORMATS)}; by default from the file names."),
    _option("types --type", "FIELD=TYPE", _TYPE, **_TYPED),
    _option("on", "FIELD", "The table has a row for each value of this field, or of several fields.", multiple=True),
    _choice("how", "Each record must find its row, or may find none.", "inner", "left", default="inner"),
    _option("fill", "NAME=VALUE", "The value of a column where a record finds no row.", **_VALUES),
    _flag("batched", "The function takes batches."),
    _flag("replace", "Replace fields of the same names."),
    _option("shuffle_seed", "N", "Shuffle the records with this seed, or keep their order.", _NATURAL),
    _option("fields --field", "NAME", "Keep only this field, such as image or meta/url.", multiple=True),
    # Records and fields to read, compare and show.
    _option("records --records -n", "N", "How many records to read, at most.", _COUNT),
    _option("seed", "N", "The seed of the draw.", _NATURAL, default=0),
    _option("key", "FIELD", "Compare rows that have one value of this field, or of several.", multiple=True),
    _switch("rows", "Compare rows; this reads the records that are not in shards of both."),
    _flag("no_open", "Only print the URL: open no browser."),
    _option("detokenize", "MODULE:FUNCTION", "A function that turns a list of tokens into text."),
    _option("host", "ADDRESS", "Where to listen; others who know the URL can look there.", default="127.0.0.1"),
    _option("port", "N", "The port; 0 for a free one.", _NATURAL, default=0),
    _option("root_path", "PATH", "What a proxy puts before every path, as /data.", Parsed(_root_path), default=""),
    _option("allowed_hosts --allow-host", "NAME", "Another name of the server.", Parsed(_host_name), multiple=True),
    _option("token_file", "FILE", "Holds the token of the URL; made if there is no such file.", PATH),
    # What is changed and deleted.
    _flag("delete", "Remove the tag; the version is then not named: STORAGE/ID."),
    _flag("force", "Delete a version that has tags, with its tags."),
    _option("where", "CONDITION", "Erase the records that fit, such as 'user == 5512', as ref.where() takes it."),
    _flag("every_version", "Erase what fits --where from every version of the dataset, however it is stored there."),
    _option("reason", "TEXT", "Why; it is stored, and shown for the old digest.", required=True),
    _flag("now", "Delete the files at once, though other programs may be reading them."),
    _flag("yes --yes -y", "Do not ask for confirmation."),
    _option(
        "grace", "TIME", "Keep what was written within this time: 30m, 24h, 7d; 0: nothing.", SECONDS, default="24h"
    ),
    _flag("dry_run", "Change nothing: tell what is damaged, or would be deleted."),
    _flag("clear", "Remove all copies that no program uses."),
]
_PARAMETERS = {str(param.name): param for param in _ALL}

WORK = ("workers", "engine", "resume", "progress", "hosts")
"""How a version is built."""
TAKEN = ("unbatch", "compression", "shard_bytes", "max_records", "on_error")
BUILD = (*TAKEN, *WORK, "allow_empty", "description", "metadata")
"""The options of ``submit``."""
