"""JAX, whose tests run in processes of their own; those over several processes are in test_train.py."""

import pytest
from jax_process import assert_tests_pass


@pytest.mark.needs("jax", "orbax")
@pytest.mark.sampled
@pytest.mark.parametrize(("file", "devices"), [("jax_cases.py", 8), ("orbax_cases.py", 4), ("jax_values_cases.py", 1)])
def test_global_batches_checkpoints_and_values_keep_their_promises(file: str, devices: int) -> None:
    assert_tests_pass(file, devices=devices)
