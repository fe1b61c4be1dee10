"""The commands that change a storage: they make, name, copy, rewrite and delete versions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from cachelayer.adapters import _named_files as named_files
from cachelayer.cli import options
from cachelayer.cli.app import command
from cachelayer.cli.options import (
    Pairs,
    fetch_rows,
    only_dataset,
    open_address,
    open_storage,
    storage_options,
    versions_of,
)
from cachelayer.cli.output import FINDING, Result, version_result
from cachelayer.drawing.text import counted, duration
from cachelayer.errors import InvalidArgumentError, RecordIndexError
from cachelayer.progress import size
from cachelayer.storage.storage import AS_BASE, Storage
from cachelayer.versions.gc import Pending, pending
from cachelayer.versions.reference import Reference


@command(
    "Build",
    "pipeline:train gs://bucket/caches/cifar10@v1",
    "pipelines/text.py:tokens cache/tokens@v3 --arg length=512",
    "pipeline:train 'cache/cifar10@size-{size}' --arg size=32",
)
def build(
    function: str,
    target: str,
    *,
    arg: Pairs = None,
    record: list[str] | None = None,
    option: Pairs = None,
    local_cache: Any = None,
    **submit: Any,
) -> Result:
    """Call a function that returns a source, and publish its elements as a version.

    A version that exists is not built again: its arguments and code are compared.
    """
    source = options.load(function)
    arguments = options.arguments_of(source, arg or ())
    storage, name = open_address(target, option, local_cache=local_cache)
    before = versions_of(storage, name)
    ref = storage.cacheable(name, record=record or (), **submit)(source)(**arguments)
    return version_result(ref, "published", before)


@command("Build", "'train-*.parquet' gs://bucket/caches/rows@v1", "photos cache/pets@v1 --format images")
def import_(
    files: list[str], target: str, *, kind: Any = None, option: Pairs = None, local_cache: Any = None, **submit: Any
) -> Result:
    """Publish the records of files as a version: TFRecord, Parquet, Arrow, WebDataset, CSV, JSON lines, a folder."""
    storage, name = open_address(target, option, local_cache=local_cache)
    before = versions_of(storage, name)
    _refuse_own_folder(files, storage)
    submitted = storage.cacheable(name, record=("kind", "files"), **submit)(named_files.imported)
    return version_result(submitted(kind=named_files.format_of(files, kind), files=files), "published", before)


@command("Build", "gs://b/caches/docs@v3 pipeline:quality --new v4", "cache/docs@v3 scores.parquet --new v4 --on url")
def add_column(
    whole: str, columns: list[str], *, new: str, option: Pairs = None, local_cache: Any = None, **adding: Any
) -> Result:
    """Publish a version with more columns: those of a function, or of a table. No record is copied."""
    storage, base = open_address(whole, option, local_cache=local_cache)
    is_function = len(columns) == 1 and ":" in Path(columns[0]).name
    source = options.load(columns[0]) if is_function else columns
    ref = storage.add_columns(base, new=new, columns=source, **adding)
    return version_result(ref, "published")


def _refuse_own_folder(files: list[str], storage: Storage) -> None:
    """Raise if a folder of files holds the storage: its shards would be taken for files of the dataset."""
    for place in files:
        if "://" not in place and Path(storage.url).is_relative_to(Path(place).expanduser().resolve()):
            raise InvalidArgumentError(
                f"{place!r} holds the storage {storage.url}: name the files, or a storage outside of this folder"
            )


@command("Manage", "gs://bucket/caches/cifar10@v2 best", "gs://bucket/caches/cifar10 best --delete")
def tag(whole: str, tag: str, *, delete: bool = False, option: Pairs = None) -> Result:
    """Tag a version, or remove a tag."""
    storage, text = open_address(whole, option)
    if delete:
        storage.untag(only_dataset(text), tag)
        return Result({"removed": tag}, [f"tag {tag} is removed"])
    stored = storage._catalog.resolve(storage._catalog.parse(text, want="version"))
    dataset_id, name = stored.dataset_id, stored.info.version
    # Another version of this name, published meanwhile, is not the one that was named.
    storage.tag(f"{stored.name}@sha256:{stored.info.digest}", tag=tag)
    return Result({"dataset_id": dataset_id, "version": name, "tag": tag}, [f"{dataset_id}@{tag} is {name}"])


@command("Manage", "cache/cifar10@v2 gs://bucket/caches", "gs://bucket/caches/cifar10@v2 s3://other/caches/cifar@v1")
def cp(whole: str, to: str, *, option: Pairs = None, to_option: Pairs = None) -> Result:
    """Copy a version to another storage, with the same shards and digest. Shards that are there are not sent again."""
    source, text = open_address(whole, option)
    to = to.rstrip("/")
    is_storage = not options.names_version(to)
    target = Storage(to, storage_options=storage_options(to_option)) if is_storage else open_address(to, to_option)[0]
    new = None if is_storage else to
    before = versions_of(target, new or text)
    return version_result(source.copy(text, to=target, new=new), "copied", before)


@command("Manage", "gs://bucket/caches/cifar10@v2", "gs://bucket/caches/cifar10@v2 --local-cache /scratch")
def mirror(reference: str, **reach: Any) -> Result:
    """Copy all shards of a version to the local disk, before training starts. Exit code 1 if there is no room."""
    storage, text = open_address(reference, **reach)
    copied = fetch_rows(storage, text).mirror()
    shards, nbytes = counted(copied.shards, "shard"), size(copied.nbytes)
    here = f"{copied.local_shards:,} of {shards}, {size(copied.local_nbytes)} of {nbytes} are local: {copied.folder}"
    if copied.local_shards == copied.shards:
        return Result(copied, [here])
    advice = "there is no room for the others: free some space, or name another folder with --local-cache"
    return Result(copied, [here, advice], FINDING)


@command(
    "Manage", "gs://bucket/caches/cifar10@v2 v3 --shuffle-seed 0", "cache/pets@v1 small --field image --field label"
)
def rewrite(
    reference: str,
    new: str,
    *,
    compression: str = AS_BASE,
    option: Pairs = None,
    local_cache: Any = None,
    **rewriting: Any,
) -> Result:
    """Write the records of a version into shards of their own: shuffled, compressed or cut otherwise.

    If the new version exists and was made in this way, nothing is written.
    """
    storage, text = open_address(reference, option, local_cache=local_cache)
    before, base = versions_of(storage, text), fetch_rows(storage, text)
    ref = storage.rewrite(base.dataset_id, base, new, compression=compression, **rewriting)
    return version_result(ref, "written", before)


@command("Manage", "gs://bucket/caches/cifar10@v1", "cache/cifar10@v1 --yes --grace 0")
def rm(whole: str, *, force: bool = False, grace: Any = "24h", yes: bool = False, option: Pairs = None) -> Result:
    """Delete a version. Once the grace is over, gc deletes the files that no other version has."""
    storage, text = open_address(whole, option)
    reference = Reference.parse(text, want="name")
    name = f"{reference.dataset_id}@{reference.name}"
    _confirm(f"Delete {name} from {storage.url}?", yes)
    storage.delete(text, force=force, grace=grace)
    left = pending(storage._store, reference.dataset_id)
    return Result({"deleted": name, "not_freed": left}, [f"{name} is deleted", *_not_freed(left)])


def _confirm(question: str, yes: bool) -> None:
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidArgumentError("there is no terminal to ask for confirmation: pass --yes")
        typer.confirm(question, abort=True, err=True)


def _not_freed(left: Sequence[Pending]) -> list[str]:
    """Return a line for each deleted version whose bytes stay for its readers."""
    return [
        f"{size(one.nbytes)} of {one.dataset_id}@{one.version} are not freed yet: gc frees them in "
        f"{duration(one.seconds)}, rm --grace 0 at once"
        for one in left
        if one.nbytes
    ]


@command(
    "Manage", "cache/users@v3 1042 77 --reason 'request 5'", "cache/users@v3 100:200 --reason 'request 6' --grace 0"
)
def erase(
    whole: str, numbers: list[range], *, reason: str, grace: Any = None, yes: bool = False, option: Pairs = None
) -> Result:
    """Erase records from every version of the dataset whose shards hold them. All others keep their numbers.

    Without --grace, gc deletes the old files.
    """
    storage, text = open_address(whole, option)
    before, ref = versions_of(storage, text), fetch_rows(storage, text)
    for chosen in numbers:
        if chosen.stop > len(ref):
            raise RecordIndexError(f"record {chosen.stop - 1}: {text} has {counted(len(ref), 'record')}")
    records = sorted({number for chosen in numbers for number in chosen})
    _confirm(f"Erase {counted(len(records), 'record')} from {whole}?", yes)
    return version_result(storage.erase(text, records=records, reason=reason, grace=grace), "written", before)


@command("Manage", "gs://bucket/caches", "cache --grace 1h", "cache --dry-run")
def gc(storage: str, *, grace: Any = "24h", dry_run: bool = False, option: Pairs = None) -> Result:
    """Delete the remains of failed, killed and interrupted builds and copies, and deleted versions after their grace.

    What running builds have written is not touched.
    """
    opened = open_storage(storage, option)
    deleted = opened.gc(grace, dry_run=dry_run)
    left = pending(opened._store)
    done = "would be deleted" if dry_run else "deleted"
    shown = [*map(str, deleted), f"{counted(len(deleted), 'file')} {done}", *_not_freed(left)]
    return Result({done.replace(" ", "_"): deleted, "not_freed": left}, shown)
