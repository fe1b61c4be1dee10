"""Arguments and options of commands: one table of their types and words, and how what they name is opened."""

from __future__ import annotations

import functools
import importlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from inspect import Parameter, signature
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, get_args, get_type_hints

import cloudpickle
import typer

from cachelayer.access.dataref import DataRef
from cachelayer.adapters import _named_files as named_files
from cachelayer.builds.shard_cuts import DEFAULT_SHARD_BYTES
from cachelayer.credentials_in_urls import without_credentials
from cachelayer.errors import DatasetNotFoundError, InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.objects.local import LocalStore
from cachelayer.storage.storage import Storage
from cachelayer.versions.reference import Reference
from cachelayer.versions.snapshot import VersionInfo

ENGINES = ("processes", "ray", "beam")
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII)
_BYTES = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BYTES |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def _quantity(text: str, units: dict[str, int]) -> float:
    match = _NUMBER.fullmatch(text.strip().lower())
    if match is None or match[2] not in units:
        raise typer.BadParameter(f"{text!r}: pass a number, followed by one of {', '.join(filter(None, units))}")
    return float(match[1]) * units[match[2]]


def nbytes(text: str) -> int:
    """Parse a size: ``256MB``, ``1.5GiB``, ``4096``."""
    return int(_quantity(text, _BYTES))


def seconds(text: str) -> float:
    """Parse a time: ``90``, ``30m``, ``24h``, ``7d``."""
    return _quantity(text, _SECONDS)


