"""The commands that name, copy, rewrite and delete versions: from ``tag`` to ``gc``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Annotated

import typer

from cachelayer.builds.shard_cuts import DEFAULT_SHARD_BYTES
from cachelayer.cli.addresses import (
    LocalCache,
    Options,
    ReferenceArgument,
    StorageArgument,
    ToOptions,
    existing_storage,
    nbytes,
    open_address,
    open_reference,
    open_storage,
    seconds,
)
from cachelayer.cli.build_and_import import Engine, Resume, ShardBytes, Workers
from cachelayer.cli.command import command
from cachelayer.cli.output import FINDING, SUCCESS, Answer, count, version_answer
from cachelayer.drawing.text import size
from cachelayer.errors import DatasetNotFoundError, InvalidArgumentError
from cachelayer.storage.storage import AS_BASE
from cachelayer.versions.snapshot import VersionInfo


@contextmanager
def _resumable() -> Iterator[None]:
    """Say after an interrupt what continues the work."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt("run the same command again: it continues after what is finished") from None


@command(
    "Manage",
    "cachelayer tag gs://bucket/caches/cifar10@v2 best",
    "cachelayer tag gs://bucket/caches/cifar10 best --delete",
)
def tag(
    reference: ReferenceArgument,
    tag: Annotated[str, typer.Argument(metavar="TAG", help="The tag; it moves if it named another version.")],
    delete: Annotated[bool, typer.Option("--delete", help="Remove the tag; REFERENCE is then STORAGE/ID.")] = False,
    option: Options = None,
) -> Answer:
    """Tag a version, or remove a tag."""
    storage, address = open_address(reference, option)
    dataset_id = address.dataset_id
    if delete:
        if address.name is not None:
            raise InvalidArgumentError(f"{reference!r}: to remove a tag, name the dataset without @VERSION")
        storage.untag(dataset_id, tag)
        return Answer({"dataset_id": dataset_id, "removed": tag}, [f"{dataset_id}: no tag {tag} now"])
    if address.rows is not None:
        raise InvalidArgumentError(f"{reference!r} is a part of a version: name the whole version, without [...]")
    version = storage.fetch(reference).dataset_version
    storage.tag(dataset_id, version, tag)
    return Answer({"dataset_id": dataset_id, "version": version, "tag": tag}, [f"{dataset_id}@{tag} is {version}"])


@command(
    "Manage",
    "cachelayer cp cache/cifar10@v2 gs://bucket/caches",
    "cachelayer cp gs://bucket/caches/cifar10@v2 s3://other/caches/cifar@v1",
)
def cp(
    reference: ReferenceArgument,
    to: Annotated[
        str, typer.Argument(metavar="STORAGE[/ID@VERSION]", help="The target; by default with the same names.")
    ],
    option: Options = None,
    to_option: ToOptions = None,
) -> Answer:
    """Copy a version to another storage, with the same shards and digest. Shards that are there are not sent again."""
    source, address = open_address(reference, option)
    renamed, new = address, None
    if "@" in to.rpartition("/")[2]:
        target, renamed = open_address(to, to_option)
        new = f"{renamed.dataset_id}@{renamed.name}"
    else:
        target = open_storage(to, to_option)
    before: dict[str, VersionInfo] = {}
    with suppress(DatasetNotFoundError):
        before = target.versions(renamed.dataset_id)
    with _resumable():
        ref = source.copy(reference, to=target, new=new)
    was_there = ref.dataset_version in before and before[ref.dataset_version].digest == ref.digest
    return version_answer(ref, "was there already, nothing was copied" if was_there else "copied", copied=not was_there)


@command(
    "Manage",
    "cachelayer mirror gs://bucket/caches/cifar10@v2",
    "cachelayer mirror gs://bucket/caches/cifar10@v2 --local-cache /scratch/cachelayer",
)
def mirror(reference: ReferenceArgument, option: Options = None, local_cache: LocalCache = None) -> Answer:
    """Copy all shards of a version to the local disk, before training starts. Exit code 1 if there is no room."""
    ref = open_reference(reference, option, local_cache)
    with _resumable():
        copied = ref.mirror()
    is_whole = copied.local_shards == copied.shards
    shown = [
        f"{count(copied.local_shards)} of {count(copied.shards, 'shard')}, {size(copied.local_nbytes)} of "
        f"{size(copied.nbytes)} are local: {copied.folder}"
    ]
    if not is_whole:
        shown.append("there is no room for the others: free some space, or name another folder with --local-cache")
    document = {**asdict(copied), "folder": None if copied.folder is None else str(copied.folder)}
    return Answer(document, shown, SUCCESS if is_whole else FINDING)


