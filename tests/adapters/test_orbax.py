"""States in Orbax checkpoints; those of several processes are in test_train.py."""

from __future__ import annotations

import pytest
from jax_process import assert_tests_pass


@pytest.mark.needs("jax", "orbax")
def test_iterators_keep_their_promises_in_orbax_checkpoints() -> None:
    assert_tests_pass("orbax_cases.py", devices=4)
