"""A version is known by the code and the values that made it, not by a text that was edited meanwhile."""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import CacheLayerWarning, StaleVersionError, StaleVersionWarning, Storage

Edit = Callable[[str], ModuleType]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "storage")


@pytest.fixture
def edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Edit]:
    """Writes a module that returns [number], and imports it the first time."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    name = f"edited_{tmp_path.name}"
    written = 0

    def write(number: str) -> ModuleType:
        nonlocal written
        path = tmp_path / f"{name}.py"
        path.write_text(f"def helper():\n    return {number}\n\n\ndef f():\n    return [helper()]\n")
        written += 1
        # Two edits within one tick of the file system's clock are told apart.
        os.utime(path, ns=(0, 10**9 * (10**9 + written)))
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield write
    sys.modules.pop(name, None)


def test_what_runs_counts_and_not_what_its_file_holds_by_now(storage: Storage, edit: Edit) -> None:
    module = edit("1")
    edit("2")
    first = storage.cacheable("e", "auto")(module.f)()
    fresh = importlib.reload(module)
    second = storage.cacheable("e", "auto")(fresh.f)()
    assert (list(first), list(second)) == ([1], [2])
    edit("3")
    assert storage.cacheable("e", "auto")(fresh.f)().dataset_version == second.dataset_version


def test_a_reload_is_noticed_and_recorded(storage: Storage, edit: Edit) -> None:
    module = edit("1")
    storage.cache(module.f, "e", "v1")
    edit("2")
    module = importlib.reload(module)
    with pytest.warns(StaleVersionWarning, match="helper"):
        storage.cache(module.f, "e", "v1")
    with pytest.raises(StaleVersionError, match="helper"):
        storage.cache(module.f, "e", "v1", on_change="error")
    storage.cache(module.f, "e", "v2")
    program = f"import cachelayer, {module.__name__} as m; s = cachelayer.Storage({str(storage.url)!r})\n"
    call = program + "s.cache(m.f, 'e', 'v2', on_change='error')"
    folder = str(Path(str(module.__file__)).parent)
    subprocess.run([sys.executable, "-c", call], check=True, env={**os.environ, "PYTHONPATH": folder})


def make(value: Any) -> Callable[[], list[int]]:
    def rows() -> list[int]:
        return [len(str(value))]

    return rows


def rows(*args: Any, value: Any = None) -> list[int]:
    return [1]


class Slots:
    __slots__ = ("__value", "other")

    def __init__(self, value: Any) -> None:
        self.__value = value

    def __iter__(self) -> Iterator[int]:
        return iter([1])


class Held:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __iter__(self) -> Iterator[int]:
        return iter([1])


class Outer(Held):
    def __init__(self, value: Any) -> None:
        super().__init__([Held(value)])


VALUES: dict[str, tuple[Any, Any]] = {
    "array": (np.arange(100), np.arange(100) * (np.arange(100) < 50)),
    "dtype": (np.zeros(2), np.zeros(2, np.float32)),
    "bytes": (b"a", b"b"),
    "set": ({"a", "b"}, {"a", "c"}),
    "range": (range(3), range(4)),
    "dict": ({"a": 1}, {"a": 2}),
    "keys": ({1: 2}, {2: 2}),
    "scalar": (np.int64(3), np.int64(4)),
    "path": (Path("a"), Path("b")),
    "function": (make(1), make(2)),
    "large": (np.zeros((3000, 4000)), np.ones((3000, 4000))),
}
WAYS: dict[str, Callable[[Any], Any]] = {
    "closure": make,
    "partial": lambda value: functools.partial(rows, value=value),
    "place in a partial": lambda value: functools.partial(rows, 3, value),
    "attribute": Held,
    "slot": Slots,
    "attribute of a nested object": Outer,
    "method": lambda value: Held(value).__iter__,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", VALUES)
def test_values_that_json_cannot_hold_are_compared(storage: Storage, name: str, way: str) -> None:
    before, after = map(WAYS[way], VALUES[name])
    built = storage.cache(before, "d", "v1")
    assert storage.cache(WAYS[way](VALUES[name][0]), "d", "v1", on_change="error").digest == built.digest
    with pytest.raises(StaleVersionError, match=r"value|args"):
        storage.cache(after, "d", "v1", on_change="error")


@pytest.mark.parametrize("way", WAYS)
def test_what_cannot_be_compared_is_named_once(storage: Storage, way: str, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        with pytest.warns(CacheLayerWarning, match="TextIOWrapper") as caught:
            refs = [storage.cache(WAYS[way](file), "d", "v1") for _ in range(2)]
        assert (len(caught), len(refs)) == (1, 2)
        storage.cache(WAYS[way](file), "e", "v1", on_change="ignore")


def test_what_a_build_changes_is_not_compared(storage: Storage) -> None:
    calls: list[int] = []

    def counted() -> list[int]:
        calls.append(1)
        return [1]

    for _ in range(2):
        storage.cache(counted, "d", "v1", on_change="error")
    assert calls == [1]


def test_locks_have_no_content(storage: Storage) -> None:
    for value in (threading.Lock(), threading.Event(), make):
        storage.cache(make(value), "d", type(value).__name__, on_change="error")


PROGRAM = """
import cachelayer, functools, numpy as np, sys
from pathlib import Path

NAMES = {"a", "b", "c"}

class Reader:
    __slots__ = ("names", "depth")
    def __init__(self, *names):
        self.names = frozenset(names)
        self.depth = {"x": [np.arange(3), b"y", Path("z")], NAMES.__len__(): None}
    def read(self):
        return sorted(self.names)

def rows(reader, table):
    return reader.read() + sorted(NAMES)

storage = cachelayer.Storage(sys.argv[1])
made = storage.cacheable("d", "auto")(rows)(Reader("p", "q", "r"), {"k": {1, "2", 3.0}})
part = storage.cache(functools.partial(rows, Reader("p", "q"), np.eye(2)), "e", "v1", on_change="error")
print(made.dataset_version)
"""


@pytest.mark.slow
def test_a_fingerprint_is_the_same_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    names = {
        subprocess.run(
            [sys.executable, tmp_path / "program.py", tmp_path / "storage"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in "123"
    }
    assert len(names) == 1
    assert len(cachelayer.Storage(tmp_path / "storage").versions("d")) == 1
