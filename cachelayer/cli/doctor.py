"""The command ``doctor``: versions and local copies of this machine, and whether a storage can be published to."""

from __future__ import annotations

import platform
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from cachelayer.cli.addresses import LocalCache, Options, storage_options
from cachelayer.cli.command import command
from cachelayer.cli.output import FINDING, WELL, Answer, facts, table
from cachelayer.drawing.text import size
from cachelayer.errors import CacheLayerError
from cachelayer.objects.local import LocalStore
from cachelayer.objects.local_cache import CacheFolder, folder_of
from cachelayer.objects.open_store import open_store
from cachelayer.objects.store import ObjectStore


@command(
    "cachelayer doctor",
    "cachelayer doctor gs://bucket/caches",
)
def doctor(
    storage: Annotated[str | None, typer.Argument(metavar="[STORAGE]", help="A storage to probe.")] = None,
    option: Options = None,
    local_cache: LocalCache = None,
) -> Answer:
    """Show versions and local copies; probe a storage. Exit code 1 if it cannot be published to."""
    folder = folder_of(local_cache)
    nbytes = sum(sum(sizes.values()) for sizes in CacheFolder(folder).sizes().values()) if folder.is_dir() else 0
    document: dict[str, Any] = {"versions": _versions(), "local_cache": {"folder": str(folder), "nbytes": nbytes}}
    shown: list[RenderableType] = [
        facts(document["versions"].items()),
        "",
        facts([("local copies", str(folder)), ("they take", size(nbytes))]),
    ]
    if storage is None:
        return Answer(document, shown)
    store = open_store(storage, storage_options(option))
    checks = list(_probe(store))
    document["storage"] = {"url": store.url, "checks": checks}
    rows = table("storage", store.url, "")
    for check in checks:
        rows.add_row("ok" if check["ok"] else "FAILED", check["check"], check["detail"])
    return Answer(document, [*shown, "", rows], WELL if all(check["ok"] for check in checks) else FINDING)


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


def _probe(store: ObjectStore) -> Iterator[dict[str, Any]]:
    """Yield what publishing asks of a storage, each with whether it does so, up to the first failure.

    Nothing is left in the storage.
    """
    if isinstance(store, LocalStore) and not store.root.is_dir():
        yield {"check": "exists", "ok": False, "detail": "the folder does not exist: the first build makes it"}
        return
    name, first, second = f"_probe-{uuid.uuid4().hex}", b"first", b"second"
    checks: dict[str, Callable[[], bool]] = {
        "puts an object where there is none": lambda: store.put_if_absent(name, first),
        "refuses to put another over it": lambda: not store.put_if_absent(name, second),
        "reads what was put first": lambda: store.read(name) == first,
        "lists it": lambda: name in store.names(""),
    }
    try:
        for check, is_done in checks.items():
            try:
                ok, detail = is_done(), ""
            except CacheLayerError as error:
                ok, detail = False, str(error)
            yield {"check": check, "ok": ok, "detail": detail if ok else detail or "it does not"}
            if not ok:
                return
    finally:
        with suppress(CacheLayerError):
            store.delete(name)
