"""The page on object stores: its code runs, and every test that it names is there."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "cloud.md").read_text()
NAMED = sorted(set(re.findall(r"`(test_\w+\.py(?:::\w+)?)`", PAGE)))


def test_its_code_prints_what_stands_below_it() -> None:
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", PAGE, re.DOTALL)
    assert blocks
    for code, output in blocks:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, "docs/cloud.md", "exec"), names)
        assert printed.getvalue() == output


@pytest.mark.parametrize("name", NAMED)
def test_what_shows_a_promise_is_a_test(name: str) -> None:
    file, _, function = name.partition("::")
    assert f"def {function}(" in (TESTS / file).read_text() if function else (TESTS / file).exists()
