"""The commands that change a storage: they make, name, copy, rewrite and delete versions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from cachelayer.adapters import _named_files as named_files
from cachelayer.cli import options
from cachelayer.cli.addresses import Address, Pairs, open_storage, storage_options
from cachelayer.cli.app import command
from cachelayer.cli.exit_codes import ExitCode
from cachelayer.cli.functions import arguments_of, load
from cachelayer.cli.options import argument, flag, json_or_text, once, option
from cachelayer.cli.output import Result, version_result
from cachelayer.drawing.text import counted, duration
from cachelayer.errors import InvalidArgumentError, RecordIndexError
from cachelayer.provenance.environment import checked_annotations
from cachelayer.storage.storage import Storage
from cachelayer.support.credentials_in_urls import without_credentials
from cachelayer.support.progress import size
from cachelayer.versions import GRACE_SECONDS
from cachelayer.versions.gc import collect_all
from cachelayer.versions.log import Log
from cachelayer.versions.reference import Reference, names_version


@command(
    "build",
    "Build",
    "pipeline:train gs://bucket/caches/cifar10@v1",
    "pipelines/text.py:tokens cache/tokens@v3 --arg length=512",
    "pipeline:train 'cache/cifar10@size-{size}' --arg size=32",
)
@argument("function", "MODULE:FUNCTION", "A function that returns a source, or FILE.py:FUNCTION.")
@options.target
@options.arguments
@options.storage_access
@options.build_options
def build(function: str, target: Address, arg: Pairs, **submit: Any) -> Result:
    """Call a function that returns a source, and publish its elements as a version.

    A version that exists is not built again: its arguments and code are compared.
    """
    source = load(function)
    arguments = arguments_of(source, arg)
    before = target.versions()
    ref = target.storage.cacheable(target.text, **submit)(source)(**arguments)
    return version_result(ref, "published", before)


@command("import", "Build", "'train-*.parquet' gs://bucket/caches/rows@v1", "photos cache/pets@v1 --format images")
@argument("files", "FILES...", "Paths, 'patterns' or URLs of files, or one folder.", nargs=-1, required=True)
@options.target
@options.file_format
@options.field_types
@options.storage_access
@options.build_options
def import_files(
    files: tuple[str, ...],
    target: Address,
    kind: str | None,
    types: tuple[tuple[str, Any], ...],
    metadata: Any,
    **submit: Any,
) -> Result:
    """Publish the records of files as a version: TFRecord, Parquet, Arrow, WebDataset, CSV, JSON lines, a folder."""
    before = target.versions()
    _refuse_own_folder(files, target.storage)
    spec = _spec_of(once("--type", types)) or None
    kind = named_files.format_of(list(files), kind)
    its_own = checked_annotations(None, metadata)["metadata"]
    metadata = {"format": kind, "files": list(map(without_credentials, files)), **its_own}
    submitted = target.storage.cacheable(target.text, element_spec=spec, metadata=metadata, **submit)(
        named_files.imported
    )
    return version_result(submitted(kind=kind, files=list(files)), "published", before)


def _spec_of(types: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the partial element spec of fields with types; ``meta/age`` is a key of a dict."""
    spec: dict[str, Any] = {}
    for name, kind in types:
        *parents, last = name.split("/")
        within = spec
        for key in parents:
            within = within.setdefault(key, {})
            if not isinstance(within, dict):
                raise InvalidArgumentError(f"--type {name}: {key} has a type already, and so no fields")
        within[last] = kind
    return spec


@command(
    "add-column",
    "Build",
    "gs://b/caches/docs@v3 pipeline:quality --new v4",
    "cache/docs@v3 scores.parquet --new v4 --on url --how left --fill score=0",
)
@options.whole_version
@argument(
    "columns", "COLUMNS...", "A MODULE:FUNCTION that makes a dict of an element, or tables.", nargs=-1, required=True
)
@option("new", "VERSION", "The name of the new version.", required=True)
@options.storage_access
@options.add_column_options
def add_column(
    whole: Address, columns: tuple[str, ...], new: str, on: tuple[str, ...], fill: Pairs, **adding: Any
) -> Result:
    """Publish a version with more columns, from a function or from a table. No record is copied."""
    is_function = len(columns) == 1 and ":" in Path(columns[0]).name
    source = load(columns[0]) if is_function else list(columns)
    filled = {name: json_or_text(text) for name, text in once("--fill", fill)} or None
    ref = whole.storage.add_columns(whole.text, new, source, on=on or None, fill=filled, **adding)
    return version_result(ref, "published")


def _refuse_own_folder(files: Sequence[str], storage: Storage) -> None:
    """Raise if a folder of files holds the storage: its shards would be taken for files of the dataset."""
    for place in files:
        if "://" not in place and Path(storage.url).is_relative_to(Path(place).expanduser().resolve()):
            raise InvalidArgumentError(
                f"{place!r} holds the storage {storage.url}: name the files, or a storage outside of this folder"
            )


