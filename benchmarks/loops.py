"""The loops over epochs that people write, and in which frameworks they are exact: run ``python benchmarks/loops.py``.

A row is a test of `LoopConformance`, a column what is looped over.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from harness import table

TESTS = Path(__file__).parent.parent / "tests"
FILES = [TESTS / "streams" / "test_epochs.py", TESTS / "adapters" / "test_torch.py", TESTS / "support" / "jax_cases.py"]
SYMBOLS = {"passed": "yes", "failed": "NO", "skipped": "-"}


class Outcomes:
    """The worst outcome of each test of each framework, in the order in which they ran."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when != "call" and report.passed:
            return
        framework, test = re.findall(r"TestLoopsOf(\w+)::test_(\w+)", report.nodeid)[0]
        if self.found.get((framework, test)) != "failed":
            self.found[framework, test] = report.outcome


def main() -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"
    outcomes = Outcomes()
    pytest.main(["-q", "-p", "no:cacheprovider", "-k", "TestLoopsOf", *map(str, FILES)], plugins=[outcomes])
    frameworks = list(dict.fromkeys(framework for framework, _ in outcomes.found))
    rows = [
        (test.replace("_", " "), *(SYMBOLS.get(outcomes.found.get((each, test), ""), "-") for each in frameworks))
        for test in dict.fromkeys(test for _, test in outcomes.found)
    ]
    print(table("Loops over epochs", ("loop", *frameworks), rows))


if __name__ == "__main__":
    main()
