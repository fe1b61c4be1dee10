"""The commands that make versions: ``build``, ``import`` and ``add-column``."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from cachelayer.adapters import _named_files as named_files
from cachelayer.cli.app import command
from cachelayer.cli.options import (
    DIVIDE,
    REACH,
    SUBMIT,
    ReferenceArgument,
    TargetArgument,
    json_or_text,
    open_address,
    open_target,
    split_pair,
)
from cachelayer.cli.output import Answer, version_answer
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.objects.local import LocalStore
from cachelayer.storage.storage import Storage
from cachelayer.versions.reference import Reference


@command(
    "Build",
    "cachelayer build pipeline:train gs://bucket/caches/cifar10@v1",
    "cachelayer build pipelines/text.py:tokens cache/tokens@v3 --arg length=512",
    "cachelayer build pipeline:train 'cache/cifar10@size-{size}' --arg size=32",
    "cachelayer build pipeline:train gs://bucket/caches/rows@v1 --engine ray",
    options=f"{DIVIDE} {SUBMIT} {REACH}",
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
    unbatch: Annotated[bool, typer.Option("--unbatch", help="Take batches of the source apart into records.")] = False,
    *,
    option: Any,
    local_cache: Any,
    **submit: Any,
) -> Answer:
    """Call a function that returns a source, and publish its elements as a version.

    A version that exists is not built again: its arguments and code are compared.
    """
    source = load(function)
    arguments = _arguments(source, arg or ())
    storage, address = open_target(target, option, local_cache)
    return _publish(storage, address, source, arguments, {**submit, "unbatch": unbatch, "record": record or ()})


@command(
    "Build",
    "cachelayer import 'train-*.parquet' gs://bucket/caches/rows@v1",
    "cachelayer import a.jsonl b.jsonl cache/texts@v1 --compression zstd",
    "cachelayer import photos cache/pets@v1 --format images",
    options=f"{SUBMIT} {REACH}",
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
    *,
    option: Any,
    local_cache: Any,
    **submit: Any,
) -> Answer:
    """Publish the records of files as a version: TFRecord, Parquet, Arrow, WebDataset, CSV, JSON lines, a folder."""
    storage, address = open_target(target, option, local_cache)
    _refuse_own_folder(files, storage)
    arguments = {"kind": named_files.format_of(files, kind), "files": files}
    return _publish(storage, address, named_files.imported, arguments, {**submit, "record": tuple(arguments)})


@command(
    "Build",
    "cachelayer add-column gs://bucket/caches/docs@v3 pipeline:quality --new v4",
    "cachelayer add-column cache/docs@v3 scores.parquet --new v4 --on url",
    options=f"{DIVIDE} {REACH}",
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
        str | None, typer.Option(metavar="FIELD", help="The table has a row for each value of this field.")
    ] = None,
    batched: Annotated[bool, typer.Option("--batched", help="The function takes batches.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace fields of the same names.")] = False,
    *,
    option: Any,
    local_cache: Any,
    **divide: Any,
) -> Answer:
    """Publish a version with more columns: those of a function, or of a table. No record is copied."""
    storage, address = open_address(reference, option, local_cache)
    place, _, name = columns[0].rpartition(":")
    is_function = len(columns) == 1 and place and name.isidentifier() and not Path(columns[0]).exists()
    source: Any = load(columns[0]) if is_function else columns
    ref = storage.add_columns(
        address.dataset_id, address.name, new, source, on=on, batched=batched, replace=replace, **divide
    )
    return version_answer(ref, "published")


def _refuse_own_folder(files: list[str], storage: Storage) -> None:
    """Raise if a folder of files holds the storage: its shards would be taken for files of the dataset."""
    store = storage._store
    for place in files if isinstance(store, LocalStore) else ():
        if "://" not in place and Path(store.url).is_relative_to(Path(place).expanduser().resolve()):
            raise InvalidArgumentError(
                f"{place!r} holds the storage {store.url}: name the files, or a storage outside of this folder"
            )


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

    ref = storage.cacheable(target.dataset_id, target.name, **options)(noted)(**arguments)
    how = "published" if is_built else "exists already, nothing was built"
    return version_answer(ref, how, built=is_built, left_out=ref.provenance.get("left_out"))


def load(text: str) -> Callable[..., Any]:
    """Load the function that ``module:function`` or ``path/file.py:function`` names.

    Modules in the current folder can be imported, and a file can import what lies beside it, as if it were run.
    """
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise InvalidArgumentError(f"{text!r}: write MODULE:FUNCTION, or FILE.py:FUNCTION")
    folder, module = Path.cwd(), place
    if place.endswith(".py"):
        path = Path(place).expanduser().absolute()
        if not path.is_file():
            raise InvalidArgumentError(f"there is no file {path}")
        folder, module = path.parent, path.stem
    sys.path.insert(0, str(folder))
    try:
        imported: Any = importlib.import_module(module)
    except Exception as error:
        # This runs the user's code, which may raise anything.
        raise SourceError(f"{place} cannot be imported: {type(error).__name__}: {error}") from error
    try:
        function: Callable[..., Any] = functools.reduce(getattr, name.split("."), imported)
    except AttributeError as error:
        raise InvalidArgumentError(f"there is no {name!r} in {place}") from error
    if not callable(function):
        raise InvalidTypeError(f"{text} is a {type(function).__name__}: name a function that returns a source")
    return function


def _arguments(function: Callable[..., Any], texts: Sequence[str]) -> dict[str, Any]:
    """Parse the arguments of a call: by the type hint of the function if there is one, else as JSON, else as text."""
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError):
        # The annotation uses names that exist only for type checkers.
        hints = {}
    pairs = (split_pair("--arg", text) for text in texts)
    values = {name: _value(name, text, hints.get(name, Any)) for name, text in pairs}
    signature = inspect.signature(function)
    try:
        signature.bind(**values)
    except TypeError as error:
        raise InvalidArgumentError(f"--arg: {error}; the function takes {signature}: write --arg NAME=VALUE") from error
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
