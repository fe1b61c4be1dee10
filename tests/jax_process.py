"""Runs a file of tests in a process of its own: one that has started JAX can neither fork nor change its devices."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any


def assert_tests_pass(file: str, *, devices: int = 1) -> None:
    """Whether all tests of a file in this folder pass on so many CPU devices."""
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__).with_name(file))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def run_page(name: str) -> None:
    """Run the code of a page in docs/, one block after the other; what they print is what the page shows."""
    page = Path(__file__).parents[1] / "docs" / name
    blocks = re.findall(r"```python\n(.*?)```\n(?:```text\n(.*?)```)?", page.read_text(), re.DOTALL)
    assert len(blocks) >= 3
    names: dict[str, Any] = {}
    for code, output in blocks:
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(code, str(page), "exec"), names)
        assert printed.getvalue() == output