@command("tag", "Manage", "gs://bucket/caches/cifar10@v2 best", "gs://bucket/caches/cifar10 best --delete")
@options.whole_version
@argument("tag", "TAG", "The tag; it moves if it named another version.")
@flag("delete", "Remove the tag; the version is then not named: STORAGE/ID.")
@options.client_options
def tag_version(whole: Address, tag: str, delete: bool) -> Result:
    """Tag a version, or remove a tag."""
    dataset_id = whole.reference.dataset_id
    if delete:
        # Raises if the text names a version.
        whole.storage.tags(whole.text)
        whole.storage.untag(f"{dataset_id}@{tag}")
        return Result({"removed": tag}, [f"tag {tag} is removed"])
    whole.storage.tag(whole.text, tag)
    name = whole.storage.tags(dataset_id)[tag]
    return Result({"dataset_id": dataset_id, "version": name, "tag": tag}, [f"{dataset_id}@{tag} is {name}"])


@command(
    "cp", "Manage", "cache/cifar10@v2 gs://bucket/caches", "gs://bucket/caches/cifar10@v2 s3://other/caches/cifar@v1"
)
@options.whole_version
@argument("to", "STORAGE[/ID@VERSION]", "The target; by default with the same names.")
@options.client_options
@options.to_client_options
@options.progress
def copy(whole: Address, to: str, to_option: Pairs, progress: bool | None) -> Result:
    """Copy a version to another storage, with the same shards and digest. Shards that are there are not sent again."""
    new = None
    if names_version(to):
        target = Address.open(to, to_option)
        new = target.text
    else:
        target = Address(Storage(to.rstrip("/"), storage_options=storage_options(to_option)), whole.text)
    before = target.versions()
    return version_result(whole.storage.copy(whole.text, target.storage, new=new, progress=progress), "copied", before)


@command(
    "repair",
    "Check",
    "gs://bucket/caches/cifar10@v2 --from s3://other/caches",
    "cache/cifar10@v2 --dry-run",
)
@options.whole_version
@option("from_", "STORAGE[/ID@VERSION]", "Where the version is too, with the same digest.", "--from")
@flag("dry_run", "Only tell what is damaged. Exit code 1 if anything is.")
@options.storage_access
@options.from_client_options
@options.progress
def repair(whole: Address, from_: str | None, from_option: Pairs, dry_run: bool, progress: bool | None) -> Result:
    """Find what is missing or damaged of a version, and put it again from another storage.

    Nothing is put that is not what was published.
    """
    place: Any = from_
    if from_ is not None:
        is_version = names_version(from_)
        place = Address.open(from_, from_option).rows() if is_version else open_storage(from_.rstrip("/"), from_option)
    report = whole.storage.repair(whole.text, from_=place, dry_run=dry_run, progress=progress)
    shown = [*map(str, report.damaged), *(f"{path}: a damaged local copy" for path in report.local_copies)]
    objects = counted(len(report.damaged), "object")
    verdict = f"{objects} {'repaired' if report.repaired else 'damaged'}" if report.damaged else "nothing is damaged"
    return Result(
        report.to_json(),
        [*shown, f"{report.reference}: {verdict}"],
        ExitCode.SUCCESS if report.ok else ExitCode.FINDING,
    )


@command("mirror", "Manage", "gs://bucket/caches/cifar10@v2", "gs://bucket/caches/cifar10@v2 --local-cache /scratch")
@options.reference
@options.storage_access
@options.progress
def mirror(reference: Address, progress: bool | None) -> Result:
    """Copy all shards of a version to the local disk, before training starts. Exit code 1 if there is no room."""
    copied = reference.rows().mirror(progress=progress)
    shards = counted(copied.shards, "shard")
    nbytes = size(copied.nbytes)
    here = f"{copied.local_shards:,} of {shards}, {size(copied.local_nbytes)} of {nbytes} are local: {copied.folder}"
    if copied.local_shards == copied.shards:
        return Result(copied, [here])
    advice = "there is no room for the others: free some space, or name another folder with --local-cache"
    return Result(copied, [here, advice], ExitCode.FINDING)


@command(
    "rewrite",
    "Manage",
    "gs://bucket/caches/cifar10@v2 v3 --shuffle-seed 0",
    "cache/pets@v1 small --field image --field label",
)
@options.reference
@argument("new", "VERSION", "The name of the new version.")
@options.compression
@options.storage_access
@options.rewrite_options
def rewrite(reference: Address, new: str, fields: tuple[str, ...], **rewriting: Any) -> Result:
    """Write the records of a version into shards of their own: shuffled, compressed or cut otherwise.

    If the new version exists and was made in this way, nothing is written.
    """
    before = reference.versions()
    ref = reference.storage.rewrite(reference.text, new, fields=fields or None, **rewriting)
    return version_result(ref, "written", before)


