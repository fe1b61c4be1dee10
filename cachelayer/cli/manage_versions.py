"""The commands that make, copy, name and delete versions: ``cp``, ``mirror``, ``rewrite``, ``tag``, ``rm``, ``gc``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from cachelayer.builds.shard_cuts import DEFAULT_SHARD_BYTES
from cachelayer.cli.addresses import (
    Address,
    LocalCache,
    Options,
    ReferenceArgument,
    StorageArgument,
    ToOptions,
    existing_storage,
    nbytes,
    open_reference,
    open_storage,
    seconds,
)
from cachelayer.cli.command import command
from cachelayer.cli.output import FINDING, WELL, Answer, count, made
from cachelayer.drawing.text import size
from cachelayer.errors import InvalidArgumentError
from cachelayer.storage.storage import AS_BASE


@command(
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
    source = Address.whole(reference)
    is_renamed = "@" in to.rstrip("/").rpartition("/")[2]
    target = Address.whole(to) if is_renamed else Address(to, source.dataset_id)
    try:
        ref = open_storage(source.url, option).copy(
            source.dataset_id,
            source.version,
            open_storage(target.url, to_option),
            new=target.name if is_renamed else None,
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "nothing is published; to continue where it stopped, run the same command again"
        ) from None
    return Answer(made(ref), [f"copied {count(len(ref), 'record')}, {size(ref.nbytes)}", ref.reference])


@command(
    "cachelayer mirror gs://bucket/caches/cifar10@v2",
    "cachelayer mirror gs://bucket/caches/cifar10@v2 --local-cache /scratch/cachelayer",
)
def mirror(reference: ReferenceArgument, option: Options = None, local_cache: LocalCache = None) -> Answer:
    """Copy all shards of a version to the local disk, before training starts. Exit code 1 if there is no room."""
    try:
        found = open_reference(reference, option, local_cache).mirror()
    except KeyboardInterrupt:
        raise KeyboardInterrupt("copied shards stay; run the same command again for the others") from None
    whole = found.local_shards == found.shards
    shown = (
        f"{count(found.local_shards)} of {count(found.shards, 'shard')}, {size(found.local_nbytes)} of "
        f"{size(found.nbytes)} are local: {found.folder}"
    )
    room = (
        [] if whole else ["there is no room for the others: free some space, or name another folder with --local-cache"]
    )
    document = {**asdict(found), "folder": None if found.folder is None else str(found.folder)}
    return Answer(document, [shown, *room], WELL if whole else FINDING)


@command(
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
    shard_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="About how large a shard file gets: 256MB, 1GiB.")
    ] = None,
    field: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Keep only this field, such as image or meta/url.")
    ] = None,
    workers: Annotated[int, typer.Option(metavar="N", help="Write with N processes.")] = 1,
    engine: Annotated[
        str | None, typer.Option(metavar="processes|ray|beam", help="Write the parts on this engine.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Continue after what an interrupted call has finished.")
    ] = True,
    option: Options = None,
    local_cache: LocalCache = None,
) -> Answer:
    """Write the records of a version into shards of their own: shuffled, compressed or cut otherwise.

    If the new version exists and was made in this way, nothing is written.
    """
    base = open_reference(reference, option, local_cache)
    address = Address.parse(reference)
    try:
        ref = open_storage(address.url, option, local_cache).rewrite(
            address.dataset_id,
            base,
            new,
            shuffle_seed=shuffle_seed,
            compression=compression,
            shard_bytes=DEFAULT_SHARD_BYTES if shard_bytes is None else nbytes("--shard-bytes", shard_bytes),
            fields=field or None,
            workers=workers,
            engine=engine,
            resume=resume,
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            "run the same command again: it continues after what is finished, if the version is not published yet"
        ) from None
    name = f"{ref.dataset_id}@{ref.dataset_version}"
    return Answer(made(ref), [f"{name}: {count(len(ref), 'record')}, {size(ref.nbytes)}", ref.reference])


@command(
    "cachelayer tag gs://bucket/caches/cifar10@v2 best",
    "cachelayer tag gs://bucket/caches/cifar10 best --delete",
)
def tag(
    reference: ReferenceArgument,
    tag: Annotated[str, typer.Argument(metavar="TAG", help="The tag; it moves if it named another version.")],
    delete: Annotated[bool, typer.Option("--delete", help="Remove the tag; REFERENCE is then STORAGE/ID.")] = False,
    option: Options = None,
) -> Answer:
    """Make a tag name a version, or remove the tag."""
    address = Address.whole(reference)
    storage = open_storage(address.url, option)
    if delete:
        if address.version is not None:
            raise InvalidArgumentError("--delete removes a tag from its dataset: write STORAGE/ID, without @VERSION")
        storage.untag(address.dataset_id, tag)
        return Answer({"dataset_id": address.dataset_id, "removed": tag}, [f"{address.dataset_id}: no tag {tag} now"])
    version = storage.fetch(address.name).dataset_version
    storage.tag(address.dataset_id, version, tag)
    document = {"dataset_id": address.dataset_id, "version": version, "tag": tag}
    return Answer(document, [f"{address.dataset_id}@{tag} is {version}"])


@command(
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
    address = Address.whole(reference)
    if address.version is None:
        raise InvalidArgumentError(f"{reference!r}: say which version: {reference}@VERSION")
    stay = seconds("--grace", grace)
    storage = open_storage(address.url, option)
    known = storage.versions(address.dataset_id).get(address.version)
    tags = [tag for tag, version in storage.tags(address.dataset_id).items() if version == address.version]
    if tags and not force:
        raise InvalidArgumentError(f"{address.name} has the tag {tags[0]}: move it first, or pass --force")
    if known is not None and not yes:
        _confirm(f"Delete {address.name} with {count(known.records, 'record')} from {storage.url}?")
    storage.delete(address.dataset_id, address.version, force=force, grace=stay)
    document = {"dataset_id": address.dataset_id, "deleted": address.version, "grace_seconds": stay}
    later = f"its space is freed by gc after {grace}, or at once by rm --grace 0"
    return Answer(document, [f"{address.name} is deleted{f': {later}' if stay else ''}"])


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise InvalidArgumentError("there is no terminal to ask for confirmation: pass --yes")
    typer.confirm(question, abort=True, err=True)


@command(
    "cachelayer gc gs://bucket/caches",
    "cachelayer gc cache --grace 1h",
    "cachelayer gc cache --dry-run",
)
def gc(
    storage: StorageArgument,
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="Keep remains of builds that changed within TIME: 30m, 24h, 7d.")
    ] = "24h",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing: list what would be deleted.")] = False,
    option: Options = None,
) -> Answer:
    """Delete the remains of failed, killed and interrupted builds and copies, and deleted versions after their grace.

    Running builds are never touched.
    """
    deleted = existing_storage(storage, option).gc(seconds("--grace", grace), dry_run=dry_run)
    if dry_run:
        return Answer({"would_delete": deleted}, [*deleted, f"{count(len(deleted), 'build attempt')} would be deleted"])
    return Answer({"deleted": deleted}, [*deleted, f"{count(len(deleted), 'build attempt')} deleted"])