def pair(text: str) -> tuple[str, str]:
    """Parse the name and the value in ``size=3``."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        # The text may be a secret.
        raise typer.BadParameter("write NAME=VALUE")
    return name, value


def record_range(text: str) -> range:
    """Parse the number of a record, or a range such as ``100:200``."""
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text, re.ASCII)
    if match is None:
        raise typer.BadParameter(f"{text!r}: pass the number of a record, or a range such as 100:200")
    numbers = range(int(match[1]), int(match[2] or int(match[1]) + 1))
    if not numbers:
        raise typer.BadParameter(f"{text!r} has no record: a range ends after its last record, such as 100:200")
    return numbers


def folder(text: str) -> Path:
    """Parse the path of a folder."""
    if not text.strip():
        raise typer.BadParameter("write the path of a folder")
    return Path(text)


def one_of(*names: str) -> Callable[[str], str]:
    """Return a function that refuses all texts but these."""

    def parse(text: str) -> str:
        if text not in names:
            raise typer.BadParameter(f"{text!r}: it is one of {', '.join(names)}")
        return text

    return parse


def json_or_text(text: str) -> Any:
    """Decode a text as JSON if possible, otherwise return it."""
    try:
        return json.loads(text)
    except ValueError:
        return text


@dataclass(frozen=True)
class _Word:
    metavar: str | None
    help: str
    names: tuple[str, ...] = ()
    kind: Any = str
    default: Any = None
    parser: Callable[[str], Any] | None = None
    min: int | None = None

    def annotation(self, kind: Callable[..., Any], *names: str) -> Any:
        how = kind(*names, metavar=self.metavar, help=self.help, parser=self.parser, min=self.min)
        return Annotated[self.kind, how]


def _flag(text: str, *names: str) -> _Word:
    return _Word(None, text, names, bool, default=False)


_VERSION = "its name, a tag, latest (default) or sha256:PREFIX"
# What stands for the value of a parameter, its help, and how it is called on the command line if not by its own name.
_WORDS = {
    "function": _Word("MODULE:FUNCTION", "A function that returns a source, or FILE.py:FUNCTION."),
    "files": _Word("FILES", "Paths, 'patterns' or URLs of files, or one folder.", kind=list[str]),
    "target": _Word("STORAGE/ID@VERSION", "The new version; its name never changes."),
    "reference": _Word("REFERENCE", f"STORAGE/ID@VERSION, the version by {_VERSION}; \\[a:b] slices it."),
    "whole": _Word("STORAGE/ID@VERSION", f"A whole version: {_VERSION}."),
    "other": _Word("OTHER", "Another REFERENCE, also in another storage."),
    "dataset": _Word("STORAGE/ID", "A dataset in a storage."),
    "storage": _Word("STORAGE", "A path, or a URL such as gs://bucket/prefix."),
    "listed": _Word("STORAGE[/ID]", "A path or a URL, or a dataset in it."),
    "place": _Word("STORAGE[/ID@VERSION]", "A storage, and the version to show first."),
    "to": _Word("STORAGE[/ID@VERSION]", "The target; by default with the same names."),
    "tag": _Word("TAG", "The tag; it moves if it named another version."),
    "new": _Word("VERSION", "The name of the new version."),
    "folder": _Word("FOLDER", "The folder of the cache; by default a new one.", parser=folder),
    "numbers": _Word("RECORDS", "Numbers of records, or ranges such as 100:200.", kind=list[str], parser=record_range),
    "columns": _Word("COLUMNS", "A MODULE:FUNCTION that makes a dict of an element, or tables.", kind=list[str]),
    "arg": _Word("NAME=VALUE", "An argument of the function.", kind=list[str], parser=pair),
    "record": _Word("NAME", "Store this argument with the version in clear.", kind=list[str]),
    "kind": _Word("FORMAT", f"{', '.join(named_files.FORMATS)}; by default from the file names.", ("--format",)),
    "on": _Word("FIELD", "The table has a row for each value of this field."),
    "batched": _flag("The function takes batches."),
    "replace": _flag("Replace fields of the same names."),
    "records": _Word("N", "How many records to read, at most.", ("--records", "-n"), kind=int, min=1),
    "seed": _Word("N", "The seed of the draw.", kind=int, min=0),
    "delete": _flag("Remove the tag; the version is then not named: STORAGE/ID."),
    "shuffle_seed": _Word("N", "Shuffle the records with this seed; else they keep their order.", kind=int, min=0),
    "fields": _Word("NAME", "Keep only this field, such as image or meta/url.", ("--field",), kind=list[str]),
    "force": _flag("Delete a version that has tags, with its tags."),
    "yes": _flag("Do not ask for confirmation.", "--yes", "-y"),
    "grace": _Word("TIME", "How long to keep files that others may use: 30m, 24h, 7d; 0 for none.", parser=seconds),
    "reason": _Word("TEXT", "Why; it is stored, and shown for the old digest."),
    "dry_run": _flag("Delete nothing: list what would be deleted."),
    "clear": _flag("Remove all copies that no program uses."),
    "no_open": _flag("Only print the URL: open no browser."),
    "port": _Word("N", "The port; 0 for a free one.", kind=int, default=0, min=0),
    "host": _Word("ADDRESS", "Where to listen; others who know the URL can look there.", default="127.0.0.1"),
    "detokenize": _Word("MODULE:FUNCTION", "A function that turns a list of tokens into text."),
    "unbatch": _flag("Take batches of the source apart into records."),
    "workers": _Word("N", "Use N processes, if the source can be divided.", kind=int, default=1, min=1),
    "engine": _Word("processes|ray|beam", "Build the parts of a source on this engine.", parser=one_of(*ENGINES)),
    "resume": _Word(None, "Go on after an interrupted run.", ("--resume/--no-resume",), kind=bool, default=True),
    "compression": _Word("KIND", "none, zstd or zstd:LEVEL, for each record."),
    "shard_bytes": _Word("SIZE", "The size of a shard.", default=f"{DEFAULT_SHARD_BYTES >> 20}MiB", parser=nbytes),
    "max_records": _Word("N", "Take at most this many records.", kind=int, min=0),
    "on_error": _Word(
        "raise|skip",
        "Fail at elements that do not fit, or leave them out.",
        default="raise",
        parser=one_of("raise", "skip"),
    ),
    "allow_empty": _flag("Publish a version even if it has no records."),
    "description": _Word("TEXT", "A text to store with the version."),
    "metadata": _Word("JSON", "A JSON object to store with the version.", parser=json_or_text),
    "option": _Word("KEY=VALUE", "An option of the storage's client.", ("--option", "-o"), kind=list[str], parser=pair),
    "to_option": _Word("KEY=VALUE", "An option of the second storage's client.", kind=list[str], parser=pair),
    "local_cache": _Word("FOLDER", "The folder for local copies of remote shards.", parser=folder),
    "as_json": _flag("Print one JSON document, for scripts.", "--json"),
    "show_traceback": _flag("Show where in the code an error was raised.", "--traceback"),
}
# What a command takes as keywords of such a name, and passes on.
_DIVIDE = "workers engine resume"
_GROUPS = {
    "reach": "option local_cache",
    "listening": "host port",
    "adding": f"on batched replace {_DIVIDE}",
    "rewriting": f"shuffle_seed fields shard_bytes {_DIVIDE}",
    "submit": f"unbatch {_DIVIDE} compression shard_bytes max_records on_error allow_empty description metadata",
}
Pairs = Sequence[tuple[str, str]] | None


def parameters(function: Callable[..., Any]) -> Iterator[Parameter]:
    """Yield the parameters of a command as typer takes them: its keywords are options, the others arguments."""
    for one in signature(function).parameters.values():
        if one.kind == Parameter.VAR_KEYWORD:
            yield from (option(name, _WORDS[name].default) for name in _GROUPS[one.name].split())
        elif one.kind == Parameter.KEYWORD_ONLY:
            yield option(one.name, one.default)
        else:
            annotation = _WORDS[one.name].annotation(typer.Argument)
            yield Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=annotation)


def option(name: str, default: Any = False) -> Parameter:
    """Return an option as typer takes it."""
    # With its name, a flag gets no --no-flag.
    annotation = _WORDS[name].annotation(typer.Option, *_spelled(name))
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _spelled(name: str) -> tuple[str, ...]:
    """Return the ways to write an option."""
    return _WORDS[name].names or (f"--{name.replace('_', '-')}",)


_ARGUMENT = re.compile(
    r"""(?<![\w.-])([a-z_]+)=(True|False|None|\.\.\.|'[^']*'|"[^"]*"|\[[^\]]*\]|[\d.]+(?=\W|$)|(?!\S))"""
)
"""An argument of a Python call, such as ``force=True``, ``engine='spark'`` or, to be passed, ``max_records=``."""
_ALTERNATIVE = re.compile(r",? or (?:pass )?[a-z_]+=[^;:]*?(?=$|[;:]|\. )")
"""The last of several remedies, if only Python has it."""
_ONLY_IN_PYTHON = re.compile(r"(?<![\w.-])([a-z_]+)=(?=[\s.,;:)]|$)")
_CALLS = {
    'by cacheable(..., "auto")': "STORAGE/ID@auto",
    "storage.rewrite()": "`cachelayer rewrite`",
    "storage.rewrite(...": "`cachelayer rewrite` (...",
    "storage.cache()": "`cachelayer build`",
    "delete(..., ": "`cachelayer rm` (",
    "mirror()": "`cachelayer mirror`",
    "with storage_options=": "with --option",
    "storage_options": "--option",
}


