"""The commands that name, copy, rewrite and delete versions, and look after local copies and this machine."""

from __future__ import annotations

import platform
import re
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Annotated, Any

import typer

from cachelayer.cli.app import command
from cachelayer.cli.options import (
    DIVIDE,
    REACH,
    ReferenceArgument,
    StorageArgument,
    WholeArgument,
    existing_storage,
    open_address,
    open_reference,
    open_storage,
    open_target,
    seconds,
)
from cachelayer.cli.output import FINDING, SUCCESS, Answer, count, facts, table, version_answer
from cachelayer.drawing.text import ago, duration, size
from cachelayer.errors import CacheLayerError, InvalidArgumentError, NotFoundError
from cachelayer.objects.local_cache import CacheFolder, folder_of
from cachelayer.objects.store import Store
from cachelayer.storage.storage import AS_BASE
from cachelayer.versions.gc import Pending, pending

_DEVELOPMENT = re.compile("extra == .(dev|docs|lint|test)")


@command(
    "Manage",
    "cachelayer tag gs://bucket/caches/cifar10@v2 best",
    "cachelayer tag gs://bucket/caches/cifar10 best --delete",
    options="option",
)
def tag(
    reference: WholeArgument,
    tag: Annotated[str, typer.Argument(metavar="TAG", help="The tag; it moves if it named another version.")],
    delete: Annotated[bool, typer.Option("--delete", help="Remove the tag; REFERENCE is then STORAGE/ID.")] = False,
    **reach: Any,
) -> Answer:
    """Tag a version, or remove a tag."""
    storage, address = open_address(reference, **reach)
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
    options="option to_option",
)
def cp(
    reference: WholeArgument,
    to: Annotated[
        str, typer.Argument(metavar="STORAGE[/ID@VERSION]", help="The target; by default with the same names.")
    ],
    *,
    option: Any,
    to_option: Any,
) -> Answer:
    """Copy a version to another storage, with the same shards and digest. Shards that are there are not sent again."""
    ref = open_reference(reference, option)
    if "@" in to.rpartition("/")[2]:
        target, address = open_target(to, to_option)
        new = f"{address.dataset_id}@{address.name}"
    else:
        target, new = open_storage(to, to_option), f"{ref.dataset_id}@{ref.dataset_version}"
    with suppress(NotFoundError):
        if target.fetch(new).digest == ref.digest:
            return version_answer(target.fetch(new), "was there already, nothing was copied", copied=False)
    source, _ = open_address(reference, option)
    return version_answer(source.copy(reference, to=target, new=new), "copied", copied=True)


@command(
    "Manage",
    "cachelayer mirror gs://bucket/caches/cifar10@v2",
    "cachelayer mirror gs://bucket/caches/cifar10@v2 --local-cache /scratch",
    options=REACH,
)
def mirror(reference: WholeArgument, **reach: Any) -> Answer:
    """Copy all shards of a version to the local disk, before training starts. Exit code 1 if there is no room."""
    ref = open_reference(reference, **reach)
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
    "cachelayer rewrite cache/texts@v7 v8 --compression zstd --shard-bytes 1GiB",
    "cachelayer rewrite cache/pets@v1 small --field image --field meta/url",
    options=f"shard_bytes {DIVIDE} {REACH}",
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
    field: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Keep only this field, such as image or meta/url.")
    ] = None,
    *,
    option: Any,
    local_cache: Any,
    **divide: Any,
) -> Answer:
    """Write the records of a version into shards of their own: shuffled, compressed or cut otherwise.

    If the new version exists and was made in this way, nothing is written.
    """
    storage, address = open_address(reference, option, local_cache)
    ref = storage.rewrite(
        address.dataset_id,
        storage.fetch(reference),
        new,
        shuffle_seed=shuffle_seed,
        compression=compression,
        fields=field or None,
        **divide,
    )
    return version_answer(ref, "written")


@command(
    "Manage",
    "cachelayer rm gs://bucket/caches/cifar10@v1",
    "cachelayer rm cache/cifar10@v1 --yes --force",
    "cachelayer rm cache/cifar10@v1 --yes --grace 0",
    options="yes grace option",
)
def rm(
    reference: WholeArgument,
    force: Annotated[bool, typer.Option("--force", help="Delete a version that has tags, with its tags.")] = False,
    *,
    yes: bool,
    grace: float,
    **reach: Any,
) -> Answer:
    """Delete a version. Once the grace is over, gc deletes the files that no other version has."""
    storage, address = open_address(reference, **reach)
    if address.name is None:
        raise InvalidArgumentError(f"{reference!r}: say which version: {reference}@VERSION")
    name = f"{address.dataset_id}@{address.name}"
    _confirm(f"Delete {name} from {storage.url}?", yes)
    storage.delete(reference, force=force, grace=grace)
    left = pending(storage._store, address.dataset_id)
    document = {"dataset_id": address.dataset_id, "deleted": address.name, "grace_seconds": grace}
    return Answer({**document, "not_freed": [*map(asdict, left)]}, [f"{name} is deleted", *_not_freed(left)])


def _confirm(question: str, yes: bool) -> None:
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidArgumentError("there is no terminal to ask for confirmation: pass --yes")
        typer.confirm(question, abort=True, err=True)


