"""Values that cross JAX."""

from __future__ import annotations

import pytest
from jax_process import assert_tests_pass


@pytest.mark.needs("jax")
def test_values_cross_jax_as_the_page_says() -> None:
    assert_tests_pass("jax_values_cases.py")
