"""Warnings point at the user's own line."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cachelayer import ArraySpec, CacheLayerWarning, Storage


def numbers() -> Iterator[int]:
    """A source that cannot be divided."""
    yield from range(3)


def mixed() -> list[Any]:
    return [np.int64(1), "no number", np.int64(3)]


def damaged(storage: Storage) -> Storage:
    storage.submit([1], "damaged@v1")
    # The entry and the copy of the newest one.
    for file in (Path(storage.url) / "damaged" / "_log").iterdir():
        file.chmod(0o644)
        file.write_text("{}")
    return storage


CALLS: dict[str, Callable[[Storage], object]] = {
    "submit with workers": lambda storage: storage.submit(numbers, "d@v1", workers=2),
    "cache with workers": lambda storage: storage.cache(numbers, "d@v1", workers=2),
    "cache with hosts": lambda storage: storage.cache(numbers, "d@v1", hosts=(0, 1)),
    "cacheable with workers": lambda storage: storage.cacheable("d@v1", workers=2)(numbers)(),
    "what is left out": lambda storage: storage.submit(
        mixed(), "d@v1", element_spec=ArraySpec("int64", ()), on_error="skip"
    ),
    "what is left out of what is appended": lambda storage: (
        storage.submit([1], "d@v1") and storage.append("d@v1", "v2", mixed(), on_error="skip")
    ),
    "a stale version": lambda storage: (storage.cache([1], "d@v1"), storage.cache([2], "d@v1")),
    "gc of a damaged log": lambda storage: damaged(storage).gc(),
    "a seed without shuffle": lambda storage: list(storage.submit([1], "d@v1").stream(seed=3)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_warning_points_at_the_line_of_the_user(name: str, tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        CALLS[name](Storage(tmp_path))
    found = [warning for warning in said if issubclass(warning.category, CacheLayerWarning)]
    code = CALLS[name].__code__
    last = max(line for _, _, line in code.co_lines() if line)
    assert found
    for warning in found:
        assert warning.filename == __file__
        assert code.co_firstlineno <= warning.lineno <= last
