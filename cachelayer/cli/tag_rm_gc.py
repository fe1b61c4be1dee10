"""The commands that manage versions: ``tag``, ``rm`` and ``gc``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cachelayer.cli.addresses import (
    Address,
    Options,
    ReferenceArgument,
    StorageArgument,
    existing_storage,
    open_storage,
)
from cachelayer.cli.command import command
from cachelayer.cli.output import Answer, count
from cachelayer.cli.quantities import seconds
from cachelayer.errors import InvalidArgumentError


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
