"""What a run leaves out of large tests, and what the soak suite does not."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import pytest
import samples
from repository import ROOT


def test_any_two_values_of_two_axes_meet_in_a_pairwise_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    axes: list[list[Any]] = [["a", "b", "c"], [0, 1, 2, 3], [True, False], ["x", "y", "z"]]
    monkeypatch.setattr(samples, "IN_FULL", False)
    chosen = samples.pairwise(*axes)
    for one, other in itertools.combinations(range(len(axes)), 2):
        assert {(each[one], each[other]) for each in chosen} == set(itertools.product(axes[one], axes[other]))
    assert len(chosen) < 24
    monkeypatch.setattr(samples, "IN_FULL", True)
    assert samples.pairwise(*axes) == list(itertools.product(*axes))


def test_samples_from_all_beginnings_are_everything_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "IN_FULL", False)
    parts = [samples.some(range(11), start) for start in range(samples.SHARE)]
    assert sorted(itertools.chain(*parts)) == list(range(11))
    assert samples.some([]) == []
    monkeypatch.setattr(samples, "IN_FULL", True)
    assert list(samples.some(range(11))) == list(range(11))


@pytest.mark.slow
def test_the_soak_suite_has_all_cases_of_sampled_tests_and_all_properties() -> None:
    files = ["tests/builds/test_lost_replies.py", "tests/streams/test_epochs.py"]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", "soak", *files]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "tests/builds/test_lost_replies.py::" in found
    assert "tests/streams/test_epochs.py::" in found
