"""Worker processes begin as the program says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from repository import SUPPORT


@pytest.mark.slow
def test_everything_works_where_processes_begin_by_forkserver(tmp_path: Path) -> None:
    subprocess.run([sys.executable, SUPPORT / "forkserver_child.py", tmp_path], check=True)
