"""The commands ``view``, a page in the browser, and ``demo``, which resumes a stream in another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import typer

import cachelayer
from cachelayer.cli.app import command
from cachelayer.cli.build_and_import import load
from cachelayer.cli.options import open_place
from cachelayer.cli.output import Answer
from cachelayer.errors import CorruptionError, MissingDependencyError
from cachelayer.storage.storage import Storage

RECORDS, BATCH, SEED, STOP_AFTER = 2_000, 64, 7, 11
_RESUME = "import sys; from cachelayer.cli.view_and_demo import resume; resume(sys.argv[1])"


@command(
    "Inspect",
    "cachelayer view cache",
    "cachelayer view gs://bucket/caches/cifar10@v2",
    "cachelayer view cache/tokens@v1 --detokenize my_tokens.py:decode",
    options="option",
)
def view(
    place: str,
    *,
    no_open: bool = False,
    port: int = 0,
    host: str = "127.0.0.1",
    detokenize: str | None = None,
    option: Any,
) -> Answer:
    """Show a storage as a page in the browser: versions, records, statistics, the order of training."""
    # Records are read in ranges: a look at a bucket downloads no shard.
    storage, name = open_place(place, option, local_cache_bytes=0)
    try:
        from cachelayer.view.render import Shelf, version_path
        from cachelayer.view.server import PageServer
    except ImportError as error:
        raise MissingDependencyError(f"the page needs {error.name}: pip install 'cachelayer[view]'") from error
    shelf = Shelf(storage, None if detokenize is None else load(detokenize))
    path = "/"
    if name is not None:
        ref = shelf.ref(name, None)
        path = version_path(ref.dataset_id, ref.dataset_version)
    server = PageServer(shelf, host, port)
    url = server.url(path)
    typer.echo(f"{url}\nCtrl-C ends it.")
    if not no_open:
        webbrowser.open(url)
    with suppress(KeyboardInterrupt):  # the usual way to end it
        server.run()
    return Answer({"url": url})


@command("Help", "cachelayer demo", "cachelayer demo demo-cache")
def demo(folder: Path | None = None) -> Answer:
    """Cache a sequence, stop reading in mid-epoch, resume in another process, and prove that nothing was lost."""
    place = str(folder or tempfile.mkdtemp(prefix="cachelayer-demo-"))
    storage = Storage(place)
    ref = storage.cache(pictures, "pictures", "v1")
    print(f"cached    {ref.reference}: {len(ref)} records, {ref.nbytes / 1e6:.1f} MB: {ref.element_spec}")
    print(f"again     opened, not built: {storage.cache(pictures, 'pictures', 'v1')}")

    iterator = iter(shuffled_stream(place))
    before = [next(iterator)["number"].tolist() for _ in range(STOP_AFTER)]
    iterator.save(place)
    print(f"stopped   process {os.getpid()} after {STOP_AFTER} shuffled batches")

    resumed = json.loads(subprocess.check_output([sys.executable, "-c", _RESUME, place]))  # noqa: S603
    after = resumed["numbers"]
    print(f"resumed   process {resumed['process']}: {len(after)} more batches")

    uninterrupted = [batch["number"].tolist() for batch in shuffled_stream(place)]
    handed_out = sorted(number for batch in before + after for number in batch)
    if before + after != uninterrupted or handed_out != list(range(len(ref))):
        raise CorruptionError("records were lost or repeated on the way through two processes: please report it")
    print(f"proved    {len(ref)} records, each handed out once, in the order of an uninterrupted run")
    print(f"next      cachelayer view {place}/pictures@v1")
    return Answer({"proved": True, "reference": ref.reference})


def pictures() -> Iterator[dict[str, Any]]:
    """Yield pictures of 8 x 8 pixels: noise, and a bright bar in the row that the label names."""
    rng = np.random.default_rng(SEED)
    for number in range(RECORDS):
        image, label = rng.random((8, 8), np.float32) / 2, number % 8
        image[label] = 1
        yield {"image": image, "label": label, "number": number}


def shuffled_stream(folder: str) -> cachelayer.Stream[Any]:
    """Return the stream that both processes read."""
    return Storage(folder).fetch("pictures", "v1").stream(BATCH, shuffle=True, seed=SEED)


def resume(folder: str) -> None:
    """Do the work of the second process: restore the state and read the rest of the epoch."""
    iterator = iter(shuffled_stream(folder))
    iterator.load(folder)
    numbers = [batch["number"].tolist() for batch in iterator]
    print(json.dumps({"process": os.getpid(), "numbers": numbers}))
