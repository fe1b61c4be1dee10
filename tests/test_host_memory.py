"""The memory that a process may use."""

import os
from pathlib import Path

import pytest

from cachelayer.support.host import memory_nbytes

PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
@pytest.mark.parametrize(
    ("content", "expected"),
    [("1048576\n", 1 << 20), ("max\n", PHYSICAL), ("9223372036854771712\n", PHYSICAL), ("", PHYSICAL)],
)
def test_the_limit_of_a_container_counts(tmp_path: Path, name: str, content: str, expected: int) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)
    assert memory_nbytes(tmp_path) == expected


def test_without_a_container_it_is_that_of_the_host(tmp_path: Path) -> None:
    assert memory_nbytes(tmp_path) == PHYSICAL
    assert 0 < memory_nbytes() <= PHYSICAL
