"""The commands that change a storage: they make, name, copy, rewrite and delete versions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from cachelayer.adapters import _named_files as named_files
from cachelayer.cli.addresses import Address, versions_of
from cachelayer.cli.app import command
from cachelayer.cli.exit_codes import finding_if
from cachelayer.cli.functions import arguments_of, load
from cachelayer.cli.options import BUILD, WORK
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
from cachelayer.versions.reference import Reference
from cachelayer.views.dataref import DataRef


@command(
    "build",
    "Build",
    "pipeline:train gs://bucket/caches/cifar10@v1",
    "pipelines/text.py:tokens cache/tokens@v3 --arg length=512",
    "pipeline:train 'cache/cifar10@size-{size}' --arg size=32",
    more=BUILD,
)
def build(function: str, target: Address, arg: dict[str, str], **submit: Any) -> Result:
    """Call a function that returns a source, and publish its elements as a version.

    A version that exists is not built again: its arguments and code are compared.
    """
    source = load(function)
    arguments = arguments_of(source, arg)
    before = target.versions()
    ref = target.storage.cacheable(target.text, **submit)(source)(**arguments)
    return version_result(ref, "published", before)


@command(
    "import",
    "Build",
    "'train-*.parquet' gs://bucket/caches/rows@v1",
    "photos cache/pets@v1 --format images",
    more=BUILD,
)
def import_files(
    files: tuple[str, ...], target: Address, kind: str | None, types: dict[str, Any], **submit: Any
) -> Result:
    """Publish the records of files as a version: TFRecord, Parquet, Arrow, WebDataset, CSV, JSON lines, a folder."""
    before = target.versions()
    _refuse_own_folder(files, target.storage)
    kind = named_files.format_of(list(files), kind)
    its_own = checked_annotations(None, submit.pop("metadata"))["metadata"]
    metadata = {"format": kind, "files": list(map(without_credentials, files)), **its_own}
    submitted = target.storage.cacheable(target.text, element_spec=types or None, metadata=metadata, **submit)(
        named_files.imported
    )
    return version_result(submitted(kind=kind, files=list(files)), "published", before)


def _refuse_own_folder(files: Sequence[str], storage: Storage) -> None:
    """Raise if a folder of files holds the storage: its shards would be taken for files of the dataset."""
    for place in files:
        if "://" not in place and Path(storage.url).is_relative_to(Path(place).expanduser().resolve()):
            raise InvalidArgumentError(
                f"{place!r} holds the storage {storage.url}: name the files, or a storage outside of this folder"
            )


@command(
    "add-column",
    "Build",
    "gs://b/caches/docs@v3 pipeline:quality --new v4",
    "cache/docs@v3 scores.parquet --new v4 --on url --how left --fill score=0",
    more=("how", "batched", "replace", *WORK),
)
def add_column(
    whole: Address, columns: tuple[str, ...], new: str, on: tuple[str, ...], fill: dict[str, Any], **adding: Any
) -> Result:
    """Publish a version with more columns, from a function or from a table. No record is copied."""
    is_function = len(columns) == 1 and ":" in Path(columns[0]).name
    source = load(columns[0]) if is_function else named_files.source_of(list(columns))
    ref = whole.storage.add_columns(whole.text, new, source, on=on or None, fill=fill or None, **adding)
    return version_result(ref, "published")


@command("tag", "Manage", "gs://bucket/caches/cifar10@v2 best", "gs://bucket/caches/cifar10 best --delete")
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
def copy(whole: Address, to: tuple[Storage, str | None], progress: bool | None) -> Result:
    """Copy a version to another storage, with the same shards and digest. Shards that are there are not sent again."""
    storage, new = to
    before = versions_of(storage, Reference.parse(new or whole.text, want="any").dataset_id)
    return version_result(whole.storage.copy(whole.text, storage, new=new, progress=progress), "copied", before)


@command("repair", "Check", "gs://bucket/caches/cifar10@v2 --from s3://other/caches", "cache/cifar10@v2 --dry-run")
def repair(whole: Address, from_: Any, dry_run: bool, progress: bool | None) -> Result:
    """Find what is missing or damaged of a version, and put it again from another storage.

    Nothing is put that is not what was published. Exit code 1 if anything is damaged.
    """
    report = whole.storage.repair(whole.text, from_=from_, dry_run=dry_run, progress=progress)
    shown = [*map(str, report.damaged), *(f"{path}: a damaged local copy" for path in report.local_copies)]
    objects = counted(len(report.damaged), "object")
    verdict = f"{objects} {'repaired' if report.repaired else 'damaged'}" if report.damaged else "nothing is damaged"
    return Result(report.to_json(), [*shown, f"{report.reference}: {verdict}"], finding_if(not report.ok))


@command("mirror", "Manage", "gs://bucket/caches/cifar10@v2", "gs://bucket/caches/cifar10@v2 --local-cache /scratch")
def mirror(ref: DataRef[Any], progress: bool | None) -> Result:
    """Copy all shards of a version to the local disk, before training starts. Exit code 1 if there is no room."""
    copied = ref.mirror(progress=progress)
    shards = counted(copied.shards, "shard")
    nbytes = size(copied.nbytes)
    lines = [f"{copied.local_shards:,} of {shards}, {size(copied.local_nbytes)} of {nbytes} are local: {copied.folder}"]
    has_no_room = copied.local_shards < copied.shards
    if has_no_room:
        lines.append("there is no room for the others: free some space, or name another folder with --local-cache")
    return Result(copied, lines, finding_if(has_no_room))


@command(
    "rewrite",
    "Manage",
    "gs://bucket/caches/cifar10@v2 v3 --shuffle-seed 0",
    "cache/pets@v1 small --field image --field label",
    more=("compression", "shuffle_seed", "shard_bytes", *WORK),
)
def rewrite(reference: Address, name: str, fields: tuple[str, ...], **rewriting: Any) -> Result:
    """Write the records of a version into shards of their own: shuffled, compressed or cut otherwise.

    If the new version exists and was made in this way, nothing is written.
    """
    before = reference.versions()
    ref = reference.storage.rewrite(reference.text, name, fields=fields or None, **rewriting)
    return version_result(ref, "written", before)


@command("rm", "Manage", "gs://bucket/caches/cifar10@v1", "cache/cifar10@v1 --yes --now")
def remove(whole: Address, force: bool, now: bool, yes: bool) -> Result:
    """Delete a version. A day later, gc deletes the files that no other version has."""
    reference = Reference.parse(whole.text, want="name")
    name = f"{reference.dataset_id}@{reference.name}"
    _confirm(f"Delete {name} from {whole.storage.url}?", yes)
    whole.storage.delete(whole.text, force=force, grace=0 if now else GRACE_SECONDS)
    if not now:
        return Result({"deleted": name}, [f"{name} is deleted: gc frees its files in {duration(GRACE_SECONDS)}"])
    left = Log(whole.storage._catalog.dataset(reference.dataset_id)).head().deleted
    # A warning tells why some are left.
    return Result({"deleted": name}, [f"{name} is deleted"], finding_if(any(one.grace == 0 for one in left)))


def _confirm(question: str, yes: bool) -> None:
    if not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise InvalidArgumentError("there is no terminal to ask for confirmation: pass --yes")
        if not click.confirm(question, err=True):
            raise click.Abort("the answer was no: nothing is changed")


@command(
    "erase",
    "Manage",
    "cache/users@v3 1042 77 --reason 'request 5'",
    "cache/users@v3 100:200 --reason 'request 6' --now",
    "cache/users --where 'user == 5512' --every-version --reason 'request 7'",
)
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
    ref = whole.rows()
    if bool(numbers) == (where is not None):
        raise InvalidArgumentError("name the records by their numbers, or by --where CONDITION")
    last = max((some.stop for some in numbers), default=0) - 1
    if last >= len(ref):
        raise RecordIndexError(f"record {last}: {whole.text} has {counted(len(ref), 'record')}")
    records = sorted({number for some in numbers for number in some})
    chosen = len(records) if where is None else len(ref.where(where))
    if not chosen and not every_version:
        raise InvalidArgumentError(f"--where {where!r} fits no record of {whole.text}: nothing is erased")
    count = counted(chosen, "record")
    question = f"Erase {count} from {whole.text}?"
    if every_version:
        question = f"Erase all records that fit {where!r} from every version of {whole.reference.dataset_id}?"
    _confirm(question, yes)
    # Another version may be the latest by now.
    erased = whole.storage.erase(
        ref,
        records=records or None,
        where=where,
        every_version=every_version,
        reason=reason,
        grace=0 if now else None,
        progress=progress,
    )
    result = version_result(erased, "written", before)
    return result if every_version else replace(result, text=[f"{count} erased", *result.text])


@command("gc", "Manage", "gs://bucket/caches", "cache --grace 1h", "cache --dry-run")
def collect_garbage(storage: Storage, grace: float, dry_run: bool, progress: bool | None) -> Result:
    """Delete the remains of failed, killed and interrupted builds and copies, and deleted versions after their grace.

    What running builds have written is not touched.
    """
    deleted, failed = collect_all(storage._store, grace=grace, dry_run=dry_run, progress=progress)
    done = "would be deleted" if dry_run else "deleted"
    shown = [*map(str, deleted), f"{counted(len(deleted), 'file')} {done}"]
    return Result({done.replace(" ", "_"): deleted, "failed": failed}, shown, finding_if(bool(failed)))
