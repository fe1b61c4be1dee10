"""The command ``doctor``: versions and local copies of this machine, and whether a storage can be published to."""

from __future__ import annotations

import platform
import re
import uuid
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Annotated, Any

import typer

from cachelayer.cli.addresses import LocalCache, Options, existing_storage
from cachelayer.cli.command import command
from cachelayer.cli.output import FINDING, SUCCESS, Answer, facts
from cachelayer.drawing.text import size
from cachelayer.errors import CacheLayerError
from cachelayer.objects.local_cache import CacheFolder, folder_of
from cachelayer.objects.store import Store


@command("Help", "cachelayer doctor", "cachelayer doctor gs://bucket/caches")
def doctor(
    storage: Annotated[str | None, typer.Argument(metavar="[STORAGE]", help="A storage to probe.")] = None,
    option: Options = None,
    local_cache: LocalCache = None,
) -> Answer:
    """Show versions and local copies; probe a storage. Exit code 1 if it cannot be published to."""
    folder = folder_of(local_cache)
    nbytes = sum(sum(sizes.values()) for sizes in CacheFolder(folder).sizes().values()) if folder.is_dir() else 0
    document: dict[str, Any] = {"versions": _versions(), "local_cache": {"folder": str(folder), "nbytes": nbytes}}
    rows = [*document["versions"].items(), ("local copies", f"{folder}: {size(nbytes)}")]
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
        names |= {re.split(r"[^\w.-]", requirement)[0] for requirement in requires("cachelayer") or ()}
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
