"""Global batches over eight devices of one process; those over several processes are in test_train.py."""

from __future__ import annotations

import pytest
from jax_process import assert_tests_pass


@pytest.mark.needs("jax")
@pytest.mark.sampled
def test_global_batches_keep_their_promises_on_eight_devices() -> None:
    assert_tests_pass("jax_cases.py", devices=8)


@pytest.mark.needs("jax")
def test_values_cross_jax_as_the_page_says() -> None:
    assert_tests_pass("jax_values_cases.py")