@command(
    "Manage",
    "cachelayer rewrite gs://bucket/caches/cifar10@v2 v3 --shuffle-seed 0",
    "cachelayer rewrite cache/texts@v7 v8 --compression zstd --shard-bytes 1GiB --workers 8",
    "cachelayer rewrite cache/pets@v1 small --field image --field meta/url",
)
def rewrite(
    reference: ReferenceArgument,
    new: Annotated[str, typer.Argument(metavar="VERSION", help="The name of the new version.")],
    shuffle_seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="Shuffle the records with this seed; else they keep their order."),
    ] = None,
    compression: Annotated[
        str, typer.Option(metavar="KIND", help="none, zstd or zstd:LEVEL; by default that of the version.")
    ] = AS_BASE,
    shard_bytes: ShardBytes = None,
    field: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Keep only this field, such as image or meta/url.")
    ] = None,
    workers: Workers = 1,
    engine: Engine = None,
    resume: Resume = True,
    option: Options = None,
    local_cache: LocalCache = None,
) -> Answer:
    """Write the records of a version into shards of their own: shuffled, compressed or cut otherwise.

    If the new version exists and was made in this way, nothing is written.
    """
    storage, address = open_address(reference, option, local_cache)
    with _resumable():
        ref = storage.rewrite(
            address.dataset_id,
            storage.fetch(reference),
            new,
            shuffle_seed=shuffle_seed,
            compression=compression,
            shard_bytes=DEFAULT_SHARD_BYTES if shard_bytes is None else nbytes("--shard-bytes", shard_bytes),
            fields=field or None,
            workers=workers,
            engine=engine,
            resume=resume,
        )
    return version_answer(ref, "written")


@command(
    "Manage",
    "cachelayer rm gs://bucket/caches/cifar10@v1",
    "cachelayer rm cache/cifar10@v1 --yes --force",
    "cachelayer rm cache/cifar10@v1 --yes --grace 0",
)
def rm(
    reference: ReferenceArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Delete a version that has tags, with its tags.")] = False,
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="How long the files stay for current readers: 30m, 24h; 0 for none.")
    ] = "24h",
    option: Options = None,
) -> Answer:
    """Delete a version. Once the grace is over, gc deletes the files that no other version has."""
    storage, address = open_address(reference, option)
    if address.name is None:
        raise InvalidArgumentError(f"{reference!r}: say which version: {reference}@VERSION")
    name, grace_seconds = f"{address.dataset_id}@{address.name}", seconds("--grace", grace)
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidArgumentError("there is no terminal to ask for confirmation: pass --yes")
        typer.confirm(f"Delete {name} from {storage.url}?", abort=True, err=True)
    storage.delete(reference, force=force, grace=grace_seconds)
    document = {"dataset_id": address.dataset_id, "deleted": address.name, "grace_seconds": grace_seconds}
    later = f": its space is freed by gc after {grace}, or at once by rm --grace 0" if grace_seconds else ""
    return Answer(document, [f"{name} is deleted{later}"])


@command(
    "Manage",
    "cachelayer erase gs://bucket/caches/users@v3 1042 77 --reason 'request 5512'",
    "cachelayer erase cache/users@v3 100:200 --reason 'request 5513' --grace 0 --yes",
)
def erase(
    reference: ReferenceArgument,
    records: Annotated[list[str], typer.Argument(help="Numbers of records, or ranges such as 100:200.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; it is stored, and shown for the old digest.")],
    grace: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long old files stay for current readers; 0 deletes them at once."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    option: Options = None,
) -> Answer:
    """Erase records from every version of the dataset whose shards hold them. All others keep their numbers."""
    storage, address = open_address(reference, option)
    numbers = [number for each in records for number in _numbers(each)]
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidArgumentError("there is no terminal to ask for confirmation: pass --yes")
        typer.confirm(f"Erase {count(len(numbers), 'record')} from {reference}?", abort=True, err=True)
    own = f"{address.dataset_id}@{address.name}" if address.name else address.dataset_id
    grace_seconds = None if grace is None else seconds("--grace", grace)
    return version_answer(storage.erase(own, records=numbers, reason=reason, grace=grace_seconds), "written")


def _numbers(text: str) -> range:
    """Return the numbers of records that an argument names."""
    start, colon, stop = text.partition(":")
    try:
        return range(int(start), int(stop) if colon else int(start) + 1)
    except ValueError:
        raise InvalidArgumentError(f"{text!r}: name records by numbers, or by ranges such as 100:200") from None


@command(
    "Manage",
    "cachelayer gc gs://bucket/caches",
    "cachelayer gc cache --grace 1h",
    "cachelayer gc cache --dry-run",
)
def gc(
    storage: StorageArgument,
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="Keep files that were written within TIME: 30m, 24h, 7d.")
    ] = "24h",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing: list what would be deleted.")] = False,
    option: Options = None,
) -> Answer:
    """Delete the remains of failed, killed and interrupted builds and copies, and deleted versions after their grace.

    What running builds have written is not touched.
    """
    deleted = existing_storage(storage, option).gc(seconds("--grace", grace), dry_run=dry_run)
    key, verb = ("would_delete", "would be deleted") if dry_run else ("deleted", "deleted")
    shown = [*map(str, deleted), f"{count(len(deleted), 'file')} {verb}"]
    return Answer({key: [asdict(each) for each in deleted]}, shown)
