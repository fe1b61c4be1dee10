"""The commands about this machine: ``copies``, ``doctor`` and ``demo``, which resumes a stream in another process."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import click
import numpy as np

import cachelayer
from cachelayer.cli.addresses import open_storage
from cachelayer.cli.app import PROBE, command
from cachelayer.cli.exit_codes import finding_if
from cachelayer.cli.output import Result, facts, table
from cachelayer.errors import CacheLayerError, CorruptionError
from cachelayer.gather import IS_COMPILED
from cachelayer.objects.local_cache import CacheFolder, folder_of
from cachelayer.objects.store import Store
from cachelayer.storage.storage import Storage
from cachelayer.support.credentials_in_urls import without_credentials
from cachelayer.support.progress import size

PATIENCE = 10.0
"""Seconds after which `doctor` gives up."""
_DEVELOPMENT = re.compile("extra == .(dev|docs|lint|test)")
RECORDS = 2_000
BATCH = 64
SEED = 7
STOP_AFTER = 11
_RESUME = "import sys; from cachelayer.cli.this_machine import resume; resume(sys.argv[1])"


@command("copies", "Manage", "", "--clear")
def list_copies(clear: bool, local_cache: Path | None) -> Result:
    """List the local copies of remote shards, or remove them. They are made again when they are read."""
    copies = CacheFolder(folder_of(local_cache))
    if clear:
        copies.clear()
    groups = copies.copies()
    total = sum(group.nbytes for group in groups)
    state = "left in use by other programs" if clear else "of copies"
    document = {"folder": copies.path, "nbytes": total, "groups": groups}
    return Result(document, [*table(groups, "files", "nbytes", "idle", "url"), f"{copies.path}: {size(total)} {state}"])


@command("doctor", "Help", "", "gs://bucket/caches")
def doctor(probed: str | None, option: dict[str, Any]) -> Result:
    """Show versions of packages; probe a storage, for 10 seconds at most. Exit code 1 if it cannot be published to."""
    versions = {"python": platform.python_version()}
    used = {"cachelayer"}
    # A checkout on the path is not installed.
    with suppress(PackageNotFoundError):
        needed = [text for text in requires("cachelayer") or () if not _DEVELOPMENT.search(text)]
        used |= {re.split(r"[^\w.-]", text)[0] for text in needed}
    for name in sorted(used):
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    copying = "compiled functions" if IS_COMPILED else "numpy: no compiler was there when cachelayer was installed"
    shown = facts([*versions.items(), ("records are copied by", copying)])
    if probed is None:
        return Result({"versions": versions, "is_compiled": IS_COMPILED}, shown)
    if not click.get_current_context().params["quiet"]:
        click.echo(f"asking {without_credentials(probed)}, for {PATIENCE:g} s at most", err=True)
    url, problem, limit = _asked(probed, option)
    report = {"url": url, "problem": problem, "limit": limit}
    document = {"versions": versions, "is_compiled": IS_COMPILED, "storage": report}
    verdict = f"{url}: {problem or 'can be published to'}{limit and ', but ' + limit}"
    return Result(document, [*shown, verdict], finding_if(bool(problem)))


def _asked(storage: str, option: dict[str, Any]) -> tuple[str, str, str]:
    """Return the URL of a storage, why it cannot be published to, or does not answer, and what else it refuses."""
    asking: Future[tuple[str, str, str]] = Future()

    def ask() -> None:
        try:
            store = open_storage(storage, storage_options=option)._store
            asking.set_result((store.url, *_probe(store)))
        # The thread that waits raises it.
        except BaseException as error:  # noqa: BLE001
            asking.set_exception(error)

    # A daemon: nobody waits for a storage that does not answer.
    threading.Thread(target=ask, name=PROBE, daemon=True).start()
    try:
        return asking.result(PATIENCE)
    except TimeoutError:
        problem = f"it did not answer within {PATIENCE:g} s: are the address and the network right?"
        return without_credentials(storage), problem, ""


def _probe(store: Store) -> tuple[str, str]:
    """Return why a storage cannot be published to, and why nothing can be deleted; empty texts if both can be."""
    name = f"_probe-{uuid.uuid4().hex}"
    problem = ""
    try:
        store.put_if_absent(name, b"first")
        if store.put_if_absent(name, b"second"):
            problem = "it puts an object over another"
        elif store.read(name) != b"first" or name not in store.names(""):
            problem = "it does not read or list what was put"
    except CacheLayerError as error:
        problem = str(error)
    try:
        store.delete(name)
    except CacheLayerError as error:
        if not problem:
            return "", f"nothing can be deleted, so {name} is left, and rm, erase and gc fail: {error}"
    return problem, ""


@command("demo", "Help", "", "demo-cache")
def demo(folder: Path | None) -> Result:
    """Cache a sequence, stop reading in mid-epoch, resume in another process, and prove that nothing was lost."""
    place = str(folder or tempfile.mkdtemp(prefix="cachelayer-demo-"))
    storage = Storage(place)
    ref = storage.cache(pictures, "pictures@v1")
    print(f"cached    {ref.reference}: {len(ref)} records, {ref.nbytes / 1e6:.1f} MB: {ref.element_spec}")
    print(f"again     opened, not built: {storage.cache(pictures, 'pictures@v1')}")

    iterator = iter(shuffled_stream(place))
    before = [next(iterator)["number"].tolist() for _ in range(STOP_AFTER)]
    iterator.save(place)
    print(f"stopped   after {STOP_AFTER} shuffled batches")

    after = json.loads(subprocess.check_output([sys.executable, "-c", _RESUME, place]))  # noqa: S603
    print(f"resumed   in another process: {len(after)} more batches")

    uninterrupted = [batch["number"].tolist() for batch in shuffled_stream(place)]
    handed_out = sorted(number for batch in before + after for number in batch)
    if before + after != uninterrupted or handed_out != list(range(len(ref))):
        raise CorruptionError("records were lost or repeated on the way through two processes: please report it")
    print(f"proved    {len(ref)} records, each handed out once, in the order of an uninterrupted run")
    print(f"next      cachelayer view {place}/pictures@v1")
    return Result({"proved": True, "reference": ref.reference})


def pictures() -> Iterator[dict[str, Any]]:
    """Yield pictures of 8 x 8 pixels: noise, and a bright bar in the row that the label names."""
    rng = np.random.default_rng(SEED)
    for number in range(RECORDS):
        image = rng.random((8, 8), np.float32) / 2
        label = number % 8
        image[label] = 1
        yield {"image": image, "label": label, "number": number}


def shuffled_stream(folder: str) -> cachelayer.Stream[Any]:
    """Return the stream that both processes read."""
    return Storage(folder).fetch("pictures@v1").stream(BATCH, shuffle=True, seed=SEED)


def resume(folder: str) -> None:
    """Do the work of the second process: restore the state, and print the numbers of the rest of the epoch."""
    iterator = iter(shuffled_stream(folder))
    iterator.load(folder)
    print(json.dumps([batch["number"].tolist() for batch in iterator]))
