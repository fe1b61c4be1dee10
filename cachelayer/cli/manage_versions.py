"""The commands that name, copy, rewrite and delete versions, and look after local copies and this machine."""

from __future__ import annotations

import platform
import re
import sys
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

import typer

from cachelayer.cli.app import command
from cachelayer.cli.build_and_import import versions_of
from cachelayer.cli.options import DIVIDE, REACH, only_dataset, open_address, open_storage, storage_options
from cachelayer.cli.output import FINDING, SUCCESS, Answer, count, facts, table, version_answer
from cachelayer.drawing.text import duration, size
from cachelayer.errors import CacheLayerError, InvalidArgumentError
from cachelayer.objects.local_cache import CacheFolder, folder_of
from cachelayer.objects.store import Store
from cachelayer.storage.storage import AS_BASE, Storage
from cachelayer.versions.gc import GRACE_SECONDS, Pending, pending
from cachelayer.versions.reference import Reference

_DEVELOPMENT = re.compile("extra == .(dev|docs|lint|test)")
_GRACE = f"{GRACE_SECONDS // 3600:.0f}h"


@command(
    "Manage",
    "cachelayer tag gs://bucket/caches/cifar10@v2 best",
    "cachelayer tag gs://bucket/caches/cifar10 best --delete",
    options="option",
)
def tag(whole: str, tag: str, *, delete: bool = False, option: Any) -> Answer:
    """Tag a version, or remove a tag."""
    storage, text = open_address(whole, option)
    if delete:
        storage.untag(only_dataset(text), tag)
        return Answer({"removed": tag}, [f"tag {tag} is removed"])
    stored = storage._catalog.resolve(storage._reference(text, None))
    dataset_id, name = stored.dataset_id, stored.info.version
    storage.tag(dataset_id, name, tag)
    return Answer({"dataset_id": dataset_id, "version": name, "tag": tag}, [f"{dataset_id}@{tag} is {name}"])


@command(
    "Manage",
    "cachelayer cp cache/cifar10@v2 gs://bucket/caches",
    "cachelayer cp gs://bucket/caches/cifar10@v2 s3://other/caches/cifar@v1",
    options="option to_option",
)
def cp(whole: str, to: str, *, option: Any, to_option: Any) -> Answer:
    """Copy a version to another storage, with the same shards and digest. Shards that are there are not sent again."""
    source, text = open_address(whole, option)
    new: str | None = None
    if "@" in to.rpartition("/")[2]:
        target, new = open_address(to, to_option)
    else:
        target = Storage(to, storage_options=storage_options(to_option))
    before = versions_of(target, new or text)
    return version_answer(source.copy(text, to=target, new=new), "copied", before)


@command(
    "Manage",
    "cachelayer mirror gs://bucket/caches/cifar10@v2",
    "cachelayer mirror gs://bucket/caches/cifar10@v2 --local-cache /scratch",
    options=REACH,
)
def mirror(reference: str, **reach: Any) -> Answer:
    """Copy all shards of a version to the local disk, before training starts. Exit code 1 if there is no room."""
    storage, text = open_address(reference, **reach)
    copied = storage.fetch(text).mirror()
    shown = [
        f"{copied.local_shards:,} of {count(copied.shards, 'shard')}, {size(copied.local_nbytes)} of "
        f"{size(copied.nbytes)} are local: {copied.folder}"
    ]
    if copied.local_shards == copied.shards:
        return Answer(copied, shown)
    shown.append("there is no room for the others: free some space, or name another folder with --local-cache")
    return Answer(copied, shown, FINDING)


@command(
    "Manage",
    "cachelayer rewrite gs://bucket/caches/cifar10@v2 v3 --shuffle-seed 0",
    "cachelayer rewrite cache/texts@v7 v8 --compression zstd --shard-bytes 1GiB",
    "cachelayer rewrite cache/pets@v1 small --field image --field meta/url",
    options=f"shard_bytes {DIVIDE} {REACH}",
)
def rewrite(
    reference: str,
    new: str,
    *,
    shuffle_seed: int | None = None,
    compression: str = AS_BASE,
    field: list[str] | None = None,
    option: Any,
    local_cache: Any,
    **divide: Any,
) -> Answer:
    """Write the records of a version into shards of their own: shuffled, compressed or cut otherwise.

    If the new version exists and was made in this way, nothing is written.
    """
    storage, text = open_address(reference, option, local_cache=local_cache)
    before, base = versions_of(storage, text), storage.fetch(text)
    how: Any = {"shuffle_seed": shuffle_seed, "compression": compression, "fields": field or None, **divide}
    return version_answer(storage.rewrite(base.dataset_id, base, new, **how), "written", before)