def in_options(text: str, names: Collection[str]) -> str:
    """Return an error or a warning of the packages below in the words of a command.

    Arguments of Python become the command's options; a remedy that only Python has is left out if there is another.

    Args:
        text: the message.
        names: the names of the command's parameters.
    """

    def spelled(match: re.Match[str]) -> str:
        name, value = match.groups()
        if name not in names or name not in _WORDS:
            return match[0]
        yes, no, *_ = (*"".join(_spelled(name)[:1]).split("/"), "")
        if _WORDS[name].kind is bool:
            return no if value == "False" and no else yes
        if value == "None":
            return f"no {yes}"
        values = re.findall(r"[^\s,'\"\[\]]+", value)
        return " ".join(f"{yes} {one}" for one in values) or yes

    for call, words in _CALLS.items():
        text = text.replace(call, words)
    text = _ALTERNATIVE.sub("", _ARGUMENT.sub(spelled, text))
    return _ONLY_IN_PYTHON.sub(r"\1, in Python", text)


def storage_options(option: Pairs) -> dict[str, Any]:
    """Return the options of a storage's client. Values are JSON if possible, otherwise text."""
    return {name: json_or_text(value) for name, value in _once("--option", option or ())}


def _once(option: str, pairs: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    """Return pairs of names and values if each name comes once."""
    twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if twice:
        raise InvalidArgumentError(f"{option} {twice[0]} is given twice: which of the values is meant?")
    return pairs


def open_storage(url: str, option: Pairs = None, **where: Any) -> Storage:
    """Open a storage that exists."""
    storage = Storage(url, storage_options=storage_options(option), **where)
    is_local = isinstance(storage._store, LocalStore)
    if names_version(url) or (is_local and not Path(storage.url).is_dir()):
        raise InvalidArgumentError(
            f"{without_credentials(url)!r} is no storage: name the folder or the URL that builds publish to"
        )
    return storage


def names_version(text: str) -> bool:
    """Return whether a text names a version, and not a storage: in its last step, which is not that of an Azure URL."""
    before, _, last = text.rstrip("/").rpartition("/")
    return "@" in last and not before.endswith(":/")


def open_address(text: str, option: Pairs = None, **where: Any) -> tuple[Storage, str]:
    """Open the storage of a text such as ``gs://bucket/caches/cifar10@v2``; its methods take the text, as returned."""
    text = text.rstrip("/")
    url = Reference.parse(text, want="any").url
    if not url:
        raise InvalidArgumentError(
            f"{without_credentials(text)!r} names no dataset: write STORAGE/ID, or STORAGE/ID@VERSION"
        )
    return Storage(url, storage_options=storage_options(option), **where), text


def fetch_rows(storage: Storage, text: str) -> DataRef[Any]:
    """Return the version that a text names, or some of its records with all of their fields."""
    ref: object = storage.fetch(text)
    if not isinstance(ref, DataRef):
        raise InvalidArgumentError(
            f"{without_credentials(text)!r} is a {type(ref).__name__}: name a version, or records of one, by a slice, "
            "where, select, exclude or split"
        )
    return ref


def open_place(text: str, option: Pairs, **where: Any) -> tuple[Storage, str | None]:
    """Open what a text names: a dataset or a version, as :func:`open_address` does, or else a storage."""
    with suppress(InvalidArgumentError, DatasetNotFoundError):
        storage, address = open_address(text, option, **where)
        if Reference.parse(address, want="any").name is None:
            # It raises if there is no dataset, nor a build of one.
            storage.builds(Reference.parse(address, want="any").dataset_id)
        return storage, address
    return open_storage(text, option, **where), None


def only_dataset(text: str) -> str:
    """Return the id of the dataset that a text names, if it names no version of it."""
    reference = Reference.parse(text, want="any")
    if reference.name is not None or reference.calls:
        raise InvalidArgumentError(f"{without_credentials(text)!r} is a version: name only the dataset, STORAGE/ID")
    return reference.dataset_id


def versions_of(storage: Storage, text: str) -> dict[str, VersionInfo]:
    """Return the versions of the dataset that a text names, which may have none."""
    try:
        return storage.versions(Reference.parse(text, want="any").dataset_id)
    except DatasetNotFoundError:
        return {}


def load(text: str) -> Callable[..., Any]:
    """Load the function that ``module:function`` or ``path/file.py:function`` names.

    Modules in the current folder can be imported, and a file can import what lies beside it, as if it were run.
    """
    place, _, name = text.rpartition(":")
    try:
        module = _file_module(Path(place).expanduser().absolute()) if place.endswith(".py") else _named_module(place)
        function: Any = functools.reduce(getattr, name.split("."), module)
    except Exception as error:
        # This runs the user's code, which may raise anything.
        raise SourceError(
            f"{text!r} cannot be loaded as MODULE:FUNCTION or FILE.py:FUNCTION: {type(error).__name__}: {error}"
        ) from error
    if not callable(function):
        raise InvalidTypeError(f"{text} is a {type(function).__name__}: name a function")
    return function  # type: ignore[no-any-return]


def _named_module(name: str) -> ModuleType:
    """Import a module by its name, in which the current folder comes first.

    Raises:
        ImportError: if a file of the current folder has the name of a module that Python has imported already.
    """
    sys.path.insert(0, str(Path.cwd()))
    module = importlib.import_module(name)
    meant = Path.cwd() / f"{name}.py"
    if meant.is_file() and not _is_of(module, meant):
        raise ImportError(f"{name} is a module that Python uses itself: write {meant.name}:FUNCTION for the file here")
    return module


def _file_module(path: Path) -> ModuleType:
    """Import a file, by its own name if that is free; processes that run its functions get them by value if not."""
    if not path.is_file():
        raise ImportError(f"there is no file {path}")
    name, folder = path.stem, str(path.parent)
    known = sys.modules.get(name)
    if known is not None and _is_of(known, path):
        return known
    if known is None and name.isidentifier() and name not in sys.stdlib_module_names:
        found = find_spec(name)
        if found is None or found.origin == str(path):
            sys.path.insert(0, folder)
            return importlib.import_module(name)
    # At the end, so that what imports the other module of this name still finds that one.
    sys.path.append(folder)
    spec = spec_from_file_location(path.name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = sys.modules[path.name] = module_from_spec(spec)
    cloudpickle.register_pickle_by_value(module)
    spec.loader.exec_module(module)
    return module


def _is_of(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).exists() and path.samefile(file)


def arguments_of(function: Callable[..., Any], pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Parse the arguments of a call: by the type hint of the function if there is one, else as JSON, else as text."""
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError):
        # The annotation uses names that exist only for type checkers.
        hints = {}
    values = {name: _value(name, text, hints.get(name, Any)) for name, text in _once("--arg", pairs)}
    takes = signature(function)
    try:
        takes.bind(**values)
    except TypeError as error:
        raise InvalidArgumentError(f"--arg: {error}; the function takes {takes}: write --arg NAME=VALUE") from error
    return values


def _value(name: str, text: str, hint: Any) -> Any:
    """Convert a text to the type that the function asks for; a union takes the first that fits."""
    kinds = get_args(hint) or (hint,)
    value = json_or_text(text)
    if str in kinds and (value is not None or type(None) not in kinds):
        return text
    if float in kinds and type(value) is int:
        return float(value)
    if Path in kinds:
        return Path(text)
    if set(kinds) <= {bool, int, float, type(None)} and type(value) not in kinds:
        raise InvalidArgumentError(f"--arg {name}: expected {getattr(hint, '__name__', hint)}, got {text!r}")
    return value
