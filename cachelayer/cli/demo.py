"""The command ``demo``: cache a sequence, stop reading, and resume in another process.

A generator draws noisy digits, which go into a cache. Records are read at random and streamed shuffled. The stream
stops in mid-epoch and resumes in another process. In the end, every record came exactly once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import cachelayer
from cachelayer.cli.command import command
from cachelayer.cli.output import Answer
from cachelayer.cli.view import serve
from cachelayer.errors import CorruptionError

RECORDS = 1797
BATCH = 64
SEED = 7
STOP_AFTER = 11
_RESUME = "import sys; from cachelayer.cli.demo import resume; resume(sys.argv[1])"
ROWS = """
.###. ..#.. .###. .###. ...#. ##### .###. ##### .###. .###.
#...# .##.. #...# #...# ..##. #.... #.... ....# #...# #...#
#...# ..#.. ....# ....# .#.#. #.... #.... ...#. #...# #...#
#...# ..#.. ...#. ..##. #..#. ####. ####. ..#.. .###. .####
#...# ..#.. ..#.. ....# ##### ....# #...# ..#.. #...# ....#
#...# ..#.. .#... #...# ...#. #...# #...# ..#.. #...# ....#
.###. .###. ##### .###. ...#. .###. .###. ..#.. .###. .###.
"""
GLYPHS = list(zip(*(row.split() for row in ROWS.split("\n") if row), strict=True))


def digits() -> Iterator[dict[str, Any]]:
    """Yield drawings of digits of 8 x 8 pixels, each with noise and in a place of its own."""
    rng = np.random.default_rng(SEED)
    for number in range(RECORDS):
        label = number % 10
        image = rng.random((8, 8), np.float32) / 5
        top, left = rng.integers(0, 2), rng.integers(0, 4)
        image[top : top + 7, left : left + 5] += [[bit == "#" for bit in row] for row in GLYPHS[label]]
        yield {"image": np.minimum(image, 1), "label": label, "number": number}


def stream_of(folder: str) -> cachelayer.Stream[Any]:
    """Return the shuffled stream that both processes read."""
    return cachelayer.Storage(folder).fetch("digits", "v1").stream(BATCH, shuffle=True, seed=SEED)


def resume(folder: str) -> None:
    """Do the work of the second process: restore the state and read the rest of the epoch."""
    iterator = iter(stream_of(folder))
    iterator.set_state(json.loads((Path(folder) / "state.json").read_text()))
    numbers = [batch["number"].tolist() for batch in iterator]
    (Path(folder) / "resumed.json").write_text(json.dumps({"process": os.getpid(), "numbers": numbers}))


def run(folder: str) -> None:
    """Run the demo, and print a line for each step."""
    storage = cachelayer.Storage(folder)
    ref = storage.cache(digits, "digits", "v1")
    print(f"cached      {ref.reference}")
    print(f"            {len(ref)} records, {ref.nbytes / 1e6:.1f} MB: {ref.element_spec}")
    again = storage.cache(digits, "digits", "v1")
    print(f"again       opened from the cache, the generator did not run: {again}")

    print(f"at random   record 1234 is a {ref[1234]['label']}:")
    for row in ref[1234]["image"]:
        print("            " + "".join(" .:-=+*#%@"[round(9 * pixel)] * 2 for pixel in row))
    labels = ref.read(np.arange(len(ref)), fields=("label",))["label"]
    print(f"            all labels in one read, by digit: {np.bincount(labels).tolist()}")

    iterator = iter(stream_of(folder))
    before = [next(iterator)["number"].tolist() for _ in range(STOP_AFTER)]
    state = iterator.get_state()
    (Path(folder) / "state.json").write_text(json.dumps(state))
    print(f"stopped     process {os.getpid()} after {STOP_AFTER} shuffled batches, position {state['position']}")

    subprocess.run([sys.executable, "-c", _RESUME, folder], check=True)  # noqa: S603
    resumed = json.loads((Path(folder) / "resumed.json").read_text())
    after = resumed["numbers"]
    print(f"resumed     process {resumed['process']}: {len(after)} more batches")

    uninterrupted = [batch["number"].tolist() for batch in stream_of(folder)]
    handed_out = sorted(number for batch in before + after for number in batch)
    if before + after != uninterrupted or handed_out != list(range(len(ref))):
        raise CorruptionError("records were lost or repeated on the way through two processes: please report it")
    print(f"proved      {len(ref)} records, each handed out once, in the order of an uninterrupted run")
    report = storage.verify("digits", "v1", progress=False)
    print(f"verified    {report.records} records, each with its checksum: {len(report.problems)} problems")


@command("Help", "cachelayer demo", "cachelayer demo --view", "cachelayer demo /tmp/digits    # keeps the cache")
def demo(
    folder: Annotated[
        Path | None, typer.Argument(help="The folder for the cache; by default a temporary one.", show_default=False)
    ] = None,
    view: Annotated[bool, typer.Option("--view", help="Show the cache as a page in the browser afterwards.")] = False,
    no_open: Annotated[bool, typer.Option("--no-open", help="With --view: only print the URL.")] = False,
) -> Answer:
    """Cache a sequence, stop reading in mid-epoch, resume in another process, and prove that nothing was lost."""
    with tempfile.TemporaryDirectory(prefix="cachelayer-demo-") as temporary:
        cache = str(folder or temporary)
        run(cache)
        if view:
            typer.echo("the page    ", nl=False)
            serve(cachelayer.Storage(cache), "digits@v1", is_opened=not no_open)
        else:
            typer.echo("next        cachelayer demo --view shows the cache as a page in the browser")
    return Answer({"proved": True})
