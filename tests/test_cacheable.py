"""Functions whose results are versions."""

from __future__ import annotations

import functools
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

import cachelayer


@pytest.fixture
def storage(tmp_path: Path) -> cachelayer.Storage:
    return cachelayer.Storage(tmp_path)


def test_the_function_runs_once_and_keeps_its_face(storage: cachelayer.Storage) -> None:
    calls = []

    @storage.cacheable("rows", "v1", description="rows")
    def rows(count: int, *, step: int = 2) -> list[int]:
        """Some rows."""
        calls.append(count)
        return list(range(0, count, step))

    assert (rows.__name__, rows.__doc__) == ("rows", "Some rows.")
    for call in (lambda: rows(10), lambda: rows(count=10), lambda: rows(10, step=2)):
        assert list(call()) == [0, 2, 4, 6, 8]
    assert calls == [10]
    provenance = rows(10).provenance
    assert provenance["arguments"] == {"count": 10, "step": 2}
    assert provenance["function"].endswith("rows")
    assert provenance["code"]["digest"].startswith("sha256:")


def test_a_function_without_a_name_can_be_cached(storage: cachelayer.Storage) -> None:
    def rows(count: int) -> list[int]:
        return list(range(count))

    three = storage.cacheable("rows", "v1")(functools.partial(rows, 3))
    assert list(three()) == [0, 1, 2]


def test_other_arguments_are_refused_with_both(storage: cachelayer.Storage) -> None:
    @storage.cacheable("rows", "v1")
    def rows(count: int) -> list[int]:
        return list(range(count))

    rows(3)
    with pytest.raises(cachelayer.ArgumentsMismatchError, match="count was 3 and is 4"):
        rows(4)


def test_what_json_cannot_hold_is_not_compared(storage: cachelayer.Storage) -> None:
    @storage.cacheable("rows", "v1")
    def rows(thing: Any, count: int = 2) -> list[int]:
        return [count]

    with pytest.warns(cachelayer.CacheLayerWarning, match="'thing'"):
        rows(object())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cachelayer.CacheLayerWarning)
        assert list(rows(object())) == [2]
        with pytest.raises(cachelayer.ArgumentsMismatchError, match="count"):
            rows(object(), 3)


def test_secrets_are_hashed(storage: cachelayer.Storage, tmp_path: Path) -> None:
    @storage.cacheable("rows", "v1")
    def rows(api_key: str, options: dict[str, str]) -> list[int]:
        return [1]

    arguments = rows("hunter2", {"password": "hunter3", "user": "me"}).provenance["arguments"]
    assert "hunter" not in json.dumps(arguments)
    assert arguments["options"]["user"] == "me"
    assert not any(b"hunter" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    with pytest.raises(cachelayer.ArgumentsMismatchError):
        rows("hunter4", {"password": "hunter3", "user": "me"})
