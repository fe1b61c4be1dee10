"""How much of the library an operation walks through: the distinct functions and modules of ours that it calls.

Run: ``python benchmarks/walk.py``. Each operation runs in a fresh process; all its threads count, what comes before it
does not. A comprehension, lambda or generator expression counts as the function that holds it; the imports that an
operation causes count as no function. ``--names OPERATION`` prints the functions of one operation.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import cachelayer

PACKAGE = Path(cachelayer.__file__).parent
ROOTS = (str(PACKAGE), str((PACKAGE / "adapters").resolve()))
RECORDS = 10_000


def is_imported(frame: FrameType | None) -> bool:
    """Return whether a frame runs because a module of ours is imported: bodies of modules and classes, and their calls.

    They are not optimised code.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith(ROOTS) and not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            return True
        frame = frame.f_back
    return False


def walked(operation: Callable[[], Any]) -> set[tuple[str, str]]:
    """The functions of ours that an operation calls: file and qualified name."""
    calls: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOTS) and not is_imported(frame):
            calls.add((code.co_filename, code.co_qualname))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        operation()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    named = {(file, name.partition(".<locals>.<")[0]) for file, name in calls}
    return {(file, name) for file, name in named if not name.startswith("<")}


def fetch(folder: Path) -> Callable[[], Any]:
    storage = cachelayer.Storage(folder)
    return lambda: storage.fetch("data@v1")


def cache(folder: Path) -> Callable[[], Any]:
    storage = cachelayer.Storage(folder)

    def elements() -> Any:
        for number in range(200):
            yield {"x": np.int64(number)}

    return lambda: storage.cache(elements, "generated@v1")


def one(folder: Path) -> Callable[[], Any]:
    ref = cachelayer.Storage(folder).fetch("data@v1")
    ref[7]  # opens the shard
    return lambda: ref[9_000]


def read(folder: Path) -> Callable[[], Any]:
    ref = cachelayer.Storage(folder).fetch("data@v1")
    ref.read([1, 2])
    return lambda: ref.read([5, 3, 9_000, 17, 2, 4_000, 1, 8])


def first_batch(folder: Path) -> Callable[[], Any]:
    ref = cachelayer.Storage(folder).fetch("data@v1")
    return lambda: next(iter(ref.stream(8, shuffle=True, seed=0)))


OPERATIONS = {
    "fetch": fetch,
    "cache a generator of 200": cache,
    "ref[i]": one,
    "read of 8": read,
    "first shuffled batch of 8": first_batch,
}


def run_one(name: str, folder: Path, *, names: bool) -> None:
    calls = walked(OPERATIONS[name](folder))
    print(len(calls), len({file for file, _ in calls}))
    if names:
        for file, function in sorted(calls):
            print(file.removeprefix(str(PACKAGE.parent)), function)


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        run_one(sys.argv[2], Path(sys.argv[3]), names="--names" in sys.argv)
        return
    with tempfile.TemporaryDirectory() as made:
        data = {"x": np.random.default_rng(0).integers(0, 256, (RECORDS, 3, 32, 32), dtype=np.uint8)}
        cachelayer.Storage(made).cache(data, "data@v1", progress=False)
        wanted = sys.argv[2:] if sys.argv[1:2] == ["--names"] else list(OPERATIONS)
        for name in wanted:
            command = [sys.executable, __file__, "--one", name, made]
            found = subprocess.run(
                [*command, *sys.argv[1:2]], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            ).stdout
            functions, modules = found.split()[:2]
            print(f"{name:28}{functions:>5} functions, {modules:>3} modules")
            if sys.argv[1:]:
                print(found.partition("\n")[2])


if __name__ == "__main__":
    main()