def _not_freed(left: list[Pending]) -> list[str]:
    """Return a line on the bytes of deleted versions that stay for their readers, if there are any."""
    left = [one for one in left if one.nbytes]
    if not left:
        return []
    total, longest = size(sum(one.nbytes for one in left)), max(one.seconds for one in left)
    when = f"in {duration(longest)}" if longest > 0 else "now"
    names = ", ".join(f"{one.dataset_id}@{one.version}" for one in left)
    return [f"{total} of {names} are not freed yet: gc frees them {when}, rm --grace 0 at once"]


@command(
    "Manage",
    "cachelayer erase gs://bucket/caches/users@v3 1042 77 --reason 'request 5'",
    "cachelayer erase cache/users@v3 100:200 --reason 'request 6' --grace 0",
    options="yes option",
)
def erase(
    reference: WholeArgument,
    records: Annotated[
        list[str], typer.Argument(metavar="RECORDS", help="Numbers of records, or ranges such as 100:200.")
    ],
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; it is stored, and shown for the old digest.")
    ],
    grace: Annotated[
        Any,
        typer.Option(
            metavar="TIME",
            parser=seconds,
            help="How long old files stay for current readers, by default until gc; 0 for none.",
        ),
    ] = None,
    *,
    yes: bool,
    **reach: Any,
) -> Answer:
    """Erase records from every version of the dataset whose shards hold them. All others keep their numbers."""
    storage, address = open_address(reference, **reach)
    numbers = [number for each in records for number in _numbers(each)]
    _confirm(f"Erase {count(len(numbers), 'record')} from {reference}?", yes)
    own = f"{address.dataset_id}@{address.name}" if address.name else address.dataset_id
    return version_answer(storage.erase(own, records=numbers, reason=reason, grace=grace), "written")


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
    options="option",
)
def gc(
    storage: StorageArgument,
    grace: Annotated[
        Any,
        typer.Option(metavar="TIME", parser=seconds, help="Keep files that were written within TIME: 30m, 24h, 7d."),
    ] = "24h",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing: list what would be deleted.")] = False,
    **reach: Any,
) -> Answer:
    """Delete the remains of failed, killed and interrupted builds and copies, and deleted versions after their grace.

    What running builds have written is not touched.
    """
    opened = existing_storage(storage, **reach)
    deleted = opened.gc(grace, dry_run=dry_run)
    left = pending(opened._store)
    key, verb = ("would_delete", "would be deleted") if dry_run else ("deleted", "deleted")
    shown = [*map(str, deleted), f"{count(len(deleted), 'file')} {verb}", *_not_freed(left)]
    return Answer({key: [*map(asdict, deleted)], "not_freed": [*map(asdict, left)]}, shown)


@command("Manage", "cachelayer local", "cachelayer local --clear", options="local_cache")
def local(
    clear: Annotated[bool, typer.Option("--clear", help="Remove all copies that no program uses.")] = False,
    *,
    local_cache: Any,
) -> Answer:
    """List the local copies of remote shards, or remove them. They are made again when they are read."""
    folder = folder_of(local_cache)
    copies = CacheFolder(folder)
    if clear:
        copies.clear()
    groups = copies.copies()
    rows = table("copies of", "files", "size", "last used", right=("files", "size"))
    for group in groups:
        rows.add_row(group.url, count(group.files), size(group.nbytes), ago(group.idle))
    total = sum(group.nbytes for group in groups)
    state = "left in use by other programs" if clear else "of copies"
    document = {"folder": str(folder), "nbytes": total, "groups": [*map(asdict, groups)]}
    return Answer(document, [*[rows] * bool(groups), f"{folder}: {size(total)} {state}"])


@command("Help", "cachelayer doctor", "cachelayer doctor gs://bucket/caches", options="option")
def doctor(
    storage: Annotated[str | None, typer.Argument(metavar="STORAGE", help="A storage to probe.")] = None,
    *,
    option: Any,
) -> Answer:
    """Show versions of packages; probe a storage. Exit code 1 if it cannot be published to."""
    document: dict[str, Any] = {"versions": _versions()}
    rows = [*document["versions"].items()]
    if storage is None:
        return Answer(document, [facts(rows)])
    store = existing_storage(storage, option)._store
    problem = _probe(store)
    document["storage"] = {"url": store.url, "problem": problem}
    rows.append(("storage", f"{store.url}: {problem or 'can be published to'}"))
    return Answer(document, [facts(rows)], FINDING if problem else SUCCESS)


def _versions() -> dict[str, str]:
    """Return the versions of Python, of cachelayer and of what it uses, as far as it is installed."""
    versions = {"python": platform.python_version()}
    names = {"cachelayer"}
    with suppress(PackageNotFoundError):
        used = [text for text in requires("cachelayer") or () if not _DEVELOPMENT.search(text)]
        names |= {re.split(r"[^\w.-]", text)[0] for text in used}
    for name in sorted(names):
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def _probe(store: Store) -> str:
    """Return why a storage cannot be published to; an empty text if it can. Nothing is left in it."""
    name, first, second = f"_probe-{uuid.uuid4().hex}", b"first", b"second"
    steps: dict[str, Callable[[], bool]] = {
        "it does not put an object where there is none": lambda: store.put_if_absent(name, first),
        "it puts an object over another": lambda: not store.put_if_absent(name, second),
        "it does not read what was put": lambda: store.read(name) == first,
        "it does not list what was put": lambda: name in store.names(""),
    }
    try:
        return next((problem for problem, is_well in steps.items() if not is_well()), "")
    except CacheLayerError as error:
        return str(error)
    finally:
        with suppress(CacheLayerError):
            store.delete(name)
