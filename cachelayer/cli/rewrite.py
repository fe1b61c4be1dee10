"""The command that writes a version again: ``rewrite``."""

from __future__ import annotations

from typing import Annotated

import typer

from cachelayer.builds.build_options import DEFAULT_SHARD_BYTES
from cachelayer.cli.addresses import Address, LocalCache, Options, ReferenceArgument, open_reference, open_storage
from cachelayer.cli.command import command
from cachelayer.cli.output import Answer, count, made
from cachelayer.cli.quantities import nbytes
from cachelayer.drawing.quantities import size
from cachelayer.storage.rewrite import AS_BASE


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
