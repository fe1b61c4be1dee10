"""The commands that make versions: ``build``, ``import`` and ``add-column``."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

from cachelayer.adapters import _named_files as named_files
from cachelayer.cli.app import command
from cachelayer.cli.options import DIVIDE, REACH, SUBMIT, json_or_text, open_address
from cachelayer.cli.output import Answer, version_answer
from cachelayer.errors import DatasetNotFoundError, InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.objects.local import LocalStore
from cachelayer.storage.storage import Storage
from cachelayer.versions.reference import Reference
from cachelayer.versions.snapshot import VersionInfo


@command(
    "Build",
    "cachelayer build pipeline:train gs://bucket/caches/cifar10@v1",
    "cachelayer build pipelines/text.py:tokens cache/tokens@v3 --arg length=512",
    "cachelayer build pipeline:train 'cache/cifar10@size-{size}' --arg size=32",
    "cachelayer build pipeline:train gs://bucket/caches/rows@v1 --engine ray",
    options=f"unbatch {DIVIDE} {SUBMIT} {REACH}",
)
def build(
    function: str,
    target: str,
    *,
    arg: Sequence[tuple[str, str]] | None = None,
    record: list[str] | None = None,
    option: Any,
    local_cache: Any,
    **submit: Any,
) -> Answer:
    """Call a function that returns a source, and publish its elements as a version.

    A version that exists is not built again: its arguments and code are compared.
    """
    source = load(function)
    arguments = _arguments(source, arg or ())
    storage, name = open_address(target, option, local_cache=local_cache)
    before = versions_of(storage, name)
    ref = storage.cacheable(name, record=record or (), **submit)(source)(**arguments)
    return version_answer(ref, "published", before)


@command(
    "Build",
    "cachelayer import 'train-*.parquet' gs://bucket/caches/rows@v1",
    "cachelayer import a.jsonl b.jsonl cache/texts@v1 --compression zstd",
    "cachelayer import photos cache/pets@v1 --format images",
    options=f"{SUBMIT} {REACH}",
)
def import_(
    files: list[str], target: str, *, kind: str | None = None, option: Any, local_cache: Any, **submit: Any
) -> Answer:
    """Publish the records of files as a version: TFRecord, Parquet, Arrow, WebDataset, CSV, JSON lines, a folder."""
    storage, name = open_address(target, option, local_cache=local_cache)
    before = versions_of(storage, name)
    _refuse_own_folder(files, storage)
    submitted = storage.cacheable(name, record=("kind", "files"), **submit)(named_files.imported)
    return version_answer(submitted(kind=named_files.format_of(files, kind), files=files), "published", before)


@command(
    "Build",
    "cachelayer add-column gs://bucket/caches/docs@v3 pipeline:quality --new v4",
    "cachelayer add-column cache/docs@v3 scores.parquet --new v4 --on url",
    options=f"{DIVIDE} {REACH}",
)
def add_column(
    whole: str,
    columns: list[str],
    *,
    new: str,
    on: str | None = None,
    batched: bool = False,
    replace: bool = False,
    option: Any,
    local_cache: Any,
    **divide: Any,
) -> Answer:
    """Publish a version with more columns: those of a function, or of a table. No record is copied."""
    storage, base = open_address(whole, option, local_cache=local_cache)
    is_function = len(columns) == 1 and ":" in Path(columns[0]).name
    source = load(columns[0]) if is_function else columns
    ref = storage.add_columns(base, new=new, columns=source, on=on, batched=batched, replace=replace, **divide)
    return version_answer(ref, "published")


def versions_of(storage: Storage, text: str) -> dict[str, VersionInfo]:
    """Return the versions of the dataset that a text names, which may have none."""
    try:
        return storage.versions(Reference.split(text).dataset_id)
    except DatasetNotFoundError:
        return {}


def _refuse_own_folder(files: list[str], storage: Storage) -> None:
    """Raise if a folder of files holds the storage: its shards would be taken for files of the dataset."""
    for place in files if isinstance(storage._store, LocalStore) else ():
        if "://" not in place and Path(storage.url).is_relative_to(Path(place).expanduser().resolve()):
            raise InvalidArgumentError(
                f"{place!r} holds the storage {storage.url}: name the files, or a storage outside of this folder"
            )


def load(text: str) -> Callable[..., Any]:
    """Load the function that ``module:function`` or ``path/file.py:function`` names.

    Modules in the current folder can be imported, and a file can import what lies beside it, as if it were run.
    """
    place, _, name = text.rpartition(":")
    folder, module = Path.cwd(), place
    if place.endswith(".py"):
        path = Path(place).expanduser().absolute()
        folder, module = path.parent, path.stem
    sys.path.insert(0, str(folder))
    try:
        function: Any = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except Exception as error:
        # This runs the user's code, which may raise anything.
        raise SourceError(
            f"{text!r} cannot be loaded as MODULE:FUNCTION or FILE.py:FUNCTION: {type(error).__name__}: {error}"
        ) from error
    if not callable(function):
        raise InvalidTypeError(f"{text} is a {type(function).__name__}: name a function")
    return function  # type: ignore[no-any-return]


def _arguments(function: Callable[..., Any], pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Parse the arguments of a call: by the type hint of the function if there is one, else as JSON, else as text."""
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError):
        # The annotation uses names that exist only for type checkers.
        hints = {}
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
