"""Runs a file of tests in a process of its own: one that has started JAX can neither fork nor change its devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def assert_tests_pass(file: str, *, devices: int = 1) -> None:
    """Whether all tests of a file in this folder pass on so many CPU devices."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__).with_name(file))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
