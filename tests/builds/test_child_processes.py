"""Processes that a build starts never begin or await one: modules that build when they are imported, and sources."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from forks import FORKS

from cachelayer import InvalidArgumentError, Storage, sharded

pytestmark = pytest.mark.slow

MODULE = """
import tempfile
import cachelayer

storage = cachelayer.Storage(FOLDER)

class Rows:
    def __len__(self):
        return 4000

    def __getitem__(self, number):
        if number >= 4000:
            raise IndexError(number)
        return {"n": number}

def part(index, count):
    return [{"n": index}]

def doubled(row):
    return {"double": 2 * row["n"]}

CALL
"""
CALLS = {
    "a sequence": 'storage.cache(Rows(), "d@v1", workers=2)',
    "parts": 'storage.cache(cachelayer.sharded(part, 3), "d@v1", workers=2)',
    "hosts": 'storage.cache(cachelayer.sharded(part, 3), "d@v1", workers=2, hosts=(0, 1))',
    "columns": 'storage.cache(Rows(), "d@v0"); storage.add_columns("d@v0", new="v1", columns=doubled, workers=2)',
    "append": 'storage.cache([{"n": 7}], "d@v0"); storage.append("d@v0", new="v1", source=Rows(), workers=2)',
    "ray": 'storage.cache(cachelayer.sharded(part, 3), "d@v1", engine="ray")',
}


@pytest.mark.parametrize(
    ("call", "folder"),
    [
        ("parts", "one"),
        ("columns", "one"),
        ("a sequence", "new"),
        *(pytest.param(call, "one", marks=pytest.mark.soak) for call in ("hosts", "append")),
        pytest.param("ray", "new", marks=[pytest.mark.soak, pytest.mark.needs("ray")]),
    ],
)
def test_a_module_that_builds_when_it_is_imported_is_refused_with_the_cure(
    tmp_path: Path, call: str, folder: str
) -> None:
    place = repr(str(tmp_path / "storage")) if folder == "one" else f"tempfile.mkdtemp(dir={str(tmp_path)!r})"
    (tmp_path / "top_level.py").write_text(MODULE.replace("FOLDER", place).replace("CALL", CALLS[call]))
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    ran = subprocess.run(
        [sys.executable, "-c", "import top_level"], capture_output=True, text=True, timeout=120, env=environment
    )
    assert ran.returncode != 0
    assert "InvalidArgumentError" in ran.stderr
    assert "__main__" in ran.stderr
    assert not any('"v1"' in entry.read_text() for entry in tmp_path.glob("**/d/_log/*"))


def build(folder: Path, version: str, talk: Any) -> None:
    """Build in a child, and say what became of it."""
    try:
        talk.send(len(Storage(folder).cache([{"n": 1}], f"d@{version}")))
    except InvalidArgumentError as error:
        talk.send(type(error).__name__)


def started(method: str, folder: Path, version: str) -> Any:
    """What became of the build of a child that begins by a method."""
    here, there = multiprocessing.Pipe()
    context = FORKS if method == "a forkserver that ran before" else multiprocessing.get_context(method)
    child = context.Process(target=build, args=(folder, version, there))  # type: ignore[attr-defined]
    child.start()
    there.close()
    try:
        return here.recv()
    finally:
        child.join()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*FORKS:cachelayer.CacheLayerWarning")
@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("method", ["fork", "spawn", "a forkserver that ran before"])
def test_a_child_of_a_source_builds_another_version_and_is_refused_its_own(
    tmp_path: Path, method: str, version: str
) -> None:
    said: list[Any] = []

    def rows() -> Iterator[dict[str, int]]:
        said.append(started(method, tmp_path, version))
        yield {"n": 0}

    storage = Storage(tmp_path)
    assert len(storage.cache(rows, "d@v1")) == 1
    assert said == ["InvalidArgumentError" if version == "v1" else 1]
    assert started(method, tmp_path, "v3") == 1
    assert sorted(storage.versions("d")) == sorted({"v1", version, "v3"})


PROGRAM = "import sys, cachelayer; print(cachelayer.Storage(sys.argv[1]).cache([1, 2], 'other', 'v1').read([1])[0])"


@pytest.mark.parametrize("place", ["the same storage", "another"])
def test_a_program_that_a_source_or_a_thread_beside_it_starts_caches_what_it_wants(tmp_path: Path, place: str) -> None:
    folder = tmp_path if place == "the same storage" else tmp_path / "another"
    environment = dict(os.environ)

    def rows() -> Iterator[dict[str, str]]:
        assert dict(os.environ) == environment
        with ThreadPoolExecutor(1) as beside:
            command = [sys.executable, "-c", PROGRAM, str(folder)]
            done = beside.submit(subprocess.run, command, capture_output=True, text=True).result()
        yield {"said": done.stdout.strip(), "error": done.stderr}

    ref = Storage(tmp_path).cache(rows, "d@v1", element_spec={"said": str, "error": str})
    assert ref[0] == {"said": "2", "error": ""}


def test_a_source_that_asks_for_its_own_version_is_refused(storage: Storage) -> None:
    def rows() -> Iterator[Any]:
        yield from storage.cache(rows, "d@v1")

    def listed() -> list[Any]:
        return list(storage.cache(listed, "d@v1"))

    for source in (rows, listed):
        with pytest.raises(InvalidArgumentError, match="itself"):
            storage.cache(source, "d@v1")

    def outer() -> Iterator[Any]:
        yield from storage.cache([{"n": 1}], "inner@v1")

    assert storage.cache(outer, "d@v1")[0]["n"] == 1


def daemonic(folder: Path, talk: Any) -> None:
    rows = [{"n": number} for number in range(3000)]
    tried = {
        "sequence": lambda: Storage(folder).submit(rows, "d@v1", workers=2),
        "parts": lambda: Storage(folder).submit(sharded(lambda index, _: [{"n": index}], 3), "d@v1", workers=2),
        "one": lambda: Storage(folder).submit(rows, "d@v1"),
    }
    for name, build in tried.items():
        try:
            talk.send((name, len(build())))
        except InvalidArgumentError as error:
            talk.send((name, str(error)))


def test_workers_in_a_daemonic_process_are_a_clear_error(tmp_path: Path) -> None:
    here, there = multiprocessing.Pipe()
    child = FORKS.Process(target=daemonic, args=(tmp_path, there), daemon=True)
    child.start()
    said = dict(here.recv() for _ in range(3))
    child.join()
    assert said["one"] == 3000
    assert all("daemonic" in said[name] and "workers=1" in said[name] for name in ("sequence", "parts"))