@command("rm", "Manage", "gs://bucket/caches/cifar10@v1", "cache/cifar10@v1 --yes --now")
@options.whole_version
@flag("force", "Delete a version that has tags, with its tags.")
@options.now
@options.yes
@options.client_options
def remove(whole: Address, force: bool, now: bool, yes: bool) -> Result:
    """Delete a version. A day later, gc deletes the files that no other version has."""
    reference = Reference.parse(whole.text, want="name")
    name = f"{reference.dataset_id}@{reference.name}"
    _confirm(f"Delete {name} from {whole.storage.url}?", yes)
    whole.storage.delete(whole.text, force=force, grace=0 if now else GRACE_SECONDS)
    if not now:
        return Result({"deleted": name}, [f"{name} is deleted: gc frees its files in {duration(GRACE_SECONDS)}"])
    left = Log(whole.storage._catalog.dataset(reference.dataset_id)).head().deleted
    # A warning tells why.
    code = ExitCode.FINDING if any(one.grace == 0 for one in left) else ExitCode.SUCCESS
    return Result({"deleted": name}, [f"{name} is deleted"], code)


def _confirm(question: str, yes: bool) -> None:
    if not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise InvalidArgumentError("there is no terminal to ask for confirmation: pass --yes")
        click.confirm(question, abort=True, err=True)


@command(
    "erase",
    "Manage",
    "cache/users@v3 1042 77 --reason 'request 5'",
    "cache/users@v3 100:200 --reason 'request 6' --now",
    "cache/users --where 'user == 5512' --every-version --reason 'request 7'",
)
@options.whole_version
@argument(
    "numbers",
    "[RECORDS...]",
    "Numbers of records, or ranges such as 100:200.",
    type=options.RECORDS,
    nargs=-1,
    required=False,
)
@option("where", "CONDITION", "Erase the records that fit, such as 'user == 5512', as ref.where() takes it.")
@flag("every_version", "Erase what fits --where from every version of the dataset, however it is stored there.")
@option("reason", "TEXT", "Why; it is stored, and shown for the old digest.", required=True)
@options.now
@options.yes
@options.client_options
@options.progress
def erase(
    whole: Address,
    numbers: tuple[range, ...],
    where: str | None,
    every_version: bool,
    reason: str,
    now: bool,
    yes: bool,
    progress: bool | None,
) -> Result:
    """Erase records from every version of the dataset whose shards hold them. All others keep their numbers.

    Without --now, gc deletes the old files.
    """
    before = whole.versions()
    text = whole.text
    ref = whole.rows()
    if bool(numbers) == (where is not None):
        raise InvalidArgumentError("name the records by their numbers, or by --where CONDITION")
    for chosen in numbers:
        if chosen.stop > len(ref):
            raise RecordIndexError(f"record {chosen.stop - 1}: {text} has {counted(len(ref), 'record')}")
    grace = 0 if now else None
    if every_version:
        _confirm(f"Erase all records that fit {where!r} from every version of {text.partition('@')[0]}?", yes)
        erased = whole.storage.erase(
            text, where=where, every_version=True, reason=reason, grace=grace, progress=progress
        )
        return version_result(erased, "written", before)
    records = sorted({number for chosen in numbers for number in chosen})
    if where is not None:
        selection = ref._records.selection
        rows = np.concatenate([*ref.where(where)._records.selection.pieces()])
        records = selection.rows_of(rows).tolist()
    if not records:
        raise InvalidArgumentError(f"--where {where!r} fits no record of {text}: nothing is erased")
    _confirm(f"Erase {counted(len(records), 'record')} from {text}?", yes)
    erased = whole.storage.erase(text, records=records, reason=reason, grace=grace, progress=progress)
    result = version_result(erased, "written", before)
    return replace(result, text=[f"{counted(len(records), 'record')} erased", *result.text])


@command("gc", "Manage", "gs://bucket/caches", "cache --grace 1h", "cache --dry-run")
@argument("storage", "STORAGE", "A path, or a URL such as gs://bucket/prefix.")
@options.grace
@flag("dry_run", "Delete nothing: list what would be deleted.")
@options.client_options
@options.progress
def collect_garbage(storage: str, grace: float, dry_run: bool, option: Pairs, progress: bool | None) -> Result:
    """Delete the remains of failed, killed and interrupted builds and copies, and deleted versions after their grace.

    What running builds have written is not touched.
    """
    opened = open_storage(storage, option)
    deleted, failed = collect_all(opened._store, grace=grace, dry_run=dry_run, progress=progress)
    done = "would be deleted" if dry_run else "deleted"
    shown = [*map(str, deleted), f"{counted(len(deleted), 'file')} {done}"]
    document = {done.replace(" ", "_"): deleted, "failed": failed}
    return Result(document, shown, ExitCode.FINDING if failed else ExitCode.SUCCESS)
