"""The page of values, and the verdicts that it is made of."""

from __future__ import annotations

import re

from repository import TESTS
from values_page import PAGE, render
from values_table import FOLDER


def test_the_page_shows_the_verdicts_that_are_tested() -> None:
    assert PAGE.read_text() == render(), "run: python tests/support/values_page.py"


def test_every_column_of_the_page_has_its_tests() -> None:
    files = [*TESTS.rglob("test_values_*.py"), *TESTS.rglob("*_values_cases.py")]
    tests = "".join(path.read_text() for path in files)
    assert {path.stem for path in FOLDER.glob("*.toml")} == {*re.findall(r'Row\(\s*"(\w+)"', tests)}