@command(
    "Manage",
    "cachelayer rm gs://bucket/caches/cifar10@v1",
    "cachelayer rm cache/cifar10@v1 --yes --force",
    "cachelayer rm cache/cifar10@v1 --yes --grace 0",
    options="option",
)
def rm(whole: str, *, force: bool = False, grace: Any = _GRACE, yes: bool = False, option: Any) -> Answer:
    """Delete a version. Once the grace is over, gc deletes the files that no other version has."""
    storage, text = open_address(whole, option)
    reference = Reference.plain(text)
    name = f"{reference.dataset_id}@{reference.name}"
    _confirm(f"Delete {name} from {storage.url}?", yes)
    storage.delete(text, force=force, grace=grace)
    left = pending(storage._store, reference.dataset_id)
    return Answer({"deleted": name, "not_freed": left}, [f"{name} is deleted", *_not_freed(left)])


def _confirm(question: str, yes: bool) -> None:
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidArgumentError("there is no terminal to ask for confirmation: pass --yes")
        typer.confirm(question, abort=True, err=True)


def _not_freed(left: Sequence[Pending]) -> list[str]:
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
    options="option",
)
def erase(
    whole: str, numbers: list[range], *, reason: str, grace: Any = None, yes: bool = False, option: Any
) -> Answer:
    """Erase records from every version of the dataset whose shards hold them. All others keep their numbers.

    Without --grace, gc deletes the old files.
    """
    storage, text = open_address(whole, option)
    records = [number for chosen in numbers for number in chosen]
    _confirm(f"Erase {count(len(records), 'record')} from {whole}?", yes)
    return version_answer(storage.erase(text, records=records, reason=reason, grace=grace), "written")


@command(
    "Manage",
    "cachelayer gc gs://bucket/caches",
    "cachelayer gc cache --grace 1h",
    "cachelayer gc cache --dry-run",
    options="option",
)
def gc(storage: str, *, grace: Any = _GRACE, dry_run: bool = False, option: Any) -> Answer:
    """Delete the remains of failed, killed and interrupted builds and copies, and deleted versions after their grace.

    What running builds have written is not touched.
    """
    opened = open_storage(storage, option)
    deleted = opened.gc(grace, dry_run=dry_run)
    left = pending(opened._store)
    done = "would be deleted" if dry_run else "deleted"
    shown = [*map(str, deleted), f"{count(len(deleted), 'file')} {done}", *_not_freed(left)]
    return Answer({done.replace(" ", "_"): deleted, "not_freed": left}, shown)


@command("Manage", "cachelayer local", "cachelayer local --clear", options="local_cache")
def local(*, clear: bool = False, local_cache: Any) -> Answer:
    """List the local copies of remote shards, or remove them. They are made again when they are read."""
    folder = folder_of(local_cache)
    copies = CacheFolder(folder)
    if clear:
        copies.clear()
    groups = copies.copies()
    total = sum(group.nbytes for group in groups)
    state = "left in use by other programs" if clear else "of copies"
    document = {"folder": folder, "nbytes": total, "groups": groups}
    shown = [table([asdict(group) for group in groups])] if groups else []
    return Answer(document, [*shown, f"{folder}: {size(total)} {state}"])


@command("Help", "cachelayer doctor", "cachelayer doctor gs://bucket/caches", options="option")
def doctor(storage: str | None = None, *, option: Any) -> Answer:
    """Show versions of packages; probe a storage. Exit code 1 if it cannot be published to."""
    versions = _versions()
    if storage is None:
        return Answer({"versions": versions}, [facts(versions.items())])
    store = open_storage(storage, option)._store
    problem = _probe(store)
    rows = [*versions.items(), ("storage", f"{store.url}: {problem or 'can be published to'}")]
    document = {"versions": versions, "storage": {"url": store.url, "problem": problem}}
    return Answer(document, [facts(rows)], FINDING if problem else SUCCESS)


def _versions() -> dict[str, str]:
    """Return the versions of Python, of cachelayer and of what it uses, as far as it is installed."""
    versions = {"python": platform.python_version()}
    with suppress(PackageNotFoundError):
        used = {re.split(r"[^\w.-]", text)[0] for text in requires("cachelayer") or () if not _DEVELOPMENT.search(text)}
        for name in sorted({"cachelayer", *used}):
            with suppress(PackageNotFoundError):
                versions[name] = version(name)
    return versions


def _probe(store: Store) -> str:
    """Return why a storage cannot be published to; an empty text if it can. Nothing is left in it."""
    name, problem = f"_probe-{uuid.uuid4().hex}", ""
    try:
        store.put_if_absent(name, b"first")
        if store.put_if_absent(name, b"second"):
            problem = "it puts an object over another"
        elif store.read(name) != b"first" or name not in store.names(""):
            problem = "it does not read or list what was put"
        store.delete(name)
    except CacheLayerError as error:
        problem = str(error)
    return problem
