"""The commands that copy versions: ``cp`` to another storage, ``mirror`` to local disk."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from cachelayer.cli.addresses import (
    Address,
    LocalCache,
    Options,
    ReferenceArgument,
    ToOptions,
    open_reference,
    open_storage,
)
from cachelayer.cli.command import command
from cachelayer.cli.output import FINDING, WELL, Answer, count, made
from cachelayer.drawing.quantities import size


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
            new_id=target.dataset_id,
            new_version=target.version,
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
